"""Torch's own layers built like others."""

import pytest
import torch
from torch import nn

from lrnets.plain import filled, settings_of


@pytest.mark.parametrize(
    "layer",
    [
        nn.Linear(3, 4, bias=False),
        nn.Conv1d(4, 6, 3, stride=2, groups=2, padding_mode="circular", padding=1),
        nn.Conv2d(4, 6, (3, 1), padding="same", dilation=2),
        nn.Conv3d(2, 3, 2, bias=False),
        nn.ConvTranspose2d(2, 3, 2, stride=2, output_padding=1),
    ],
)
def test_a_layer_can_be_built_like_another(layer):
    shape = {nn.Linear: (2, 3), nn.Conv1d: (2, 4, 9), nn.Conv2d: (2, 4, 9, 9), nn.Conv3d: (2, 2, 5, 5, 5)}
    x = torch.randn(shape.get(type(layer), (2, 2, 5, 5)))
    assert settings_of(type(layer), layer).keys() >= ({"kernel_size"} if "Conv" in type(layer).__name__ else set())
    again = filled(type(layer), layer, layer.weight.detach() * 2, layer.bias)
    assert type(again) is type(layer)
    assert not again.weight.requires_grad
    bias = layer.bias
    with torch.no_grad():
        layer.weight.mul_(2)
    assert torch.equal(again(x), layer(x))
    assert again.bias is bias
