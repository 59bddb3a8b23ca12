"""How far class probabilities may be trusted."""

from __future__ import annotations

import torch
from torch import Tensor

from lrnets.errors import describe

FLOOR = 2.0**-126  # the smallest normal float32, where a float32 softmax ends anyway
SUM_TOLERANCE = 0.01  # bfloat16's softmax is that far off


def negative_log_likelihood(probabilities: Tensor, labels: Tensor) -> float:
    """Mean of -ln p(label) in nats; probabilities (n, classes), labels (n,).

    A probability counts as at least 2^-126, whatever its dtype: a certainty that is wrong costs 87.3 nats and not
    infinitely many, which would hide all other examples.
    """
    p = _checked(probabilities, labels)
    return -float(p.gather(1, labels.unsqueeze(1).long()).clamp_min(FLOOR).log().mean())


def expected_calibration_error(probabilities: Tensor, labels: Tensor, bins: int = 15) -> float:
    """sum_b n_b / n |accuracy_b - confidence_b| (Guo et al. 2017), 0 to 1; probabilities (n, classes), labels (n,).

    Bin b = 1 ... B holds the examples with a highest probability in ((b - 1) / B, b / B]; an empty one counts nothing.
    """
    if isinstance(bins, bool) or not isinstance(bins, int) or bins < 1:
        raise ValueError(f"bins must be a whole number of at least 1, got {describe(bins)}; 15 is usual")
    confidence, predicted = _checked(probabilities, labels).max(1)
    edges = torch.arange(1, bins, dtype=confidence.dtype, device=confidence.device) / bins
    excess = (predicted == labels).to(confidence.dtype) - confidence
    # n_b |accuracy_b - confidence_b| is the sum of a bin's excesses: no division by an empty bin's zero.
    return float(torch.bincount(torch.bucketize(confidence, edges), excess, bins).abs().sum() / len(excess))


def _checked(probabilities: Tensor, labels: Tensor) -> Tensor:
    """The probabilities in float64, if they are some and the labels fit."""
    if not isinstance(probabilities, Tensor) or not probabilities.is_floating_point() or probabilities.ndim != 2:
        raise ValueError(f"probabilities must be floats of shape (n, classes), got {_shape(probabilities)}")
    if not isinstance(labels, Tensor) or labels.is_floating_point() or labels.is_complex() or labels.ndim != 1:
        raise ValueError(f"labels must be whole numbers of shape (n,), got {_shape(labels)}")
    n, classes = probabilities.shape
    if n == 0 or classes == 0 or len(labels) != n:
        raise ValueError(f"{n} examples of {classes} classes with {len(labels)} labels; give as many of both, not none")
    if not 0 <= int(labels.min()) <= int(labels.max()) < classes:
        raise ValueError(f"labels from {labels.min()} to {labels.max()}, expected 0 to {classes - 1}")
    p = probabilities.detach().double()
    sums = p.sum(1)
    wrong = ~((p >= 0).all(1) & ((sums - 1).abs() <= SUM_TOLERANCE))  # true for NaN, too
    if wrong.any():
        row = int(wrong.nonzero()[0])
        raise ValueError(
            f"row {row} holds no probabilities: its least is {p[row].min():.4g}, its sum {sums[row]:.4g}, "
            "expected at least 0 and 1; logits become probabilities by softmax(1)"
        )
    return p


def _shape(value: object) -> str:
    return f"{value.dtype} of shape {tuple(value.shape)}" if isinstance(value, Tensor) else describe(value)
