"""The start from float weights, at points worked out by hand and over the whole range."""

from __future__ import annotations

import math

import pytest
import references
import torch
from value_sets import (
    FIVE,
    POWERS,
    UNEVEN,
    as_tensor,
    enumerated,
    every_value_set,
    kind,
)

from lrnets.weights import (
    BINARY,
    P_MAX,
    P_MIN,
    TERNARY,
    Levels,
    at_least_float32,
    standardize,
)

# ---- the start from float weights -----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("w", "p_zero", "p_plus_if_not_zero"),
    [
        (0.0, 0.95, 0.5),  # p0 = 0.95; 0.5 (1 + 0 / 0.05)
        (0.02, 0.932, 0.5 * (1 + 0.02 / 0.068)),  # p0 = 0.95 - 0.9 * 0.02
        (0.2, 0.77, 0.5 * (1 + 0.2 / 0.23)),  # p0 = 0.95 - 0.18; 0.934..., not clipped
        (-0.2, 0.77, 0.5 * (1 - 0.2 / 0.23)),
        (0.4, 0.59, 0.95),  # 0.5 (1 + 0.4 / 0.41) = 0.988, clipped
        (-0.4, 0.59, 0.05),
        (1.0, 0.05, 0.95),  # 0.5 (1 + 1 / 0.95) = 1.026, clipped
        (-1.0, 0.05, 0.05),
        (3.0, 0.05, 0.95),  # p0 = 0.95 - 2.7 = -1.75, clipped; 0.5 (1 + 3 / 0.95) = 2.08, clipped
        (-3.0, 0.05, 0.05),
    ],
)
def test_ternary_start_at_points_worked_out_by_hand(w, p_zero, p_plus_if_not_zero):
    """Equations 6 and 8 with the paper's p_min = 0.05 and p_max = 0.95."""
    a, b = torch.sigmoid(TERNARY.start(torch.tensor([w], dtype=torch.float64))).flatten().tolist()
    assert a == pytest.approx(p_zero, abs=1e-12)
    assert b == pytest.approx(p_plus_if_not_zero, abs=1e-12)


@pytest.mark.parametrize(
    ("w", "p_plus"), [(0.0, 0.5), (0.2, 0.6), (-0.5, 0.25), (0.9, 0.95), (1.0, 0.95), (-1.0, 0.05), (7.0, 0.95)]
)
def test_binary_start_at_points_worked_out_by_hand(w, p_plus):
    """p(+1) = (1 + w) / 2: eq. 8 with p0 = 0."""
    start = BINARY.start(torch.tensor([w], dtype=torch.float64))
    assert torch.sigmoid(start).item() == pytest.approx(p_plus, abs=1e-12)


def weights_in_steps(low: float, high: float) -> torch.Tensor:
    return torch.linspace(low, high, 401, dtype=torch.float64)


def unclipped_range(values) -> tuple[float, float]:
    """Where the paper's limits 0.05 and 0.95 clip nothing.

    Binary: |w| <= 0.9. Ternary: |w| / (1 - p0) <= 0.9 with 1 - p0 = 0.05 + 0.9 |w|, so |w| <= 0.045 / 0.19 = 0.2368.
    Levels: a share e = 0.05 K / (K - 1) is uniform, the pair can be aimed from the lowest level to the highest.
    """
    if values is BINARY:
        return -0.9, 0.9
    if values is TERNARY:
        return -0.045 / 0.19, 0.045 / 0.19
    count = len(values.levels)
    uniform = 0.05 * count / (count - 1)
    middle = math.fsum(values.levels) / count
    return tuple((1 - uniform) * end + uniform * middle for end in (values.levels[0], values.levels[-1]))


@every_value_set
def test_start_keeps_the_mean_wherever_nothing_is_clipped(values):
    low, high = unclipped_range(values)
    weight = weights_in_steps(low + 1e-9, high - 1e-9)
    probabilities = enumerated(values, values.start(weight))
    means = as_tensor(references.moments(values.levels, p)[0] for p in probabilities)
    torch.testing.assert_close(means, weight, rtol=0, atol=1e-12)


@every_value_set
def test_start_brings_weights_beyond_the_range_no_further_than_clipping_allows(values):
    low, high = unclipped_range(values)
    for weight, limit, beyond in [(high + 1e-3, high, 1), (100.0, high, 1), (low - 1e-3, low, -1), (-100.0, low, -1)]:
        (p,) = enumerated(values, values.start(torch.tensor([weight], dtype=torch.float64)))
        mean, _ = references.moments(values.levels, p)
        assert (mean - weight) * beyond < 0  # clipped: short of the weight
        assert (mean - limit) * beyond > -1e-12  # but not short of the range that can be reached unclipped
        assert values.levels[0] < mean < values.levels[-1]


@every_value_set
@pytest.mark.parametrize("weight", [torch.linspace(-6, 6, 241), torch.zeros(3)])
def test_start_leaves_no_level_impossible_and_none_certain(values, weight):
    """The third aim of section 4.1: a start not too deterministic."""
    p = values.probabilities(values.start(weight.double()))
    # Ternary: at least p_min of p_min; levels: the uniform share of each of up to 7 is 0.05 / 6.
    assert p.min() > P_MIN**2
    assert p.max() <= P_MAX + 1e-12


@every_value_set
def test_start_grows_with_the_weight(values):
    means = values.mean(values.start(weights_in_steps(-6, 6)))
    assert (means.diff() > -1e-12).all()


@pytest.mark.parametrize("values", [FIVE, POWERS, UNEVEN], ids=str)
def test_levels_start_has_less_variance_than_mixing_the_two_outermost_levels(values):
    """The second aim of section 4.1, low variance. Against a naive start with the same mean and the same floor.

    The naive start splits what the floor leaves between the lowest and the highest level.
    """
    low, high = unclipped_range(values)
    count = len(values.levels)
    uniform = 0.05 * count / (count - 1)
    for weight in torch.linspace(low, high, 23, dtype=torch.float64)[1:-1].tolist():
        (p,) = enumerated(values, values.start(torch.tensor([weight], dtype=torch.float64)))
        mean, variance = references.moments(values.levels, p)
        middle = math.fsum(values.levels) / count
        target = (weight - uniform * middle) / (1 - uniform)
        share = (target - values.levels[0]) / (values.levels[-1] - values.levels[0])
        naive = [uniform / count] * count
        naive[0] += (1 - uniform) * (1 - share)
        naive[-1] += (1 - uniform) * share
        naive_mean, naive_variance = references.moments(values.levels, naive)
        assert naive_mean == pytest.approx(mean, abs=1e-12)  # a fair rival
        assert variance < naive_variance


def test_levels_start_at_a_point_worked_out_by_hand():
    """Levels -2 .. 2, w = 0.75: floor e = 5/4 * 0.05 = 0.0625, 0.0125 a level; the pair aims at 0.75 / 0.9375 = 0.8."""
    start = FIVE.start(torch.tensor([0.75], dtype=torch.float64))
    p = torch.softmax(start, 0).flatten()
    torch.testing.assert_close(p, as_tensor([0.0125, 0.0125, 0.0125 + 0.9375 * 0.2, 0.0125 + 0.9375 * 0.8, 0.0125]))


def test_two_levels_start_as_binary_does():
    weight = weights_in_steps(-2, 2)
    for limits in [(0.05, 0.95), (0.2, 0.8)]:
        two = torch.softmax(Levels((-1, 1)).start(weight, *limits), 0)[1]
        torch.testing.assert_close(two, torch.sigmoid(BINARY.start(weight, *limits)[0]), rtol=0, atol=1e-12)


@every_value_set
def test_start_respects_other_limits(values):
    start = values.start(weights_in_steps(-6, 6), 0.2, 0.7)
    # A uniform share of K / (K - 1) * max(0.2, 1 - 0.7) = 0.3 K / (K - 1) leaves each level 0.3 / (K - 1).
    levels = kind(values) == "levels"
    for clipped in [values.probabilities(start)] if levels else torch.sigmoid(start):
        assert clipped.max().item() == pytest.approx(0.7)
        assert clipped.min().item() == pytest.approx(0.3 / (len(values.levels) - 1) if levels else 0.2)


@every_value_set
@pytest.mark.parametrize(
    ("p_min", "p_max"), [(0.0, 0.95), (-0.1, 0.9), (0.05, 1.0), (0.6, 0.4), (0.5, 0.5), (float("nan"), 0.95)]
)
def test_start_refuses_impossible_limits(values, p_min, p_max):
    with pytest.raises(ValueError, match=r"0 < p_min < p_max < 1") as error:
        values.start(torch.zeros(3), p_min, p_max)
    assert str(p_min) in str(error.value)
    assert str(p_max) in str(error.value)


@every_value_set
@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.bfloat16, torch.float16])
def test_start_has_the_weights_dtype_and_shape(values, dtype):
    weight = torch.linspace(-3, 3, 24).view(2, 3, 4).to(dtype)
    start = values.start(weight)
    assert start.dtype == dtype
    assert start.shape == (values.logits_per_weight, 2, 3, 4)
    assert torch.isfinite(start).all()


@every_value_set
def test_random_start_is_the_start_from_standard_normal_weights(values):
    shape = (200, 300)
    start = values.random_start(shape, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    again = values.random_start(shape, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    assert start.shape == (values.logits_per_weight, *shape)
    assert torch.equal(start, again)
    low, high = unclipped_range(values)
    means = values.mean(start).flatten()
    # Weights that were not clipped show through as their means: the share of normal numbers below t is ndtr(t), with
    # standard error sqrt(p (1 - p) / n) <= 0.5 / sqrt(n).
    for t in (0.5 * low, 0.0, 0.5 * high):
        share = (means < t).double().mean().item()
        assert abs(share - 0.5 * (1 + math.erf(t / math.sqrt(2)))) < 5 * 0.5 / math.sqrt(means.numel())


# ---- standardising --------------------------------------------------------------------------------------------------


def test_standardize_divides_by_the_populations_deviation_and_does_not_centre():
    """1, 2, 3, 6: mean 3, squared deviations 4 + 1 + 0 + 9 = 14, variance 14 / 4 = 3.5 (a sample's would be 14 / 3)."""
    standard, deviation = standardize(torch.tensor([[1.0, 2.0], [3.0, 6.0]], dtype=torch.float64))
    assert deviation.item() == pytest.approx(math.sqrt(3.5), rel=1e-14)
    expected = as_tensor([[1, 2], [3, 6]]) / math.sqrt(3.5)
    torch.testing.assert_close(standard, expected, rtol=1e-14, atol=0)
    assert standard.mean().item() > 1  # 3 / 1.87: still where it was, relative to its deviation


def test_standardize_neither_changes_nor_tracks_its_input():
    weight = torch.tensor([1.0, 2.0, 4.0], requires_grad=True)
    standard, deviation = standardize(weight)
    assert weight.tolist() == [1.0, 2.0, 4.0]
    assert not standard.requires_grad
    assert not deviation.requires_grad


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_standardize_computes_half_precision_weights_in_float32(dtype):
    """Weights around 1e-4: their squares, 1e-8, are below the least float16."""
    weight = (1e-4 * torch.randn(1000, generator=torch.Generator().manual_seed(0))).to(dtype)
    standard, deviation = standardize(weight)
    assert standard.dtype == torch.float32
    numbers = weight.double().numpy()
    assert deviation.item() == pytest.approx(float(numbers.std()), rel=1e-5)


@pytest.mark.parametrize("bad", [float("nan"), float("inf"), -float("inf")])
def test_standardize_refuses_weights_that_are_not_finite(bad):
    with pytest.raises(ValueError, match=r"2 of 5 weights are NaN or infinite; repair or reload") as error:
        standardize(torch.tensor([0.1, bad, 0.2, bad, 0.3]))
    assert "first" in str(error.value)


@pytest.mark.parametrize("count", [1, 10, 1000, 4099])
@pytest.mark.parametrize("constant", [0.0, 1.0, 0.1, 0.3, -1e-3, 1 / 3])
def test_standardize_refuses_weights_that_are_all_the_same(constant, count):
    """0.1 is no binary fraction: its rounded mean differs from it, yet rounding errors are no deviation."""
    with pytest.raises(ValueError, match=rf"all {count} weights are {constant:g}.*deviation is 0.*keep it in float"):
        standardize(torch.full((count,), constant))


@pytest.mark.filterwarnings("ignore:std\\(\\)")
def test_standardize_refuses_no_weights():
    with pytest.raises(ValueError, match=r"no weights to start from \(shape \(0, 3\)\)"):
        standardize(torch.empty(0, 3))


@pytest.mark.parametrize(
    ("dtype", "expected"),
    [
        (torch.float16, torch.float32),
        (torch.bfloat16, torch.float32),
        (torch.float32, torch.float32),
        (torch.float64, torch.float64),
    ],
)
def test_only_half_precision_is_widened(dtype, expected):
    tensor = torch.ones(3, dtype=dtype)
    assert at_least_float32(tensor).dtype == expected
    assert (at_least_float32(tensor) is tensor) == (dtype == expected)
