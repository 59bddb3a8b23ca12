"""Test error against bits a weight for all methods given, and the front that none of them beats in both."""

from __future__ import annotations

import statistics
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import TYPE_CHECKING

from lrnets.comparison.costs import kept_cost, measured_cost
from lrnets.comparison.results import Spread
from lrnets.figures.figure import Figure
from lrnets.figures.sources import ImpossibleError, Say, Source, without_seeds
from lrnets.figures.style import KINDS, SOFT, light_grid, new_figure
from lrnets.figures.task import Task
from lrnets.methods import method_named

if TYPE_CHECKING:
    import matplotlib.figure
    from matplotlib.axes import Axes

LINE = 0.042  # height of a label, as a share of the axis
SHIFT = 0.07  # of a point that would cover the one below, in columns
ROOM = 3.0  # the axis ends at so many medians: one method that fails must not flatten all others
SHAPES = {"binary": "s", "ternary": "o", "float": "D"}


@dataclass(frozen=True)
class Point:
    """Runs that differ in the seed alone."""

    label: str
    method: str
    kind: str  # of KINDS
    signs: bool  # are activations signs, too?
    bits: float
    bytes: int
    error: Spread
    front: bool = False


def tasks(sources: Sequence[Source], say: Say) -> Iterator[Task]:
    """One picture for each network and data set among the runs."""
    places: dict[tuple[str, str, float], list[Source]] = {}
    for source in sources:
        places.setdefault((source.recipe.data, source.recipe.network, source.recipe.width), []).append(source)
    for (data, network, width), group in places.items():
        suffix = f"-{data}-{network}-{width:g}" if len(places) > 1 else ""
        yield Task(f"error-against-bits{suffix}", partial(error_against_bits, group, say, suffix))


def error_against_bits(sources: Sequence[Source], say: Say, suffix: str = "") -> Figure:
    """A point a method with its deviation over seeds; the front as a line."""
    points, problems = [], []
    for group in without_seeds(sources):
        try:
            points.append(_point(group))
        except (OSError, ValueError) as error:
            problems.append(f"{group[0].label}: {error}")
    if len(points) < 2:
        why = f" ({problems[0]})" if problems else ""
        raise ImpossibleError(f"it compares two finished runs or more; {len(points)} given{why}. Name more runs")
    for problem in problems:
        say(f"error-against-bits{suffix}: without {problem}")
    points = marked_front(points)
    front = [point for point in points if point.front]
    sizes = sorted({round(point.bits, 2) for point in points})  # few: each has a column, with room for names

    def place(point: Point) -> int:
        return sizes.index(round(point.bits, 2))

    def draw() -> matplotlib.figure.Figure:
        figure = new_figure(max(6.5, 2.2 * len(sizes) + 0.8), 5.4)
        axis = figure.add_subplot()
        top = axis_top([point.error.mean for point in points])
        before: dict[int, tuple[float, float]] = {}  # of each column, the last point's height and shift
        for point in points:
            colour, _ = KINDS[point.kind]
            shown = min(point.error.mean, top)
            below, shift = before.get(place(point), (-top, 0.0))
            # Beside the one below, if they would cover each other.
            shift = SHIFT - shift if shown - below < LINE * top else 0.0
            before[place(point)] = shown, shift
            axis.errorbar(
                place(point) - shift, shown, yerr=point.error.deviation if shown < top else None,
                fmt=SHAPES[point.kind], color=colour, markersize=8, capsize=3, elinewidth=1, zorder=3,
                markerfacecolor="white" if point.signs else colour, markeredgewidth=1.6,
            )  # fmt: skip
        axis.set_xlim(-0.2, len(sizes) - 0.1)
        axis.set_ylim(0, 1.06 * top)
        stairs = [*((place(point), point.error.mean) for point in front), (len(sizes), front[-1].error.mean)]
        axis.step(*zip(*stairs), where="post", color=SOFT, linewidth=1, linestyle="--", zorder=1)
        for column in range(len(sizes)):
            _labels(axis, [point for point in points if place(point) == column], column, top)
        axis.set_xticks(range(len(sizes)), [f"{bits:g}" for bits in sizes])
        axis.set(title="Test error against bits a weight", ylabel="test error (%)")
        axis.set_xlabel("bits a weight, in the layers a method is for (not to scale)")
        light_grid(axis)
        _legend(figure, axis, points)
        return figure

    named = ", ".join(f"{point.label} ({point.bits:.2g} bits, {point.error} %)" for point in front)
    rows = tuple(
        (p.label, p.method, p.bits, p.bytes, p.error.mean, "" if p.error.deviation is None else p.error.deviation,
         len(p.error.values), p.front)
        for p in points
    )  # fmt: skip
    recipe = sources[0].recipe
    over = "mean and deviation over seeds" if any(len(p.error.values) > 1 for p in points) else "one seed each"
    return Figure(
        f"error-against-bits{suffix}",
        "Test error against bits a weight",
        f"Test error of the network that each of {len(points)} methods ends in, chosen on validation data, "
        f"{over}, against the bits of a weight ({recipe.network}, {recipe.data}). On the front, where "
        f"none is better in both: {named}.",
        f"Points of test error against bits a weight with a dashed front through: {named}.",
        draw,
        ("run", "method", "bits a weight", "bytes", "test error (%)", "deviation", "seeds", "on the front"),
        rows,
    )


def marked_front(points: Sequence[Point]) -> list[Point]:
    """By bits and error; on the front are those than which none has less of one and no more of the other."""

    def beaten(point: Point) -> bool:
        return any(
            other.bits <= point.bits and other.error.mean <= point.error.mean
            and (other.bits < point.bits or other.error.mean < point.error.mean)
            for other in points
        )  # fmt: skip

    ordered = sorted(points, key=lambda point: (point.bits, point.error.mean))
    return [replace(point, front=not beaten(point)) for point in ordered]


def axis_top(errors: Sequence[float]) -> float:
    """Where the axis ends: at the greatest error, or before it if that is far from the others."""
    return max(min(max(errors), ROOM * statistics.median(errors)), 1e-3) * 1.05


def spread_out(heights: Sequence[float], gap: float, low: float, high: float) -> list[float]:
    """Heights in rising order, moved so that neighbours are at least `gap` apart, within the limits if they fit."""
    placed: list[float] = []
    for height in heights:
        placed.append(max(height, low if not placed else placed[-1] + gap))
    ceiling = high
    for i in range(len(placed) - 1, -1, -1):
        placed[i] = min(placed[i], ceiling)
        ceiling = placed[i] - gap
    return placed


def _point(group: Sequence[Source]) -> Point:
    """Of the finished runs among them; if none is, the reason of the first."""
    finished, problem = [], None
    for source in group:
        try:
            finished.append((source, source.test_error))
        except (OSError, ValueError) as error:
            problem = problem or error
    if not finished:
        assert problem is not None
        raise problem
    first, recipe = finished[0][0], group[0].recipe
    cost = kept_cost(first.folder) or measured_cost(first.folder)
    method = method_named(str(recipe.method))
    kind = recipe.weights if recipe.weights in KINDS else "ternary"
    errors = Spread(tuple(error for _, error in finished))
    return Point(
        first.label, method.name, str(kind), method.activations != "unchanged", cost.bits, cost.bytes, errors
    )  # fmt: skip


def _labels(axis: Axes, points: Sequence[Point], column: int, top: float) -> None:
    """Beside the points, spread out where they would cover each other; those off the axis say their error."""
    points = sorted(points, key=lambda point: point.error.mean)
    heights = spread_out([min(p.error.mean, top) for p in points], LINE * top, 0.02 * top, 1.04 * top)
    for point, height in zip(points, heights):
        shown = min(point.error.mean, top)
        text = point.label + (f", {point.error} % ↑" if point.error.mean > top else "")
        if abs(height - shown) > 0.2 * LINE * top:  # moved: a line leads there
            axis.plot([column + 0.04, column + 0.1], [shown, height], color=SOFT, linewidth=0.6, zorder=2)
        axis.text(
            column + 0.12, height, text, va="center", fontsize=8.5, zorder=4,
            fontweight="bold" if point.front else "normal",
            bbox={"facecolor": "white", "edgecolor": "none", "pad": 0.8},
        )  # fmt: skip


def _legend(figure: matplotlib.figure.Figure, axis: Axes, points: Sequence[Point]) -> None:
    handles: list[object] = []
    for kind, (colour, _) in KINDS.items():
        if any(point.kind == kind for point in points):
            handles += axis.plot([], [], SHAPES[kind], color=colour, markersize=8, label=f"{kind} weights")
    if any(point.signs for point in points):
        handles += axis.plot([], [], "s", color=KINDS["binary"][0], markersize=8, markerfacecolor="white",
                             label="activations are signs, too")  # fmt: skip
    handles += axis.plot([], [], "--", color=SOFT, linewidth=1, label="front: none is better in both")
    figure.legend(handles=handles, loc="outside lower center", ncols=len(handles) if len(handles) < 5 else 3)
