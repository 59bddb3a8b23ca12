"""The sampled pre-activation and its gradients: gradcheck, autograd through the plain formula, real weight draws."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

import pytest
import references
import torch
import torch.nn.functional as F
from torch import Tensor

from lrnets import blocks, functional, noise
from lrnets.functional import (
    MANY_ROWS,
    VARIANCE_FLOOR,
    Convolution,
    Dense,
    LinearMap,
    check_input,
    local_reparameterization,
)
from lrnets.weights import BINARY, TERNARY, Levels, ValueSet

FIVE = Levels((-2, -1, 0, 1, 2))
every_value_set = pytest.mark.parametrize("values", [BINARY, TERNARY, FIVE], ids=str)


MAPS: dict[str, tuple[LinearMap, tuple[int, ...], tuple[int, ...], int]] = {
    # the map, the input's shape, the weight's, output channels
    "dense": (Dense(), (3, 4), (2, 4), 2),
    "dense, three dimensions of input": (Dense(), (2, 2, 3), (2, 3), 2),
    "dense, one row": (Dense(), (4,), (3, 4), 3),
    "1d": (Convolution((2,), (1,), (2,)), (2, 2, 6), (3, 2, 2), 3),
    "1d, groups": (Convolution((1,), (0,), (1,), 2), (1, 4, 4), (2, 2, 3), 2),
    "2d": (Convolution((1, 2), (1, 0), (1, 1)), (2, 2, 3, 4), (2, 2, 2, 2), 2),
    "2d, depthwise": (Convolution((1, 1), (1, 1), (1, 2), 2), (1, 2, 3, 4), (2, 1, 2, 2), 2),
    "3d": (Convolution((1, 1, 2), (0, 1, 0), (1, 1, 1)), (1, 2, 2, 2, 3), (2, 2, 1, 2, 2), 2),
    "2d transposed": (Convolution((2, 2), (1, 0), (1, 1), 1, True, (0, 1)), (1, 2, 2, 3), (2, 2, 2, 3), 2),
    "2d transposed, groups": (Convolution((1, 2), (0, 0), (2, 1), 2, True), (1, 4, 2, 2), (4, 1, 2, 2), 2),
}
every_map = pytest.mark.parametrize("which", MAPS)


@dataclass
class Case:
    """Everything a sample is made of; tensors in float64 unless told."""

    x: Tensor
    logits: Tensor
    bias: Tensor | None
    scale: Tensor | None
    noise: Tensor
    values: ValueSet
    linear_map: LinearMap
    floor: float = VARIANCE_FLOOR

    def sample(self, **changed) -> Tensor:
        case = replace(self, **changed)
        return local_reparameterization(
            case.x, case.logits, case.bias, case.values, case.linear_map,
            scale=case.scale, noise=case.noise, variance_floor=case.floor,
        )  # fmt: skip

    def by_autograd(self) -> Tensor:
        """Algorithm 1 in plain torch operations, its derivatives left to autograd."""
        mean, variance = self.values.moments(self.logits)
        scale = 1.0 if self.scale is None else self.scale
        m = self.linear_map(self.x, mean * scale, self.bias)
        v = (self.linear_map(self.x**2, variance * scale**2, None) + self.floor).sqrt()
        return m + v * self.noise

    def leaves(self) -> list[Tensor]:
        return [tensor for tensor in (self.x, self.logits, self.bias) if tensor is not None]

    def gradients(self, sampled: Tensor | None = None) -> tuple[Tensor, ...]:
        """Of a loss that weighs every output differently."""
        z = self.sample() if sampled is None else sampled
        weights = torch.linspace(-1, 2, z.numel(), dtype=torch.float64).view(z.shape)
        return torch.autograd.grad((z.double() * weights).sum(), self.leaves())

    def to(self, dtype: torch.dtype) -> Case:
        """Rounded to `dtype`, with leaves of its own."""
        moved = {
            name: None if tensor is None else tensor.detach().to(dtype)
            for name, tensor in vars(self).items()
            if tensor is None or isinstance(tensor, Tensor)
        }
        case = replace(self, **moved)
        for leaf in case.leaves():
            leaf.requires_grad_()
        return case


def make_case(which: str, values: ValueSet, *, bias: bool = True, scale: bool = True, seed: int = 0) -> Case:
    linear_map, shape, weight_shape, out = MAPS[which]
    return random_case(linear_map, shape, weight_shape, out, values, bias=bias, scale=scale, seed=seed)


def random_case(linear_map, shape, weight_shape, out, values, *, bias=True, scale=True, seed=0) -> Case:
    generator = torch.Generator().manual_seed(seed)

    def normal(*shape: int) -> Tensor:
        return torch.randn(shape, generator=generator, dtype=torch.float64)

    x, logits = normal(*shape).requires_grad_(), normal(values.logits_per_weight, *weight_shape).requires_grad_()
    noise = normal(*linear_map(x.detach(), logits[0].detach(), None).shape)
    return Case(
        x, logits, normal(out).requires_grad_() if bias else None,
        torch.tensor(0.37, dtype=torch.float64) if scale else None, noise, values, linear_map,
    )  # fmt: skip


def assert_all_close(given, expected, **tolerance) -> None:
    for one, other in zip(given, expected, strict=True):
        torch.testing.assert_close(one, other, **tolerance)


# Sums of at most 50 products of numbers below 10, 1e-16 each, in another order: far below this.
REORDERED = {"rtol": 1e-12, "atol": 1e-12}


# ---- value and gradient ---------------------------------------------------------------------------------------------


@every_value_set
@every_map
@pytest.mark.parametrize(("bias", "scale"), [(True, True), (False, False)])
def test_gradients_pass_gradcheck(which, values, bias, scale):
    """All derivatives against differences of the forward pass, in float64 and with fixed noise."""
    case = make_case(which, values, bias=bias, scale=scale)

    def sample(x, logits, bias=None):
        return case.sample(x=x, logits=logits, bias=bias)

    assert torch.autograd.gradcheck(sample, case.leaves(), atol=1e-6)


@every_value_set
@every_map
@pytest.mark.parametrize(("bias", "scale"), [(True, True), (False, False)])
def test_values_and_gradients_equal_the_plain_formulas_by_autograd(which, values, bias, scale):
    case = make_case(which, values, bias=bias, scale=scale)
    expected = case.by_autograd()
    torch.testing.assert_close(case.sample(), expected, **REORDERED)
    assert_all_close(case.gradients(), case.gradients(expected), rtol=1e-11, atol=1e-11)


def test_a_dense_sample_equals_a_loop_over_enumerated_moments():
    for values, kind in [(BINARY, "binary"), (TERNARY, "ternary"), (FIVE, "levels")]:
        case = make_case("dense", values)
        mean, variance = references.moment_arrays(kind, values.levels, case.logits.detach().numpy())
        scale = case.scale.item()
        expected = references.preactivation(
            references.linear, case.x.detach().numpy(), mean * scale, variance * scale**2,
            case.bias.detach().numpy(), case.noise.numpy(), VARIANCE_FLOOR,
        )  # fmt: skip
        torch.testing.assert_close(case.sample().detach(), torch.from_numpy(expected), **REORDERED)


def test_a_sample_worked_out_by_hand():
    """Binary, p(+1) = 3/4 and 1/2: mu = 1/2 and 0, sigma^2 = 3/4 and 1. h = (2, 1), scale 3, bias 10, eps = -1.

    m = 3 (1/2 * 2 + 0 * 1) + 10 = 13; v^2 = 9 (3/4 * 4 + 1 * 1) = 36; z = 13 - 6 = 7.
    """
    logits = torch.tensor([[[math.log(3), 0.0]]], dtype=torch.float64)
    z = local_reparameterization(
        torch.tensor([[2.0, 1.0]], dtype=torch.float64), logits, torch.tensor([10.0], dtype=torch.float64), BINARY,
        Dense(), scale=torch.tensor(3.0), noise=torch.tensor([[-1.0]]), variance_floor=0.0,
    )  # fmt: skip
    assert z.item() == pytest.approx(7, abs=1e-12)


@every_map
@pytest.mark.parametrize("wanted", ["x", "logits", "bias"])
def test_each_gradient_can_be_wanted_alone(which, wanted):
    case = make_case(which, TERNARY)
    names = ("x", "logits", "bias")
    expected = dict(zip(names, case.gradients()))[wanted]
    for name in names:
        getattr(case, name).requires_grad_(name == wanted)
    z = case.sample()
    weights = torch.linspace(-1, 2, z.numel(), dtype=torch.float64).view(z.shape)
    (gradient,) = torch.autograd.grad(z, getattr(case, wanted), weights)
    torch.testing.assert_close(gradient, expected, rtol=0, atol=0)


@every_map
def test_backward_twice_through_one_sample_gives_the_same_gradients(which):
    """What is saved for the backward pass must survive it."""
    case = make_case(which, TERNARY)
    z = case.sample()
    first = torch.autograd.grad(z.square().sum(), case.leaves(), retain_graph=True)
    second = torch.autograd.grad(z.square().sum(), case.leaves())
    assert_all_close(first, second, rtol=0, atol=0)
    assert all(gradient.abs().sum() > 0 for gradient in first)


@every_map
def test_sampling_changes_none_of_its_inputs(which):
    case = make_case(which, FIVE)
    before = [tensor.detach().clone() for tensor in (*case.leaves(), case.scale, case.noise)]
    case.sample().square().sum().backward()
    for tensor, old in zip((*case.leaves(), case.scale, case.noise), before):
        assert torch.equal(tensor, old)


def test_second_derivatives_are_refused_rather_than_wrong():
    case = make_case("dense", TERNARY)
    (gradient,) = torch.autograd.grad(case.sample().square().sum(), case.logits, create_graph=True)
    with pytest.raises(RuntimeError, match="differentiate twice"):
        gradient.sum().backward()


# ---- against real weight draws --------------------------------------------------------------------------------------


@every_value_set
@pytest.mark.parametrize("which", ["dense", "2d"])
def test_samples_have_the_mean_and_variance_of_real_weight_draws(which, values):
    """100 000 drawn weight tensors, and as many samples, both against the sampler's own m and v (noise 0 and 1).

    Of n values with variance s^2 and fourth cumulant k4 the mean has standard error s / sqrt(n), the variance
    sqrt((k4 + 2 s^4) / n). k4 of a sum of independent w_j h_j is the sum of k4_j h_j^4: by enumeration for the drawn
    weights, 0 for the normal samples. Five standard errors each.
    """
    n = 100_000
    case = make_case(which, values, bias=False, scale=False).to(torch.float64)
    x = case.x.detach()[:1]
    kind = values.name if values is not FIVE else "levels"
    logits = case.logits.detach()
    fourth = torch.empty(logits.shape[1:], dtype=torch.float64)
    for index in references.positions(fourth.shape):
        p = references.level_probabilities(kind, logits[(slice(None), *index)].tolist())
        fourth[index] = references.fourth_cumulant(values.levels, p)
    k4 = case.linear_map(x**4, fourth, None)[0]

    m = case.sample(x=x, noise=torch.zeros_like(k4)[None], floor=0.0).detach()[0]
    v = case.sample(x=x, noise=torch.ones_like(k4)[None], floor=0.0).detach()[0] - m

    weights = values.draw(logits[:, None].expand(-1, n, *logits.shape[1:]), generator=torch.Generator().manual_seed(1))
    if which == "dense":
        drawn = weights @ x[0]
    else:  # all drawn kernels at once: each is more output channels of one convolution
        drawn = case.linear_map(x, weights.flatten(0, 1), None)[0].unflatten(0, (n, -1))
    repeated = x.expand(n, *x.shape[1:])
    torch.manual_seed(2)
    sampled = case.sample(x=repeated, noise=None).detach()

    for values_seen, cumulant in [(drawn, k4), (sampled, torch.zeros_like(k4))]:
        assert values_seen.shape == (n, *m.shape)
        assert ((values_seen.mean(0) - m).abs() < 5 * v / math.sqrt(n)).all()
        assert ((values_seen.var(0) - v**2).abs() < 5 * ((cumulant + 2 * v**4) / n).sqrt()).all()


def test_noise_is_independent_across_outputs_and_rows():
    """z / v of two outputs or two rows: correlation 0 with standard error 1 / sqrt(n)."""
    n = 40_000
    logits = torch.zeros(2, 2, 1)  # mean 0, variance 1/2
    z = local_reparameterization(
        torch.ones(n, 1), logits, None, TERNARY, Dense(), generator=torch.Generator().manual_seed(0)
    ) / math.sqrt(0.5)
    assert abs((z[:, 0] * z[:, 1]).mean().item()) < 5 / math.sqrt(n)
    assert abs((z[1:] * z[:-1]).mean().item()) < 5 / math.sqrt(2 * n)


# ---- where the variance vanishes ------------------------------------------------------------------------------------


@every_value_set
@every_map
def test_zero_input_is_safe(which, values):
    """Nothing but the bias and the floor: z = bias + sqrt(floor) eps, and gradients that are exact limits."""
    case = make_case(which, values).to(torch.float32)
    case.x = torch.zeros_like(case.x).requires_grad_()
    z = case.sample()
    channel = -1 if isinstance(case.linear_map, Dense) else 1
    bias = case.bias.view([-1 if d == channel % z.dim() else 1 for d in range(z.dim())])
    torch.testing.assert_close(z, bias + math.sqrt(VARIANCE_FLOOR) * case.noise)
    by_x, by_logits, by_bias = case.gradients(z)
    assert torch.isfinite(by_x).all()
    assert by_bias.abs().sum() > 0
    assert (by_logits == 0).all()  # both of its terms carry a factor h = 0


@every_value_set
@every_map
@pytest.mark.parametrize("size", [100.0, 1e4])
def test_decided_weights_are_safe(which, values, size):
    """Logits so large that every variance is 0: the exact map of the mode weights, up to sqrt(floor) eps."""
    case = make_case(which, values).to(torch.float32)
    case.logits = (case.logits.detach().sign() * size).requires_grad_()
    if values is FIVE:  # equal logits share the probability: let one level stand out
        case.logits = (size * F.one_hot(case.logits.detach().argmax(0), 5).movedim(-1, 0).float()).requires_grad_()
    z = case.sample()
    exact = case.linear_map(case.x, values.mode(case.logits) * case.scale, case.bias)
    # Float32 rounding of sums of at most 8 products of size 4, and the floor's own deviation.
    torch.testing.assert_close(z, exact + math.sqrt(VARIANCE_FLOOR) * case.noise, rtol=1e-5, atol=1e-5)
    assert all(torch.isfinite(gradient).all() for gradient in case.gradients(z))


def test_the_variance_floor_is_added_under_the_root():
    case = make_case("dense", TERNARY)
    m = case.sample(noise=torch.zeros_like(case.noise))
    v2 = (case.sample(noise=torch.ones_like(case.noise), floor=0.0) - m) ** 2
    for floor in (1e-3, 0.5):
        v = case.sample(noise=torch.ones_like(case.noise), floor=floor) - m
        torch.testing.assert_close(v, (v2 + floor).sqrt(), **REORDERED)


@pytest.mark.parametrize("which", [which for which, (_, shape, *_) in MAPS.items() if len(shape) > 1])
def test_an_empty_batch_gives_an_empty_sample_and_zero_gradients(which):
    case = make_case(which, TERNARY)
    case.x = case.x.detach()[:0].requires_grad_()
    z = case.sample(noise=None)
    assert z.shape == (0, *case.noise.shape[1:])
    by_x, by_logits, by_bias = case.gradients(z)
    assert by_x.shape == case.x.shape
    assert (by_logits == 0).all()
    assert (by_bias == 0).all()


def test_an_input_of_no_features_gives_the_bias():
    """torch's own linear layer takes it, backwards too."""
    case = random_case(Dense(), (4, 0), (3, 0), 3, TERNARY)
    z = case.sample(floor=0.0)
    torch.testing.assert_close(z, case.bias.expand(4, 3), rtol=0, atol=0)
    by_x, by_logits, by_bias = case.gradients(z)
    assert by_x.shape == (4, 0)
    assert by_logits.shape == case.logits.shape
    assert by_bias.abs().sum() > 0


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


# ---- precision ------------------------------------------------------------------------------------------------------


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


# ---- what is refused, and other devices -----------------------------------------------------------------------------


@pytest.mark.parametrize("dtype", [torch.int64, torch.int8, torch.uint8, torch.bool, torch.complex64])
def test_inputs_that_are_not_floating_point_are_refused(dtype):
    x = torch.ones(2, 3).to(dtype)
    for refuse in (
        lambda: check_input(x),
        lambda: local_reparameterization(x, torch.zeros(2, 4, 3), None, TERNARY, Dense()),
    ):
        with pytest.raises(TypeError) as error:
            refuse()
        assert str(dtype) in str(error.value)
        assert "x.float()" in str(error.value)


@every_map
def test_shapes_can_be_inferred_on_the_meta_device(which):
    """torch's own layers can; nothing here may assume a CPU."""
    case = make_case(which, TERNARY)
    z = case.sample(
        **{name: getattr(case, name).detach().to("meta") for name in ("x", "logits", "bias", "scale", "noise")}
    )
    assert z.is_meta
    assert z.shape == case.noise.shape
