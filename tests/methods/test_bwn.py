"""BWN against NumPy: the scale of each filter, and the gradient that the XNOR-Net paper gives."""

import numpy as np
import pytest
import torch
from straight import some_weights, twin_of, weights_and_gradient

from lrnets.methods.bwn import filter_scale


@pytest.mark.parametrize("shape", [(4, 6), (3, 2, 3, 3)])
def test_signs_times_the_mean_size_of_the_filter_and_the_papers_gradient(shape):
    weight, upstream = some_weights(*shape), some_weights(*shape, seed=1)
    weight[0, 0] *= 4
    weights, gradient = weights_and_gradient(twin_of(weight, "bwn"), upstream)
    n = weight[0].size
    for o in range(shape[0]):
        alpha = sum(abs(w) for w in weight[o].flat) / n
        for w, g, found, slope in zip(weight[o].flat, upstream[o].flat, weights[o].flat, gradient[o].flat):
            assert found == pytest.approx(alpha if w >= 0 else -alpha, rel=1e-12)
            assert slope == pytest.approx(g * (1 / n + (alpha if abs(w) <= 1 else 0.0)), rel=1e-12)
    assert (np.abs(weight) > 1).any()
    assert (np.abs(weight) < 1).any()


def test_the_scale_is_the_least_squares_fit():
    weight = some_weights(1, 50)
    alpha = filter_scale(torch.tensor(weight)).item()
    errors = {a: ((weight - a * np.sign(weight)) ** 2).sum() for a in (alpha - 0.01, alpha, alpha + 0.01)}
    assert min(errors, key=errors.get) == alpha
