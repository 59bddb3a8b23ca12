"""Likelihood and calibration against loops over examples and known values."""

import math

import pytest
import torch

from lrnets.calibration import expected_calibration_error, negative_log_likelihood


def some(n=200, classes=5, dtype=torch.float64):
    generator = torch.Generator().manual_seed(3)
    logits = 2 * torch.randn(n, classes, generator=generator, dtype=dtype)
    return logits.softmax(1), torch.randint(classes, (n,), generator=generator)


def ece_by_loops(probabilities, labels, bins):
    rows, labels = probabilities.tolist(), labels.tolist()
    total = 0.0
    for b in range(bins):
        members = [
            (max(row), row.index(max(row)) == label)
            for row, label in zip(rows, labels)
            if b / bins < max(row) <= (b + 1) / bins
        ]
        if members:
            accuracy = sum(right for _, right in members) / len(members)
            confidence = sum(highest for highest, _ in members) / len(members)
            total += len(members) / len(rows) * abs(accuracy - confidence)
    return total


def confident(*confidences):
    """Two classes; the first is predicted with these probabilities."""
    return torch.tensor([[c, 1 - c] for c in confidences], dtype=torch.float64)


def test_nll_is_the_mean_over_examples():
    p, y = some()
    by_hand = sum(-math.log(row[label]) for row, label in zip(p.tolist(), y.tolist())) / len(y)
    assert negative_log_likelihood(p, y) == pytest.approx(by_hand, rel=1e-12)
    assert negative_log_likelihood(p, y) == pytest.approx(float(torch.nn.functional.nll_loss(p.log(), y)), rel=1e-12)
    assert negative_log_likelihood(torch.full((3, 4), 0.25), torch.tensor([0, 1, 3])) == pytest.approx(math.log(4))


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16])
def test_a_wrong_certainty_costs_a_finite_amount_whatever_the_dtype(dtype):
    p = torch.tensor([[1, 0], [1, 0]], dtype=dtype)
    assert negative_log_likelihood(p[:1], torch.tensor([1])) == pytest.approx(126 * math.log(2))
    assert negative_log_likelihood(p, torch.tensor([0, 1])) == pytest.approx(63 * math.log(2))
    assert negative_log_likelihood(p, torch.tensor([0, 0])) == 0


@pytest.mark.parametrize("bins", [1, 2, 10, 15, 1000])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_ece_is_that_of_a_loop_over_bins(bins, dtype):
    p, y = some(dtype=dtype)
    assert expected_calibration_error(p, y, bins) == pytest.approx(ece_by_loops(p, y, bins), abs=1e-12)


def test_ece_of_known_cases():
    right, wrong = torch.tensor([0]), torch.tensor([1])
    assert expected_calibration_error(confident(1.0), right) == 0
    assert expected_calibration_error(confident(1.0), wrong) == 1
    assert expected_calibration_error(confident(0.7), right) == pytest.approx(0.3)
    assert expected_calibration_error(confident(0.7), wrong) == pytest.approx(0.7)
    # Three of four right at a confidence of 0.75: perfect, in one bin.
    assert expected_calibration_error(confident(*[0.75] * 4), torch.tensor([0, 0, 0, 1])) == pytest.approx(0)


def test_a_confidence_on_an_edge_belongs_to_the_bin_below():
    p, y = confident(0.75, 0.7, 0.8), torch.tensor([1, 0, 0])  # bins of a quarter: (0.5, 0.75] and (0.75, 1]
    below = abs((0.75 + 0.7) / 3 - 1 / 3) + abs(0.8 - 1) / 3
    assert expected_calibration_error(p, y, bins=4) == pytest.approx(below)
    above = abs(0.7 - 1) / 3 + abs((0.75 + 0.8) / 3 - 1 / 3)
    assert below != pytest.approx(above)


@pytest.mark.parametrize("bins", [0, -1, 2.0, True, "15"])
def test_bins_must_be_a_number_of_them(bins):
    with pytest.raises(ValueError, match="bins must be a whole number of at least 1"):
        expected_calibration_error(*some(), bins)


@pytest.mark.parametrize("function", [negative_log_likelihood, expected_calibration_error])
@pytest.mark.parametrize(
    ("probabilities", "labels", "words"),
    [
        (torch.ones(3), torch.tensor([0, 0, 0]), r"shape \(3,\)"),
        (torch.ones(1, 1, dtype=torch.int64), torch.tensor([0]), "torch.int64"),
        ([[1.0]], torch.tensor([0]), "list"),
        (torch.ones(1, 1), torch.tensor([0.0]), "labels must be whole numbers .* torch.float32"),
        (torch.ones(1, 1), [0], "labels must be whole numbers .*list"),
        (torch.ones(2, 1), torch.tensor([0]), "2 examples of 1 classes with 1 labels"),
        (torch.ones(0, 3), torch.tensor([], dtype=torch.int64), "not none"),
        (torch.ones(1, 1), torch.tensor([1]), "labels from 1 to 1, expected 0 to 0"),
        (torch.ones(1, 1), torch.tensor([-1]), "labels from -1"),
        (torch.tensor([[0.5, 0.5], [2.0, 3.0]]), torch.tensor([0, 1]), r"row 1 .* sum 5.*softmax"),
        (torch.tensor([[2.0, -1.0]]), torch.tensor([0]), "least is -1"),
        (torch.tensor([[math.nan, 0.5]]), torch.tensor([0]), "least is nan"),
    ],
)
def test_what_is_no_probability_or_label_is_refused(function, probabilities, labels, words):
    with pytest.raises(ValueError, match=words):
        function(probabilities, labels)
