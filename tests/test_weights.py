"""Value sets against enumeration, hand-written derivatives and the paper's numbers."""

from __future__ import annotations

import math
from itertools import pairwise

import pytest
import references
import torch
from value_sets import (
    EXACT,
    FIVE,
    POWERS,
    VALUE_SETS,
    as_tensor,
    enumerated,
    every_value_set,
    extreme_logits,
    information,
    some_logits,
)

from lrnets.weights import (
    BINARY,
    TERNARY,
    Levels,
    as_value_set,
    unit_of,
)

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
def test_the_natural_gradient_times_the_fisher_information_is_the_gradient(values):
    logits = some_logits(values, 30)
    grads = some_logits(values, 30, seed=1)[0], some_logits(values, 30, seed=2)[0]
    natural = values.natural_gradient(logits, *grads)
    found = torch.einsum("nij,jn->in", information(values, logits), natural)
    torch.testing.assert_close(found, values.moments_backward(logits, *grads), rtol=1e-10, atol=1e-10)
    # Where levels have a logit each, a common shift changes nothing; the natural gradient shifts nothing on average.
    if isinstance(values, Levels):
        torch.testing.assert_close((values.probabilities(logits) * natural).sum(0), torch.zeros_like(grads[0]))


@every_value_set
def test_the_natural_gradient_of_a_decided_weight_does_not_fade(values):
    """The gradient itself is gone: exp(-25) of what it was, or less."""
    logits = 60 * some_logits(values, 20).sign().float()
    logits += 25 * torch.arange(len(logits)).view(-1, 1)  # levels of the same probability would not be decided
    one = torch.ones(20)
    assert values.moments_backward(logits, one, 0 * one).abs().max() < 1e-6
    assert values.natural_gradient(logits, one, 0 * one).abs().amax(0).min() > 0.1


@every_value_set
@pytest.mark.parametrize("function", ["mean", "variance", "entropy"])
def test_gradients_of_mean_variance_and_entropy_pass_gradcheck(values, function):
    logits = some_logits(values, 2, 3).requires_grad_()
    assert torch.autograd.gradcheck(getattr(values, function), logits)


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


# ---- packing --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("levels", "unit"),
    [
        ((-2, -1, 0, 1, 2), 1), ((-4, -2, 2, 4), 2), ((-0.75, 0.5), 0.25), ((0, 0.1, 0.3), 0.1),
        (tuple(range(-127, 128)), 1), ((-128, 1), None), ((1, math.sqrt(2)), None), ((-1, 0, 1 + 1e-6), None),
    ],
)  # fmt: skip
def test_a_unit_is_found_where_there_is_one(levels, unit):
    assert unit_of(levels) == (unit if unit is None else pytest.approx(unit))


@pytest.mark.parametrize(
    ("values", "sizes"),
    [
        (BINARY, {0: 0, 1: 1, 8: 1, 9: 2, 1000: 125}),
        (TERNARY, {0: 0, 1: 1, 5: 1, 6: 2, 1000: 200, 1001: 201}),
        (FIVE, {3: 3, 1000: 1000}),
        (Levels((-1, 3)), {5: 1, 6: 2}),
        (Levels((0, 2)), {5: 1, 6: 2}),
        (Levels(tuple(range(-8, 9))), {3: 3}),
        (Levels((-math.pi, 0, 1, 2)), {3: 12}),
    ],
    ids=str,
)
def test_packed_bytes_are_those_of_the_smallest_coding(values, sizes):
    assert {count: values.packed_bytes(count) for count in sizes} == sizes
    for previous, following in pairwise(sorted(sizes)):
        assert values.packed_bytes(previous) <= values.packed_bytes(following)
