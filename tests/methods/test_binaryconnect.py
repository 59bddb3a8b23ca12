"""BinaryConnect against its formulas: signs, the hard sigmoid, a gradient that passes unchanged, clipping."""

import numpy as np
import pytest
import torch
from straight import some_weights, twin_of, weights_and_gradient

import lrnets
from lrnets.methods.binaryconnect import draw_signs, hard_sigmoid
from lrnets.methods.harness import after_step


@pytest.mark.parametrize("scale", [True, False])
def test_weights_are_signs_times_the_deviation_and_gradients_pass(scale):
    weight, upstream = some_weights(4, 3, 2, 2), some_weights(4, 3, 2, 2, seed=1)
    twin = twin_of(weight, "binaryconnect", scale=scale)
    deviation = weight.std()
    np.testing.assert_allclose(twin.latent.detach().numpy(), np.clip(weight / deviation, -1, 1))
    weights, gradient = weights_and_gradient(twin, upstream)
    size = deviation if scale else 1.0
    np.testing.assert_allclose(weights, np.where(weight >= 0, size, -size))
    np.testing.assert_allclose(gradient, size * upstream)  # of w = size * sign(r), with 1 for the sign's derivative


def test_a_weight_of_zero_counts_as_positive():
    weight = some_weights(4, 5)
    weight[1, 2] = 0.0
    assert twin_of(weight, "binaryconnect", scale=False).weight[1, 2] == 1


def test_the_hard_sigmoid():
    r = np.array([-3.0, -1.0, -0.5, 0.0, 0.25, 1.0, 7.0])
    np.testing.assert_allclose(hard_sigmoid(torch.tensor(r)).numpy(), [0, 0, 0.25, 0.5, 0.625, 1, 1])


def test_stochastic_weights_follow_the_hard_sigmoid():
    r = torch.tensor([-1.0, -0.6, 0.0, 0.3, 1.0]).repeat(20_000, 1)
    share = (draw_signs(r, torch.Generator().manual_seed(0)) == 1).double().mean(0)
    p = np.array([0.0, 0.2, 0.5, 0.65, 1.0])
    # Five standard errors of a share of 20,000 draws; at 0 and at 1 exactly.
    assert (np.abs(share.numpy() - p) <= 5 * np.sqrt(p * (1 - p) / 20_000)).all()


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_half_precision_weights_follow_it_as_closely(dtype):
    """A share of n draws has the deviation sqrt(p (1 - p) / n); five of them are passed once in 1.7 million times."""
    r, n = torch.tensor([-0.99, -0.3, 0.01, 0.99], dtype=dtype), 400_000
    p = (r.double() + 1) / 2
    share = (draw_signs(r.expand(n, 4), torch.Generator().manual_seed(0)) == 1).double().mean(0)
    assert ((share - p).abs() <= 5 * (p * (1 - p) / n).sqrt()).all()


def test_stochastic_layers_draw_in_training_only_and_pass_the_gradient():
    twin = twin_of(some_weights(10, 30), "binaryconnect", stochastic=True, scale=False)
    first, second = twin.weight.detach(), twin.weight.detach()
    assert set(first.unique().tolist()) == {-1.0, 1.0}
    assert not torch.equal(first, second)
    upstream = some_weights(10, 30, seed=1)
    np.testing.assert_allclose(weights_and_gradient(twin, upstream)[1], upstream)
    twin.eval()
    assert torch.equal(twin.weight, torch.where(twin.latent >= 0, 1.0, -1.0).double())
    assert torch.equal(twin.weight, twin.weight)


def test_stochastic_networks_are_drawn_and_deterministic_ones_are_not():
    twin = twin_of(some_weights(10, 30), "binaryconnect", stochastic=True)
    draws = [lrnets.discretize(twin, generator=torch.Generator().manual_seed(seed)).weight for seed in (0, 0, 1)]
    assert torch.equal(draws[0], draws[1])
    assert not torch.equal(draws[0], draws[2])
    mode = lrnets.discretize(twin, "mode").weight
    certain = twin.latent.abs() == 1  # clipped at the start, so drawn as it is every time
    assert certain.any()
    assert not certain.all()
    for drawn in draws:
        assert torch.equal(drawn[certain], mode[certain])
    fixed = twin_of(some_weights(10, 30), "binaryconnect")
    assert torch.equal(lrnets.discretize(fixed).weight, lrnets.discretize(fixed, "mode").weight)


def test_after_a_step_weights_are_clipped():
    twin = twin_of(some_weights(6, 6), "binaryconnect")
    with torch.no_grad():
        twin.latent.mul_(3)
    expected = np.clip(twin.latent.detach().numpy(), -1, 1)
    assert np.abs(twin.latent.detach().numpy()).max() > 1
    after_step(twin)
    np.testing.assert_array_equal(twin.latent.detach().numpy(), expected)


@pytest.mark.parametrize("method", ["binaryconnect", "bnn"])
def test_a_scale_is_there_or_not(method):
    model = torch.nn.Sequential(torch.nn.Linear(3, 3), torch.nn.ReLU(), torch.nn.Linear(3, 2))
    with pytest.raises(ValueError, match=r"scale must be True or False, got 'fitted' \(str\)"):
        lrnets.convert_(model, method=method, scale="fitted")
