"""Entropy over training: by layer for a run, as a heat map, and with against without probability decay (appendix B)."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from functools import partial
from typing import TYPE_CHECKING

from lrnets.figures.figure import Figure
from lrnets.figures.pairs import decay_text, decayed_pairs
from lrnets.figures.sources import Source
from lrnets.figures.style import (
    BLUE,
    CYCLE,
    DASHES,
    INK,
    MARKERS,
    VERMILION,
    few_markers,
    legend_below,
    light_grid,
    new_figure,
    sequential,
    whole_numbers,
)
from lrnets.figures.task import Task
from lrnets.words import counted

if TYPE_CHECKING:
    import matplotlib.figure


def tasks(sources: Sequence[Source], layers: Sequence[str], suffix: str) -> Iterator[Task]:
    """For one run: curves, and a heat map."""
    for source in sources:
        if source.has_logits:
            yield Task(f"entropy-over-training{suffix}", partial(curves, source, layers, suffix))
            yield Task(f"entropy-heat-map{suffix}", partial(heat_map, source, layers, suffix))


def curves(source: Source, layers: Sequence[str] = (), suffix: str = "") -> Figure:
    """The average entropy of each layer over the epochs of the discrete stage."""
    found = source.entropies(layers)

    def draw() -> matplotlib.figure.Figure:
        figure = new_figure(6.4, 3.8)
        axis = figure.add_subplot()
        for number, (name, points) in enumerate(found.items()):
            axis.plot(*zip(*points), color=CYCLE[number % len(CYCLE)], marker=MARKERS[number % len(MARKERS)],
                      linestyle=DASHES[number % len(DASHES)], markevery=few_markers(len(points)),
                      label=name)  # fmt: skip
        axis.set(title="Average entropy of a layer", xlabel="epoch", ylabel="bits a weight")
        axis.set_ylim(0, 1.08 * max(bits for points in found.values() for _, bits in points) or 1)
        light_grid(axis)
        whole_numbers(axis)
        legend_below(figure, [axis], 6)
        return figure

    ends = ", ".join(f"{name} {points[0][1]:.2f} to {points[-1][1]:.2f}" for name, points in found.items())
    rows = tuple((name, epoch, bits) for name, points in found.items() for epoch, bits in points)
    last = max(points[-1][0] for points in found.values())
    return Figure(
        f"entropy-over-training{suffix}",
        "Average entropy over training",
        f"Average entropy of each layer's weights over {counted(last, 'epoch')} of the discrete stage, in bits a "
        f"weight: {ends} ({source.label}). Epoch 0 is the start.",
        f"One line a layer, entropy against epoch: {ends}.",
        draw,
        ("layer", "epoch", "bits"),
        rows,
    )


def heat_map(source: Source, layers: Sequence[str] = (), suffix: str = "") -> Figure:
    """All layers at a glance: a row a layer, a column an epoch."""
    found = source.entropies(layers)
    names = list(found)
    epochs = sorted({epoch for points in found.values() for epoch, _ in points})
    grid = [[dict(found[name]).get(epoch, math.nan) for epoch in epochs] for name in names]
    top = max(bits for row in grid for bits in row if not math.isnan(bits))

    def draw() -> matplotlib.figure.Figure:
        figure = new_figure(max(5.2, min(10, 2.4 + 0.5 * len(epochs))), 1.7 + 0.42 * len(names))
        axis = figure.add_subplot()
        image = axis.imshow(grid, cmap=sequential(), vmin=0, vmax=max(top, 1e-6), aspect="auto")
        axis.set_yticks(range(len(names)), names)
        step = -(-len(epochs) // 12)
        axis.set_xticks(range(0, len(epochs), step), [str(epoch) for epoch in epochs[::step]])
        axis.set(title="Entropy, layer by layer", xlabel="epoch")
        axis.spines[:].set_visible(False)
        axis.tick_params(length=0)
        axis.set_yticks([y - 0.5 for y in range(1, len(names))], minor=True)
        axis.set_xticks([x - 0.5 for x in range(1, len(epochs))], minor=True)
        axis.grid(which="minor", color="white", linewidth=1.5 if len(epochs) < 40 else 0)
        axis.tick_params(which="minor", length=0)
        if len(epochs) <= 12:  # there is room for the numbers
            for y, row in enumerate(grid):
                for x, bits in enumerate(row):
                    if not math.isnan(bits):
                        colour = "white" if bits > 0.45 * top else INK
                        axis.text(x, y, f"{bits:.2f}", ha="center", va="center", fontsize=8, color=colour)
        bar = figure.colorbar(image, ax=axis, label="bits a weight")
        bar.outline.set_visible(False)
        return figure

    first = max(names, key=lambda name: found[name][-1][1])
    least = min(names, key=lambda name: found[name][-1][1])
    ends = f"{first} with {found[first][-1][1]:.2f} bits a weight, least in {least} with {found[least][-1][1]:.2f}"
    return Figure(
        f"entropy-heat-map{suffix}",
        "Entropy, layer by layer",
        f"Average entropy of every layer after every epoch; dark is undecided. At the end most is in {ends} "
        f"({source.label}).",
        f"A grid of {counted(len(names), 'layer')} by {counted(len(epochs), 'epoch')}, darker for more entropy; at the "
        f"end most in {ends}.",
        draw,
        ("layer", "epoch", "bits"),
        tuple((name, epoch, bits) for name, points in found.items() for epoch, bits in points),
    )


def pair_tasks(sources: Sequence[Source], layers: Sequence[str]) -> Iterator[Task]:
    """For every pair of runs with and without probability decay."""
    for without, with_decay, suffix in decayed_pairs(sources):
        yield Task(
            f"entropy-with-and-without-decay{suffix}",
            partial(with_and_without, without, with_decay, layers, suffix),
        )


def with_and_without(without: Source, with_decay: Source, layers: Sequence[str] = (), suffix: str = "") -> Figure:
    """A panel a layer, with two lines each."""
    one, other = without.entropies(layers), with_decay.entropies(layers)
    names = [name for name in one if name in other]
    kinds = ((decay_text(with_decay), other, BLUE, "o", "-"), ("without", one, VERMILION, "s", "--"))

    def draw() -> matplotlib.figure.Figure:
        columns = min(3, len(names))
        lines = -(-len(names) // columns)
        figure = new_figure(3.3 * columns + 0.4, 2.7 * lines + 0.6)
        panels = figure.subplots(lines, columns, squeeze=False, sharey=True).flatten()
        for axis, name in zip(panels, names):
            for label, found, colour, marker, dash in kinds:
                axis.plot(*zip(*found[name]), color=colour, marker=marker, linestyle=dash, label=label,
                          markevery=few_markers(len(found[name])))  # fmt: skip
            axis.set(title=name, xlabel="epoch")
            light_grid(axis)
            whole_numbers(axis)
        for axis in panels[::columns]:
            axis.set_ylabel("bits a weight")
        panels[0].set_ylim(
            0, 1.08 * max(bits for found in (one, other) for name in names for _, bits in found[name]) or 1
        )
        for axis in panels[len(names) :]:
            axis.set_visible(False)
        legend_below(figure, panels[:1])
        return figure

    ends = "; ".join(f"{name} {one[name][-1][1]:.3f} without, {other[name][-1][1]:.3f} with" for name in names)
    rows = tuple(
        (name, label, epoch, bits) for name in names for label, found, *_ in kinds for epoch, bits in found[name]
    )
    return Figure(
        f"entropy-with-and-without-decay{suffix}",
        "Average entropy with and without probability decay",
        f"Average entropy of a layer over training, without and {decay_text(with_decay)} (appendix B). "
        f"At the end, in bits a weight: {ends}.",
        f"A panel a layer with two lines, entropy against epoch. At the end: {ends}.",
        draw,
        ("layer", "probability decay", "epoch", "bits"),
        rows,
    )
