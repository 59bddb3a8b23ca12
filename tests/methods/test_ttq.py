"""TTQ against NumPy: three regions, two learned scales, and the gradients of all three."""

import numpy as np
import pytest
import torch
from straight import some_weights, twin_of, weights_and_gradient

import lrnets


@pytest.mark.parametrize("shape", [(5, 8), (4, 2, 3, 3)])
@pytest.mark.parametrize("threshold", [0.05, 0.4])
def test_values_and_gradients_in_the_three_regions(shape, threshold):
    weight, upstream = some_weights(*shape), some_weights(*shape, seed=1)
    twin = twin_of(weight, "ttq", threshold=threshold)
    with torch.no_grad():  # as if training had moved them
        twin.quantizer.positive.fill_(0.8)
        twin.quantizer.negative.fill_(0.3)
    weights, gradient = weights_and_gradient(twin, upstream)
    delta = threshold * max(abs(w) for w in weight.flat)
    above, below = weight > delta, weight < -delta
    np.testing.assert_allclose(weights, np.where(above, 0.8, np.where(below, -0.3, 0.0)))
    np.testing.assert_allclose(gradient, upstream * np.where(above, 0.8, np.where(below, 0.3, 1.0)))
    np.testing.assert_allclose(twin.quantizer.positive.grad.item(), upstream[above].sum())
    np.testing.assert_allclose(twin.quantizer.negative.grad.item(), -upstream[below].sum())
    assert above.any()
    assert below.any()
    assert not (above | below).all()


def test_the_scales_gradient_is_the_derivative():
    twin = twin_of(some_weights(5, 8), "ttq")
    upstream = torch.tensor(some_weights(5, 8, seed=1))

    def loss(positive: float, negative: float) -> float:
        with torch.no_grad():
            twin.quantizer.positive.fill_(positive)
            twin.quantizer.negative.fill_(negative)
            return (twin.weight * upstream).sum().item()

    step = 1e-6
    by_difference = [
        (loss(0.5 + step, 0.4) - loss(0.5 - step, 0.4)) / (2 * step),
        (loss(0.5, 0.4 + step) - loss(0.5, 0.4 - step)) / (2 * step),
    ]
    (twin.weight * upstream).sum().backward()
    found = [twin.quantizer.positive.grad.item(), twin.quantizer.negative.grad.item()]
    np.testing.assert_allclose(found, by_difference, rtol=1e-6)


def test_the_scales_start_as_the_mean_sizes_of_their_regions():
    weight = some_weights(5, 8)
    weight[weight > 0] *= 3
    twin = twin_of(weight, "ttq")
    delta = 0.05 * np.abs(weight).max()
    assert twin.quantizer.positive.item() == pytest.approx(weight[weight > delta].mean())
    assert twin.quantizer.negative.item() == pytest.approx(-weight[weight < -delta].mean())


def test_scales_learn_at_the_ordinary_rate_and_stay_when_the_network_is_drawn():
    twin = twin_of(some_weights(5, 8), "ttq")
    groups = {group["name"]: group for group in lrnets.param_groups(twin, lr=1e-3, logit_lr=1e-2, weight_decay=1e-4)}
    assert [p is twin.latent for p in groups["latents"]["params"]] == [True]
    assert {id(p) for p in groups["rest"]["params"]} == {
        id(p) for p in (twin.bias, twin.quantizer.positive, twin.quantizer.negative)
    }
    levels = lrnets.discretize(twin).weight.unique().tolist()
    assert levels == [-twin.quantizer.negative.item(), 0.0, twin.quantizer.positive.item()]


def test_an_impossible_threshold_is_named():
    with pytest.raises(ValueError, match=r"layer '0'.*below 1.*got 1"):
        twin_of(some_weights(3, 4), "ttq", threshold=1)
