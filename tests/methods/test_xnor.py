"""XNOR-Net against loops: signs of the input, BWN's weights, the scale map K, the bias after it."""

import numpy as np
import pytest
import torch
from references import convolution
from torch import nn

import lrnets
from lrnets.methods.xnor import XnorConv1d, XnorConv2d, XnorLinear


def signs(x: np.ndarray) -> np.ndarray:
    return np.where(x >= 0, 1.0, -1.0)


def with_parameters(layer: nn.Module) -> nn.Module:
    rng = np.random.default_rng(3)
    for parameter in layer.parameters():
        parameter.data = torch.tensor(rng.normal(size=parameter.shape))
    return layer


@pytest.mark.parametrize(("groups", "padding", "stride", "dilation"), [(1, 0, 1, 1), (1, 1, 2, 1), (2, 2, 1, 2)])
def test_a_convolution_is_that_of_signs_times_the_mean_size_of_what_it_sees(groups, padding, stride, dilation):
    layer = with_parameters(XnorConv2d(4, 6, (3, 2), stride=stride, padding=padding, dilation=dilation, groups=groups))
    x = np.random.default_rng(0).normal(size=(2, 4, 7, 6))
    settings = {
        "stride": (stride,) * 2, "padding": [(padding, padding)] * 2, "dilation": (dilation,) * 2, "groups": groups
    }  # fmt: skip
    product = convolution(signs(x), layer.weight.detach().numpy(), **settings)
    # The mean over channels and kernel, all in one: a convolution with equal weights, for each output alike.
    equal = np.full(layer.weight.shape, 1 / layer.weight[0].numel())
    scale = convolution(np.abs(x), equal, **settings)
    expected = product * scale + layer.bias.detach().numpy()[:, None, None]
    np.testing.assert_allclose(layer(torch.tensor(x)).detach().numpy(), expected, atol=1e-12)
    np.testing.assert_allclose(layer(torch.tensor(x[0])).detach().numpy(), expected[0], atol=1e-12)  # no batch


def test_one_dimension_and_linear_layers():
    x = np.random.default_rng(0).normal(size=(2, 3, 8))
    conv = with_parameters(XnorConv1d(3, 4, 3, bias=False))
    settings = {"stride": (1,), "padding": [(0, 0)], "dilation": (1,), "groups": 1}
    scale = convolution(np.abs(x), np.full((4, 3, 3), 1 / 9), **settings)
    expected = convolution(signs(x), conv.weight.detach().numpy(), **settings) * scale
    np.testing.assert_allclose(conv(torch.tensor(x)).detach().numpy(), expected, atol=1e-12)
    linear = with_parameters(XnorLinear(8, 5))
    expected = signs(x) @ linear.weight.detach().numpy().T * np.abs(x).mean(-1, keepdims=True)
    expected = expected + linear.bias.detach().numpy()
    np.testing.assert_allclose(linear(torch.tensor(x)).detach().numpy(), expected, atol=1e-12)


def test_gradients_go_through_the_sign_within_one_and_through_the_scale_everywhere():
    linear = with_parameters(XnorLinear(5, 3, bias=False))
    x = torch.tensor([[0.5, -0.2, 1.5, -3.0, 0.9]], dtype=torch.float64, requires_grad=True)
    upstream = np.array([0.3, -1.2, 0.7])
    (linear(x) * torch.tensor(upstream)).sum().backward()
    values, weight = x.detach().numpy()[0], linear.weight.detach().numpy()
    through_sign = (upstream @ weight) * np.abs(values).mean() * (np.abs(values) <= 1)
    through_scale = (weight @ signs(values) * upstream).sum() * np.sign(values) / 5
    np.testing.assert_allclose(x.grad.numpy()[0], through_sign + through_scale, rtol=1e-12)


@pytest.mark.parametrize("input_scale", [True, False])
def test_a_converted_network_computes_with_or_without_the_scale(input_scale):
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(6, 5), nn.ReLU(), nn.Linear(5, 4)).double()
    second = model[2].weight.detach().numpy()
    lrnets.convert_(model, method="xnor", keep="0", input_scale=input_scale)
    x = np.random.default_rng(0).normal(size=(7, 6))
    hidden = x @ model[0].weight.detach().numpy().T + model[0].bias.detach().numpy()
    weights = signs(second) * np.abs(second).mean(1, keepdims=True)
    scale = np.abs(hidden).mean(1, keepdims=True) if input_scale else 1.0
    expected = signs(hidden) @ weights.T * scale + model[2].bias.detach().numpy()
    np.testing.assert_allclose(model(torch.tensor(x)).detach().numpy(), expected, atol=1e-12)
