"""Log probabilities against the probabilities of the references, and where those have underflowed."""

import math

import pytest
import torch
from references import level_probabilities

from lrnets.methods.sampled import log_probabilities
from lrnets.weights import BINARY, TERNARY, Levels, Ternary, ValueSet

SETS = {"binary": BINARY, "ternary": TERNARY, "levels": Levels((-2, -1, 0, 3))}


@pytest.mark.parametrize("kind", SETS)
def test_log_probabilities_are_those_of_the_definition(kind):
    values = SETS[kind]
    logits = torch.randn(values.logits_per_weight, 3, 2, dtype=torch.float64) * 3
    found = log_probabilities(values, logits)
    for i in range(3):
        for j in range(2):
            expected = [math.log(p) for p in level_probabilities(kind, logits[:, i, j].tolist())]
            assert found[:, i, j].tolist() == pytest.approx(expected, rel=1e-12)


@pytest.mark.parametrize("kind", SETS)
def test_certain_weights_have_finite_log_probabilities_and_gradients(kind):
    values = SETS[kind]
    logits = torch.full((values.logits_per_weight, 1), 300.0, requires_grad=True)
    with torch.no_grad():
        logits[0] = -300.0
    found = log_probabilities(values, logits)
    found.sum().backward()
    assert values.probabilities(logits).min() == 0  # so that its logarithm would not do
    assert torch.isfinite(found).all()
    assert torch.isfinite(logits.grad).all()
    assert logits.grad.abs().max() > 0


def test_a_value_set_of_ones_own_is_served_from_its_probabilities():
    class Halved(ValueSet):
        levels = (-0.5, 0.0, 0.5)
        logits_per_weight = 2
        name = "halved"
        probabilities = Ternary.probabilities
        moments = Ternary.moments
        moments_backward = Ternary.moments_backward
        start = Ternary.start

    logits = torch.randn(2, 5)
    torch.testing.assert_close(log_probabilities(Halved(), logits), log_probabilities(TERNARY, logits))
