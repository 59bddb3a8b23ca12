"""Slow, plain implementations that the tests hold the library against: loops, enumeration, Python floats.

Nothing here imports lrnets. Formulas are the definitions (a mean is a sum of probability times value), never the
library's own shortened forms.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import product

import numpy as np

# ---- one weight -----------------------------------------------------------------------------------------------------


def sigmoid(a: float) -> float:
    """1 / (1 + e^-a), without overflow for a far below 0."""
    return 1 / (1 + math.exp(-a)) if a >= 0 else math.exp(a) / (1 + math.exp(a))


def level_probabilities(kind: str, logits: Sequence[float]) -> list[float]:
    """Probability of each level, lowest level first, from one weight's logits.

    "binary": p(+1) = sigmoid(a). "ternary" (section 4): p(0) = sigmoid(a), p(+1 | not 0) = sigmoid(b). "levels": the
    softmax of one logit a level.
    """
    if kind == "binary":
        (a,) = logits
        return [sigmoid(-a), sigmoid(a)]
    if kind == "ternary":
        a, b = logits
        return [sigmoid(-a) * sigmoid(-b), sigmoid(a), sigmoid(-a) * sigmoid(b)]
    weights = [math.exp(theta - max(logits)) for theta in logits]
    return [weight / math.fsum(weights) for weight in weights]


def expectation(levels: Sequence[float], p: Sequence[float], function: Callable[[float], float]) -> float:
    return math.fsum(pk * function(level) for pk, level in zip(p, levels))


def moments(levels: Sequence[float], p: Sequence[float]) -> tuple[float, float]:
    """E[w] and E[(w - E[w])^2]."""
    mean = expectation(levels, p, lambda level: level)
    return mean, expectation(levels, p, lambda level: (level - mean) ** 2)


def fourth_cumulant(levels: Sequence[float], p: Sequence[float]) -> float:
    """E[(w - E[w])^4] - 3 Var[w]^2; of independent variables cumulants add up."""
    mean, variance = moments(levels, p)
    return expectation(levels, p, lambda level: (level - mean) ** 4) - 3 * variance**2


def entropy_in_bits(p: Sequence[float]) -> float:
    return -math.fsum(pk * math.log2(pk) for pk in p if pk > 0)


def dot_product_moments(
    levels: Sequence[float], p: Sequence[Sequence[float]], h: Sequence[float]
) -> tuple[float, float]:
    """Mean and variance of sum_j w_j h_j over ALL weight vectors; p[j] are the level probabilities of weight j."""
    outcomes = []
    for choice in product(range(len(levels)), repeat=len(h)):
        probability = math.prod(p[j][k] for j, k in enumerate(choice))
        outcomes.append((probability, math.fsum(levels[k] * h[j] for j, k in enumerate(choice))))
    mean = math.fsum(probability * z for probability, z in outcomes)
    return mean, math.fsum(probability * (z - mean) ** 2 for probability, z in outcomes)


def moment_arrays(kind: str, levels: Sequence[float], logits: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Mean and variance of every weight; logits (logits a weight, *weight shape)."""
    mean, variance = np.empty(logits.shape[1:]), np.empty(logits.shape[1:])
    for index in positions(logits.shape[1:]):
        p = level_probabilities(kind, logits[(slice(None), *index)].tolist())
        mean[index], variance[index] = moments(levels, p)
    return mean, variance


def likeliest_levels(kind: str, levels: Sequence[float], logits: np.ndarray) -> np.ndarray:
    """The level of greatest probability of every weight; logits (logits a weight, *weight shape)."""
    chosen = np.empty(logits.shape[1:])
    for index in positions(logits.shape[1:]):
        p = level_probabilities(kind, logits[(slice(None), *index)].tolist())
        chosen[index] = levels[p.index(max(p))]
    return chosen


# ---- linear maps ----------------------------------------------------------------------------------------------------


def positions(shape: Iterable[int]) -> Iterator[tuple[int, ...]]:
    return product(*map(range, shape))


def linear(x: np.ndarray, weight: np.ndarray) -> np.ndarray:
    """z[..., i] = sum_j weight[i, j] x[..., j]."""
    z = np.zeros((*x.shape[:-1], weight.shape[0]))
    for *row, i in positions(z.shape):
        for j in range(weight.shape[1]):
            z[(*row, i)] += weight[i, j] * x[(*row, j)]
    return z


def source_index(i: int, size: int, mode: str) -> int | None:
    """Which element of a row of `size` stands at position i, i < 0 and i >= size being padding; None is a zero."""
    if 0 <= i < size:
        return i
    if mode == "zeros":
        return None
    if mode == "replicate":
        return 0 if i < 0 else size - 1
    if mode == "circular":
        return i + size if i < 0 else i - size
    assert mode == "reflect"
    return -i if i < 0 else 2 * (size - 1) - i


def same_padding(kernel_size: Sequence[int], dilation: Sequence[int]) -> list[tuple[int, int]]:
    """Before and after, so that stride 1 keeps the size; an odd one goes after."""
    total = [d * (k - 1) for k, d in zip(kernel_size, dilation)]
    return [(t // 2, t - t // 2) for t in total]


def convolution(
    x: np.ndarray,
    weight: np.ndarray,
    *,
    stride: Sequence[int],
    padding: Sequence[tuple[int, int]],
    dilation: Sequence[int],
    groups: int,
    padding_mode: str = "zeros",
) -> np.ndarray:
    """x (batch, channels, *sizes), weight (out, channels / groups, *kernel); padding (before, after) each dimension."""
    out, channels, *kernel = weight.shape
    sizes = [
        (n + before + after - d * (k - 1) - 1) // s + 1
        for n, (before, after), k, s, d in zip(x.shape[2:], padding, kernel, stride, dilation)
    ]
    z = np.zeros((x.shape[0], out, *sizes))
    for batch, o, *at in positions(z.shape):
        first = o // (out // groups) * channels
        for tap in positions(kernel):
            source = tuple(
                source_index(a * s + t * d - before, n, padding_mode)
                for a, s, t, d, (before, _), n in zip(at, stride, tap, dilation, padding, x.shape[2:])
            )
            if None not in source:
                for c in range(channels):
                    z[(batch, o, *at)] += weight[(o, c, *tap)] * x[(batch, first + c, *source)]
    return z


def transposed_convolution(
    x: np.ndarray,
    weight: np.ndarray,
    *,
    stride: Sequence[int],
    padding: Sequence[int],
    output_padding: Sequence[int],
    dilation: Sequence[int],
    groups: int,
) -> np.ndarray:
    """Every input scatters its kernel; x (batch, channels, *sizes), weight (channels, out / groups, *kernel)."""
    channels, out, *kernel = weight.shape
    sizes = [
        (n - 1) * s - 2 * p + d * (k - 1) + extra + 1
        for n, s, p, d, k, extra in zip(x.shape[2:], stride, padding, dilation, kernel, output_padding)
    ]
    z = np.zeros((x.shape[0], out * groups, *sizes))
    for batch, c, *at in positions(x.shape):
        first = c // (channels // groups) * out
        for tap in positions(kernel):
            target = tuple(a * s + t * d - p for a, s, t, d, p in zip(at, stride, tap, dilation, padding))
            if all(0 <= t < size for t, size in zip(target, sizes)):
                for o in range(out):
                    z[(batch, first + o, *target)] += weight[(c, o, *tap)] * x[(batch, c, *at)]
    return z


# ---- a layer --------------------------------------------------------------------------------------------------------


def preactivation(
    linear_map: Callable[[np.ndarray, np.ndarray], np.ndarray],
    x: np.ndarray,
    mean: np.ndarray,
    variance: np.ndarray,
    bias: np.ndarray,
    eps: np.ndarray,
    floor: float,
) -> np.ndarray:
    """Algorithm 1: m + v eps, m = map(h, mu) + bias and v^2 = map(h^2, sigma^2) + floor; bias is broadcast."""
    return linear_map(x, mean) + bias + np.sqrt(linear_map(x**2, variance) + floor) * eps
