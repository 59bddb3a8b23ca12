"""Loss and validation error over training: of a run, and of LR-nets against Gumbel-softmax (appendix A)."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Sequence
from functools import partial
from typing import TYPE_CHECKING

from lrnets.figures.figure import Figure
from lrnets.figures.sources import Source, difference
from lrnets.figures.style import (
    CYCLE,
    DASHES,
    DISCRETE,
    DRAW,
    FLOAT,
    MARKERS,
    SOFT,
    few_markers,
    legend_below,
    light_grid,
    new_figure,
    value_axis,
    whole_numbers,
)
from lrnets.figures.task import Task
from lrnets.words import counted

if TYPE_CHECKING:
    import matplotlib.figure
    from matplotlib.axes import Axes

STAGES = {"float": "float stage", "stochastic": "discrete stage"}
WORDS = {"valid_error": "discrete network", "valid_error_draw": "a draw"}
Points = list[tuple[int, float]]


def tasks(sources: Sequence[Source], suffix: str) -> Iterator[Task]:
    """For each run its own curves."""
    for source in sources:
        yield Task(f"training{suffix}", partial(of_run, source, suffix))


def rival_tasks(sources: Sequence[Source]) -> Iterator[Task]:
    """Appendix A, for all LR-nets and Gumbel-softmax runs with the same network, data and stages."""
    for group in rivals(sources):
        suffix = f"-{group[0].slug}" if len(rivals(sources)) > 1 else ""
        yield Task(f"lr-against-gumbel{suffix}", partial(lr_against_gumbel, group, suffix))


def rivals(sources: Sequence[Source]) -> list[list[Source]]:
    """Groups with at least one of both methods, the same in all but the method and its options."""
    groups: list[list[Source]] = []
    for source in sources:
        if source.recipe.method in ("lr", "gumbel"):
            for group in groups:
                if not difference(group[0], source, "method", "method_options"):
                    group.append(source)
                    break
            else:
                groups.append([source])
    both = [group for group in groups if len({source.recipe.method for source in group}) == 2]
    return [sorted(group, key=lambda source: source.recipe.method != "lr") for group in both]


def of_run(source: Source, suffix: str = "") -> Figure:
    """Both stages, one after the other: loss on the left, validation error on the right."""
    stages = [stage for stage in STAGES if (source.folder.path / "metrics" / f"{stage}.csv").exists()]
    epochs = {stage: source.epochs(stage, "loss", "valid_error") for stage in stages or ["stochastic"]}
    lines: dict[tuple[str, str], Points] = {}
    before = conversion = 0
    for stage, rows in epochs.items():
        for figure in ("loss", *WORDS):
            points = [(before + int(row["epoch"]), row[figure]) for row in rows if figure in row]
            if points:
                lines[stage, figure] = points
        conversion, before = before, before + int(rows[-1]["epoch"])

    def draw() -> matplotlib.figure.Figure:
        figure = new_figure(9.4, 3.6)
        loss, error = figure.subplots(1, 2)
        for (stage, what), points in lines.items():
            colour = DRAW if what == "valid_error_draw" else FLOAT if stage == "float" else DISCRETE
            name = STAGES[stage] if what == "loss" or stage == "float" else f"{STAGES[stage]}: {WORDS[what]}"
            dash, marker = (":", "s") if what == "valid_error_draw" else ("-", "o")
            _line(loss if what == "loss" else error, points, colour, dash, marker, name)
        for axis in (loss, error) if conversion else ():
            axis.axvline(conversion + 0.5, color=SOFT, linewidth=0.8, linestyle=":", label="conversion")
        _dress(loss, "Training loss", "loss", _values(lines, "loss"))
        _dress(error, "Validation error", "error (%)", _values(lines, *WORDS))
        legend_below(figure, [error])
        return figure

    stages_said = "both stages in a row" if conversion else f"of the {STAGES[next(iter(epochs))]}"
    last = {name: points[-1][1] for name, points in lines.items()}
    ends = ", ".join(f"{STAGES[stage]} {value:.2f} %" for (stage, what), value in last.items() if what == "valid_error")
    return Figure(
        f"training{suffix}",
        "Loss and validation error over training",
        f"Loss and validation error after every epoch, {stages_said} ({source.label}). Last validation error: {ends}.",
        f"Lines of loss and of validation error against epoch. They end at a validation error of: {ends}.",
        draw,
        ("stage", "figure", "epoch", "value"),
        tuple((stage, what, epoch, value) for (stage, what), points in lines.items() for epoch, value in points),
    )


def lr_against_gumbel(group: Sequence[Source], suffix: str = "") -> Figure:
    """Appendix A: training with LR-net and with Gumbel-softmax from the same float network."""
    found = {source: source.epochs("stochastic", "loss", "valid_error") for source in group}

    def draw() -> matplotlib.figure.Figure:
        figure = new_figure(9.4, 3.6)
        loss, error = figure.subplots(1, 2)
        for number, (source, rows) in enumerate(found.items()):
            for axis, what in ((loss, "loss"), (error, "valid_error")):
                points = [(int(row["epoch"]), row[what]) for row in rows]
                _line(axis, points, CYCLE[number % len(CYCLE)], DASHES[number % 4], MARKERS[number % 8], source.label)
        _dress(loss, "Training loss", "loss", [row["loss"] for rows in found.values() for row in rows])
        _dress(error, "Validation error", "error (%)", [row["valid_error"] for rows in found.values() for row in rows])
        legend_below(figure, [loss])
        return figure

    recipe = group[0].recipe
    start = "the same float network" if same_start(group) else "float networks that differ"
    width = f" at {recipe.width:g} of the paper's width" if recipe.width != 1 else ""
    ends = ", ".join(f"{source.label} {rows[-1]['valid_error']:.2f} %" for source, rows in found.items())
    count = max(int(rows[-1]["epoch"]) for rows in found.values())
    return Figure(
        f"lr-against-gumbel{suffix}",
        "LR-net and Gumbel-softmax",
        f"Training of {recipe.network}{width} on {recipe.data} for {counted(count, 'epoch')} with LR-net and with "
        f"Gumbel-softmax, from {start}, with the same settings (appendix A). Validation error after the last "
        f"epoch: {ends}.",
        f"Lines of loss and of validation error against epoch, one a run. They end at: {ends}.",
        draw,
        ("run", "method", "epoch", "loss", "validation error (%)"),
        tuple(
            (source.label, source.recipe.method, int(row["epoch"]), row["loss"], row["valid_error"])
            for source, rows in found.items()
            for row in rows
        ),
    )


def same_start(group: Sequence[Source]) -> bool:
    """Whether the float networks are the same, byte for byte."""
    files = [source.folder.weights_file("float") for source in group]
    if not all(file.is_file() for file in files):
        return False
    return len({hashlib.sha256(file.read_bytes()).hexdigest() for file in files}) == 1


def _values(lines: dict[tuple[str, str], Points], *names: str) -> list[float]:
    return [value for (_, what), points in lines.items() if what in names for _, value in points]


def _line(axis: Axes, points: Points, colour: str, dash: str, marker: str, label: str) -> None:
    axis.plot(*zip(*points), color=colour, linestyle=dash, marker=marker, markevery=few_markers(len(points)),
              label=label)  # fmt: skip


def _dress(axis: Axes, title: str, label: str, values: Sequence[float]) -> None:
    axis.set(title=title, xlabel="epoch", ylabel=label)
    value_axis(axis, values)
    light_grid(axis)
    whole_numbers(axis)
