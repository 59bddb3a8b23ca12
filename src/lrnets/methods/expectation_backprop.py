"""Expectation backpropagation (Soudry, Hubara and Meir 2014): binary weights, sign activations, no sampling at all.

Weights have the mean-field posterior P(W_ij) ~ exp(h_ij W_ij), so <W> = tanh h; in the terms of this library the logit
is a = 2 h. The forward pass carries means and variances through the network (their algorithm 1, forward), with the
central limit theorem for the sum and v = sign(u):

    mu_i = sum_j <W_ij> <v_j>      sigma_i^2 = sum_j (<v_j^2> - <W_ij>^2 <v_j>^2)      <v_i> = 2 Phi(mu_i / sigma_i) - 1

<v_j^2> is 1 for the sign of another layer and v_j^2 for the network's own input. The backward pass is that of the log
evidence ln Z = sum_i ln Phi(y_i mu_i / sigma_i), y in {-1, +1}, with all sigma held fixed:

    Delta_i = y_i N(0 | mu_i, sigma_i^2) / Phi(y_i mu_i / sigma_i)          at the last layer
    Delta_j = 2 N(0 | mu_j, sigma_j^2) sum_i <W_ij> Delta_i                 one layer further down
    h_ij <- h_ij + Delta_i <v_j>                                            the update

Their factors 1 / sqrt(fan-in) cancel: nothing here depends on the scale of u. Delta_i <v_j> is d ln Z / d <W_ij>, and
that is what `logits.grad` gets, as 2 d loss / d <W> since a = 2 h: SGD with rate 1 on the loss -ln Z, summed over the
batch, is the published update, and any other optimiser may take its place. (It is also the natural gradient.)
"""

from __future__ import annotations

import copy
from collections.abc import Sequence
from contextlib import nullcontext
from typing import Any, cast

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm
from typing_extensions import Self

from lrnets import functional
from lrnets.layers import LRConv1d, LRConv2d, LRConv3d, LRLayer, LRLinear, Scale, Values
from lrnets.methods.activations import Sign
from lrnets.weights import BINARY, P_MAX, P_MIN, at_least_float32, standardize

BIAS_VARIANCE = 1.0  # of a bias, in units of the layer's scale: that of the authors' code


class _PosteriorMean(torch.autograd.Function):
    """<W> = tanh(a / 2), with the gradient of <W> handed to h = a / 2 as it is."""

    @staticmethod
    def forward(ctx: Any, logits: Tensor) -> Tensor:
        return torch.tanh(0.5 * logits)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> Tensor:
        return 2 * grad


def standardized_preactivation(
    x: Tensor,
    logits: Tensor,
    bias: Tensor | None,
    linear_map: functional.LinearMap,
    *,
    binary_input: bool,
    scale: Tensor | None = None,
    variance_floor: float = functional.VARIANCE_FLOOR,
    padded: Sequence[int] = (),
) -> Tensor:
    """mu / sigma of u = W v + b; logits are those of binary weights, of the weight's shape.

    `x` is <v>: the mean of signs if `binary_input`, else the input itself. `padded` says by how much (in F.pad's order)
    `x` was already padded with zeros, which are no signs of unknown neurons. No gradient passes through sigma.
    """
    mean = _PosteriorMean.apply(logits)
    factor = 1.0 if scale is None else scale
    mu = linear_map(x, mean * factor, bias)
    with torch.no_grad():
        square = x.square()
        total = linear_map(square, 1 - mean.square(), None)
        if binary_input:  # 1 - <W>^2 <v>^2 = (1 - <W>^2) <v>^2 + (1 - <v>^2): no term can be negative
            rows = mean if getattr(linear_map, "groups", 1) > 1 else mean[:1]  # the sum is the same for all outputs
            unknown = F.pad((1 - square).clamp_min(0), [-n for n in padded])
            total = total + linear_map(F.pad(unknown, list(padded)), torch.ones_like(rows), None)
        if bias is not None:
            total = total + BIAS_VARIANCE
        sigma = (total.clamp_min(0) * factor**2 + variance_floor).sqrt()
    return mu / sigma


def log_evidence(u: Tensor, y: Tensor) -> Tensor:
    """ln Z = sum_i ln Phi(y_i mu_i / sigma_i), over the batch; u = mu / sigma, y in {-1, +1}, both (batch, out)."""
    if u.shape != y.shape or not bool((y.abs() == 1).all()):
        raise ValueError(
            f"targets must be -1 or +1 and of shape {tuple(u.shape)}, got shape {tuple(y.shape)} with values from "
            f"{y.min().item():g} to {y.max().item():g}; for class labels use 2 * one_hot(labels, classes) - 1"
        )
    return torch.special.log_ndtr(at_least_float32(u * y)).sum()


class ProbabilisticSign(Sign):
    """The sign of a neuron: <v> = 2 Phi(mu / sigma) - 1 of its mu / sigma in training, sign(u) in evaluation."""

    def forward(self, x: Tensor) -> Tensor:
        return torch.erf(x * 0.5**0.5) if self.training else super().forward(x)


ACTIVATION = ProbabilisticSign  # what conversion puts in the place of a ReLU


class ExpectationLayer(LRLayer):
    """A layer of binary weights that learns by expectation backpropagation; `ProbabilisticSign` comes after it.

    In `train()` it gives mu / sigma, in `eval()` the sum over the most probable weights, as all LR layers do.
    `binary_input` says that what it reads are signs, pooled or reshaped at most, and not the network's own input.
    (Max pooling of means gives less than the mean of the largest sign, and of a mean of signs <v^2> is less than the 1
    that a sign has, so behind average pooling sigma comes out too large; the published networks have neither.)
    """

    local = False
    binary_input: bool = False

    def __init__(self, *args: Any, values: Values = "binary", binary_input: bool = False, **settings: Any) -> None:
        super().__init__(*args, **{"values": values, **settings})
        if self.values != BINARY:
            raise ValueError(
                f"expectation backpropagation is for binary weights, got values={self.values}; use values='binary', or "
                "one of the methods lr, gumbel and logderivative, which take any"
            )
        self.binary_input = binary_input

    def _sample(self, x: Tensor, linear_map: functional.LinearMap) -> Tensor:
        functional.check_input(x)
        device = x.device.type
        with torch.autocast(device, enabled=False) if torch.amp.is_autocast_available(device) else nullcontext():
            given = x, self.weight_logits[0], self.bias, self.whole_scale
            wide, logits, bias, scale = (None if t is None else at_least_float32(t) for t in given)
            return standardized_preactivation(
                cast(Tensor, wide), cast(Tensor, logits), bias, linear_map, binary_input=self.binary_input,
                scale=scale, variance_floor=self.variance_floor, padded=self._padded_before(linear_map),
            ).to(x.dtype)  # fmt: skip

    def _padded_before(self, linear_map: functional.LinearMap) -> list[int]:
        """The zeros that this layer has put around its input, since the convolution itself cannot ("same", uneven)."""
        left_to_it = any(getattr(linear_map, "padding", ()))
        if left_to_it or getattr(self, "padding_mode", None) != "zeros":
            return []  # other modes repeat what is there
        return list(cast(Any, self)._reversed_padding_repeated_twice)

    @classmethod
    @torch.no_grad()
    def from_plain(
        cls, layer: nn.Module, values: Values = "binary", scale: Scale = True, p_min: float = P_MIN,
        p_max: float = P_MAX, binary_input: bool = False, norm: _BatchNorm | None = None,
    ) -> Self:  # fmt: skip
        """The twin of torch's own layer; a batch norm that follows it is folded into weights and bias (`fold`)."""
        folded = layer if norm is None else fold(layer, norm)
        twin = super().from_plain(folded, values, scale, p_min, p_max)
        if twin.scale is None and twin.bias is not None:  # a threshold of the sums, in the units of their weights
            _, deviation = standardize(folded.get_parameter("weight"))
            twin.bias = nn.Parameter((twin.bias / deviation).to(twin.bias.dtype), twin.bias.requires_grad)
        twin.binary_input = binary_input
        return twin


@torch.no_grad()
def fold(layer: nn.Module, norm: _BatchNorm) -> nn.Module:
    """A copy of a float layer whose sign is that of the layer followed by batch norm.

    sign(gamma (z - m) / s + beta) = sign(gamma) sign(z - m + beta s / gamma): a threshold, and a turn where gamma < 0.
    """
    mean, variance = norm.running_mean, norm.running_var
    if mean is None or variance is None:
        raise ValueError("the batch norm keeps no running statistics, so it cannot become a threshold; keep it")
    one = torch.ones_like(mean)
    gamma = one if norm.weight is None else norm.weight
    beta = torch.zeros_like(mean) if norm.bias is None else norm.bias
    turn = torch.where(gamma < 0, -one, one)
    size = gamma.abs().clamp_min(norm.eps)  # a filter that batch norm has switched off goes by the sign of beta
    folded = copy.deepcopy(layer)
    weight, bias = folded.get_parameter("weight"), folded._parameters["bias"]
    weight.mul_(turn.view(-1, *[1] * (weight.dim() - 1)))
    shift = turn * ((0 if bias is None else bias) - mean) + beta * (variance + norm.eps).sqrt() / size
    folded.bias = nn.Parameter(shift.to(weight.dtype))
    return folded


class ExpectationLinear(ExpectationLayer, LRLinear):
    """nn.Linear with expectation backpropagation."""


class ExpectationConv1d(ExpectationLayer, LRConv1d):
    """nn.Conv1d with expectation backpropagation."""


class ExpectationConv2d(ExpectationLayer, LRConv2d):
    """nn.Conv2d with expectation backpropagation."""


class ExpectationConv3d(ExpectationLayer, LRConv3d):
    """nn.Conv3d with expectation backpropagation."""


LAYERS: tuple[type[ExpectationLayer], ...] = (
    ExpectationLinear,
    ExpectationConv1d,
    ExpectationConv2d,
    ExpectationConv3d,
)
