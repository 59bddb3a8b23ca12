"""Autocast and half precision."""

from __future__ import annotations

import math

import pytest
import references
import torch
import torch.nn.functional as F
from sampled_cases import (
    every_map,
    every_value_set,
    make_case,
    random_case,
)
from torch import Tensor

from lrnets.functional import (
    Dense,
    local_reparameterization,
)
from lrnets.weights import BINARY, TERNARY


def relative_error(given: Tensor, expected: Tensor) -> float:
    return ((given.double() - expected.double()).norm() / expected.double().norm()).item()


@every_value_set
@every_map
def test_under_autocast_the_sample_is_bfloat16_and_gradients_are_near_those_of_float32(which, values):
    case = make_case(which, values).to(torch.float32)
    expected, gradients = case.sample(), case.gradients()
    with torch.autocast("cpu", dtype=torch.bfloat16):
        z = case.sample()
    assert z.dtype == torch.bfloat16
    # Input, weight and result are each rounded at 2^-9; where terms cancel the error grows, here less than 4-fold.
    assert relative_error(z, expected) < 4 * 3 * 2**-9
    for leaf, given, wanted in zip(case.leaves(), case.gradients(z), gradients):
        assert given.dtype == leaf.dtype == torch.float32
        assert torch.isfinite(given).all()
        assert relative_error(given, wanted) < 4 * 3 * 2**-9


def alternating_signs(n: int, size: float) -> Tensor:
    """One row of +-size: means that are all equal cancel, and only v is left of a sample."""
    return (size * torch.tensor([1.0, -1.0])).repeat(n // 2)[None]


@pytest.mark.parametrize("autocast", [True, False])
def test_the_variance_of_nearly_decided_weights_is_not_lost_to_bfloat16(autocast):
    """p(+1) = sigmoid(8) = 0.99966 is 1 in bfloat16 and its variance 4 p (1 - p) = 1.34e-3 would be 0.

    Under autocast with float32 parameters, and without it when parameters and input are bfloat16 themselves.
    """
    n, dtype = 1000, torch.float32 if autocast else torch.bfloat16
    x, logits = alternating_signs(n, 1.0).to(dtype), torch.full((1, 1, n), 8.0, dtype=dtype)
    assert torch.sigmoid(logits.bfloat16()[0, 0, 0]) == 1
    with torch.autocast("cpu", dtype=torch.bfloat16, enabled=autocast):
        z = local_reparameterization(x, logits, None, BINARY, Dense(), noise=torch.ones(1, 1))
    assert z.dtype == torch.bfloat16
    v = math.sqrt(n * 4 * references.sigmoid(8) * references.sigmoid(-8))  # 1.158
    assert z.item() == pytest.approx(v, rel=2**-8)


def test_under_autocast_inputs_are_squared_in_float32():
    """300^2 = 90 000 is above float16's largest number, 65 504: v^2 would be infinite, v is 300 sqrt(10 * 1/2)."""
    with torch.autocast("cpu", dtype=torch.float16):
        z = local_reparameterization(
            alternating_signs(10, 300.0), torch.zeros(2, 1, 10), None, TERNARY, Dense(), noise=torch.ones(1, 1)
        )
    assert z.dtype == torch.float16
    assert z.item() == pytest.approx(300 * math.sqrt(5), rel=2**-10)


def test_under_autocast_v_is_taken_from_the_unrounded_input():
    """1 + 2^-8 rounds to 1 in bfloat16, which would shift v by 2^-8, all rows alike.

    Each row's v is rounded to bfloat16 on its own (relative error at most 2^-9, as good as uniform and so of standard
    deviation below 2^-9): the mean of 400 ratios errs by less than 5 * 2^-9 / 20 = 2^-11, an eighth of that shift.
    """
    n, rows = 64, 400
    x = alternating_signs(n, 1.0) * (1 + 2**-8) * (2 ** torch.linspace(0, 8, rows).floor()).view(-1, 1)
    assert torch.equal(x.bfloat16().abs().float(), x.abs() / (1 + 2**-8))
    noise = torch.linspace(1, 2, rows).view(-1, 1)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        z = local_reparameterization(x, torch.zeros(2, 1, n), None, TERNARY, Dense(), noise=noise)
    v = x[:, :1].abs().double() * math.sqrt(n / 2)
    assert abs((z.double() / (v * noise.double())).mean().item() - 1) < 2**-11


def test_under_autocast_float64_stays_float64_as_torchs_own_layers_do():
    case = make_case("dense", TERNARY)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        own = F.linear(case.x, case.logits[0], case.bias)
        z = case.sample()
    assert own.dtype == torch.float64
    assert z.dtype == torch.float64


@every_value_set
@every_map
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_half_precision_parameters_and_inputs(which, values, dtype):
    """Everything rounded to half precision once, then compared with float64 from the same rounded numbers."""
    case = make_case(which, values).to(dtype)
    wide = case.to(torch.float64)
    z = case.sample()
    assert z.dtype == dtype
    # Means and the result are rounded once more each, and scaled moments and gradients not more than thrice.
    limit = 4 * 3 * torch.finfo(dtype).eps / 2
    assert relative_error(z, wide.by_autograd()) < limit
    for leaf, given, wanted in zip(case.leaves(), case.gradients(z), wide.gradients(wide.by_autograd())):
        assert given.dtype == leaf.dtype == dtype
        assert relative_error(given, wanted) < limit


@pytest.mark.parametrize("scale", [0.02, 2e-3, 2e-4])
def test_a_small_half_precision_scale_is_not_squared_in_half_precision(scale):
    """(2e-4)^2 = 4e-8 is below the least float16, 6e-8; a layer's deviation is of that size."""
    scale = torch.tensor(scale, dtype=torch.float16)
    x = alternating_signs(64, 100.0).half()
    z = local_reparameterization(
        x, torch.zeros(2, 1, 64, dtype=torch.float16), None, TERNARY, Dense(), scale=scale, noise=torch.ones(1, 1)
    )
    assert z.item() == pytest.approx(scale.item() * 100 * math.sqrt(64 / 2), rel=2**-10)


def test_zero_inputs_of_half_precision_have_finite_gradients():
    """dL/d(h^2) is of size eps / sqrt(floor) * out: beyond float16's 65 504, and 0 * inf is not a number."""
    logits = torch.zeros(2, 4096, 16, dtype=torch.float16, requires_grad=True)
    x = torch.zeros(8, 16, dtype=torch.float16, requires_grad=True)
    z = local_reparameterization(x, logits, None, TERNARY, Dense(), generator=torch.Generator().manual_seed(0))
    z.float().sum().backward()
    # m and v both have derivative 0 here: mu = 0 and dv/dh = h sigma^2 / v.
    assert (x.grad == 0).all()
    assert torch.isfinite(logits.grad).all()


def test_a_float32_sample_is_near_the_float64_one_for_a_wide_layer():
    case = random_case(Dense(), (16, 2000), (50, 2000), 50, TERNARY)
    # n products rounded at eps / 2 each: the error of a sum grows as sqrt(n), relative to its own size sqrt(n).
    assert relative_error(case.to(torch.float32).sample(), case.sample()) < 10 * torch.finfo(torch.float32).eps
