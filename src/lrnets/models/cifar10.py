"""The paper's VGG-like network for CIFAR-10 (section 5.2)."""

from __future__ import annotations

from collections import OrderedDict

from torch import nn


def cifar10_vgg(classes: int = 10, width: float = 1.0, dropout: float = 0.5) -> nn.Sequential:
    """(2x128C3)-MP2-(2x256C3)-MP2-(2x512C3)-MP2-1024FC-Softmax, batch norm after each convolution.

    Input (batch, 3, 32, 32), output logits. `width` multiplies all channels and the fully connected layer.
    """
    if not width > 0:
        raise ValueError(f"width must be above 0, got {width}; 1.0 is the paper's network")
    layers: OrderedDict[str, nn.Module] = OrderedDict()
    channels = 3
    for stage, base in enumerate((128, 256, 512), start=1):
        for number in (1, 2):
            out = _scaled(base, width)
            layers[f"conv{stage}{number}"] = nn.Conv2d(channels, out, 3, padding=1, bias=False)
            layers[f"norm{stage}{number}"] = nn.BatchNorm2d(out)
            layers[f"relu{stage}{number}"] = nn.ReLU(inplace=True)
            channels = out
        layers[f"pool{stage}"] = nn.MaxPool2d(2)
    hidden = _scaled(1024, width)
    layers["flatten"] = nn.Flatten()
    layers["fc1"] = nn.Linear(channels * 4 * 4, hidden)
    layers["relu_fc1"] = nn.ReLU(inplace=True)
    layers["dropout"] = nn.Dropout(dropout)
    layers["fc2"] = nn.Linear(hidden, classes)
    return nn.Sequential(layers)


def _scaled(channels: int, width: float) -> int:
    return max(1, round(channels * width))
