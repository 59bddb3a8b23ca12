"""Gumbel-softmax, or Concrete, weights: the continuous relaxation the paper compares with in its appendix A.

A discrete weight is the level k with the largest ln p_k + g_k, the g_k independent Gumbel numbers. The relaxation puts
a softmax of temperature tau in the place of the argmax (Jang, Gu and Poole 2017; Maddison, Mnih and Teh 2017):

    w = sum_k v_k softmax((ln p + g) / tau)_k

As tau goes to 0 this becomes a draw, and its gradient vanishes almost everywhere and explodes elsewhere; a large tau
has tame gradients of the wrong function. Appendix A uses tau = 0.1 and saw nothing better in [0.01, 0.5].
"""

from __future__ import annotations

import math
from collections.abc import Iterator

import torch
from torch import Tensor, nn
from typing_extensions import Self

from lrnets.layers import LRConv1d, LRConv2d, LRConv3d, LRConvTranspose2d, LRLinear, Scale, Values
from lrnets.methods.sampled import SampledWeights, log_probabilities
from lrnets.weights import P_MAX, P_MIN, ValueSet, at_least_float32

TEMPERATURE = 0.1  # appendix A


def gumbel_like(like: Tensor, generator: torch.Generator | None = None) -> Tensor:
    """Standard Gumbel numbers, -ln(-ln U) with U uniform, from `generator` or torch's own; shape of `like`.

    (Torch's `exponential_` would spare a logarithm, and takes 27 ns a number on a CPU where this takes 8.)
    """
    uniform = torch.empty_like(like).uniform_(generator=generator)  # may be 0, never 1
    return uniform.clamp_min_(torch.finfo(like.dtype).tiny).log_().neg_().log_().neg_()


def relaxed_weights(
    logits: Tensor,
    values: ValueSet,
    temperature: float,
    *,
    noise: Tensor | None = None,
    generator: torch.Generator | None = None,
) -> Tensor:
    """sum_k v_k softmax((ln p + g) / tau)_k; logits (logits a weight, *weight shape), result of the weight's shape.

    `noise` fixes g, (levels, *weight shape); otherwise it is drawn from `generator`, or from torch's own.
    """
    score = log_probabilities(values, at_least_float32(logits))
    score = score + (gumbel_like(score, generator) if noise is None else noise)
    share = torch.softmax(score / temperature, 0)  # (levels, *weight shape)
    return torch.tensordot(share.new_tensor(values.levels), share, 1).to(logits.dtype)


class GumbelLayer(SampledWeights):
    """A layer with relaxed weights in training. `temperature` is a plain number, to be set as training goes on.

    It says how gradients are estimated and nothing of the distributions, so it is not part of the state. With
    `temperatures` (first, last) training takes it from the one to the other, by equal factors (`anneal`).
    """

    temperature: float = TEMPERATURE
    temperatures: tuple[float, float] | None = None

    def sample_weight(self) -> Tensor:
        return relaxed_weights(self.weight_logits, self.values, self.temperature, generator=self.generator)

    def anneal(self, progress: float) -> None:
        """tau = first^(1 - t) last^t after the share t of training, 0 to 1."""
        if self.temperatures is not None:
            first, last = self.temperatures
            self.temperature = first ** (1 - progress) * last**progress

    @classmethod
    def from_plain(
        cls, layer: nn.Module, values: Values, scale: Scale, p_min: float = P_MIN, p_max: float = P_MAX,
        tau: float = TEMPERATURE, tau_end: float | None = None,
    ) -> Self:  # fmt: skip
        """The twin of torch's own layer, started as an LR layer is; `tau_end` has the temperature annealed."""
        for temperature in (tau,) if tau_end is None else (tau, tau_end):
            _check_temperature(temperature)
        twin = super().from_plain(layer, values, scale, p_min, p_max)
        twin.temperature = float(tau)
        twin.temperatures = None if tau_end is None else (float(tau), float(tau_end))
        return twin


class GumbelLinear(GumbelLayer, LRLinear):
    """nn.Linear with Gumbel-softmax weights."""


class GumbelConv1d(GumbelLayer, LRConv1d):
    """nn.Conv1d with Gumbel-softmax weights."""


class GumbelConv2d(GumbelLayer, LRConv2d):
    """nn.Conv2d with Gumbel-softmax weights."""


class GumbelConv3d(GumbelLayer, LRConv3d):
    """nn.Conv3d with Gumbel-softmax weights."""


class GumbelConvTranspose2d(GumbelLayer, LRConvTranspose2d):
    """nn.ConvTranspose2d with Gumbel-softmax weights."""


LAYERS: tuple[type[GumbelLayer], ...] = (GumbelLinear, GumbelConv1d, GumbelConv2d, GumbelConv3d, GumbelConvTranspose2d)


def gumbel_layers(model: nn.Module) -> Iterator[GumbelLayer]:
    """Each layer with Gumbel-softmax weights."""
    return (module for module in model.modules() if isinstance(module, GumbelLayer))


def set_temperature(model: nn.Module, temperature: float) -> None:
    """Set the temperature of all of a model's Gumbel-softmax layers, for a schedule from step to step."""
    _check_temperature(temperature)
    for layer in gumbel_layers(model):
        layer.temperature = float(temperature)


def _check_temperature(temperature: float) -> None:
    if not 0 < temperature < math.inf:
        raise ValueError(
            f"the temperature must be a finite number above 0, got {temperature}; the paper uses {TEMPERATURE}"
        )
