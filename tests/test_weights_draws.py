"""Draws and the mode, against probabilities."""

from __future__ import annotations

import math

import pytest
import torch
from value_sets import (
    as_tensor,
    enumerated,
    every_value_set,
    extreme_logits,
    some_logits,
)

from lrnets.weights import BINARY, TERNARY


@every_value_set
def test_frequencies_of_draws_fit_the_probabilities(values):
    count = 200_000
    for seed in range(2):
        logits = some_logits(values, 1, spread=1.0, seed=seed)
        (p,) = enumerated(values, logits)
        draws = values.draw(logits.expand(-1, count), generator=torch.Generator().manual_seed(seed))
        observed = [(draws == level).sum().item() for level in values.levels]
        assert sum(observed) == count  # nothing but levels
        chi_square = sum((o - count * pk) ** 2 / (count * pk) for o, pk in zip(observed, p))
        # P(chi^2_k >= k + 2 sqrt(k t) + 2 t) <= e^-t (Laurent and Massart); t = 14 is one in a million.
        k, t = len(p) - 1, 14
        assert chi_square < k + 2 * math.sqrt(k * t) + 2 * t


@every_value_set
def test_neighbouring_weights_are_drawn_independently(values):
    """Covariance of two columns of draws: 0 with standard error sigma_1 sigma_2 / sqrt(n)."""
    count = 100_000
    logits = some_logits(values, 1, 2, spread=1.0)
    draws = values.draw(logits.expand(-1, count, 2), generator=torch.Generator().manual_seed(1))
    deviations = draws - values.mean(logits)
    limit = 5 * values.variance(logits).prod().sqrt().item() / math.sqrt(count)
    assert abs(deviations.prod(1).mean().item()) < limit


@every_value_set
def test_draws_are_reproducible_and_leave_torchs_generator_alone(values):
    logits = some_logits(values, 30, 40, spread=0.5)
    state = torch.get_rng_state()
    first, second, other = (values.draw(logits, generator=torch.Generator().manual_seed(s)) for s in (5, 5, 6))
    assert torch.equal(first, second)
    assert not torch.equal(first, other)
    assert torch.equal(torch.get_rng_state(), state)


@every_value_set
def test_draws_without_a_generator_follow_torchs_seed(values):
    logits = some_logits(values, 30, 40, spread=0.5)
    torch.manual_seed(1)
    first, second = values.draw(logits), values.draw(logits)
    torch.manual_seed(1)
    assert torch.equal(values.draw(logits), first)
    assert not torch.equal(first, second)


@every_value_set
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
def test_levels_of_probability_zero_are_never_drawn(values, dtype):
    """Logits of +-1e4 leave some levels exactly impossible; 300 000 chances to draw one all the same."""
    logits = extreme_logits(values, torch.float64).to(dtype)
    p = values.probabilities(logits.float())
    assert (p == 0).any()
    repeated = logits.repeat(1, -(-300_000 // logits.shape[1]))
    draws = values.draw(repeated, generator=torch.Generator().manual_seed(0))
    assert draws.dtype == dtype
    levels = torch.tensor(values.levels, dtype=dtype).view(-1, 1)
    impossible = (p == 0).repeat(1, repeated.shape[1] // logits.shape[1])
    assert not ((draws == levels) & impossible).any()


@pytest.mark.parametrize("values", [BINARY, TERNARY], ids=str)  # others are drawn by torch.multinomial
@pytest.mark.parametrize("number", [0.0, 1 - 2**-24])
def test_impossible_levels_are_not_drawn_at_the_ends_of_the_uniform_distribution(monkeypatch, values, number):
    """torch.rand gives exactly 0 once in 2^24 numbers: too rare to be met by chance, so it is forced here."""
    monkeypatch.setattr(torch, "rand", lambda *shape, **options: torch.full(torch.Size(*shape), number))
    logits = extreme_logits(values)
    draws = values.draw(logits, generator=torch.Generator().manual_seed(0))
    p = values.probabilities(logits)
    assert not ((draws == torch.tensor(values.levels).view(-1, 1)) & (p == 0)).any()


@every_value_set
def test_mode_is_the_level_of_greatest_probability(values):
    logits = some_logits(values, 2000, spread=3.0)
    expected = [values.levels[p.index(max(p))] for p in enumerated(values, logits)]
    assert torch.equal(values.mode(logits), as_tensor(expected))
    assert len(set(expected)) == len(values.levels)  # each level is the answer somewhere


@every_value_set
@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_mode_of_half_precision_logits_is_that_of_the_same_numbers_in_float32(values, dtype):
    logits = some_logits(values, 20_000, spread=1.0).to(dtype)
    assert values.mode(logits).dtype == dtype
    assert torch.equal(values.mode(logits).float(), values.mode(logits.float()))


@every_value_set
def test_mode_of_decided_weights_is_what_is_always_drawn(values):
    logits = extreme_logits(values)
    decided = (values.probabilities(logits) == 1).any(0)
    assert decided.any()
    draws = values.draw(logits, generator=torch.Generator().manual_seed(0))
    assert torch.equal(values.mode(logits)[decided], draws[decided])


@every_value_set
def test_draw_and_mode_give_levels_of_the_weights_shape_without_gradient(values):
    logits = some_logits(values, 2, 3, 4, 5, dtype=torch.float32).requires_grad_()
    for weights in (values.draw(logits), values.mode(logits)):
        assert weights.shape == (2, 3, 4, 5)
        assert weights.dtype == torch.float32
        assert not weights.requires_grad
        assert set(weights.unique().tolist()) <= set(values.levels)


@every_value_set
def test_everything_follows_the_logits_to_their_device(values):
    """No constant may sit on a device of its own (a known mistake); the meta device refuses to mix with the CPU."""
    logits = torch.empty(values.logits_per_weight, 3, 4, device="meta")
    mean, variance = values.moments(logits)
    results = [values.probabilities(logits), mean, variance, values.entropy(logits), values.mode(logits)]
    results += [values.moments_backward(logits, mean, variance), values.start(mean)]
    results.append(values.random_start((3, 4), device="meta"))
    assert all(result.is_meta for result in results)
