"""Plain-text tables for reports."""

from __future__ import annotations

import textwrap
from collections.abc import Sequence


def table(header: Sequence[str], rows: Sequence[Sequence[object]], *, right: Sequence[int] = ()) -> str:
    """Columns as wide as their widest cell; those numbered in `right` are aligned to the right."""
    cells = [[str(cell) for cell in row] for row in (header, *rows)]
    widths = [max(len(row[i]) for row in cells) for i in range(len(header))]
    lines = []
    for row in cells:
        padded = [cell.rjust(w) if i in right else cell.ljust(w) for i, (cell, w) in enumerate(zip(row, widths))]
        lines.append("  ".join(padded).rstrip())
    lines.insert(1, "  ".join("-" * w for w in widths))
    return "\n".join(lines)


def catalogue(entries: Sequence[tuple[str, ...]], width: int) -> str:
    """Names at the left, and beside each its texts, a paragraph each, wrapped to the width (or to 40 columns)."""
    left = max(len(name) for name, *_ in entries) + 2
    wrapper = textwrap.TextWrapper(max(width - left, 40), break_on_hyphens=False)
    lines = []
    for name, *texts in entries:
        wrapped = [line for text in texts for line in wrapper.wrap(text)]
        lines += [f"{start:{left}}{line}" for start, line in zip([name] + [""] * len(wrapped), wrapped)]
    return "\n".join(lines)
