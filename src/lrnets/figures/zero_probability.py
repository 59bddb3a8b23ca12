"""Histogram of p(w = 0) at the start and at the end of training (appendix B); of p(w = +1) for binary weights."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import partial
from typing import TYPE_CHECKING

import torch
from torch import Tensor, nn

from lrnets.figures.figure import Figure
from lrnets.figures.sources import Source, lr_layer
from lrnets.figures.style import BLUE, legend_below, light_grid, new_figure
from lrnets.figures.task import Task

if TYPE_CHECKING:
    import matplotlib.figure

BINS = 40
EXTREME = 0.05  # below it, or above 1 - it, a weight is all but decided about the level


def tasks(sources: Sequence[Source], layers: Sequence[str], suffix: str) -> Iterator[Task]:
    """For each run with distributions."""
    for source in sources:
        if source.has_logits:
            yield Task(f"zero-probability{suffix}", partial(histograms, source, layers, suffix))


@torch.no_grad()
def level_probability(model: nn.Module, name: str) -> tuple[float, Tensor]:
    """The level 0, or the greatest where there is no 0, and its probability for every weight of a layer."""
    layer = lr_layer(model, name)
    levels = layer.values.levels
    level = 0.0 if 0.0 in levels else levels[-1]
    return level, layer.values.probabilities(layer.weight_logits)[levels.index(level)].flatten()


def histograms(source: Source, layers: Sequence[str] = (), suffix: str = "") -> Figure:
    """A panel a layer: the start behind, the end before it."""
    names = source.layers(layers)
    networks = {"at the start": source.start, "after training": source.trained}
    edges = torch.linspace(0, 1, BINS + 1)
    shares: dict[tuple[str, str], Tensor] = {}
    extreme: dict[tuple[str, str], float] = {}
    level = 0.0
    for when, net in networks.items():
        for name in names:
            level, p = level_probability(net, name)
            shares[name, when] = torch.histogram(p.float().cpu(), edges).hist / p.numel()
            extreme[name, when] = ((p < EXTREME) | (p > 1 - EXTREME)).float().mean().item()
    what = f"p(w = {level:+g})" if level else "p(w = 0)"

    def draw() -> matplotlib.figure.Figure:
        columns = min(3, len(names))
        lines = -(-len(names) // columns)
        figure = new_figure(max(4.6, 3.4 * columns), 2.6 * lines + 0.6)
        panels = figure.subplots(lines, columns, squeeze=False, sharey=True).flatten()
        for axis, name in zip(panels, names):
            start, end = (100 * shares[name, when] for when in networks)
            axis.stairs(end.tolist(), edges.tolist(), fill=True, color=BLUE, alpha=0.75, label="after training")
            axis.stairs(start.tolist(), edges.tolist(), color="#444444", linewidth=1.6, label="at the start")
            axis.set(title=name, xlabel=what, xlim=(0, 1))
            light_grid(axis)
        for axis in panels[::columns]:
            axis.set_ylabel("share of weights (%)")
        for axis in panels[len(names) :]:
            axis.set_visible(False)
        legend_below(figure, panels[:1])
        return figure

    said = "; ".join(
        f"{name} {extreme[name, 'at the start']:.0%} at the start, {extreme[name, 'after training']:.0%} at the end"
        for name in names
    )
    rows = tuple(
        (name, when, low, high, share)
        for (name, when), values in shares.items()
        for low, high, share in zip(edges.tolist(), edges[1:].tolist(), values.tolist())
    )
    return Figure(
        f"zero-probability{suffix}",
        f"Histogram of {what}",
        f"{what} of all weights of a layer at the start and at the end of training (appendix B, {source.label}). "
        f"Weights with a probability below {EXTREME:g} or above {1 - EXTREME:g}: {said}.",
        f"A histogram a layer of {what}, the start as a line, the end filled. Almost decided: {said}.",
        draw,
        ("layer", "network", "bin from", "bin to", "share of weights"),
        rows,
    )
