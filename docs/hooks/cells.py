"""Pages of scripts with cells (`# %%`): prose as prose, code as code, so that there is one text and it runs."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[2]
MARK = re.compile(r"<!-- the script (\S+) -->")
CELL = re.compile(r"^# %%(.*)\n", re.MULTILINE)


def on_page_markdown(markdown: str, **_: Any) -> str:
    """Put the script in the place of the mark that names it."""
    return MARK.sub(lambda found: as_markdown((ROOT / found[1]).read_text()), markdown)


def as_markdown(script: str) -> str:
    """The cells of a script as a page."""
    before, *cells = CELL.split(script)  # kind, text, kind, text, ...
    if before.strip():
        raise ValueError(f"the script begins with {before.strip()[:40]!r}; put it into a cell, after a line of '# %%'")
    parts = []
    for kind, text in zip(cells[::2], cells[1::2], strict=True):
        if kind.strip() == "[markdown]":
            parts.append(re.sub(r"^# ?", "", text.strip(), flags=re.MULTILINE))
        elif text.strip():
            parts.append(f"```python\n{text.strip()}\n```")
    return "\n\n".join(parts)
