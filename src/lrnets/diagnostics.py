"""How a stochastic network is doing: entropy, undecided weights, and whether the Gaussian approximation holds."""

from __future__ import annotations

import math
import warnings
from collections.abc import Callable
from dataclasses import dataclass, field

import torch
from torch import Tensor, nn

from lrnets.layers import LRLayer, lr_layers
from lrnets.modes import evaluating
from lrnets.plain import first_of
from lrnets.tables import table
from lrnets.weights import at_least_float32

DECIDED = 0.9  # a weight is decided once its most probable level has this probability
DEAD_BITS = 0.01  # mean entropy below which a layer is as good as deterministic


class RandomnessWarning(UserWarning):
    """A layer's distributions have all but collapsed: gradients vanish and the Gaussian no longer fits (fig. 2a)."""


@dataclass(frozen=True)
class GaussianFit:
    """A neuron's pre-activation under really drawn weights against N(mean, deviation^2) (fig. 1 and 2)."""

    neuron: tuple[int, ...]  # index into the layer's output
    inputs: int  # weights that reach it with a non-zero input
    mean: float
    deviation: float
    distance: float  # Kolmogorov-Smirnov: largest gap of the distribution functions; NaN where nothing is random
    sampling_error: float  # the distance to expect of a perfect Gaussian from as many draws
    edges: tuple[float, ...] = field(repr=False)  # of the histogram's bins
    drawn: tuple[float, ...] = field(repr=False)  # share of draws in each bin
    gaussian: tuple[float, ...] = field(repr=False)  # the approximation's share


@dataclass(frozen=True)
class LayerDiagnosis:
    """One layer's state. `fit` is the worst-fitting neuron that was looked at, if any input was given."""

    name: str
    weights: int
    entropy: float  # mean, bits a weight
    undecided: float  # share of weights
    fit: GaussianFit | None = None


@dataclass(frozen=True)
class Diagnosis:
    """All stochastic layers; prints as a table."""

    layers: tuple[LayerDiagnosis, ...]

    def __str__(self) -> str:
        rows = [
            (row.name, f"{row.weights:,}", f"{row.entropy:.3f}", f"{row.undecided:.1%}")
            + (("", "") if row.fit is None else (f"{row.fit.distance:.3f}", row.fit.inputs))
            for row in self.layers
        ]
        header = ("layer", "weights", "entropy (bits)", "undecided", "distance to Gaussian", "inputs")
        return table(header, rows, right=range(1, 6))


def _logits(layer: LRLayer) -> Tensor:
    return at_least_float32(layer.weight_logits)


@torch.no_grad()
def entropy(model: nn.Module) -> dict[str, float]:
    """Mean entropy of each stochastic layer, in bits a weight."""
    return {name: layer.values.entropy(_logits(layer)).mean().item() for name, layer in lr_layers(model)}


@torch.no_grad()
def undecided(model: nn.Module, decided: float = DECIDED) -> dict[str, float]:
    """Share of each layer's weights whose most probable level is less probable than `decided`."""
    return {
        name: (layer.values.probabilities(_logits(layer)).amax(0) < decided).float().mean().item()
        for name, layer in lr_layers(model)
    }


@torch.no_grad()
def disagreement(model: nn.Module) -> dict[str, float]:
    """Share of each layer's weights in which two draws are to differ: the mean of 1 - sum_k p_k^2."""
    return {
        name: 1 - layer.values.probabilities(_logits(layer)).square().sum(0).mean().item()
        for name, layer in lr_layers(model)
    }


def diagnose(
    model: nn.Module,
    x: Tensor | None = None,
    *,
    neurons: int = 8,
    draws: int = 4000,
    generator: torch.Generator | None = None,
) -> Diagnosis:
    """Entropy, undecided weights and, given an input batch, the Gaussian fit of a few random neurons of each layer.

    Warns of layers whose randomness has died out.
    """
    bits, open_weights = entropy(model), undecided(model)
    inputs = {} if x is None else layer_inputs(model, x)
    rows = []
    for name, layer in lr_layers(model):
        fits = []
        if name in inputs:
            fits = [gaussian_fit(layer, inputs[name], draws=draws, generator=generator) for _ in range(neurons)]
        # A neuron without any randomness has no distance; it counts only if all are like that.
        worst = max(fits, key=lambda fit: -1.0 if math.isnan(fit.distance) else fit.distance, default=None)
        rows.append(LayerDiagnosis(name, layer.weight_shape.numel(), bits[name], open_weights[name], worst))
        if bits[name] < DEAD_BITS:
            warnings.warn(
                f"layer {name!r}: {bits[name]:.4f} bits of entropy a weight (below {DEAD_BITS}); its randomness has "
                "died out, so it learns no more. Raise probability_decay, or draw the network: it is decided",
                RandomnessWarning,
                stacklevel=2,
            )
    return Diagnosis(tuple(rows))


def gaussian_fit(
    layer: LRLayer,
    x: Tensor,
    *,
    neuron: tuple[int, ...] | None = None,
    draws: int = 10_000,
    bins: int = 50,
    generator: torch.Generator | None = None,
) -> GaussianFit:
    """Draw weight vectors for one neuron and compare its pre-activation, bias apart, with the layer's approximation.

    `x` is the layer's input; `neuron` indexes its output (batch first) and is random if not given.
    """
    if draws < 1 or bins < 1:
        raise ValueError(f"draws and bins must be at least 1, got {draws} and {bins}")
    neuron, seen = _seen_by(layer, x, neuron, generator)
    reached = seen != 0
    # In double precision: where little is random, float32 would put rounding in the place of randomness.
    h = seen[reached].double()  # (inputs,)
    logits = layer.weight_logits.detach()[:, reached].double()
    scale = 1.0 if layer.whole_scale is None else float(layer.whole_scale)
    mean, variance = layer.values.moments(logits)
    m, v = scale * float(mean @ h), abs(scale) * math.sqrt(float(variance @ h.square()))
    at_once = max(1, (1 << 22) // max(1, h.numel()))
    samples = []
    for start in range(0, draws, at_once):
        many = logits.unsqueeze(1).expand(-1, min(at_once, draws - start), -1)
        samples.append(scale * (layer.values.draw(many, generator=generator) @ h))
    z = torch.cat(samples).sort().values.cpu()
    low, high = min(m - 4 * v, z[0].item()), max(m + 4 * v, z[-1].item())
    edges = torch.linspace(low, high if high > low else low + 1, bins + 1, dtype=torch.float64)
    counts = torch.histogram(z, edges).hist / draws
    error = 0.8687 / math.sqrt(draws)  # mean of Kolmogorov's distribution
    shares, distance = torch.full((bins,), math.nan), math.nan
    if v > 0:
        shares = torch.special.ndtr((edges - m) / v).diff()
        # Drawn values lie on a lattice: compare the distribution functions just below and at each distinct one.
        value, times = z.unique_consecutive(return_counts=True)
        upto, theory = times.cumsum(0) / draws, torch.special.ndtr((value - m) / v)
        distance = torch.maximum((upto - theory).abs(), (upto - times / draws - theory).abs()).max().item()
    histogram = (tuple(edges.tolist()), tuple(counts.tolist()), tuple(shares.tolist()))
    return GaussianFit(neuron, h.numel(), m, v, distance, error, *histogram)


def _seen_by(
    layer: LRLayer, x: Tensor, neuron: tuple[int, ...] | None, generator: torch.Generator | None
) -> tuple[tuple[int, ...], Tensor]:
    """What each weight is multiplied by on its way to one output: d output / d weight, of the weight's shape."""
    weight = torch.zeros(layer.weight_shape, dtype=x.dtype, device=x.device, requires_grad=True)
    plain = layer.to_plain(weight.detach(), None)
    with torch.enable_grad():
        output = torch.func.functional_call(plain, {"weight": weight}, (x.detach(),))
        if neuron is None:
            where = torch.randint(output.numel(), (), generator=generator, device=output.device).item()
            neuron = tuple(int(i) for i in torch.unravel_index(torch.tensor(where), output.shape))
        (seen,) = torch.autograd.grad(output[neuron], weight)
    return neuron, seen.detach()


def layer_inputs(model: nn.Module, x: Tensor) -> dict[str, Tensor]:
    """What reaches each stochastic layer when the most probable network sees `x`."""
    inputs: dict[str, Tensor] = {}

    def catch(name: str) -> Callable[..., None]:
        def hook(_: nn.Module, args: tuple[Tensor, ...], named: dict[str, Tensor]) -> None:
            inputs.setdefault(name, first_of(args, named).detach())

        return hook

    hooks = [layer.register_forward_pre_hook(catch(name), with_kwargs=True) for name, layer in lr_layers(model)]
    try:
        with evaluating(model), torch.no_grad():
            model(x)
    finally:
        for hook in hooks:
            hook.remove()
    return inputs
