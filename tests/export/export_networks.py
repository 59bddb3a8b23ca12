"""Networks to export: small, of all the shapes people build, with batch norm that does something."""

from __future__ import annotations

import copy
from collections.abc import Callable

import numpy as np
import torch
import torch.nn.functional as F
from lrnets_runtime import reference
from torch import Tensor, nn

import lrnets
from lrnets.export.trace import Traced


def drawn(model: nn.Module, values: object = "ternary", **options: object) -> nn.Module:
    """The model converted and drawn; its batch norm as if trained."""
    lrnets.convert_(model, values, **options)
    return with_statistics(lrnets.discretize(model, generator=torch.Generator().manual_seed(1)))


@torch.no_grad()
def with_statistics(net: nn.Module) -> nn.Module:
    generator = torch.Generator().manual_seed(2)
    for module in net.modules():
        if isinstance(module, nn.modules.batchnorm._BatchNorm) and module.running_mean is not None:
            module.running_mean.normal_(0, 0.3, generator=generator)
            module.running_var.uniform_(0.5, 2, generator=generator)
            if module.affine:
                module.weight.uniform_(-1, 1.5, generator=generator)
                module.bias.normal_(0, 0.3, generator=generator)
    return net.eval()


def assert_same(traced: Traced, net: nn.Module, x: Tensor, precision: float = 1e-5) -> None:
    """The graph's output is that of the network in float64, up to float32's rounding."""
    with torch.no_grad():
        expected = copy.deepcopy(net).eval().double()(x.double()).numpy()
    tensors = {  # as fold rounds them
        name: tensor.astype(np.float32) if tensor.dtype == np.float64 else tensor
        for name, tensor in traced.tensors.items()
    }
    outputs = reference.run(traced.graph, tensors, x.float().numpy())
    assert outputs.shape == expected.shape
    assert np.abs(outputs - expected).max() <= precision * max(1, np.abs(expected).max())


class Lambda(nn.Module):
    """A function with layers of its own."""

    def __init__(self, function: Callable[..., Tensor], *layers: nn.Module) -> None:
        super().__init__()
        self.layers = nn.ModuleList(layers)
        self.function = function

    def forward(self, x: Tensor) -> Tensor:
        return self.function(x, *self.layers)


class BasicBlock(nn.Module):
    """torchvision's, with a projection where the shape changes."""

    def __init__(self, channels: int, out: int, stride: int) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(channels, out, 3, stride, 1, bias=False)
        self.bn1 = nn.BatchNorm2d(out)
        self.conv2 = nn.Conv2d(out, out, 3, 1, 1, bias=False)
        self.bn2 = nn.BatchNorm2d(out)
        self.relu = nn.ReLU(inplace=True)
        self.downsample = (
            nn.Sequential(nn.Conv2d(channels, out, 1, stride, bias=False), nn.BatchNorm2d(out))
            if stride != 1 or channels != out
            else None
        )

    def forward(self, x: Tensor) -> Tensor:
        y = self.bn2(self.conv2(self.relu(self.bn1(self.conv1(x)))))
        y += x if self.downsample is None else self.downsample(x)
        return self.relu(y)


class ResNet(nn.Module):
    """ResNet-18's parts in small; input (batch, 3, 16, 16)."""

    def __init__(self) -> None:
        super().__init__()
        self.stem = nn.Sequential(nn.Conv2d(3, 8, 3, 2, 1, bias=False), nn.BatchNorm2d(8), nn.ReLU(inplace=True))
        self.maxpool = nn.MaxPool2d(3, 2, 1)
        self.layer1 = nn.Sequential(BasicBlock(8, 8, 1), BasicBlock(8, 8, 1))
        self.layer2 = nn.Sequential(BasicBlock(8, 12, 2), BasicBlock(12, 12, 1))
        self.avgpool = nn.AdaptiveAvgPool2d((1, 1))
        self.fc = nn.Linear(12, 5)

    def forward(self, x: Tensor) -> Tensor:
        x = self.avgpool(self.layer2(self.layer1(self.maxpool(self.stem(x)))))
        return self.fc(torch.flatten(x, 1))


class PreActivation(nn.Module):
    """Batch norm before convolutions, whose input is used twice: nothing can take it in."""

    def __init__(self) -> None:
        super().__init__()
        self.stem = nn.Conv2d(3, 6, 3, padding=1)
        self.bn1, self.conv1 = nn.BatchNorm2d(6), nn.Conv2d(6, 6, 3, padding=1)
        self.bn2, self.conv2 = nn.BatchNorm2d(6), nn.Conv2d(6, 6, 3, padding=1, bias=False)
        self.fc = nn.Linear(6, 4)

    def forward(self, x: Tensor) -> Tensor:
        x = self.stem(x)
        y = self.conv1(F.relu(self.bn1(x)))
        x = x + self.conv2(F.relu(self.bn2(y)))
        return self.fc(x.mean((2, 3)))


def mobile_net() -> nn.Sequential:
    """Depthwise and pointwise convolutions with ReLU6."""

    def separable(channels: int, out: int, stride: int) -> list[nn.Module]:
        return [
            nn.Conv2d(channels, channels, 3, stride, 1, groups=channels, bias=False),
            nn.BatchNorm2d(channels),
            nn.ReLU6(inplace=True),
            nn.Conv2d(channels, out, 1, bias=False),
            nn.BatchNorm2d(out),
            nn.ReLU6(),
        ]

    last = nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(12, 4)
    return nn.Sequential(*separable(3, 8, 1), *separable(8, 12, 2), *last)


class Branches(nn.Module):
    """Two branches side by side, concatenated, and a convolution whose output is used with and without batch norm."""

    def __init__(self) -> None:
        super().__init__()
        self.left = nn.Sequential(nn.Conv2d(3, 4, 3, padding=1), nn.LeakyReLU(0.1))
        self.right = nn.Sequential(nn.AvgPool2d(3, 1, 1, count_include_pad=False), nn.Conv2d(3, 5, 1))
        self.twice, self.norm = nn.Conv2d(9, 9, 3, padding=2, dilation=2, groups=3), nn.BatchNorm2d(9)
        self.fc = nn.Linear(9 * 4, 4)

    def forward(self, x: Tensor) -> Tensor:
        y = self.twice(torch.cat([self.left(x), self.right(x)], 1))
        y = F.adaptive_max_pool2d(F.hardtanh(self.norm(y)) + y, 2)
        return torch.softmax(self.fc(y.view(y.size(0), -1)), -1)


def audio_net() -> nn.Sequential:
    """Convolutions over one dimension; input (batch, 2, 20)."""
    return nn.Sequential(
        nn.Conv1d(2, 6, 5, stride=2, padding=2), nn.BatchNorm1d(6), nn.ReLU(), nn.MaxPool1d(2),
        nn.Conv1d(6, 8, 3, padding="same", dilation=2), nn.BatchNorm1d(8), nn.ReLU(), nn.AvgPool1d(2),
        nn.AdaptiveAvgPool1d(1), nn.Flatten(), nn.Linear(8, 3),
    )  # fmt: skip
