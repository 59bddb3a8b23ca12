"""The paper's networks have the paper's shapes."""

from itertools import pairwise

import pytest
import torch
from torch import nn

from lrnets.models import cifar10_vgg, mnist_net


def weights(model: nn.Module) -> list[int]:
    return [m.weight.numel() for m in model.modules() if isinstance(m, (nn.Conv2d, nn.Linear))]


def order(model: nn.Module) -> str:
    short = {
        "Conv2d": "C",
        "BatchNorm2d": "B",
        "ReLU": "R",
        "MaxPool2d": "P",
        "Flatten": "F",
        "Linear": "L",
        "Dropout": "D",
    }
    return "".join(short[type(module).__name__] for module in model)


def test_mnist_network():
    model = mnist_net()
    assert weights(model) == [32 * 25, 64 * 32 * 25, 1024 * 512, 512 * 10]
    assert order(model) == "CBRP" * 2 + "FLRDL"
    assert model(torch.zeros(2, 1, 28, 28)).shape == (2, 10)
    assert model.dropout.p == 0.5


def test_cifar10_network():
    model = cifar10_vgg()
    chain = [3, 128, 128, 256, 256, 512, 512]
    assert weights(model) == [a * b * 9 for a, b in pairwise(chain)] + [8192 * 1024, 1024 * 10]
    assert order(model) == "CBRCBRP" * 3 + "FLRDL"
    assert model.dropout.p == 0.5


def test_cifar10_width():
    model = cifar10_vgg(width=0.25)
    assert model.conv11.out_channels == 32
    assert model.fc1.in_features == 128 * 16
    assert model(torch.zeros(2, 3, 32, 32)).shape == (2, 10)
    with pytest.raises(ValueError, match="width must be above 0, got 0"):
        cifar10_vgg(width=0)
