"""The moments of dropped-out sums against enumeration over all masks."""

import itertools
import math

import numpy as np
import pytest
import references
import torch
from torch import nn

from lrnets.methods import fast_dropout
from lrnets.methods.fast_dropout import FastDropoutConv2d, FastDropoutLinear


def seeded(seed: int = 0) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def over_all_masks(compute, x: np.ndarray, p: float) -> tuple[np.ndarray, np.ndarray]:
    """Mean and variance of compute(x * mask / (1 - p)) over the masks of one example."""
    outcomes = []
    for bits in itertools.product((0, 1), repeat=x.size):
        mask = np.array(bits).reshape(x.shape)
        probability = math.prod(1 - p if bit else p for bit in bits)
        outcomes.append((probability, compute(x * mask / (1 - p))))
    mean = sum(probability * z for probability, z in outcomes)
    return mean, sum(probability * (z - mean) ** 2 for probability, z in outcomes)


@pytest.mark.parametrize("p", [0.2, 0.5])
def test_a_linear_layers_moments_are_those_over_all_masks(p):
    layer = FastDropoutLinear(6, 3, p=p, dtype=torch.float64)
    layer.variance_floor = 0.0
    x, layer.generator = torch.randn(1, 6, dtype=torch.float64), seeded(1)
    weight, bias = layer.weight.detach().numpy(), layer.bias.detach().numpy()
    mean, variance = over_all_masks(lambda h: references.linear(h, weight) + bias, x.numpy(), p)
    eps = torch.randn(1, 3, dtype=torch.float64, generator=seeded(1)).numpy()
    np.testing.assert_allclose(layer(x).detach().numpy(), mean + np.sqrt(variance) * eps, rtol=1e-10)


def test_a_convolutions_moments_are_those_over_all_masks():
    layer = FastDropoutConv2d(2, 2, 2, padding=1, stride=2, p=0.3, bias=False, dtype=torch.float64)
    layer.variance_floor = 0.0
    x, layer.generator = torch.randn(1, 2, 2, 2, dtype=torch.float64), seeded(1)
    settings = {"stride": (2, 2), "padding": [(1, 1), (1, 1)], "dilation": (1, 1), "groups": 1}
    weight = layer.weight.detach().numpy()
    mean, variance = over_all_masks(lambda h: references.convolution(h, weight, **settings), x.numpy(), 0.3)
    found = layer(x)
    eps = torch.randn(found.shape, dtype=torch.float64, generator=seeded(1)).numpy()
    np.testing.assert_allclose(found.detach().numpy(), mean + np.sqrt(variance) * eps, rtol=1e-10)


def test_it_agrees_with_torchs_dropout_in_mean_and_deviation():
    torch.manual_seed(0)
    n = 20_000
    layer, x = FastDropoutLinear(8, 1, p=0.4), torch.rand(1, 8).expand(n, 8)
    masked = nn.functional.linear(nn.functional.dropout(x, 0.4), layer.weight, layer.bias).detach()
    sampled = layer(x).detach()
    deviation = masked.std().item()
    assert sampled.mean().item() == pytest.approx(masked.mean().item(), abs=5 * deviation * math.sqrt(2 / n))
    # A sum of eight bits has lighter tails than a Gaussian; the bound is that of two Gaussian deviations.
    assert sampled.std().item() == pytest.approx(deviation, rel=5 / math.sqrt(n))


def test_gradients_for_input_and_weight():
    layer = FastDropoutLinear(3, 2, p=0.3, dtype=torch.float64)
    x = torch.randn(2, 3, dtype=torch.float64, requires_grad=True)

    def sample(x, weight):
        layer.generator = seeded(0)
        return torch.func.functional_call(layer, {"weight": weight}, (x,))

    assert torch.autograd.gradcheck(sample, (x, layer.weight))


@pytest.mark.parametrize("kind", fast_dropout.LAYERS)
def test_every_kind_of_layer_starts_from_a_float_layer_and_ends_as_one(kind):
    dimensions = 0 if kind is FastDropoutLinear else int(kind.__name__[-2])
    plain = kind.plain(2, 3) if not dimensions else kind.plain(2, 3, 2)
    twin = kind.from_plain(plain, None, p=0.5)
    x = torch.randn(2, 2, *[3] * dimensions)
    assert not torch.equal(twin(x), twin(x))
    assert torch.equal(twin.eval()(x), plain(x))
    net = twin.to_plain(twin.choose("mode"), twin.bias)
    assert type(net) is kind.plain
    assert torch.equal(net(x), plain(x))
    assert twin.weight is not plain.weight
    assert twin.bias is plain.bias


def test_without_dropout_it_is_torchs_own_layer():
    layer = FastDropoutLinear(4, 2, p=0.0)
    layer.variance_floor = 0.0
    x = torch.randn(3, 4)
    torch.testing.assert_close(layer(x), nn.functional.linear(x, layer.weight, layer.bias))


@pytest.mark.parametrize("wrong", [-0.1, 1.0, math.nan])
def test_impossible_rates_are_refused(wrong):
    with pytest.raises(ValueError, match="p must be at least 0 and below 1"):
        FastDropoutLinear(2, 2, p=wrong)
