"""Linear maps with inputs, logits and noise to sample, and what the plain formulas give for them."""

from __future__ import annotations

from dataclasses import dataclass, replace

import pytest
import torch
from torch import Tensor

from lrnets.functional import (
    VARIANCE_FLOOR,
    Convolution,
    Dense,
    LinearMap,
    local_reparameterization,
)
from lrnets.weights import BINARY, TERNARY, Levels, ValueSet

FIVE = Levels((-2, -1, 0, 1, 2))
every_value_set = pytest.mark.parametrize("values", [BINARY, TERNARY, FIVE], ids=str)


MAPS: dict[str, tuple[LinearMap, tuple[int, ...], tuple[int, ...], int]] = {
    # the map, the input's shape, the weight's, output channels
    "dense": (Dense(), (3, 4), (2, 4), 2),
    "dense, three dimensions of input": (Dense(), (2, 2, 3), (2, 3), 2),
    "dense, one row": (Dense(), (4,), (3, 4), 3),
    "1d": (Convolution((2,), (1,), (2,)), (2, 2, 6), (3, 2, 2), 3),
    "1d, groups": (Convolution((1,), (0,), (1,), 2), (1, 4, 4), (2, 2, 3), 2),
    "2d": (Convolution((1, 2), (1, 0), (1, 1)), (2, 2, 3, 4), (2, 2, 2, 2), 2),
    "2d, depthwise": (Convolution((1, 1), (1, 1), (1, 2), 2), (1, 2, 3, 4), (2, 1, 2, 2), 2),
    "3d": (Convolution((1, 1, 2), (0, 1, 0), (1, 1, 1)), (1, 2, 2, 2, 3), (2, 2, 1, 2, 2), 2),
    "2d transposed": (Convolution((2, 2), (1, 0), (1, 1), 1, True, (0, 1)), (1, 2, 2, 3), (2, 2, 2, 3), 2),
    "2d transposed, groups": (Convolution((1, 2), (0, 0), (2, 1), 2, True), (1, 4, 2, 2), (4, 1, 2, 2), 2),
}
every_map = pytest.mark.parametrize("which", MAPS)


@dataclass
class Case:
    """Everything a sample is made of; tensors in float64 unless told."""

    x: Tensor
    logits: Tensor
    bias: Tensor | None
    scale: Tensor | None
    noise: Tensor
    values: ValueSet
    linear_map: LinearMap
    floor: float = VARIANCE_FLOOR
    sharpness: Tensor | None = None
    natural: bool = False

    def sample(self, **changed) -> Tensor:
        case = replace(self, **changed)
        return local_reparameterization(
            case.x, case.logits, case.bias, case.values, case.linear_map,
            scale=case.scale, sharpness=case.sharpness, noise=case.noise, variance_floor=case.floor,
            natural=case.natural,
        )  # fmt: skip

    def by_autograd(self) -> Tensor:
        """Algorithm 1 in plain torch operations, its derivatives left to autograd."""
        mean, variance = self.values.moments(self.logits)
        scale = 1.0 if self.scale is None else self.scale
        m = self.linear_map(self.x, mean * scale, self.bias)
        v = (self.linear_map(self.x**2, variance * scale**2, None) + self.floor).sqrt()
        return m + v * self.noise

    def leaves(self) -> list[Tensor]:
        return [tensor for tensor in (self.x, self.logits, self.bias) if tensor is not None]

    def gradients(self, sampled: Tensor | None = None) -> tuple[Tensor, ...]:
        """Of a loss that weighs every output differently."""
        z = self.sample() if sampled is None else sampled
        weights = torch.linspace(-1, 2, z.numel(), dtype=torch.float64).view(z.shape)
        return torch.autograd.grad((z.double() * weights).sum(), self.leaves())

    def to(self, dtype: torch.dtype) -> Case:
        """Rounded to `dtype`, with leaves of its own."""
        moved = {
            name: None if tensor is None else tensor.detach().to(dtype)
            for name, tensor in vars(self).items()
            if tensor is None or isinstance(tensor, Tensor)
        }
        case = replace(self, **moved)
        for leaf in case.leaves():
            leaf.requires_grad_()
        return case


def make_case(which: str, values: ValueSet, *, bias: bool = True, scale: bool = True, seed: int = 0) -> Case:
    linear_map, shape, weight_shape, out = MAPS[which]
    return random_case(linear_map, shape, weight_shape, out, values, bias=bias, scale=scale, seed=seed)


def random_case(linear_map, shape, weight_shape, out, values, *, bias=True, scale=True, seed=0) -> Case:
    generator = torch.Generator().manual_seed(seed)

    def normal(*shape: int) -> Tensor:
        return torch.randn(shape, generator=generator, dtype=torch.float64)

    x, logits = normal(*shape).requires_grad_(), normal(values.logits_per_weight, *weight_shape).requires_grad_()
    noise = normal(*linear_map(x.detach(), logits[0].detach(), None).shape)
    return Case(
        x, logits, normal(out).requires_grad_() if bias else None,
        torch.tensor(0.37, dtype=torch.float64) if scale else None, noise, values, linear_map,
    )  # fmt: skip


def assert_all_close(given, expected, **tolerance) -> None:
    for one, other in zip(given, expected, strict=True):
        torch.testing.assert_close(one, other, **tolerance)


# Sums of at most 50 products of numbers below 10, 1e-16 each, in another order: far below this.
REORDERED = {"rtol": 1e-12, "atol": 1e-12}
