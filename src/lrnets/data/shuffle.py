"""Orders that look random and are the same on every machine and with every version of every library."""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor

MASK = (1 << 64) - 1
GAMMA = np.uint64(0x9E3779B97F4A7C15)


def mix(*keys: int) -> int:
    """A 64-bit number made of whole numbers, in their order: a seed for (seed, epoch, ...)."""
    state = np.zeros(1, dtype=np.uint64)
    for key in keys:
        state = _scramble(state + GAMMA ^ np.uint64(key & MASK))
    return int(state[0])


def stream(count: int, seed: int) -> np.ndarray:
    """The first numbers of the generator splitmix64 (Steele, Lea, Flood 2014); (count,) uint64."""
    return _scramble(np.uint64(seed & MASK) + np.arange(1, count + 1, dtype=np.uint64) * GAMMA)


def permutation(count: int, *keys: int) -> Tensor:
    """The numbers 0 ... count - 1 in the order of a random number each; (count,) int64."""
    return torch.from_numpy(np.argsort(stream(count, mix(*keys)), kind="stable"))


def _scramble(z: np.ndarray) -> np.ndarray:
    z = (z ^ (z >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    z = (z ^ (z >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return z ^ (z >> np.uint64(31))
