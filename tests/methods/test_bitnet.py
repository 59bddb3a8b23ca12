"""BitNet b1.58's weights against NumPy."""

import numpy as np
import pytest
from straight import some_weights, twin_of, weights_and_gradient


@pytest.mark.parametrize("shape", [(5, 8), (4, 2, 3, 3)])
def test_weights_are_rounded_to_the_mean_size_and_gradients_pass(shape):
    weight, upstream = some_weights(*shape), some_weights(*shape, seed=1)
    weights, gradient = weights_and_gradient(twin_of(weight, "bitnet"), upstream)
    gamma = np.mean([abs(w) for w in weight.flat])
    nearest = [min((-1, 0, 1), key=lambda level, w=w: abs(w / gamma - level)) for w in weight.flat]
    np.testing.assert_allclose(weights, gamma * np.reshape(nearest, shape), rtol=1e-12)
    np.testing.assert_array_equal(gradient, upstream)
    assert len(np.unique(weights)) == 3


def test_tiny_weights_do_not_divide_by_zero():
    weight = some_weights(3, 4) * 1e-12
    assert (twin_of(weight, "bitnet").weight == 0).all()
