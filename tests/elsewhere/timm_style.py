"""Networks in the manner of timm: layers made from classes given as arguments, small layers of its own.

timm itself needs torchvision, which has no build for our torch. Written anew, narrow, for tests.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

import torch
import torch.nn.functional as F
from torch import Tensor, nn

Layer = Callable[..., nn.Module]


def drop_path(x: Tensor, drop_prob: float = 0.0, training: bool = False) -> Tensor:
    """Stochastic depth: drops whole examples of a branch, in training."""
    if drop_prob == 0.0 or not training:
        return x
    keep = 1 - drop_prob
    return x * x.new_empty((x.shape[0],) + (1,) * (x.ndim - 1)).bernoulli_(keep).div_(keep)


class DropPath(nn.Module):
    def __init__(self, drop_prob: float = 0.0) -> None:
        super().__init__()
        self.drop_prob = drop_prob

    def forward(self, x: Tensor) -> Tensor:
        return drop_path(x, self.drop_prob, self.training)


class SelectAdaptivePool2d(nn.Module):
    """Average, maximum, or the mean of both; flattened or not."""

    def __init__(self, pool_type: str = "avg", flatten: bool = True) -> None:
        super().__init__()
        self.pool_type = pool_type
        self.pool = nn.AdaptiveAvgPool2d(1) if pool_type == "avg" else nn.AdaptiveMaxPool2d(1)
        self.flatten = nn.Flatten(1) if flatten else nn.Identity()

    def forward(self, x: Tensor) -> Tensor:
        return self.flatten(self.pool(x))


class BatchNormAct2d(nn.BatchNorm2d):
    """Batch norm and activation in one, derived from torch's."""

    def __init__(self, features: int, act_layer: Layer | None = nn.ReLU) -> None:
        super().__init__(features)
        self.drop = nn.Identity()
        self.act = nn.Identity() if act_layer is None else act_layer(inplace=True)

    def forward(self, x: Tensor) -> Tensor:
        return self.act(self.drop(super().forward(x)))


class LayerNorm2d(nn.LayerNorm):
    """Over the channels of (batch, channels, height, width)."""

    def forward(self, x: Tensor) -> Tensor:
        x = x.permute(0, 2, 3, 1)
        x = F.layer_norm(x, self.normalized_shape, self.weight, self.bias, self.eps)
        return x.permute(0, 3, 1, 2)


class SEModule(nn.Module):
    """Squeeze and excite: channels times a gate computed from their means."""

    def __init__(self, channels: int, reduction: int = 4, act_layer: Layer = nn.ReLU) -> None:
        super().__init__()
        self.fc1 = nn.Conv2d(channels, channels // reduction, kernel_size=1)
        self.act = act_layer(inplace=True)
        self.fc2 = nn.Conv2d(channels // reduction, channels, kernel_size=1)
        self.gate = nn.Sigmoid()

    def forward(self, x: Tensor) -> Tensor:
        gate = x.mean((2, 3), keepdim=True)
        return x * self.gate(self.fc2(self.act(self.fc1(gate))))


class ResBlock(nn.Module):
    def __init__(
        self, channels: int, out: int, stride: int, act_layer: Layer, attn_layer: Layer | None, drop: float
    ) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(channels, out, 3, stride, 1, bias=False)
        self.bn1 = BatchNormAct2d(out, act_layer)
        self.conv2 = nn.Conv2d(out, out, 3, 1, 1, bias=False)
        self.bn2 = BatchNormAct2d(out, None)
        self.se = None if attn_layer is None else attn_layer(out, act_layer=act_layer)
        self.drop_path = DropPath(drop) if drop else None
        self.act2 = act_layer(inplace=True)
        self.downsample: nn.Module | None = None
        if stride != 1 or channels != out:  # timm's "avg_down"
            pool = nn.AvgPool2d(2, stride, ceil_mode=True, count_include_pad=False) if stride != 1 else nn.Identity()
            self.downsample = nn.Sequential(pool, nn.Conv2d(channels, out, 1, bias=False), nn.BatchNorm2d(out))

    def forward(self, x: Tensor) -> Tensor:
        shortcut = x
        x = self.bn2(self.conv2(self.bn1(self.conv1(x))))
        if self.se is not None:
            x = self.se(x)
        if self.drop_path is not None:
            x = self.drop_path(x)
        if self.downsample is not None:
            shortcut = self.downsample(shortcut)
        x += shortcut
        return self.act2(x)


class ResNet(nn.Module):
    """A deep stem, stages, and timm's forward in two parts with a head that drops."""

    def __init__(
        self, num_classes: int = 5, act_layer: Layer = nn.ReLU, attn_layer: Layer | None = None, drop_rate: float = 0.1
    ) -> None:
        super().__init__()
        self.drop_rate = drop_rate
        self.conv1 = nn.Sequential(
            nn.Conv2d(3, 6, 3, stride=2, padding=1, bias=False), nn.BatchNorm2d(6), act_layer(inplace=True),
            nn.Conv2d(6, 8, 3, padding=1, bias=False),
        )  # fmt: skip
        self.bn1, self.act1 = nn.BatchNorm2d(8), act_layer(inplace=True)
        self.maxpool = nn.MaxPool2d(kernel_size=3, stride=2, padding=1)
        block = partial(ResBlock, act_layer=act_layer, attn_layer=attn_layer, drop=0.05)
        self.layer1 = nn.Sequential(block(8, 8, 1), block(8, 8, 1))
        self.layer2 = nn.Sequential(block(8, 16, 2))
        self.global_pool = SelectAdaptivePool2d("avg", flatten=True)
        self.fc = nn.Linear(16, num_classes)

    def forward_features(self, x: Tensor) -> Tensor:
        x = self.maxpool(self.act1(self.bn1(self.conv1(x))))
        return self.layer2(self.layer1(x))

    def forward_head(self, x: Tensor, pre_logits: bool = False) -> Tensor:
        x = self.global_pool(x)
        if self.drop_rate:
            x = F.dropout(x, p=float(self.drop_rate), training=self.training)
        return x if pre_logits else self.fc(x)

    def forward(self, x: Tensor) -> Tensor:
        return self.forward_head(self.forward_features(x))


class Mlp(nn.Module):
    def __init__(self, width: int, act_layer: Layer = nn.GELU) -> None:
        super().__init__()
        self.fc1, self.act = nn.Linear(width, 4 * width), act_layer()
        self.drop1, self.norm = nn.Dropout(0.0), nn.Identity()
        self.fc2 = nn.Linear(4 * width, width)

    def forward(self, x: Tensor) -> Tensor:
        return self.fc2(self.norm(self.drop1(self.act(self.fc1(x)))))


class ConvNeXtBlock(nn.Module):
    """Depthwise 7x7, layer norm and MLP over the channels, a learned scale a channel."""

    def __init__(self, width: int, drop: float) -> None:
        super().__init__()
        self.conv_dw = nn.Conv2d(width, width, 7, padding=3, groups=width)
        self.norm, self.mlp = nn.LayerNorm(width, eps=1e-6), Mlp(width)
        self.gamma = nn.Parameter(0.5 * torch.ones(width))
        self.drop_path = DropPath(drop)

    def forward(self, x: Tensor) -> Tensor:
        shortcut = x
        x = self.mlp(self.norm(self.conv_dw(x).permute(0, 2, 3, 1))).permute(0, 3, 1, 2)
        return self.drop_path(x.mul(self.gamma.reshape(1, -1, 1, 1))) + shortcut


class ConvNeXt(nn.Module):
    def __init__(self, num_classes: int = 5, width: int = 16) -> None:
        super().__init__()
        self.stem = nn.Sequential(nn.Conv2d(3, width, 4, stride=4), LayerNorm2d(width, eps=1e-6))
        self.stages = nn.Sequential(ConvNeXtBlock(width, 0.0), ConvNeXtBlock(width, 0.05))
        self.global_pool = SelectAdaptivePool2d("avg", flatten=False)
        self.norm, self.flatten = LayerNorm2d(width, eps=1e-6), nn.Flatten(1)
        self.fc = nn.Linear(width, num_classes)

    def forward(self, x: Tensor) -> Tensor:
        return self.fc(self.flatten(self.norm(self.global_pool(self.stages(self.stem(x))))))


resnet_se = partial(ResNet, act_layer=nn.SiLU, attn_layer=SEModule)
