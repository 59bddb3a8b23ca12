"""Samples block by block, of long noise and in other memory layouts: the same as in one piece."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest
import torch
from sampled_cases import (
    REORDERED,
    Case,
    assert_all_close,
    every_map,
    every_value_set,
    make_case,
    random_case,
)

from lrnets import blocks, functional, noise
from lrnets.functional import (
    MANY_ROWS,
    VARIANCE_FLOOR,
    Convolution,
    Dense,
    local_reparameterization,
)
from lrnets.weights import TERNARY

# ---- blocks and memory layouts --------------------------------------------------------------------------------------


@pytest.fixture
def small_blocks(monkeypatch):
    """Blocks of 64 weights, so that small layers are blocked."""
    monkeypatch.setattr(blocks, "BLOCK", 64)
    monkeypatch.setattr(functional, "BLOCK", 64)


@every_value_set
@pytest.mark.parametrize(
    ("shape", "weight_shape"),
    [
        ((5, 12), (33, 12)),  # five rows at a time; the last block is shorter
        ((2, 3, 12), (33, 12)),
        ((12,), (33, 12)),
        ((4, 100), (7, 100)),  # a row longer than a block: one row at a time, its moments in blocks of their own
    ],
)
@pytest.mark.parametrize("bias", [True, False])
def test_a_blocked_dense_layer_equals_an_unblocked_one(request, values, shape, weight_shape, bias):
    case = random_case(Dense(), shape, weight_shape, weight_shape[0], values, bias=bias)
    expected, gradients = case.sample(), case.gradients()
    assert len(Dense().blocks(case.x, case.logits.shape[1:])) == 1
    request.getfixturevalue("small_blocks")
    assert len(Dense().blocks(case.x, case.logits.shape[1:])) > 3
    torch.testing.assert_close(case.sample(), expected, **REORDERED)
    assert_all_close(case.gradients(), gradients, **REORDERED)


@pytest.mark.usefixtures("small_blocks")
def test_blocks_cover_every_row_once():
    for out, fan_in in [(33, 12), (7, 100), (129, 1), (64, 3)]:
        rows = [row for block in Dense().blocks(torch.zeros(2, fan_in), torch.Size([out, fan_in]))
                for row in range(out)[block]]  # fmt: skip
        assert rows == list(range(out))


@pytest.mark.usefixtures("small_blocks")
def test_many_rows_of_input_want_the_whole_matrix():
    assert len(Dense().blocks(torch.zeros(MANY_ROWS, 12), torch.Size([33, 12]))) > 1
    assert len(Dense().blocks(torch.zeros(MANY_ROWS + 1, 12), torch.Size([33, 12]))) == 1


@every_value_set
@pytest.mark.parametrize("channels_last", [False, True])
def test_a_blocked_convolution_equals_an_unblocked_one(request, values, channels_last):
    case = random_case(Convolution((1, 1), (1, 1), (1, 1)), (2, 5, 4, 4), (7, 5, 3, 3), 7, values)
    expected, gradients = case.sample(), case.gradients()
    if channels_last:
        case = in_channels_last(case)
    request.getfixturevalue("small_blocks")
    torch.testing.assert_close(case.sample(), expected, **REORDERED)
    assert_all_close(case.gradients(), gradients, **REORDERED)


def in_channels_last(case: Case) -> Case:
    """The same numbers, input and every logit of the weight laid out with the channels last."""
    x = case.x.detach().to(memory_format=torch.channels_last).requires_grad_()
    flat = case.logits.detach().flatten(0, 1).to(memory_format=torch.channels_last)
    logits = flat.unflatten(0, case.logits.shape[:2]).requires_grad_()
    return replace(case, x=x, logits=logits)


@every_value_set
@pytest.mark.parametrize("dtype", [torch.float64, torch.float32])
@pytest.mark.parametrize(
    ("linear_map", "shape", "weight_shape", "out"),
    [
        (Convolution((1, 1), (1, 1), (1, 1)), (2, 4, 5, 6), (3, 4, 3, 3), 3),
        (Convolution((2, 1), (0, 1), (1, 1), 2), (2, 4, 5, 6), (4, 2, 3, 2), 4),
        (Convolution((1, 1), (1, 1), (1, 1)), (2, 1, 5, 6), (3, 1, 3, 3), 3),  # one channel: strides alone tell
        (Convolution((1, 1), (0, 0), (1, 1)), (2, 4, 1, 1), (3, 4, 1, 1), 3),
        (Convolution((2, 2), (1, 1), (1, 1), 1, True), (2, 4, 3, 3), (4, 3, 3, 3), 3),
    ],
    ids=["plain", "groups", "one channel", "1x1", "transposed"],
)
def test_channels_last_gives_the_same_for_the_same_noise(values, dtype, linear_map, shape, weight_shape, out):
    case = random_case(linear_map, shape, weight_shape, out, values).to(dtype)
    last = in_channels_last(case)
    # Sums of up to 36 products in another order; gradients sum over 2 * 30 positions.
    tolerance = REORDERED if dtype == torch.float64 else {"rtol": 1e-4, "atol": 1e-4}
    torch.testing.assert_close(last.sample(), case.sample(), **tolerance)
    assert_all_close(last.gradients(), case.gradients(), **tolerance)


@pytest.mark.parametrize("which", ["2d", "dense, three dimensions of input"])
def test_inputs_with_gaps_or_repeats_in_memory_are_sampled_right(which):
    case = make_case(which, TERNARY)
    spread = torch.stack([case.x.detach(), torch.full_like(case.x, 99.0)], -1)[..., 0]
    assert not spread.is_contiguous()
    torch.testing.assert_close(case.sample(x=spread), case.sample(), **REORDERED)
    first = case.x.detach()[:1]
    repeated = first.expand_as(case.x)
    torch.testing.assert_close(case.sample(x=repeated), case.sample(x=repeated.contiguous()), **REORDERED)


# ---- noise ----------------------------------------------------------------------------------------------------------


@every_map
def test_samples_follow_torchs_seed(which):
    case = make_case(which, TERNARY)
    torch.manual_seed(0)
    first, second = case.sample(noise=None), case.sample(noise=None)
    torch.manual_seed(0)
    assert torch.equal(case.sample(noise=None), first)
    assert not torch.equal(first, second)


@every_map
def test_a_generator_is_independent_of_torchs_own(which):
    case = make_case(which, TERNARY)

    def sample(seed):
        return local_reparameterization(
            case.x, case.logits, case.bias, TERNARY, case.linear_map, generator=torch.Generator().manual_seed(seed)
        )

    state = torch.get_rng_state()
    first = sample(0)
    assert torch.equal(torch.get_rng_state(), state)
    torch.manual_seed(99)
    assert torch.equal(sample(0), first)
    assert not torch.equal(sample(1), first)


def test_drawn_noise_and_given_noise_mean_the_same():
    """The noise a seed stands for, drawn by torch itself, handed in: the same sample and the same gradients."""
    case = make_case("2d", TERNARY)
    torch.manual_seed(3)
    drawn = case.sample(noise=None)
    gradients = case.gradients(drawn)
    torch.manual_seed(3)
    given = replace(case, noise=torch.randn(drawn.shape, dtype=torch.float64))
    assert torch.equal(given.sample(), drawn)
    assert_all_close(given.gradients(), gradients, rtol=0, atol=0)


@pytest.fixture
def everything_is_long(monkeypatch):
    """Noise of 16 numbers or more is drawn as that of large layers is, in blocks of 64."""
    monkeypatch.setattr(noise, "LONG", 16)
    monkeypatch.setattr(functional, "BLOCK", 64)


@pytest.mark.usefixtures("everything_is_long")
@every_value_set
@pytest.mark.parametrize("dtype", [torch.float64, torch.float32])
@pytest.mark.parametrize("channels_last", [False, True])
def test_long_noise_is_added_block_by_block_with_the_same_result(values, dtype, channels_last):
    """The noise a generator stands for, handed in, takes the plain path: the same sample, gradients and layout."""
    case = random_case(Convolution((1, 1), (1, 1), (1, 1)), (2, 4, 5, 7), (3, 4, 3, 3), 3, values).to(dtype)
    if channels_last:
        case = in_channels_last(case)

    def generator():
        return torch.Generator().manual_seed(0)

    drawn = local_reparameterization(
        case.x, case.logits, case.bias, values, case.linear_map, scale=case.scale, generator=generator()
    )
    assert drawn.numel() > 3 * 64
    assert drawn.numel() % 64 != 0
    case.noise = noise.standard_normal_like(drawn.detach(), generator())
    given = case.sample()
    assert given.stride() == drawn.stride()
    # v + floor and its root are rounded alike; z is one fused or two separate roundings.
    limit = 4 * torch.finfo(dtype).eps
    torch.testing.assert_close(drawn, given, rtol=limit, atol=limit)
    # Sums over 70 positions of products rounded at eps each, in the same order.
    assert_all_close(case.gradients(drawn), case.gradients(given), rtol=100 * limit, atol=100 * limit)


@pytest.mark.usefixtures("everything_is_long")
def test_long_samples_follow_torchs_seed():
    case = random_case(Dense(), (9, 5), (7, 5), 7, TERNARY)
    torch.manual_seed(0)
    first, second = case.sample(noise=None), case.sample(noise=None)
    torch.manual_seed(0)
    assert torch.equal(case.sample(noise=None), first)
    assert not torch.equal(first, second)


@pytest.mark.usefixtures("everything_is_long")
def test_zero_variance_is_safe_in_long_samples():
    case = random_case(Dense(), (9, 5), (7, 5), 7, TERNARY).to(torch.float32)
    case.x = torch.zeros_like(case.x).requires_grad_()
    z = case.sample(noise=None)
    # Numbers of the table are below 4.39.
    assert ((z - case.bias).abs() <= 4.4 * math.sqrt(VARIANCE_FLOOR)).all()
    assert all(torch.isfinite(gradient).all() for gradient in case.gradients(z))
