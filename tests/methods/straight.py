"""What the tests of straight-through methods share: a layer of given weights, and what a method makes of it."""

from __future__ import annotations

import numpy as np
import torch
from torch import nn

import lrnets

STRAIGHT = ("binaryconnect", "bnn", "bwn", "xnor", "twn", "ttq", "bitnet")  # the straight-through methods
PLAIN_ACTIVATIONS = ("binaryconnect", "bwn", "twn", "ttq", "bitnet")  # those that leave activations alone
AS_THEY_ARE = ("bwn", "xnor", "twn", "ttq", "bitnet")  # those that start from the float weights without any change


def some_weights(*shape: int, seed: int = 0, size: float = 0.7) -> np.ndarray:
    """Float weights, some of them beyond +-1."""
    return np.random.default_rng(seed).normal(size=shape) * size


def twin_of(weight: np.ndarray, method: str, **options):
    """The twin of a linear or convolution layer with these weights, in double precision."""
    w = torch.tensor(weight)
    layer = nn.Linear(w.shape[1], w.shape[0]) if w.dim() == 2 else nn.Conv2d(w.shape[1], w.shape[0], w.shape[2:])
    layer = layer.double()
    layer.weight.data = w
    model = nn.Sequential(layer)
    lrnets.convert_(model, method=method, keep=(), **options)
    return model[0]


def weights_and_gradient(twin, upstream: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """What the layer computes with, and the gradient of its float weights when that of the discrete ones is given."""
    weight = twin.weight
    (weight * torch.tensor(upstream)).sum().backward()
    return weight.detach().numpy(), twin.latent.grad.numpy()
