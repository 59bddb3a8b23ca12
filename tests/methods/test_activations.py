"""The sign as an activation: its values, its window, its place at a layer's input."""

import numpy as np
import pytest
import torch
from torch import nn

from lrnets.methods.activations import Sign, SignConv1d, SignConv2d, SignConv3d, SignLinear

X = torch.tensor([-3.0, -1.0, -0.5, -0.0, 0.0, 0.5, 1.0, 1.001])


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16])
def test_values_and_gradient(dtype):
    x = X.clone().to(dtype).requires_grad_()
    upstream = torch.arange(1.0, 9.0).to(dtype)
    y = Sign()(x)
    assert y.dtype == dtype
    assert y.tolist() == [-1, -1, -1, 1, 1, 1, 1, 1]
    (y * upstream).sum().backward()
    assert x.grad.tolist() == [0, 2, 3, 4, 5, 6, 7, 0 if dtype != torch.bfloat16 else 8]  # 1.001 is 1 in bfloat16


def test_nothing_is_kept_for_a_gradient_nobody_wants():
    with torch.no_grad():
        assert Sign()(X.clone().requires_grad_()).grad_fn is None
    assert Sign()(X).grad_fn is None


@pytest.mark.parametrize(
    ("signed", "plain", "shape"),
    [
        (SignLinear(4, 3), nn.Linear(4, 3), (2, 4)),
        (SignConv1d(4, 3, 2, padding=1), nn.Conv1d(4, 3, 2, padding=1), (2, 4, 5)),
        (SignConv2d(4, 2, 2, groups=2), nn.Conv2d(4, 2, 2, groups=2), (2, 4, 5, 5)),
        (SignConv3d(4, 3, 2, stride=2), nn.Conv3d(4, 3, 2, stride=2), (2, 4, 5, 5, 5)),
    ],
)
def test_layers_take_the_sign_of_their_input_and_pad_with_zeros(signed, plain, shape):
    plain.load_state_dict(signed.state_dict())
    x = np.random.default_rng(0).normal(size=shape).astype(np.float32)
    expected = plain(torch.from_numpy(np.where(x >= 0, 1, -1).astype(np.float32)))
    torch.testing.assert_close(signed(torch.from_numpy(x)), expected, rtol=0, atol=0)
    assert isinstance(signed, type(plain))
