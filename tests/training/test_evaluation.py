"""Errors against ranks that are known beforehand."""

import torch

from lrnets.training.evaluation import errors_of

RANKS = (1, 2, 5, 6)  # of the right class among twelve


def test_top1_and_top5_errors_are_those_of_known_ranks():
    labels = torch.tensor([0, 4, 11, 7])
    p = torch.empty(4, 12, dtype=torch.float64)
    for example, (label, rank) in enumerate(zip(labels.tolist(), RANKS)):
        others = [c for c in range(12) if c != label]
        by_rank = [*others[: rank - 1], label, *others[rank - 1 :]]
        p[example, by_rank] = torch.arange(12, 0, -1, dtype=torch.float64) / 78
    assert errors_of(p, labels) == {"error": 75.0, "top5_error": 25.0}
    assert errors_of(p[:2], labels[:2]) == {"error": 50.0, "top5_error": 0.0}
    assert errors_of(p[3:], labels[3:]) == {"error": 100.0, "top5_error": 100.0}
    assert errors_of(p[:2, :10], labels[:2]) == {"error": 50.0}  # of ten classes, five guesses say little
