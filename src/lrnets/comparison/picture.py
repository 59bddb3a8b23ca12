"""The table as bars."""

from __future__ import annotations

import io
import statistics
from collections.abc import Sequence
from pathlib import Path

from lrnets.comparison.results import RowResult
from lrnets.figures.style import KINDS, VERMILION, house_style, light_grid, new_figure, require_matplotlib

FORMATS = ("pdf", "png", "svg")
ROOM = 2.5  # the axis ends at so many medians: one method that fails must not flatten all others


def require_picture(path: Path) -> None:
    """Refuse a picture that could not be written, before anything is trained for it."""
    if path.suffix[1:].lower() not in FORMATS:
        raise ValueError(f"{path} is no picture; end its name in one of {', '.join('.' + name for name in FORMATS)}")
    require_matplotlib()


def axis_end(results: Sequence[RowResult]) -> float:
    """Where the axis ends, in per cent: at the largest figure, or before it if that is far from the others."""
    printed = [found.row.printed_error or 0.0 for found in results]
    tops = [found.error.mean + (found.error.deviation or 0.0) for found in results]
    limit = ROOM * statistics.median(found.error.mean for found in results)
    return 1.15 * max(*printed, min(max(tops), limit), 1e-3)


def picture(results: Sequence[RowResult], title: str, form: str) -> bytes:
    """A bar a row with its deviation over seeds, and a diamond for the paper's figure; a file of that format."""
    with house_style():
        return _drawn(results, title, form)


def _drawn(results: Sequence[RowResult], title: str, form: str) -> bytes:
    from matplotlib.patches import Patch

    figure = new_figure(9, 1.6 + 0.34 * len(results))
    axis, end = figure.add_subplot(), axis_end(results)
    used = []
    for place, found in enumerate(results):
        kind = found.row.recipe.weights if found.row.recipe.weights in KINDS else "float"
        colour, hatch = KINDS[str(kind)]
        used.append(kind)
        cut = found.error.mean > end
        axis.barh(place, min(found.error.mean, end), color=colour, hatch=hatch, edgecolor="white", height=0.7)
        if found.error.deviation is not None and not cut:
            axis.errorbar(found.error.mean, place, xerr=found.error.deviation, color="black", capsize=3, linewidth=1)
        if found.row.printed_error is not None:
            axis.plot(found.row.printed_error, place, "D", color=VERMILION, markeredgecolor="white", markersize=7)
        text = f"{found.error} %" + (" →" if cut else "")
        # Beyond the diamond as well, which would cover it.
        right = min(max(found.error.mean + (found.error.deviation or 0.0), found.row.printed_error or 0.0), end)
        axis.annotate(text, (right, place), xytext=(6, 0), textcoords="offset points", va="center", fontsize=9,
                      annotation_clip=False, zorder=2,
                      bbox={"facecolor": "white", "edgecolor": "none", "pad": 0.8})  # fmt: skip
    axis.set_yticks(range(len(results)), [found.row.label for found in results])
    axis.set_xlim(0, end)
    axis.set_ylim(len(results) - 0.4, -0.6)  # the first row on top
    several = any(found.error.deviation is not None for found in results)
    axis.set_xlabel(f"test error (%), {'mean ± deviation over seeds' if several else 'one seed'}")
    axis.set_title(title)
    light_grid(axis, "x")
    axis.tick_params(axis="y", length=0)
    handles: list[object] = [
        Patch(facecolor=KINDS[kind][0], hatch=KINDS[kind][1], edgecolor="white", label=f"{kind} weights")
        for kind in KINDS if kind in used
    ]  # fmt: skip
    if any(found.row.printed for found in results):
        handles += axis.plot([], [], "D", color=VERMILION, label="the paper, as printed")
    figure.legend(handles=handles, loc="outside lower center", ncols=4)
    stream = io.BytesIO()
    figure.savefig(stream, format=form)
    return stream.getvalue()
