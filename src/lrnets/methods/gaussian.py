"""Gaussian local reparameterisation, the ancestor of LR-nets, with the KL divergence it was made for.

Kingma, Salimans and Welling 2015, "Variational dropout and the local reparameterization trick": weights
w ~ N(theta, alpha theta^2) with learned theta and alpha. Their sum is Gaussian, here exactly: m = sum_j theta_ij h_j
and v^2 = sum_j alpha_ij theta_ij^2 h_j^2 (their section 2.3), and a training pass samples it. The weights are
continuous; what training ends in is the float network of the means theta.
"""

from __future__ import annotations

from contextlib import nullcontext
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from typing_extensions import Self

from lrnets.functional import VARIANCE_FLOOR, check_input
from lrnets.methods.twin import Mode, Twin
from lrnets.noise import check_repeatable, standard_normal_like
from lrnets.plain import settings_of
from lrnets.weights import ValueSet, at_least_float32

ALPHA = 0.1  # at the start: each weight's deviation is a third of its mean
KL_COEFFICIENTS = (1.16145124, -1.50204118, 0.58629921)  # Kingma et al. 2015, section 3.3 and appendix C


def sample_gaussian(
    m: Tensor,
    v2: Tensor,
    *,
    noise: Tensor | None = None,
    generator: torch.Generator | None = None,
    variance_floor: float = VARIANCE_FLOOR,
) -> Tensor:
    """m + v eps, eps ~ N(0, 1); all of one shape. `noise` fixes eps, else it comes from `generator` or torch's own."""
    eps = standard_normal_like(v2, generator) if noise is None else noise
    v = (v2.clamp_min(0) + variance_floor).sqrt()  # a Winograd convolution may round to below zero
    return torch.addcmul(m.to(v.dtype), v, eps).to(m.dtype)


def kl_log_uniform(alpha: Tensor) -> Tensor:
    """KL(N(theta, alpha theta^2) || log-uniform) of each weight, up to a constant; shape of alpha, 0 < alpha <= 1.

    It is -1/2 ln alpha + E[ln |e|], e ~ N(1, alpha), whatever theta. The expectation has no closed form; the paper's
    cubic replaces it: -(1/2 ln alpha + c1 alpha + c2 alpha^2 + c3 alpha^3). Against numerical integration it is off by
    a constant 0.033 +- 0.007 for alpha from 0.05 to 1, and by less below.
    """
    c1, c2, c3 = KL_COEFFICIENTS
    return -(0.5 * alpha.log() + alpha * (c1 + alpha * (c2 + alpha * c3)))


class NoisyLayer(Twin):
    """A float layer whose training pass is a sample from N(m, v^2): m torch's own result, v^2 = map(h^2, variance).

    In `eval()` it is torch's own layer. `generator`, if set, is where the noise comes from.
    """

    own_rate = False  # ordinary float weights
    weight: nn.Parameter
    generator: torch.Generator | None = None
    variance_floor: float = VARIANCE_FLOOR

    def weight_variance(self) -> Tensor:
        """Variance of each weight; shape of the weight."""
        raise NotImplementedError

    def linear_map(self, x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
        """What torch's own layer computes, with these weights."""
        raise NotImplementedError

    def forward(self, input: Tensor) -> Tensor:
        m = self.linear_map(input, self.weight, self.bias)
        if not self.training:
            return m
        check_input(input)
        check_repeatable(self.generator)
        device = input.device.type
        with torch.autocast(device, enabled=False) if torch.amp.is_autocast_available(device) else nullcontext():
            square = at_least_float32(input).square()
            v2 = self.linear_map(square, at_least_float32(self.weight_variance()), None)
        return sample_gaussian(m, v2, generator=self.generator, variance_floor=self.variance_floor)

    @property
    def random(self) -> bool:
        return False  # what remains is the float network of the means

    def choose(self, mode: Mode, generator: torch.Generator | None = None) -> Tensor:
        """The means, whatever the mode."""
        return self.weight.detach().clone()

    @classmethod
    @torch.no_grad()
    def from_plain(cls, layer: nn.Module, values: ValueSet | None = None, **options: Any) -> Self:
        """The noisy twin of torch's own layer, with a copy of its weights and its very own bias."""
        if values is not None:
            raise ValueError(f"{cls.__name__} has continuous weights, got values={values}; use values='float'")
        weight, bias = layer.get_parameter("weight"), layer._parameters["bias"]
        like = {"device": weight.device, "dtype": weight.dtype}
        twin = cls(**settings_of(cls.plain, layer), bias=bias is not None, **like, **options)
        twin.weight = nn.Parameter(weight.detach().clone(), requires_grad=weight.requires_grad)
        twin.bias = bias
        return twin.train(layer.training)


class Dense(NoisyLayer):
    """The map of nn.Linear."""

    def linear_map(self, x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
        return F.linear(x, weight, bias)


class Convolution(NoisyLayer):
    """The map of torch's convolutions; their padding modes commute with the square."""

    def linear_map(self, x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
        return self._conv_forward(x, weight, bias)  # type: ignore[operator]


class GaussianLayer(NoisyLayer):
    """w ~ N(theta, alpha theta^2) with one alpha = sigmoid(alpha_logit) a weight: in (0, 1), where the cubic holds.

    `kl` weighs the KL divergence that `extra_loss` adds to the loss; 1 is the variational bound.
    """

    carriers = ("weight", "alpha_logit")
    alpha_logit: nn.Parameter

    def __init__(self, *args: Any, alpha: float = ALPHA, kl: float = 1.0, **settings: Any) -> None:
        super().__init__(*args, **settings)
        if not 0 < alpha < 1:
            raise ValueError(f"alpha must be above 0 and below 1, got {alpha}; {ALPHA} is a gentle start")
        if not 0 <= kl < float("inf"):
            raise ValueError(f"kl must be a finite number of at least 0, got {kl}; 1 is the variational bound")
        self.kl = kl
        start = torch.logit(torch.tensor(alpha, dtype=torch.float64)).item()
        self.alpha_logit = nn.Parameter(torch.full_like(self.weight, start))

    @property
    def alpha(self) -> Tensor:
        """Variance of each weight by its squared mean; shape of the weight."""
        return torch.sigmoid(self.alpha_logit)

    def weight_variance(self) -> Tensor:
        """alpha theta^2."""
        return self.alpha * self.weight.square()

    def extra_loss(self, loss: Tensor, examples: int) -> Tensor:
        """kl * KL / examples: what the layer adds to a mean loss over a training set of so many examples."""
        return self.kl / examples * kl_log_uniform(self.alpha).sum()


# (torch declares parameters as tensors, Twin as parameters: hence the ignored types.)
class GaussianLinear(GaussianLayer, Dense, nn.Linear):  # type: ignore[misc]
    """nn.Linear with Gaussian weights."""

    plain = nn.Linear


class GaussianConv1d(GaussianLayer, Convolution, nn.Conv1d):  # type: ignore[misc]
    """nn.Conv1d with Gaussian weights."""

    plain = nn.Conv1d


class GaussianConv2d(GaussianLayer, Convolution, nn.Conv2d):  # type: ignore[misc]
    """nn.Conv2d with Gaussian weights."""

    plain = nn.Conv2d


class GaussianConv3d(GaussianLayer, Convolution, nn.Conv3d):  # type: ignore[misc]
    """nn.Conv3d with Gaussian weights."""

    plain = nn.Conv3d


LAYERS: tuple[type[GaussianLayer], ...] = (GaussianLinear, GaussianConv1d, GaussianConv2d, GaussianConv3d)
