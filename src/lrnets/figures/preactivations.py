"""A neuron's pre-activation by really drawing weights against its Gaussian approximation (fig. 1 and 2)."""

from __future__ import annotations

import math
import statistics
from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from itertools import product
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn

from lrnets.diagnostics import GaussianFit, gaussian_fit, layer_inputs
from lrnets.figures.figure import Figure
from lrnets.figures.pairs import decay_text, decayed_pairs
from lrnets.figures.sources import ImpossibleError, Source, lr_layer
from lrnets.figures.style import BLUE, INK, SKY, SOFT, VERMILION, legend_below, light_grid, new_figure
from lrnets.figures.task import Task
from lrnets.layers import LRLayer
from lrnets.words import counted

if TYPE_CHECKING:
    import matplotlib.figure
    from matplotlib.axes import Axes

DRAWS = 10_000  # of the neuron that is shown
FEWER_DRAWS = 1000  # of each of those that are only counted
IMAGES = 8
DRAWN_WEIGHTS = 40_000_000  # of a layer in all, a second or two: wide layers are looked at on fewer images, in part
COLUMNS = ("layer", "network", "bin from", "bin to", "share of draws", "share of the Gaussian")


@dataclass(frozen=True)
class LayerFits:
    """Fits of a layer's neurons; `shown` is the one in the middle, drawn more often."""

    layer: str
    fits: tuple[GaussianFit, ...]
    shown: GaussianFit
    of: int  # neurons of the layer, positions of a convolution apart

    @property
    def distances(self) -> list[float]:
        """Kolmogorov-Smirnov distances of the neurons that are random at all."""
        return [fit.distance for fit in self.fits if not math.isnan(fit.distance)]

    @property
    def median(self) -> float:
        return statistics.median(self.distances)

    @property
    def neurons(self) -> str:
        seen = len({fit.neuron[1] for fit in self.fits})
        images = len({fit.neuron[0] for fit in self.fits})
        where = f"on {counted(images, 'image')}"
        return f"all {self.of} neurons {where}" if seen == self.of else f"{seen} of {self.of} neurons {where}"


def tasks(sources: Sequence[Source], layers: Sequence[str], suffix: str) -> Iterator[Task]:
    """Figure 1 for LR-nets: other methods have no such approximation."""
    for source in sources:
        if source.recipe.method == "lr":
            yield Task(f"preactivation-gaussian{suffix}", partial(first_and_last, source, layers, suffix))


def pair_tasks(sources: Sequence[Source], layers: Sequence[str]) -> Iterator[Task]:
    """Figure 2 for every pair of runs with and without probability decay."""
    for without, with_decay, suffix in decayed_pairs([source for source in sources if source.recipe.method == "lr"]):
        name = f"preactivation-with-and-without-decay{suffix}"
        yield Task(name, partial(with_and_without, without, with_decay, layers, suffix))


def fits_of(model: nn.Module, layer: str, inputs: Tensor, *, like: LayerFits | None = None) -> LayerFits:
    """The neurons of a layer on a few images, of a convolution where most of its inputs are not 0.

    `like` names the neuron to show, and the places; without it the one of median distance is shown.
    """
    generator = torch.Generator().manual_seed(0)
    module, x = lr_layer(model, layer), layer_inputs(model, inputs[:IMAGES])[layer]
    if like is None:
        channels = _channels(module)
        affordable = max(16, DRAWN_WEIGHTS // (FEWER_DRAWS * module.fan_in))  # neurons
        x = x[: max(1, affordable // len(channels))]
        step = max(1, len(channels) // affordable)
        places = [_place(module, x[image : image + 1]) for image in range(len(x))]
        neurons = [(image, channel, *places[image]) for image, channel in product(range(len(x)), channels[::step])]
    else:
        neurons = [fit.neuron for fit in like.fits]

    def fit(neuron: tuple[int, ...], draws: int) -> GaussianFit:
        image = x[neuron[0] : neuron[0] + 1]  # alone: the others would only cost time
        found = gaussian_fit(module, image, neuron=(0, *neuron[1:]), draws=draws, generator=generator)
        return GaussianFit(**{**vars(found), "neuron": neuron})

    fits = [fit(neuron, FEWER_DRAWS) for neuron in neurons]
    random = sorted((one for one in fits if not math.isnan(one.distance)), key=lambda one: one.distance)
    if not random:
        raise ImpossibleError(
            f"layer {layer}: nothing is random in the {len(fits)} neurons that were looked at; look at a run with more "
            "probability decay, or without sharpening"
        )
    shown = random[len(random) // 2].neuron if like is None else like.shown.neuron
    return LayerFits(layer, tuple(fits), fit(shown, DRAWS), len(_channels(module)))


def first_and_last(source: Source, layers: Sequence[str] = (), suffix: str = "") -> Figure:
    """Figure 1: the first and the last hidden layer, or of those named, at the start and at the end of training."""
    names, kinds = source.layers(layers), _kinds(source)
    chosen = list(dict.fromkeys([names[0], names[-1]]))
    networks = [("after training", source.trained)]
    with suppress(OSError, ValueError):  # the end is what counts
        networks.insert(0, ("at the start", source.start))
    inputs = source.examples.inputs
    found = {(when, name): fits_of(net, name, inputs) for when, net in networks for name in chosen}

    def draw() -> matplotlib.figure.Figure:
        figure = new_figure(4.6 * len(chosen), 2.9 * len(networks) + 0.4)
        panels = figure.subplots(len(networks), len(chosen), squeeze=False)
        for (when, name), axis in zip(found, panels.flatten()):
            _histogram(axis, found[when, name].shown, f"{kinds.get(name, 'layer')} ({name}), {when}")
        legend_below(figure, panels.flatten()[:1])
        return figure

    said = "; ".join(
        f"{name} {when} {fits.shown.distance:.3f} with {fits.shown.inputs} inputs (median of {fits.neurons} "
        f"{fits.median:.3f})"
        for (when, name), fits in found.items()
    )
    error = next(iter(found.values())).shown.sampling_error
    return Figure(
        f"preactivation-gaussian{suffix}",
        "Pre-activation and its Gaussian approximation",
        f"Pre-activation of the neuron of median fit by really drawing its weights {DRAWS:,} times, and the Gaussian "
        f"that training samples from (fig. 1 of the paper). Kolmogorov-Smirnov distance: {said}; as many draws of a "
        f"perfect Gaussian would give {error:.3f} ({source.label}).",
        f"Histograms of drawn pre-activations with the Gaussian as a line. Distances: {said}.",
        draw,
        COLUMNS,
        tuple(row for (when, name), fits in found.items() for row in _rows(name, when, fits.shown)),
    )


def _kinds(source: Source) -> dict[str, str]:
    """What the outermost layers are called; the only one is the first."""
    names = source.layers()
    return {names[-1]: "last hidden layer"} | {names[0]: "first hidden layer"}


def with_and_without(without: Source, with_decay: Source, layers: Sequence[str] = (), suffix: str = "") -> Figure:
    """Figure 2: the same neuron of the first layer (of those named), and the distances of all neurons of that layer."""
    name = without.layers(layers)[0]
    one = fits_of(without.trained, name, without.examples.inputs)
    other = fits_of(with_decay.trained, name, with_decay.examples.inputs, like=one)
    kinds = {"without probability decay": one, decay_text(with_decay): other}

    def draw() -> matplotlib.figure.Figure:
        figure = new_figure(12.4, 3.5)
        panels = figure.subplots(1, 3)
        for axis, (label, fits) in zip(panels, kinds.items()):
            _histogram(axis, fits.shown, f"{name}, {label}")
        axis = panels[2]
        for (label, fits), colour, dash in zip(reversed(kinds.items()), (BLUE, VERMILION), ("-", "--")):
            values = sorted(fits.distances)
            axis.step(values, [(i + 1) / len(values) for i in range(len(values))], color=colour, linestyle=dash,
                      label=label, where="post")  # fmt: skip
        axis.set(title=f"{name}: {one.neurons}", xlabel="KS distance to the Gaussian", ylabel="share of neurons")
        axis.set_ylim(0, 1.02)
        axis.set_xlim(left=0)
        light_grid(axis, "both")
        legend_below(figure, panels[::2])
        return figure

    gain, noise = gain_of(one, other)
    better = "as close with as without decay, within noise"
    if abs(gain) > noise:
        better = "closer with decay" if gain > 0 else "not closer with decay, but farther"
    dead = [len(fits.fits) - len(fits.distances) for fits in kinds.values()]
    still = f"; without any randomness {dead[0]} and {dead[1]} of {len(one.fits)}" if any(dead) else ""
    medians = f"median {one.median:.3f} without, {other.median:.3f} with"
    neuron = f"neuron {one.shown.neuron[1]} of {name}"
    rows = [(*row, "") for label, fits in kinds.items() for row in _rows(name, label, fits.shown)]
    rows += [
        (name, label, "", "", "", "", fit.distance) for label, fits in kinds.items() for fit in fits.fits
    ]  # fmt: skip
    return Figure(
        f"preactivation-with-and-without-decay{suffix}",
        "Gaussian approximation with and without probability decay",
        f"The same {neuron} at the end of training without and {decay_text(with_decay)} (fig. 2 of the paper): "
        f"Kolmogorov-Smirnov distance {one.shown.distance:.3f} and {other.shown.distance:.3f}. Over {one.neurons} "
        f"the Gaussian is {better}: {medians}, mean gain {gain:.3f} ± {noise:.3f}{still}.",
        f"Two histograms of one neuron's pre-activation with the Gaussian as a line, and the distribution of the "
        f"distances of {one.neurons}: {medians}.",
        draw,
        (*COLUMNS, "distance of a neuron"),
        tuple(rows),
    )


def gain_of(without: LayerFits, with_decay: LayerFits) -> tuple[float, float]:
    """How much less the distance is with decay, the mean over neurons, and two standard errors of that.

    A neuron's images share its weights, so they count as one.
    """
    differences: dict[int, list[float]] = {}
    for one, other in zip(without.fits, with_decay.fits):
        if not (math.isnan(one.distance) or math.isnan(other.distance)):
            differences.setdefault(one.neuron[1], []).append(one.distance - other.distance)
    each = [statistics.fmean(found) for found in differences.values()]
    if len(each) < 2:
        return 0.0, math.inf
    return statistics.fmean(each), 2 * statistics.stdev(each) / math.sqrt(len(each))


def _channels(layer: LRLayer) -> range:
    """Its outputs, at one place if it is a convolution; a transposed one has them second."""
    transposed = layer.plain in (nn.ConvTranspose1d, nn.ConvTranspose2d, nn.ConvTranspose3d)
    return range(layer.weight_shape[1] if transposed else layer.weight_shape[0])


@torch.no_grad()
def _place(layer: LRLayer, x: Tensor) -> tuple[int, ...]:
    """Where the most inputs of a convolution are not 0; nowhere in particular for a linear layer."""
    ones = torch.ones(layer.weight_shape, dtype=x.dtype)
    counts = layer.to_plain(ones, None)((x != 0).to(x.dtype))[0, 0]
    return tuple(int(i) for i in torch.unravel_index(counts.argmax(), counts.shape))


def _rows(layer: str, network: str, fit: GaussianFit) -> Iterator[tuple[Any, ...]]:
    for low, high, drawn, gaussian in zip(fit.edges, fit.edges[1:], fit.drawn, fit.gaussian):
        yield layer, network, low, high, drawn, gaussian


def _histogram(axis: Axes, fit: GaussianFit, title: str) -> None:
    """Bars of draws, and the Gaussian's share of each bin as a line."""
    percent = [100 * share for share in fit.drawn]
    widths = [high - low for low, high in zip(fit.edges, fit.edges[1:])]
    axis.bar(fit.edges[:-1], percent, widths, align="edge", color=SKY, edgecolor="white", linewidth=0.4,
             label="weights really drawn")  # fmt: skip
    axis.stairs([100 * share for share in fit.gaussian], fit.edges, color=VERMILION, linewidth=1.8, baseline=None,
                label="Gaussian approximation")  # fmt: skip
    axis.set(title=title, xlabel="pre-activation", ylabel="share (%)")
    axis.title.set_fontsize(10)
    top = max(percent + [100 * share for share in fit.gaussian if not math.isnan(share)])
    axis.set_ylim(0, 1.3 * top)
    light_grid(axis)
    axis.locator_params(axis="x", nbins=6)
    axis.locator_params(axis="y", nbins=6)
    words = ((0.97, f"KS distance {fit.distance:.3f}", INK), (0.87, f"{fit.inputs} inputs", SOFT))
    for height, text, colour in words:
        axis.text(0.99, height, text, transform=axis.transAxes, ha="right", va="top", color=colour, fontsize=9,
                  bbox={"facecolor": "white", "edgecolor": "none", "pad": 1.5})  # fmt: skip
