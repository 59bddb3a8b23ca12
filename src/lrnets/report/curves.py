"""How training went, epoch by epoch: loss, validation error, learning rate and sharpness, as figures."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from lrnets.figures.figure import Figure
from lrnets.figures.style import DISCRETE, DRAW, FLOAT, SOFT, light_grid, new_figure, value_axis, whole_numbers
from lrnets.report.found import STAGES, Found
from lrnets.words import counted

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure as Picture

SIZE = (4.4, 2.9)  # inches: as wide as a phone, and two beside each other on a desk
MARKED = 40  # epochs up to which each has a marker


@dataclass(frozen=True)
class Line:
    """One quantity of one run in one stage; `x` counts epochs over both stages."""

    stage: str
    seed: int | None
    x: list[float]
    y: list[float]


@dataclass(frozen=True)
class Quantity:
    """A column of the metrics as it is drawn."""

    column: str
    stage: str
    label: str
    colour: str
    dashes: str = "-"
    marker: str = "o"


LOSS = (
    Quantity("loss", "float", "float network", FLOAT),
    Quantity("loss", "stochastic", "discrete weights", DISCRETE, marker="s"),
)
ERROR = (
    Quantity("valid_error", "float", "float network", FLOAT),
    Quantity("valid_error", "stochastic", "discrete network", DISCRETE, marker="s"),
    Quantity("valid_error_draw", "stochastic", "a draw", DRAW, "--", "^"),
)
RATE = (
    Quantity("lr", "float", "float network", FLOAT),
    Quantity("lr", "stochastic", "discrete weights", DISCRETE, marker="s"),
)
SHARPNESS = (Quantity("sharpness", "stochastic", "sharpness", DISCRETE, marker="s"),)


def curves(found: Sequence[Found]) -> list[Figure]:
    """Figures of one run, or of several seeds in the same axes; a quantity that nobody noted has none."""
    wanted = [
        ("loss", "Loss", "cross-entropy with what the recipe adds to it, mean of the epoch", LOSS),
        ("validation-error", "Validation error", "of the network that the weights stand for, after each epoch", ERROR),
        ("learning-rate", "Learning rate", "at the end of each epoch; of logits where they have their own", RATE),
        ("sharpness", "Sharpness", "what the logits are multiplied by: larger is nearer to decided", SHARPNESS),
    ]
    figures = [_figure(found, *one) for one in wanted]
    return [figure for figure in figures if figure is not None]


def lines_of(found: Sequence[Found], quantity: Quantity) -> list[Line]:
    """The lines of a quantity, one a run that has it."""
    return list(_lines(found, quantity))


def _lines(found: Sequence[Found], quantity: Quantity) -> Iterator[Line]:
    for one in found:
        before = len(one.epochs["float"]) if quantity.stage == "stochastic" else 0
        points = [
            (before + row["epoch"], row[quantity.column])
            for row in one.epochs[quantity.stage]
            if math.isfinite(row.get(quantity.column, math.nan))
        ]
        if points:
            yield Line(quantity.stage, one.seed, [x for x, _ in points], [y for _, y in points])


def _figure(found: Sequence[Found], name: str, title: str, about: str, quantities: Sequence[Quantity]) -> Figure | None:
    drawn = [(quantity, line) for quantity in quantities for line in lines_of(found, quantity)]
    if not drawn or (name == "sharpness" and all(set(line.y) == {1.0} for _, line in drawn)):
        return None
    unit = " (%)" if name == "validation-error" else ""
    starts = {line.x[0] for _, line in drawn if line.stage == "stochastic"} if found[0].epochs["float"] else set()
    begin = min(starts) - 0.5 if starts and name != "sharpness" else None

    def draw(axis: Axes) -> None:
        for place, (quantity, line) in enumerate(drawn):
            first = all(other is not quantity for other, _ in drawn[:place])
            _draw_line(axis, quantity, line, label=quantity.label if first else None, alone=len(found) == 1)
        value_axis(axis, (y for _, line in drawn for y in line.y))
        if begin is not None:
            axis.axvline(begin, color=SOFT, linewidth=0.8, linestyle=":")
        axis.set_xlabel("epoch, over both stages" if begin is not None else "epoch")
        axis.set_ylabel(f"{title.lower()}{unit}")
        whole_numbers(axis)
        light_grid(axis)
        if len({quantity.label for quantity, _ in drawn}) > 1:
            axis.legend(loc="lower left", bbox_to_anchor=(0, 1), ncols=3, columnspacing=1.2, handlelength=1.8)

    return Figure(
        name=name,
        title=title,
        caption=f"{about[0].upper()}{about[1:]}." + (f" A line a seed, {len(found)} of them." if len(found) > 1 else "")
        + (" The dotted line is the conversion to discrete weights." if begin is not None else ""),
        alt=_in_words(title, unit, drawn),
        draw=_picture(draw),
        columns=("epoch", "seed", "stage", title.lower()),
        rows=tuple((x, line.seed, f"{line.stage}: {quantity.label}", y)
                   for quantity, line in drawn for x, y in zip(line.x, line.y)),
    )  # fmt: skip


def _picture(draw: Callable[[Axes], None]) -> Callable[[], Picture]:
    def picture() -> Picture:
        whole = new_figure(*SIZE)
        draw(whole.add_subplot())
        return whole

    return picture


def _draw_line(axis: Axes, quantity: Quantity, line: Line, *, label: str | None, alone: bool) -> None:
    marked = len(line.x) == 1 or (alone and len(line.x) <= MARKED)
    axis.plot(line.x, line.y, quantity.dashes, color=quantity.colour, marker=quantity.marker if marked else None,
              markersize=4, alpha=1.0 if alone else 0.65, label=label)  # fmt: skip


def _in_words(title: str, unit: str, drawn: Sequence[tuple[Quantity, Line]]) -> str:
    ends = [
        f"{quantity.label}{'' if line.seed is None else f', seed {line.seed}'}: "
        f"from {line.y[0]:.3g} to {line.y[-1]:.3g} in {counted(len(line.x), 'epoch')}"
        for quantity, line in drawn
    ]
    return f"{title}{unit} by epoch. {'; '.join(ends)}."


def epoch_table(found: Found) -> tuple[tuple[str, ...], list[tuple[str, ...]]]:
    """All epochs of both stages as text: the numbers behind the curves; columns that nobody noted are left out."""
    names: dict[str, tuple[str, str]] = {
        "loss": ("loss", ".4f"), "valid_error": ("validation error %", ".2f"),
        "valid_error_draw": ("of a draw %", ".2f"), "lr": ("learning rate", ".3g"),
        "sharpness": ("sharpness", ".2f"), "seconds": ("seconds", ".0f"),
    }  # fmt: skip
    rows: list[tuple[str, dict[str, float]]] = [(stage, row) for stage in STAGES for row in found.epochs[stage]]
    kept = [name for name in names if any(name in row for _, row in rows)]

    def cell(row: dict[str, float], name: str) -> Any:
        return format(row[name], names[name][1]) if name in row else ""

    header = ("stage", "epoch", *(names[name][0] for name in kept))
    return header, [(stage, f"{row['epoch']:.0f}", *(cell(row, name) for name in kept)) for stage, row in rows]
