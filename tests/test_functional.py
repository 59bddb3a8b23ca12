"""The sampled pre-activation and its gradients: gradcheck, autograd through the plain formula, real weight draws."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest
import references
import torch
import torch.nn.functional as F
from sampled_cases import (
    FIVE,
    MAPS,
    REORDERED,
    assert_all_close,
    every_map,
    every_value_set,
    make_case,
    random_case,
)
from value_sets import information

from lrnets.functional import (
    VARIANCE_FLOOR,
    Dense,
    check_input,
    local_reparameterization,
)
from lrnets.weights import BINARY, TERNARY

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


@every_value_set
@every_map
def test_the_gradient_of_a_scale_passes_gradcheck(which, values):
    case = make_case(which, values)
    scale = case.scale.clone().requires_grad_()
    assert torch.autograd.gradcheck(lambda scale, logits: case.sample(scale=scale, logits=logits), (scale, case.logits))
    assert torch.autograd.gradcheck(lambda scale: case.sample(scale=scale, logits=case.logits.detach()), (scale,))
    nothing = torch.zeros_like(scale).requires_grad_()  # where z is of any slope, though no ratio of anything
    assert torch.autograd.gradcheck(lambda scale: case.sample(scale=scale), (nothing,))


@every_value_set
@every_map
@pytest.mark.parametrize("sharpness", [None, 2.5])
def test_natural_gradients_are_for_the_logits_alone_and_times_the_information_what_they_were(which, values, sharpness):
    """The information of logits that count s times is s^2 times that of those they count as."""
    case = make_case(which, values)
    if sharpness is not None:
        case = replace(case, sharpness=torch.tensor(sharpness, dtype=torch.float64))
    (x, logits, bias), (by_x, natural, by_bias) = case.gradients(), replace(case, natural=True).gradients()
    assert torch.equal(by_x, x)
    assert torch.equal(by_bias, bias)
    factor = sharpness or 1.0
    fisher = factor**2 * information(values, factor * case.logits.detach().flatten(1))
    expected = torch.einsum("nij,jn->in", fisher, natural.flatten(1)).view_as(logits)
    torch.testing.assert_close(expected, logits, rtol=1e-9, atol=1e-9)


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


@pytest.mark.parametrize("loss", [torch.square, lambda z: z], ids=["square", "linear"])
@pytest.mark.parametrize("wanted", ["x", "logits", "bias"])
def test_second_derivatives_are_refused_rather_than_wrong(wanted, loss):
    """Of a linear loss, too, whose own gradient is a constant; beside a term that has second derivatives."""
    case = make_case("dense", TERNARY)
    leaf = getattr(case, wanted)
    (gradient,) = torch.autograd.grad(loss(case.sample()).sum(), leaf, create_graph=True)
    torch.testing.assert_close(gradient, torch.autograd.grad(loss(case.by_autograd()).sum(), leaf)[0], **REORDERED)
    with pytest.raises(RuntimeError, match="layers with random weights have no second derivatives"):
        (gradient.sum() + case.logits.square().sum()).backward()


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
