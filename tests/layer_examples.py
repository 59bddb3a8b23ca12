"""Small layers of every kind, for the tests of layers."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn

from lrnets.layers import LAYERS, LRConv1d, LRConv2d, LRConv3d, LRConvTranspose2d, LRLayer, LRLinear

FIVE = (-2, -1, 0, 1, 2)
every_value_set = pytest.mark.parametrize("values", ["binary", "ternary", FIVE], ids=str)

# Sums of at most a few hundred products of numbers below 10 in float64.
REORDERED = {"rtol": 1e-11, "atol": 1e-11}

# One of each kind, with the shape of an input that it takes.
EXAMPLES = {
    LRLinear: ((5, 4), (3, 5)),
    LRConv1d: ((2, 3, 3), (2, 2, 7)),
    LRConv2d: ((2, 3, 3), (2, 2, 5, 6)),
    LRConv3d: ((2, 3, 2), (2, 2, 3, 4, 3)),
    LRConvTranspose2d: ((2, 3, 3), (2, 2, 4, 3)),
}
every_kind = pytest.mark.parametrize("kind", LAYERS, ids=lambda kind: kind.__name__)


def example(
    kind: type[LRLayer], *, seed: int = 0, dtype: torch.dtype = torch.float64, **changes
) -> tuple[LRLayer, Tensor]:
    """A small layer and an input for it."""
    arguments, shape = EXAMPLES[kind]
    torch.manual_seed(seed)
    layer = kind(*arguments, dtype=dtype, **changes)
    return layer, torch.randn(shape, dtype=dtype)


def seeded(layer: nn.Module, *inputs, seed: int = 1) -> Tensor:
    torch.manual_seed(seed)
    return layer(*inputs)


def loss_gradients(layer: nn.Module, z: Tensor) -> dict[str, Tensor]:
    """Gradients of all parameters, of a loss that weighs every output differently."""
    layer.zero_grad()
    (z * torch.linspace(-1, 2, z.numel(), dtype=z.dtype).view(z.shape)).sum().backward()
    return {name: parameter.grad.clone() for name, parameter in layer.named_parameters()}


def assert_same(given: dict[str, Tensor], expected: dict[str, Tensor], **tolerance) -> None:
    assert given.keys() == expected.keys()
    for name, tensor in expected.items():
        torch.testing.assert_close(given[name], tensor, msg=lambda text, name=name: f"{name}: {text}", **tolerance)
