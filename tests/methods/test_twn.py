"""TWN against NumPy: threshold, scale, a gradient that passes unchanged, for a layer and for each filter."""

import numpy as np
import pytest
import torch
from straight import some_weights, twin_of, weights_and_gradient

from lrnets.methods.twn import ternarize


def by_hand(weight: np.ndarray, threshold: float) -> np.ndarray:
    delta = threshold * np.mean([abs(w) for w in weight.flat])
    alpha = np.mean([abs(w) for w in weight.flat if abs(w) > delta])
    return np.array([alpha * np.sign(w) if abs(w) > delta else 0.0 for w in weight.flat]).reshape(weight.shape)


@pytest.mark.parametrize("shape", [(5, 8), (4, 2, 3, 3)])
@pytest.mark.parametrize("per", ["layer", "filter"])
@pytest.mark.parametrize("threshold", [0.7, 1.1])
def test_threshold_scale_and_gradient(shape, per, threshold):
    weight, upstream = some_weights(*shape), some_weights(*shape, seed=1)
    weight[0] *= 5  # so that a filter's numbers are not the layer's
    weights, gradient = weights_and_gradient(twin_of(weight, "twn", per=per, threshold=threshold), upstream)
    expected = by_hand(weight, threshold) if per == "layer" else np.stack([by_hand(w, threshold) for w in weight])
    np.testing.assert_allclose(weights, expected, rtol=1e-12)
    np.testing.assert_array_equal(gradient, upstream)
    assert (weights == 0).any()


def test_no_scale_fits_better_at_its_threshold():
    weight = some_weights(3, 40)
    fit = ternarize(torch.tensor(weight)).numpy()
    alpha = np.abs(fit).max()
    worse = [((weight - np.sign(fit) * (alpha + d)) ** 2).sum() for d in (-0.01, 0.01)]
    assert ((weight - fit) ** 2).sum() < min(worse)


def test_a_filter_of_zeros_stays_zero():
    weight = some_weights(3, 4)
    weight[1] = 0
    assert (ternarize(torch.tensor(weight), "filter")[1] == 0).all()


@pytest.mark.parametrize(("options", "words"), [({"per": "tensor"}, "'tensor'"), ({"threshold": 0.0}, "above 0")])
def test_impossible_options_are_named(options, words):
    with pytest.raises(ValueError, match=words):
        twin_of(some_weights(3, 4), "twn", **options)
