"""The paper's network for MNIST (section 5.1)."""

from __future__ import annotations

from collections import OrderedDict

from torch import nn


def mnist_net(classes: int = 10, dropout: float = 0.5) -> nn.Sequential:
    """(32C5)-MP2-(64C5)-MP2-512FC-Softmax, batch norm after each convolution.

    Input (batch, 1, 28, 28), output logits.
    """
    return nn.Sequential(
        OrderedDict(
            conv1=nn.Conv2d(1, 32, 5, bias=False),
            norm1=nn.BatchNorm2d(32),
            relu1=nn.ReLU(inplace=True),
            pool1=nn.MaxPool2d(2),  # (batch, 32, 12, 12)
            conv2=nn.Conv2d(32, 64, 5, bias=False),
            norm2=nn.BatchNorm2d(64),
            relu2=nn.ReLU(inplace=True),
            pool2=nn.MaxPool2d(2),  # (batch, 64, 4, 4)
            flatten=nn.Flatten(),
            fc1=nn.Linear(1024, 512),
            relu3=nn.ReLU(inplace=True),
            dropout=nn.Dropout(dropout),
            fc2=nn.Linear(512, classes),
        )
    )
