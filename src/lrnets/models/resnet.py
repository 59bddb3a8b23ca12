"""ResNet-18 (He et al. 2016), the paper's network for ImageNet (section 5.3)."""

from __future__ import annotations

from torch import Tensor, nn


class BasicBlock(nn.Module):
    """relu(x' + BN(conv(relu(BN(conv(x)))))), where x' is x, or its 1x1 projection if the shape changes."""

    def __init__(self, channels: int, out: int, stride: int = 1) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(channels, out, 3, stride, padding=1, bias=False)
        self.bn1 = nn.BatchNorm2d(out)
        self.relu = nn.ReLU(inplace=True)
        self.conv2 = nn.Conv2d(out, out, 3, padding=1, bias=False)
        self.bn2 = nn.BatchNorm2d(out)
        self.relu2 = nn.ReLU(inplace=True)  # of its own: methods with binary activations take out some, not others
        self.downsample: nn.Sequential | None = None
        if stride != 1 or channels != out:
            self.downsample = nn.Sequential(nn.Conv2d(channels, out, 1, stride, bias=False), nn.BatchNorm2d(out))

    def forward(self, x: Tensor) -> Tensor:
        shortcut = x if self.downsample is None else self.downsample(x)
        x = self.relu(self.bn1(self.conv1(x)))
        return self.relu2(self.bn2(self.conv2(x)) + shortcut)


class ResNet(nn.Module):
    """A ResNet of basic blocks; its parameters have the names that public ImageNet checkpoints use."""

    def __init__(self, blocks: tuple[int, int, int, int], classes: int, width: float, dropout: float) -> None:
        super().__init__()
        if not width > 0:
            raise ValueError(f"width must be above 0, got {width}; 1.0 is the paper's network")
        sizes = [max(1, round(base * width)) for base in (64, 128, 256, 512)]
        self.conv1 = nn.Conv2d(3, sizes[0], 7, stride=2, padding=3, bias=False)
        self.bn1 = nn.BatchNorm2d(sizes[0])
        self.relu = nn.ReLU(inplace=True)
        self.maxpool = nn.MaxPool2d(3, stride=2, padding=1)
        self.layer1 = _stage(sizes[0], sizes[0], blocks[0], stride=1)
        self.layer2 = _stage(sizes[0], sizes[1], blocks[1], stride=2)
        self.layer3 = _stage(sizes[1], sizes[2], blocks[2], stride=2)
        self.layer4 = _stage(sizes[2], sizes[3], blocks[3], stride=2)
        self.avgpool = nn.AdaptiveAvgPool2d(1)
        self.flatten = nn.Flatten()
        self.dropout = nn.Dropout(dropout)
        self.fc = nn.Linear(sizes[3], classes)
        for module in self.modules():
            if isinstance(module, nn.Conv2d):
                nn.init.kaiming_normal_(module.weight, mode="fan_out", nonlinearity="relu")

    def forward(self, x: Tensor) -> Tensor:
        x = self.maxpool(self.relu(self.bn1(self.conv1(x))))  # a quarter of the side
        x = self.layer4(self.layer3(self.layer2(self.layer1(x))))  # a 32nd of it
        return self.fc(self.dropout(self.flatten(self.avgpool(x))))


def resnet18(classes: int = 1000, width: float = 1.0, dropout: float = 0.0) -> ResNet:
    """ResNet-18. Input (batch, 3, side, side), 224 pixels in the paper and 32 or more in general; output logits.

    `width` multiplies all channels. Names and shapes are those of public checkpoints (conv1, bn1, layer1.0.conv1, ...,
    layer2.0.downsample.0, ..., fc) if it is 1.
    """
    return ResNet((2, 2, 2, 2), classes, width, dropout)


def _stage(channels: int, out: int, blocks: int, stride: int) -> nn.Sequential:
    rest = [BasicBlock(out, out) for _ in range(blocks - 1)]
    return nn.Sequential(BasicBlock(channels, out, stride), *rest)
