"""Value sets to test, logits of them, and what enumeration says."""

from __future__ import annotations

from itertools import product

import pytest
import references
import torch

from lrnets.weights import (
    BINARY,
    TERNARY,
    Levels,
)

FIVE = Levels((-2, -1, 0, 1, 2))
POWERS = Levels((-4, -2, -1, 0, 1, 2, 4))
UNEVEN = Levels((-0.5, 0.25, 3))
VALUE_SETS = [BINARY, TERNARY, FIVE, POWERS, UNEVEN]
every_value_set = pytest.mark.parametrize("values", VALUE_SETS, ids=str)


def kind(values) -> str:
    return values.name if values in (BINARY, TERNARY) else "levels"


def some_logits(values, *shape, spread=2.0, dtype=torch.float64, seed=0) -> torch.Tensor:
    generator = torch.Generator().manual_seed(seed)
    return spread * torch.randn(values.logits_per_weight, *shape, generator=generator, dtype=dtype)


def extreme_logits(values, dtype=torch.float32) -> torch.Tensor:
    """Combinations of five sizes of logit: all 5^logits of them, or every 16th of the 5^7."""
    combinations = list(product((-1e4, -100.0, 0.3, 100.0, 1e4), repeat=values.logits_per_weight))
    return torch.tensor(combinations[:: len(combinations) // 5000 + 1], dtype=dtype).T


def enumerated(values, logits: torch.Tensor) -> list[list[float]]:
    """Level probabilities of each weight, by plain Python; logits (logits a weight, weights)."""
    return [references.level_probabilities(kind(values), column) for column in logits.double().T.tolist()]


def as_tensor(numbers) -> torch.Tensor:
    return torch.tensor(list(numbers), dtype=torch.float64)


# Sums of at most 7 terms of size at most 16 (the levels' squares) in float64: a few times 7 * 16 * 2^-53 = 1.2e-14.
EXACT = {"rtol": 1e-13, "atol": 1e-13}


def information(values, logits: torch.Tensor) -> torch.Tensor:
    """The Fisher information of each weight's logits, sum_k p_k (dlog p_k)(dlog p_k)^T, by autograd; (n, K, K)."""
    found = []
    for column in logits.T:
        slopes = torch.autograd.functional.jacobian(lambda c: values.probabilities(c.unsqueeze(1))[:, 0].log(), column)
        p = values.probabilities(column.unsqueeze(1))
        found.append(slopes.T @ (p * slopes))
    return torch.stack(found)
