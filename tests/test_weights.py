"""Value sets against enumeration, hand-written derivatives and the paper's numbers."""

from __future__ import annotations

import math
from itertools import pairwise, product

import pytest
import references
import torch

from lrnets.weights import (
    BINARY,
    P_MAX,
    P_MIN,
    TERNARY,
    Levels,
    as_value_set,
    at_least_float32,
    levels_in_a_byte,
    standardize,
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


# ---- probabilities, moments, entropy --------------------------------------------------------------------------------


@every_value_set
def test_probabilities_equal_enumerated_ones(values):
    logits = some_logits(values, 50)
    torch.testing.assert_close(values.probabilities(logits).T, as_tensor(enumerated(values, logits)), **EXACT)


@every_value_set
@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.bfloat16, torch.float16])
def test_probabilities_sum_to_one_and_are_never_negative(values, dtype):
    """Independent sigmoids for +1 and -1, a known mistake, would sum to more than 1 for most of these logits."""
    for logits in (some_logits(values, 500, dtype=dtype), extreme_logits(values, dtype=torch.float64).to(dtype)):
        p = values.probabilities(logits)
        assert p.shape == (len(values.levels), logits.shape[1])
        assert (p >= 0).all()
        assert (p <= 1).all()
        # Each of at most 7 probabilities is a product of two rounded factors: 3 roundings of eps / 2 each.
        assert (p.double().sum(0) - 1).abs().max() <= 3 * 7 * torch.finfo(dtype).eps / 2


def test_both_signs_cannot_be_likely_at_once():
    """At logits where two independent sigmoids would give p(+1) = p(-1) = 0.95 and a sum of 1.9."""
    p_minus, p_zero, p_plus = TERNARY.probabilities(torch.tensor([[-3.0], [3.0]])).flatten().tolist()
    assert p_minus + p_plus == pytest.approx(1 - p_zero)
    assert p_plus == pytest.approx(0.95257 * 0.95257, abs=1e-4)
    assert p_minus == pytest.approx(0.95257 * 0.04743, abs=1e-4)


@every_value_set
def test_mean_variance_and_entropy_equal_enumerated_ones(values):
    logits = some_logits(values, 50)
    probabilities = enumerated(values, logits)
    expected = as_tensor(references.moments(values.levels, p) for p in probabilities)
    mean, variance = values.moments(logits)
    torch.testing.assert_close(torch.stack([mean, variance], 1), expected, **EXACT)
    assert torch.equal(values.mean(logits), mean)
    assert torch.equal(values.variance(logits), variance)
    torch.testing.assert_close(
        values.entropy(logits), as_tensor(map(references.entropy_in_bits, probabilities)), **EXACT
    )


def test_moments_and_entropy_at_points_worked_out_by_hand():
    # p(+1) = 3/4: mean 3/4 - 1/4; variance 1 - 1/4; entropy 3/4 log2(4/3) + 1/4 log2(4) = 2 - 3/4 log2(3).
    three_quarters = math.log(3)
    torch.testing.assert_close(
        torch.stack(BINARY.moments(torch.tensor([[three_quarters]], dtype=torch.float64))).flatten(),
        as_tensor([0.5, 0.75]),
    )
    assert BINARY.entropy(torch.tensor([[three_quarters]])).item() == pytest.approx(2 - 0.75 * math.log2(3))
    # p(0) = 1/2, p(+1 | not 0) = 3/4: p = (1/8, 1/2, 3/8); mean 1/4; variance 1/2 - 1/16.
    torch.testing.assert_close(
        torch.stack(TERNARY.moments(torch.tensor([[0.0], [three_quarters]], dtype=torch.float64))).flatten(),
        as_tensor([0.25, 0.4375]),
    )
    # Five equally likely levels -2 .. 2: mean 0, variance (4 + 1 + 0 + 1 + 4) / 5, entropy log2(5).
    torch.testing.assert_close(
        torch.stack(FIVE.moments(torch.zeros(5, 1, dtype=torch.float64))).flatten(), as_tensor([0, 2])
    )
    assert FIVE.entropy(torch.zeros(5, 1)).item() == pytest.approx(math.log2(5))


@every_value_set
def test_a_dot_products_moments_follow_from_the_weights_over_all_weight_vectors(values):
    """Eq. 4 is exact for the first two moments: here over all L^4 weight vectors (7^4 = 2401 for the powers of two)."""
    logits, h = some_logits(values, 4, seed=1), [0.7, -1.3, 2.1, 0.05]
    expected = references.dot_product_moments(values.levels, enumerated(values, logits), h)
    mean, variance = values.moments(logits)
    inputs = as_tensor(h)
    # A sum over 2401 probabilities of terms below 300: 2401 is summed exactly (fsum), each term rounded at 1e-16 * 300.
    torch.testing.assert_close(
        torch.stack([mean @ inputs, variance @ inputs**2]), as_tensor(expected), rtol=1e-12, atol=1e-12
    )


@every_value_set
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_extreme_logits_give_finite_moments_and_no_negative_variance(values, dtype):
    logits = extreme_logits(values, dtype)
    probabilities = enumerated(values, logits)
    mean, variance = values.moments(logits)
    assert (variance >= 0).all()
    largest = max(abs(level) for level in values.levels)
    bound = 8 * torch.finfo(dtype).eps * largest**2  # a rounding of eps for each of at most 7 levels, and one to spare
    expected = as_tensor(references.moments(values.levels, p) for p in probabilities)
    torch.testing.assert_close(torch.stack([mean, variance], 1).double(), expected, rtol=0, atol=bound)
    assert torch.isfinite(values.entropy(logits)).all()
    gradient = values.moments_backward(logits, torch.ones_like(mean), torch.ones_like(mean))
    assert torch.isfinite(gradient).all()


@every_value_set
def test_variance_is_never_negative_where_subtraction_would_make_it_so(values):
    """E[w^2] - E[w]^2 in float32 goes below 0 for nearly decided weights, a known mistake; the sum of terms cannot."""
    logits = some_logits(values, 20_000, spread=12.0, dtype=torch.float32)
    p = values.probabilities(logits)
    level = torch.tensor(values.levels).view(-1, 1)
    if values is POWERS:  # the trap is real: the subtracting formula falls into it on these very logits
        assert ((p * level.square()).sum(0) - (p * level).sum(0).square()).min() < 0
    assert values.variance(logits).min() >= 0


@pytest.mark.parametrize("values", [BINARY, TERNARY], ids=str)
def test_moments_in_float32_are_within_rounding_of_float64(values):
    logits = some_logits(values, 5000, spread=6.0, dtype=torch.float32)
    # Values of size 1 after at most 8 rounded operations.
    for narrow, wide in zip(values.moments(logits), values.moments(logits.double())):
        assert (narrow.double() - wide).abs().max() < 8 * torch.finfo(torch.float32).eps


# ---- derivatives ----------------------------------------------------------------------------------------------------


def hand_derivatives(values, logits: list[float], p: list[float]) -> tuple[list[float], list[float]]:
    """dmu/dtheta and dsigma^2/dtheta of one weight from dp_k/dtheta, with sigma^2 = sum_k p_k l_k^2 - mu^2."""
    if values is BINARY:
        slope = p[0] * p[1]
        dp = [[-slope, slope]]
    elif values is TERNARY:
        a, b = map(references.sigmoid, logits)
        dp = [
            [-a * (1 - a) * (1 - b), a * (1 - a), -a * (1 - a) * b],
            [-(1 - a) * b * (1 - b), 0, (1 - a) * b * (1 - b)],
        ]
    else:
        dp = [[p[k] * ((j == k) - p[j]) for k in range(len(p))] for j in range(len(p))]
    mean, _ = references.moments(values.levels, p)
    by_mean = [math.fsum(d * level for d, level in zip(row, values.levels)) for row in dp]
    squares = [math.fsum(d * level**2 for d, level in zip(row, values.levels)) for row in dp]
    return by_mean, [square - 2 * mean * slope for square, slope in zip(squares, by_mean)]


@every_value_set
def test_moments_backward_equals_the_derivatives_written_out_by_hand(values):
    logits = some_logits(values, 40)
    grad_mean, grad_variance = some_logits(values, 40, seed=1)[0], some_logits(values, 40, seed=2)[0]
    columns = []
    for column, p, by_mean, by_variance in zip(
        logits.T.tolist(), enumerated(values, logits), grad_mean.tolist(), grad_variance.tolist()
    ):
        of_mean, of_variance = hand_derivatives(values, column, p)
        columns.append([by_mean * dm + by_variance * dv for dm, dv in zip(of_mean, of_variance)])
    gradient = values.moments_backward(logits, grad_mean, grad_variance)
    # Rounding as in EXACT, times gradients of up to 6 standard deviations of 2.
    torch.testing.assert_close(gradient, as_tensor(columns).T, rtol=1e-11, atol=1e-11)


@every_value_set
def test_moments_backward_equals_autograd_through_the_moments(values):
    logits = some_logits(values, 4, 10).requires_grad_()
    grad_mean, grad_variance = some_logits(values, 4, 10, seed=1)[0], some_logits(values, 4, 10, seed=2)[0]
    (expected,) = torch.autograd.grad(values.moments(logits), logits, (grad_mean, grad_variance))
    gradient = values.moments_backward(logits.detach(), grad_mean, grad_variance)
    torch.testing.assert_close(gradient, expected, rtol=1e-11, atol=1e-11)


@every_value_set
def test_moments_backward_equals_central_differences_of_enumerated_moments(values):
    """Neither autograd nor the library's moments are in this one: only enumeration, shifted by h in each logit."""
    logits, h = some_logits(values, 6), 1e-5
    one, zero = torch.ones(6, dtype=torch.float64), torch.zeros(6, dtype=torch.float64)
    for k in range(values.logits_per_weight):
        shift = torch.zeros_like(logits)
        shift[k] = h
        above, below = (
            as_tensor(references.moments(values.levels, p) for p in enumerated(values, shifted))
            for shifted in (logits + shift, logits - shift)
        )
        slope = (above - below) / (2 * h)
        # Truncation h^2 / 6 times a third derivative below 200 gives 3e-9; cancellation 16 * 1e-16 / h gives 2e-10.
        for which, (by_mean, by_variance) in enumerate([(one, zero), (zero, one)]):
            gradient = values.moments_backward(logits, by_mean, by_variance)[k]
            torch.testing.assert_close(gradient, slope[:, which], rtol=1e-8, atol=1e-8)


@every_value_set
@pytest.mark.parametrize("function", ["mean", "variance", "entropy"])
def test_gradients_of_mean_variance_and_entropy_pass_gradcheck(values, function):
    logits = some_logits(values, 2, 3).requires_grad_()
    assert torch.autograd.gradcheck(getattr(values, function), logits)


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


# ---- draws and mode -------------------------------------------------------------------------------------------------


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


@every_value_set
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


# ---- what a user may say --------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("given", "expected"),
    [
        ("binary", BINARY),
        ("ternary", TERNARY),
        ((-1, 1), BINARY),
        ([-1.0, 0.0, 1.0], TERNARY),
        ((-2, -1, 0, 1, 2), FIVE),
        (range(-2, 3), FIVE),
        (POWERS, POWERS),
        (Levels((-1, 1)), Levels((-1, 1))),  # a ValueSet is taken as it is
    ],
)
def test_value_sets_by_name_levels_or_object(given, expected):
    assert as_value_set(given) == expected
    assert as_value_set(given).levels == tuple(map(float, expected.levels))


@pytest.mark.parametrize(
    ("given", "error", "names", "remedy"),
    [
        ("quaternary", ValueError, "'quaternary'", "use 'binary', 'ternary' or a tuple of levels"),
        ((1, 0, -1), ValueError, "(1.0, 0.0, -1.0)", "sort"),
        ((0, 1, 1), ValueError, "(0.0, 1.0, 1.0)", "drop repeats"),
        ((1,), ValueError, "(1.0,)", "two or more"),
        ((), ValueError, "()", "two or more"),
        ((0, float("nan")), ValueError, "nan", "finite"),
        ((float("nan"), 0, 1), ValueError, "nan", "finite"),
        ((0, float("inf")), ValueError, "inf", "finite"),
        (("a", "b"), TypeError, "('a', 'b')", "for example (-2, -1, 0, 1, 2)"),
        ((0, None), TypeError, "(0, None)", "must be numbers"),
        (3, TypeError, "3 (int)", "'binary', 'ternary' or a tuple of levels"),
        (None, TypeError, "None", "'binary', 'ternary' or a tuple of levels"),
        (torch.tensor([-1.0, 1.0]), TypeError, "tensor", "tuple of levels"),
    ],
)
def test_errors_about_value_sets_name_value_and_remedy(given, error, names, remedy):
    with pytest.raises(error) as caught:
        as_value_set(given)
    assert names in str(caught.value)
    assert remedy in str(caught.value)


def test_value_sets_are_values():
    assert Levels((-1, 0, 2)) == Levels([-1.0, 0.0, 2.0])
    assert hash(Levels((-1, 0, 2))) == hash(Levels((-1.0, 0.0, 2.0)))
    assert Levels((-1, 0, 2)) != Levels((-1, 0, 3))
    assert [str(values) for values in VALUE_SETS[:3]] == ["binary", "ternary", "(-2, -1, 0, 1, 2)"]
    assert [values.logits_per_weight for values in VALUE_SETS] == [1, 2, 5, 7, 3]


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


# ---- packing --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("levels", "in_a_byte"), [(2, 8), (3, 5), (4, 4), (5, 3), (6, 3), (7, 2), (16, 2), (17, 1), (256, 1)]
)
def test_levels_in_a_byte_at_known_points(levels, in_a_byte):
    assert levels_in_a_byte(levels) == in_a_byte


def test_a_byte_holds_as_many_levels_as_its_256_values_allow():
    for levels in range(2, 257):
        count = levels_in_a_byte(levels)
        assert levels**count <= 256 < levels ** (count + 1)


@pytest.mark.parametrize("levels", [-1, 0, 1, 257])
def test_levels_that_do_not_fit_a_byte_are_refused(levels):
    with pytest.raises(ValueError, match=rf"{levels} levels do not fit.*use 2 to 256"):
        levels_in_a_byte(levels)


@pytest.mark.parametrize(
    ("values", "sizes"),
    [
        (BINARY, {0: 0, 1: 1, 8: 1, 9: 2, 1000: 125}),
        (TERNARY, {0: 0, 1: 1, 5: 1, 6: 2, 1000: 200, 1001: 201}),
        (FIVE, {3: 1, 4: 2, 1000: 334}),
        (POWERS, {2: 1, 3: 2, 1000: 500}),
    ],
    ids=str,
)
def test_packed_bytes_are_whole_levels_in_whole_bytes(values, sizes):
    assert {count: values.packed_bytes(count) for count in sizes} == sizes
    for previous, following in pairwise(sorted(sizes)):
        assert values.packed_bytes(previous) <= values.packed_bytes(following)
