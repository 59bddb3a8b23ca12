"""Layers against plain loops, torch's own layers and everything torch does to modules."""

from __future__ import annotations

import copy
import inspect
import math
import pickle
import shutil
from datetime import timedelta

import numpy as np
import pytest
import references
import torch
import torch.nn.functional as F
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor, nn

from lrnets.functional import VARIANCE_FLOOR
from lrnets.layers import (
    LAYERS,
    LRConv1d,
    LRConv2d,
    LRConv3d,
    LRConvTranspose2d,
    LRLayer,
    LRLinear,
    bake_sharpness_,
    lr_layers,
    set_generator,
    set_sharpness,
)
from lrnets.weights import TERNARY, as_value_set

FIVE = (-2, -1, 0, 1, 2)
CONVOLUTIONS = {1: LRConv1d, 2: LRConv2d, 3: LRConv3d}
FORMS = st.sampled_from(["binary", "ternary", FIVE])
every_value_set = pytest.mark.parametrize("values", ["binary", "ternary", FIVE], ids=str)


# Derandomised: the same examples on every run. Loops are slow at times, so no deadline.
loops = settings(max_examples=60, deadline=None, derandomize=True, database=None)

# One of each kind, with the shape of an input that it takes.
EXAMPLES = {
    LRLinear: ((5, 4), (3, 5)),
    LRConv1d: ((2, 3, 3), (2, 2, 7)),
    LRConv2d: ((2, 3, 3), (2, 2, 5, 6)),
    LRConv3d: ((2, 3, 2), (2, 2, 3, 4, 3)),
    LRConvTranspose2d: ((2, 3, 3), (2, 2, 4, 3)),
}
every_kind = pytest.mark.parametrize("kind", LAYERS, ids=lambda kind: kind.__name__)


def example(
    kind: type[LRLayer], *, seed: int = 0, dtype: torch.dtype = torch.float64, **changes
) -> tuple[LRLayer, Tensor]:
    """A small layer and an input for it."""
    arguments, shape = EXAMPLES[kind]
    torch.manual_seed(seed)
    layer = kind(*arguments, dtype=dtype, **changes)
    return layer, torch.randn(shape, dtype=dtype)


def seeded(layer: nn.Module, *inputs, seed: int = 1) -> Tensor:
    torch.manual_seed(seed)
    return layer(*inputs)


def loss_gradients(layer: nn.Module, z: Tensor) -> dict[str, Tensor]:
    """Gradients of all parameters, of a loss that weighs every output differently."""
    layer.zero_grad()
    (z * torch.linspace(-1, 2, z.numel(), dtype=z.dtype).view(z.shape)).sum().backward()
    return {name: parameter.grad.clone() for name, parameter in layer.named_parameters()}


def assert_same(given: dict[str, Tensor], expected: dict[str, Tensor], **tolerance) -> None:
    assert given.keys() == expected.keys()
    for name, tensor in expected.items():
        torch.testing.assert_close(given[name], tensor, msg=lambda text, name=name: f"{name}: {text}", **tolerance)


# Sums of at most a few hundred products of numbers below 10 in float64.
REORDERED = {"rtol": 1e-11, "atol": 1e-11}


# ---- against plain loops --------------------------------------------------------------------------------------------


def check_against_loops(layer: LRLayer, x: Tensor, linear_map) -> None:
    """Training forward with the noise of a seed, and eval forward, against loops over enumerated moments and modes.

    `linear_map` takes NumPy arrays, the input with its batch.
    """
    values, weight_shape = layer.values, layer.weight_shape
    kind = values.name if values.name in ("binary", "ternary") else "levels"
    logits = layer.logits.detach().numpy().reshape(-1, *weight_shape)
    scale = 1.0 if layer.scale is None else layer.scale.item()
    bias = np.zeros(1) if layer.bias is None else layer.bias.detach().numpy()
    convolution = not isinstance(layer, LRLinear)
    if convolution:
        bias = bias.reshape(-1, *[1] * (len(weight_shape) - 2))
    batched = x.numpy() if not convolution or x.dim() == len(weight_shape) else x.numpy()[None]

    z = seeded(layer.train(), x).detach()
    torch.manual_seed(1)
    eps = torch.randn(z.shape, dtype=z.dtype).numpy()  # outputs are contiguous, so in the order of memory
    mean, variance = references.moment_arrays(kind, values.levels, logits)
    expected = references.preactivation(
        linear_map, batched, mean * scale, variance * scale**2, bias, eps, VARIANCE_FLOOR
    ).reshape(z.shape)
    torch.testing.assert_close(z, torch.from_numpy(expected), **REORDERED)

    mode = references.likeliest_levels(kind, values.levels, logits) * scale
    expected = (linear_map(batched, mode) + bias).reshape(z.shape)
    torch.testing.assert_close(layer.eval()(x).detach(), torch.from_numpy(expected), **REORDERED)


def short(draw, sizes: list[int]) -> int | tuple[int, ...]:
    """As a user may write it: one number where all are equal, at times."""
    return sizes[0] if len(set(sizes)) == 1 and draw(st.booleans()) else tuple(sizes)


@st.composite
def convolutions(draw, dims: int):
    """Arguments of a convolution, the padding they mean, and an input for it."""

    def numbers(low: int, high: int) -> list[int]:
        return draw(st.lists(st.integers(low, high), min_size=dims, max_size=dims))

    groups = draw(st.integers(1, 2))
    kernel, dilation = numbers(1, 3 if dims < 3 else 2), numbers(1, 2)
    padding = draw(st.sampled_from(["same", "valid", "numbers", "numbers"]))
    stride = [1] * dims if padding == "same" else numbers(1, 3)
    if padding == "same":
        pads = references.same_padding(kernel, dilation)
    elif padding == "valid":
        pads = [(0, 0)] * dims
    else:
        chosen = numbers(0, 2)
        pads, padding = [(p, p) for p in chosen], short(draw, chosen)
    # Room for one kernel, and for reflections: they need more elements than they add.
    sizes = [max(d * (k - 1), *both) + 1 + extra for k, d, both, extra in zip(kernel, dilation, pads, numbers(0, 2))]
    arguments = {
        "in_channels": groups * draw(st.integers(1, 2)),
        "out_channels": groups * draw(st.integers(1, 2)),
        "kernel_size": short(draw, kernel),
        "stride": short(draw, stride),
        "padding": padding,
        "dilation": short(draw, dilation),
        "groups": groups,
        "bias": draw(st.booleans()),
        "padding_mode": draw(st.sampled_from(["zeros", "zeros", "reflect", "replicate", "circular"])),
    }
    plain = {"stride": stride, "padding": pads, "dilation": dilation, "groups": groups}
    batch = draw(st.sampled_from([(), (1,), (2,)]))
    return arguments, {**plain, "padding_mode": arguments["padding_mode"]}, (*batch, arguments["in_channels"], *sizes)


@pytest.mark.filterwarnings("ignore:Using padding='same' with even kernel")
@pytest.mark.parametrize("dims", [1, 2, 3])
@loops
@given(data=st.data(), values=FORMS, scale=st.booleans())
def test_convolutions_equal_plain_loops(dims, data, values, scale):
    arguments, plain, shape = data.draw(convolutions(dims))
    torch.manual_seed(0)
    layer = CONVOLUTIONS[dims](**arguments, dtype=torch.float64, values=values, scale=scale)
    x = torch.randn(shape, dtype=torch.float64)
    check_against_loops(layer, x, lambda x, weight: references.convolution(x, weight, **plain))


@st.composite
def transposed_convolutions(draw):
    def pair(low: int, high: int) -> list[int]:
        return [draw(st.integers(low, high)) for _ in range(2)]

    groups = draw(st.integers(1, 2))
    kernel, stride, dilation, sizes = pair(1, 3), pair(1, 3), pair(1, 2), pair(1, 3)
    # An output padding must be smaller than stride or dilation, and some output must be left.
    extra = [draw(st.integers(0, max(s, d) - 1)) for s, d in zip(stride, dilation)]
    most = [((n - 1) * s + d * (k - 1) + e) // 2 for n, s, d, k, e in zip(sizes, stride, dilation, kernel, extra)]
    padding = [draw(st.integers(0, min(2, m))) for m in most]
    arguments = {
        "in_channels": groups * draw(st.integers(1, 2)),
        "out_channels": groups * draw(st.integers(1, 2)),
        "kernel_size": short(draw, kernel),
        "stride": short(draw, stride),
        "padding": short(draw, padding),
        "output_padding": short(draw, extra),
        "groups": groups,
        "bias": draw(st.booleans()),
        "dilation": short(draw, dilation),
    }
    plain = {"stride": stride, "padding": padding, "output_padding": extra, "dilation": dilation, "groups": groups}
    return arguments, plain, (*draw(st.sampled_from([(), (2,)])), arguments["in_channels"], *sizes)


@loops
@given(case=transposed_convolutions(), values=FORMS, scale=st.booleans())
def test_transposed_convolutions_equal_plain_loops(case, values, scale):
    arguments, plain, shape = case
    torch.manual_seed(0)
    layer = LRConvTranspose2d(**arguments, dtype=torch.float64, values=values, scale=scale)
    x = torch.randn(shape, dtype=torch.float64)
    check_against_loops(layer, x, lambda x, weight: references.transposed_convolution(x, weight, **plain))


@loops
@given(
    features=st.tuples(st.integers(1, 6), st.integers(1, 5)),
    leading=st.sampled_from([(), (1,), (4,), (2, 3), (2, 1, 2)]),
    bias=st.booleans(),
    values=FORMS,
    scale=st.booleans(),
)
def test_linear_layers_equal_plain_loops(features, leading, bias, values, scale):
    torch.manual_seed(0)
    layer = LRLinear(*features, bias, dtype=torch.float64, values=values, scale=scale)
    x = torch.randn(*leading, features[0], dtype=torch.float64)
    check_against_loops(layer, x, references.linear)


@loops
@given(data=st.data(), dims=st.sampled_from([1, 2]), values=FORMS)
def test_gradients_of_convolutions_equal_autograd_through_torchs_own(data, dims, values):
    """Padding of all kinds is differentiated too: torch's layer computes m from h and v^2 from h^2."""
    arguments, _, shape = data.draw(convolutions(dims))
    torch.manual_seed(0)
    layer = CONVOLUTIONS[dims](**arguments, dtype=torch.float64, values=values)
    x = torch.randn(shape, dtype=torch.float64, requires_grad=True)
    z = seeded(layer, x)
    weights = torch.randn(z.shape, dtype=z.dtype)
    given = torch.autograd.grad(z, [x, *layer.parameters()], weights)

    plain = layer.plain(**{**arguments, "bias": False}, dtype=torch.float64)
    mean, variance = layer.values.moments(layer.weight_logits)

    def apply(x, weight):
        return torch.func.functional_call(plain, {"weight": weight}, x)

    torch.manual_seed(1)
    eps = torch.randn(z.shape, dtype=z.dtype)
    z = apply(x, mean * layer.scale) + (apply(x**2, variance * layer.scale**2) + VARIANCE_FLOOR).sqrt() * eps
    if layer.bias is not None:
        z = z + layer.bias.view(-1, *[1] * dims)
    for one, other in zip(given, torch.autograd.grad(z, [x, *layer.parameters()], weights), strict=True):
        torch.testing.assert_close(one, other, rtol=1e-9, atol=1e-9)


@pytest.mark.parametrize("training", [True, False])
def test_a_transposed_convolution_takes_an_output_size(training):
    _, x = example(LRConvTranspose2d)
    layer = LRConvTranspose2d(2, 3, 3, stride=2, dtype=torch.float64).train(training)
    own = layer.plain(2, 3, 3, stride=2, dtype=torch.float64)
    for inputs in (x, x[0]):
        for size in ([9, 7], [10, 8]):
            assert layer(inputs, size).shape == own(inputs, size).shape
    with pytest.raises(ValueError, match="requested an output size"):
        layer(x, [20, 20])


# ---- torch's signatures and settings --------------------------------------------------------------------------------


@every_kind
def test_signatures_are_torchs_plus_keywords(kind):
    def shape_of(function) -> list[tuple]:
        return [(p.name, p.kind, p.default) for p in inspect.signature(function).parameters.values()]

    own, ours = shape_of(kind.plain), shape_of(kind)
    assert ours[: len(own)] == own
    assert [(name, how) for name, how, _ in ours[len(own) :]] == [
        ("values", inspect.Parameter.KEYWORD_ONLY),
        ("scale", inspect.Parameter.KEYWORD_ONLY),
    ]


@every_kind
def test_settings_read_as_on_torchs_layer(kind):
    layer, _ = example(kind)
    own = kind.plain(*EXAMPLES[kind][0])
    assert {name: getattr(layer, name) for name in own.__constants__} == {
        name: getattr(own, name) for name in own.__constants__
    }
    assert layer.weight.shape == own.weight.shape == layer.weight_shape
    assert own.extra_repr().split(", ")[0] in repr(layer).replace("in_channels=", "").replace("out_channels=", "")


@every_kind
def test_repr_names_values_and_scale(kind):
    assert "values=ternary, scale=True" in repr(example(kind)[0])
    assert "values=(-2, -1, 0, 1, 2), scale=False" in repr(example(kind, values=FIVE, scale=False)[0])


@pytest.mark.parametrize(
    ("arguments", "error"),
    [
        ({"in_channels": 3, "out_channels": 4, "kernel_size": 3, "groups": 2}, ValueError),
        ({"in_channels": 2, "out_channels": 4, "kernel_size": 3, "padding": "same", "stride": 2}, ValueError),
        ({"in_channels": 2, "out_channels": 4, "kernel_size": 3, "padding": "most"}, ValueError),
        ({"in_channels": 2, "out_channels": 4, "kernel_size": 3, "padding_mode": "mirror"}, ValueError),
        ({"in_channels": 2, "out_channels": 4, "kernel_size": 3, "values": "quaternary"}, ValueError),
        ({"in_channels": 2, "out_channels": 4, "kernel_size": 3, "values": 3}, TypeError),
    ],
)
def test_impossible_arguments_are_refused_at_once(arguments, error):
    with pytest.raises(error):
        LRConv2d(**arguments)


@every_kind
@pytest.mark.parametrize("training", [True, False])
def test_inputs_of_the_wrong_dimensions_are_refused(kind, training):
    layer, x = example(kind)
    layer.train(training)
    wrong = [x[..., 1:]] if kind is LRLinear else [x[None, None], x[0, 0], x[:, 1:]]
    for inputs in wrong:
        with pytest.raises((RuntimeError, ValueError)):
            layer(inputs)


# ---- eval -----------------------------------------------------------------------------------------------------------


@every_kind
@every_value_set
def test_eval_equals_torchs_layer_with_the_discrete_weights(kind, values):
    layer, x = example(kind, values=values)
    own = kind.plain(*EXAMPLES[kind][0], dtype=torch.float64)
    own.load_state_dict({"weight": layer.weight, "bias": layer.bias})
    assert torch.equal(layer.eval()(x), own(x))
    assert set((layer.weight / layer.scale).round(decimals=9).unique().tolist()) <= set(layer.values.levels)


@every_kind
def test_eval_is_deterministic_and_draws_nothing(kind):
    """New weights on every evaluation forward are a known mistake."""
    layer, x = example(kind)
    layer.eval().generator = torch.Generator().manual_seed(0)
    states = torch.get_rng_state(), layer.generator.get_state()
    outputs = [layer(x) for _ in range(3)]
    assert torch.equal(outputs[0], outputs[1])
    assert torch.equal(outputs[0], outputs[2])
    assert torch.equal(torch.get_rng_state(), states[0])
    assert torch.equal(layer.generator.get_state(), states[1])
    layer.train()
    assert not torch.equal(layer(x), layer(x))


def test_eval_computes_with_the_likeliest_weights_and_not_with_their_mean():
    """p(-1, 0, +1) = (0.1, 0.5, 0.4): the mean is 0.3, which cannot be deployed; the likeliest weight is 0.

    p(+1 | not 0) = 0.8 = sigmoid(log 4). A single weight more decided for +1 says the rest of the sum is not lost.
    """
    layer = LRLinear(4, 1, bias=False, dtype=torch.float64, scale=False)
    with torch.no_grad():
        layer.weight_logits[0].copy_(torch.tensor([[0.0, 0.0, 0.0, -9.0]]))
        layer.weight_logits[1].copy_(torch.full((1, 4), math.log(4)))
    x = torch.tensor([[1.0, 10.0, 100.0, 1000.0]], dtype=torch.float64)
    assert layer.weight.tolist() == [[0, 0, 0, 1]]
    assert layer.eval()(x).item() == 1000
    mean = TERNARY.mean(layer.weight_logits)
    assert (mean @ x[0]).item() == pytest.approx(0.3 * 111 + 0.6 * 1000, rel=1e-3)


@every_kind
def test_eval_passes_gradients_to_input_and_bias_but_not_to_logits(kind):
    layer, x = example(kind)
    x.requires_grad_()
    layer.eval()(x).sum().backward()
    assert x.grad.abs().sum() > 0
    assert layer.bias.grad.abs().sum() > 0
    assert layer.logits.grad is None


# ---- what training learns from --------------------------------------------------------------------------------------


@every_kind
@every_value_set
def test_training_moves_every_parameter(kind, values):
    layer, x = example(kind, values=values)
    gradients = loss_gradients(layer, layer(x))
    assert set(gradients) == {"logits", "bias"}
    for name, gradient in gradients.items():
        assert torch.isfinite(gradient).all()
        assert (gradient != 0).double().mean() > 0.9, name


def test_a_few_steps_of_training_find_a_ternary_map():
    """Logits learn by gradient what weights made the data: every sign and zero of a 4 x 8 matrix."""
    torch.manual_seed(0)
    true = torch.randint(-1, 2, (4, 8)).float()
    x = torch.randn(512, 8)
    layer = LRLinear(8, 4, bias=False, scale=False)
    optimizer = torch.optim.Adam(layer.parameters(), lr=0.2)
    for _ in range(300):
        optimizer.zero_grad()
        F.mse_loss(layer(x), x @ true.T).backward()
        optimizer.step()
    assert torch.equal(layer.weight, true)


# ---- state ----------------------------------------------------------------------------------------------------------


@every_kind
def test_everything_a_layer_computes_with_is_registered(kind):
    """Logits or constants kept outside parameters and buffers are a known mistake: they miss .to() and state_dict()."""
    layer, x = example(kind)
    assert [name for name, _ in layer.named_parameters()] == ["logits", "bias"]
    assert [name for name, _ in layer.named_buffers()] == ["scale"]
    assert not [name for name, value in vars(layer).items() if isinstance(value, Tensor)]
    assert set(layer.state_dict()) == {"logits", "bias", "scale"}
    moved = layer.to("meta")
    assert moved.weight.is_meta
    assert moved.eval()(x.to("meta")).is_meta


@every_kind
def test_layers_without_scale_or_bias_have_neither_in_their_state(kind):
    layer, x = example(kind, bias=False, scale=False)
    assert set(layer.state_dict()) == {"logits"}
    assert layer.scale is None
    assert layer.bias is None
    assert layer(x).shape == layer.eval()(x).shape


@every_kind
@every_value_set
def test_state_dict_round_trip(kind, values, tmp_path):
    layer, x = example(kind, values=values)
    other, _ = example(kind, values=values, seed=5)
    with torch.no_grad():
        layer.scale.fill_(0.123)
    assert not torch.equal(seeded(other, x), seeded(layer, x))
    torch.save(layer.state_dict(), tmp_path / "state.pt")
    other.load_state_dict(torch.load(tmp_path / "state.pt", weights_only=True))
    assert torch.equal(seeded(other, x), seeded(layer, x))
    assert torch.equal(other.eval()(x), layer.eval()(x))


def test_state_of_another_value_set_is_refused():
    with pytest.raises(RuntimeError, match="size mismatch for logits"):
        example(LRConv2d, values="ternary")[0].load_state_dict(example(LRConv2d, values="binary")[0].state_dict())


@every_kind
@pytest.mark.parametrize("duplicate", [copy.deepcopy, lambda layer: pickle.loads(pickle.dumps(layer))])
def test_copies_are_equal_and_independent(kind, duplicate):
    layer, x = example(kind)
    expected = seeded(layer, x), layer.eval()(x)
    twin = duplicate(layer.train())
    assert torch.equal(seeded(twin, x), expected[0])
    assert torch.equal(twin.eval()(x), expected[1])
    with torch.no_grad():
        for tensor in twin.state_dict().values():
            tensor.add_(1.0)
    assert not torch.equal(twin(x), expected[1])
    assert torch.equal(layer.eval()(x), expected[1])


def test_a_layer_with_a_generator_can_be_copied():
    layer, x = example(LRLinear)
    layer.generator = torch.Generator().manual_seed(0)
    assert torch.equal(copy.deepcopy(layer)(x), layer(x))


@every_kind
@every_value_set
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
def test_to_dtype_takes_everything_along(kind, values, dtype):
    layer, x = example(kind, values=values)
    expected = layer.eval()(x)
    layer.to(dtype)
    assert {tensor.dtype for tensor in layer.state_dict().values()} == {dtype}
    x = x.to(dtype)
    eps = torch.finfo(dtype).eps
    # Weight (level times scale), input, bias and sum are rounded once each; sums of at most 36 terms, here below 8.
    torch.testing.assert_close(layer(x).double(), expected, rtol=4 * eps, atol=8 * 4 * eps)
    z = layer.train()(x)
    assert z.dtype == dtype
    assert all(torch.isfinite(gradient).all() for gradient in loss_gradients(layer, z).values())


@every_value_set
def test_to_channels_last(values):
    layer, _ = example(LRConv2d, values=values)
    torch.manual_seed(2)
    x = torch.randn(2, 2, 5, 6, dtype=torch.float64)
    expected = layer.eval()(x)
    mean, deviation = sample_by_torch(layer, x)
    last = copy.deepcopy(layer).to(memory_format=torch.channels_last)
    assert last.logits.is_contiguous(memory_format=torch.channels_last)
    torch.testing.assert_close(last.eval()(x.to(memory_format=torch.channels_last)), expected, **REORDERED)
    z = seeded(last.train(), x.to(memory_format=torch.channels_last))
    # The noise is filled in the order of memory, whatever that is.
    torch.manual_seed(1)
    stored = torch.randn(z.permute(0, 2, 3, 1).shape, dtype=z.dtype)
    eps = stored.permute(0, 3, 1, 2) if z.is_contiguous(memory_format=torch.channels_last) else stored.view(z.shape)
    torch.testing.assert_close(z, mean + deviation * eps, **REORDERED)
    assert last.weight_logits.shape == layer.weight_logits.shape
    assert torch.equal(last.weight_logits, layer.weight_logits)


def sample_by_torch(layer: LRConv2d, x: Tensor) -> tuple[Tensor, Tensor]:
    """m and v of a convolution without padding or stride, by torch's own."""
    mean, variance = layer.values.moments(layer.weight_logits)
    m = F.conv2d(x, mean * layer.scale, layer.bias)
    return m, (F.conv2d(x**2, variance * layer.scale**2) + VARIANCE_FLOOR).sqrt()


# ---- starts ---------------------------------------------------------------------------------------------------------


@every_kind
@every_value_set
def test_meta_device_then_reset_gives_a_layer_built_in_place(kind, values):
    """As fully sharded training builds its models: shapes first, memory and numbers afterwards."""
    arguments, shape = EXAMPLES[kind]
    with torch.device("meta"):
        late = kind(*arguments, values=values)
    assert all(tensor.is_meta for tensor in late.state_dict().values())
    late = late.to_empty(device="cpu")
    for tensor in late.state_dict().values():
        tensor.fill_(float("nan"))
    torch.manual_seed(0)
    late.reset_parameters()
    torch.manual_seed(0)
    assert_same(late.state_dict(), kind(*arguments, values=values).state_dict(), rtol=0, atol=0)
    assert torch.isfinite(late(torch.randn(shape))).all()
    assert nn.utils.skip_init(kind, *arguments, values=values).logits.shape == late.logits.shape


@every_kind
def test_the_training_pass_infers_shapes_on_the_meta_device(kind):
    layer, x = example(kind)
    shape = layer(x).shape
    z = layer.to("meta")(x.to("meta"))
    assert z.is_meta
    assert z.shape == shape


@pytest.mark.parametrize(
    ("kind", "arguments"),
    [
        (LRLinear, (100, 120)),
        (LRConv1d, (20, 50, 5)),
        (LRConv2d, (20, 50, (3, 5))),
        (LRConv3d, (10, 20, 3)),
        (LRConvTranspose2d, (40, 20, 3)),
    ],
)
@every_value_set
def test_a_random_start_has_the_spread_of_torchs_own(kind, arguments, values):
    torch.manual_seed(0)
    layer, own = kind(*arguments, values=values), kind.plain(*arguments)
    # The deviation of n uniform numbers has relative standard error sqrt(kurtosis - 1) / (2 sqrt(n)), kurtosis 9/5.
    limit = 5 * math.sqrt(0.8) / (2 * math.sqrt(own.weight.numel()))
    assert layer.scale.item() == pytest.approx(own.weight.std().item(), rel=limit)
    # n uniform numbers in [-b, b] reach within b (1 - 15 / n) of the end but for a chance of e^-15 at each side.
    bound, n = own.weight.abs().max().item(), own.bias.numel()
    assert bound * (1 - 15 / n) < layer.bias.abs().max().item() <= bound * 1.001
    # The logits are a start from N(0, 1): half of the means below 0, within 5 standard errors.
    means = layer.values.mean(layer.weight_logits)
    assert abs((means < 0).double().mean().item() - 0.5) < 5 * 0.5 / math.sqrt(means.numel())


def float_layer(kind: type[LRLayer], **changes) -> nn.Module:
    torch.manual_seed(3)
    return kind.plain(*EXAMPLES[kind][0], dtype=torch.float64, **changes)


@every_kind
@every_value_set
def test_a_start_from_a_float_layer_keeps_its_mean_weights(kind, values):
    """Divided by the deviation, w starts a distribution of mean w where nothing is clipped; scaled, it is back.

    |w| <= 0.2368 deviations is what clips nothing for all three value sets (see test_weights).
    """
    own = float_layer(kind)
    layer = kind.from_plain(own, values, True)
    deviation = own.weight.detach().numpy().std()
    assert layer.scale.item() == pytest.approx(float(deviation), rel=1e-12)
    mean = layer.values.mean(layer.weight_logits) * layer.scale
    kept = own.weight.abs() < 0.2368 * float(deviation)
    assert kept.any()
    torch.testing.assert_close(mean[kept], own.weight[kept], **REORDERED)
    assert (mean.sign() == own.weight.sign()).all()


@every_kind
@every_value_set
def test_without_scale_nothing_is_multiplied_by_the_deviation(kind, values):
    """A known mistake: "without normalisation" that still divides by (or multiplies with) the deviation."""
    own = float_layer(kind, bias=False)
    layer, scaled = kind.from_plain(own, values, False), kind.from_plain(own, values, True)
    assert layer.scale is None
    torch.testing.assert_close(layer.logits, scaled.logits, rtol=0, atol=0)
    assert set(layer.weight.unique().tolist()) <= set(as_value_set(values).levels)
    x = torch.randn(EXAMPLES[kind][1], dtype=torch.float64)
    deviation = own.weight.detach().numpy().std()
    torch.testing.assert_close(layer.eval()(x) * deviation, scaled.eval()(x), **REORDERED)
    for one in (layer, scaled):
        one.train().variance_floor = 0.0
    torch.testing.assert_close(seeded(layer, x) * deviation, seeded(scaled, x), **REORDERED)


@every_kind
def test_the_size_of_float_weights_is_in_the_scale_alone(kind):
    own = float_layer(kind)
    layer = kind.from_plain(own, "ternary", True)
    with torch.no_grad():
        own.weight.mul_(1000)
    large = kind.from_plain(own, "ternary", True)
    torch.testing.assert_close(large.logits, layer.logits, **REORDERED)
    torch.testing.assert_close(large.scale, 1000 * layer.scale, rtol=1e-12, atol=0)


def test_a_start_takes_the_limits_it_is_given():
    """Weights far out are clipped to p_min or p_max: -3 .. 3 deviations in four weights."""
    own = nn.Linear(4, 1, dtype=torch.float64)
    own.weight = nn.Parameter(torch.tensor([[-50.0, -1.0, 1.0, 50.0]], dtype=torch.float64))
    layer = LRLinear.from_plain(own, "binary", True, 0.2, 0.7)
    p = torch.sigmoid(layer.weight_logits).flatten()
    assert p[0].item() == pytest.approx(0.2)
    assert p[-1].item() == pytest.approx(0.7)


SETTINGS = {
    "same": (nn.Conv2d, {"kernel_size": (2, 3), "padding": "same", "dilation": (1, 2)}),
    "reflect": (nn.Conv2d, {"kernel_size": 3, "padding": (2, 1), "padding_mode": "reflect", "stride": (1, 2)}),
    "circular": (nn.Conv1d, {"kernel_size": 3, "padding": 2, "padding_mode": "circular"}),
    "3d": (nn.Conv3d, {"kernel_size": (1, 2, 2), "padding": (0, 1, 1), "bias": False}),
    "groups": (nn.Conv2d, {"kernel_size": 3, "groups": 2}),
    "transposed": (nn.ConvTranspose2d, {"kernel_size": 3, "stride": (3, 2), "output_padding": (1, 0), "groups": 2}),
}


@pytest.mark.parametrize("which", SETTINGS)
def test_to_a_stochastic_layer_and_back_keeps_settings_bias_and_result(which):
    kind, arguments = SETTINGS[which]
    own = kind(4, 6, **arguments).eval()
    twin = next(k for k in LAYERS if k.plain is kind)
    layer = twin.from_plain(own, "ternary", True)
    assert layer.bias is own.bias
    assert not layer.training
    back = layer.to_plain(layer.values.mode(layer.weight_logits), layer.bias)
    assert type(back) is kind
    assert repr(back) == repr(own)
    assert not back.weight.requires_grad
    x = torch.randn(2, 4, *[7] * (own.weight.dim() - 2))
    assert torch.equal(back(x), layer(x))
    assert layer.train()(x).shape == own(x).shape


def test_a_start_neither_changes_nor_moves_the_float_layer():
    own = nn.Conv2d(3, 4, 3).half().to(memory_format=torch.channels_last).requires_grad_(False)
    before = own.weight.clone()
    layer = LRConv2d.from_plain(own, "ternary", True)
    assert torch.equal(own.weight, before)
    assert layer.logits.dtype == layer.scale.dtype == torch.float16
    assert layer.logits.is_contiguous(memory_format=torch.channels_last)
    assert not layer.logits.requires_grad
    assert "weight" not in layer.state_dict()


# ---- noise ----------------------------------------------------------------------------------------------------------


@every_kind
def test_training_noise_follows_torchs_seed_or_the_layers_generator(kind):
    layer, x = example(kind)
    assert torch.equal(seeded(layer, x), seeded(layer, x))
    assert not torch.equal(layer(x), layer(x))
    layer.generator = torch.Generator().manual_seed(4)
    state = torch.get_rng_state()
    first = layer(x)
    assert torch.equal(torch.get_rng_state(), state)
    layer.generator.manual_seed(4)
    torch.manual_seed(77)
    assert torch.equal(layer(x), first)


def test_set_generator_reaches_every_layer_and_none_takes_it_back():
    shared = LRLinear(3, 3)
    model = nn.Sequential(nn.Conv1d(1, 1, 1), nn.Sequential(LRLinear(2, 3), nn.ReLU(), shared), shared)
    assert [name for name, _ in lr_layers(model)] == ["1.0", "1.2"]
    generator = torch.Generator()
    set_generator(model, generator)
    assert all(layer.generator is generator for _, layer in lr_layers(model))
    set_generator(model, None)
    x = torch.randn(4, 2)
    assert torch.equal(seeded(model[1:], x), seeded(model[1:], x))


def test_a_layer_has_its_own_variance_floor():
    layer, x = example(LRLinear)
    layer.variance_floor = 4.0
    z = seeded(layer, torch.zeros_like(x))
    torch.manual_seed(1)
    torch.testing.assert_close(z, layer.bias + 2 * torch.randn(z.shape, dtype=z.dtype), **REORDERED)


# ---- sharpness ------------------------------------------------------------------------------------------------------


@every_kind
@every_value_set
def test_a_sharpened_layer_is_one_with_its_logits_multiplied(kind, values):
    layer, x = example(kind, values=values)
    sharp, multiplied = copy.deepcopy(layer), copy.deepcopy(layer)
    set_sharpness(nn.Sequential(sharp), 3.0)
    with torch.no_grad():
        multiplied.logits.mul_(3.0)
    assert torch.equal(sharp.logits, layer.logits)
    gradients, expected = (loss_gradients(one, seeded(one, x)) for one in (sharp, multiplied))
    expected["logits"] *= 3  # d(3 theta) / d theta
    assert_same(gradients, expected, **REORDERED)
    for look in (lambda one: seeded(one.train(), x), lambda one: one.eval()(x), lambda one: one.weight_logits):
        torch.testing.assert_close(look(sharp), look(multiplied), **REORDERED)


def test_gradients_of_a_sharpened_layer_pass_gradcheck():
    layer, x = example(LRConv2d, values="ternary")
    set_sharpness(layer, 2.5)

    def sample(x, logits, bias):
        torch.manual_seed(0)
        return torch.func.functional_call(layer, {"logits": logits, "bias": bias}, x)

    leaves = (tensor.detach().clone().requires_grad_() for tensor in (x[:1, :, :3, :4], layer.logits, layer.bias))
    assert torch.autograd.gradcheck(sample, tuple(leaves), atol=1e-6)


def test_sharpening_makes_distributions_more_decided_and_none_impossible():
    layer, _ = example(LRLinear)
    entropies = []
    for factor in (0.5, 1.0, 2.0, 8.0):
        set_sharpness(layer, factor)
        entropies.append(layer.values.entropy(layer.weight_logits).mean().item())
    assert entropies == sorted(entropies, reverse=True)
    assert entropies[0] < math.log2(3)
    assert entropies[-1] > 0


def test_baking_keeps_every_distribution_and_multiplies_tied_logits_once():
    torch.manual_seed(0)
    first, second = LRLinear(5, 5, dtype=torch.float64), LRLinear(5, 5, dtype=torch.float64)
    second.logits = first.logits
    model, x = nn.Sequential(first, nn.Tanh(), second), torch.randn(3, 5, dtype=torch.float64)
    set_sharpness(model, 4.0)
    before = first.logits.detach().clone()
    expected = seeded(model, x), model.eval()(x)
    bake_sharpness_(model)
    assert torch.equal(first.logits, 4 * before)
    assert second.logits is first.logits
    assert first.sharpness is None
    assert second.sharpness is None
    torch.testing.assert_close(seeded(model.train(), x), expected[0], **REORDERED)
    torch.testing.assert_close(model.eval()(x), expected[1], **REORDERED)


@pytest.mark.parametrize("factor", [0, -1.0, math.inf, math.nan])
def test_impossible_sharpness_is_refused(factor):
    layer, _ = example(LRLinear)
    with pytest.raises(ValueError, match=rf"finite number above 0, got {factor}; 1 leaves"):
        set_sharpness(layer, factor)
    assert layer.sharpness is None


def test_a_sharpened_layers_state_computes_the_same_when_loaded():
    """p(0) = 0.475 is the likeliest of three at a = -0.1, b = 0.2, but not with both logits ten times as large.

    A constant that computes but is not in the state is a known mistake: what was validated is not what is loaded.
    """
    layer, other = (LRLinear(1, 1, bias=False, dtype=torch.float64, scale=False).eval() for _ in range(2))
    with torch.no_grad():
        layer.logits.copy_(torch.tensor([[-0.1], [0.2]]))
    set_sharpness(layer, 10.0)
    assert layer.weight.item() == 1
    other.load_state_dict(layer.state_dict())
    assert other.weight.item() == 1


# ---- what is refused ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("training", [True, False])
@pytest.mark.parametrize("dtype", [torch.int64, torch.uint8, torch.bool])
@pytest.mark.parametrize(
    ("kind", "changes"),
    [
        *((kind, {}) for kind in LAYERS),
        (LRConv2d, {"padding": "same"}),
        (LRConv2d, {"padding": 1, "padding_mode": "reflect"}),
        (LRConv2d, {"padding": 1, "padding_mode": "circular"}),
    ],
)
def test_integer_input_is_refused_with_its_dtype_and_a_remedy(kind, changes, dtype, training):
    layer, x = example(kind, **changes)
    with pytest.raises(TypeError) as error:
        layer.train(training)(x.to(dtype))
    assert str(dtype) in str(error.value)
    assert "x.float()" in str(error.value)


# ---- torch.func and torch.compile -----------------------------------------------------------------------------------


@every_kind
def test_functional_call_computes_with_the_parameters_it_is_given(kind):
    layer, x = example(kind)
    other, _ = example(kind, seed=9)
    given = {name: tensor.detach().clone() for name, tensor in other.state_dict().items()}
    before = seeded(layer, x)
    torch.manual_seed(1)
    z = torch.func.functional_call(layer, given, x)
    assert torch.equal(z, seeded(other, x))
    assert torch.equal(seeded(layer, x), before)
    layer.eval()
    assert torch.equal(torch.func.functional_call(layer, given, x), other.eval()(x))


@every_kind
def test_functional_gradients_equal_those_of_backward(kind):
    layer, x = example(kind)
    parameters = {name: parameter.detach().clone() for name, parameter in layer.named_parameters()}

    def loss(parameters):
        z = torch.func.functional_call(layer, parameters, x)
        return (z * torch.linspace(-1, 2, z.numel(), dtype=z.dtype).view(z.shape)).sum()

    torch.manual_seed(1)
    gradients = torch.func.grad(loss)(parameters)
    assert_same(gradients, loss_gradients(layer, seeded(layer, x)), **REORDERED)


def small_network() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(
        LRConv2d(2, 4, 3, padding="same", values="ternary"), nn.BatchNorm2d(4), nn.ReLU(),
        LRConvTranspose2d(4, 3, 2, stride=2, values=FIVE), nn.ReLU(), nn.Flatten(), LRLinear(108, 5, values="binary"),
    )  # fmt: skip


def check_compiled(backend: str) -> None:
    """Compiled, a network gives the values and gradients of eager mode, the noise being that of the same seed."""
    torch._dynamo.reset()
    model, x = small_network(), torch.randn(3, 2, 3, 3)
    compiled = torch.compile(model, backend=backend, fullgraph=True)
    # Sums of a hundred float32 products in another order; batch norm divides by deviations of size 1.
    tolerance = {"rtol": 1e-4, "atol": 1e-4}
    z = seeded(compiled, x)
    gradients = loss_gradients(model, z)
    expected = seeded(model, x)
    torch.testing.assert_close(z, expected, **tolerance)
    assert_same(gradients, loss_gradients(model, expected), **tolerance)
    assert not torch.equal(compiled(x), compiled(x))  # new noise for every call: it was not folded into the graph
    model.eval()
    torch.testing.assert_close(compiled(x), model(x), **tolerance)


def test_a_compiled_network_equals_an_eager_one():
    """Backend aot_eager: traced and functionalised, run by torch's own operations and generator."""
    check_compiled("aot_eager")


@pytest.mark.skipif(not (shutil.which("g++") or shutil.which("clang++")), reason="inductor needs a C++ compiler")
def test_a_network_compiled_by_inductor_equals_an_eager_one():
    with torch._inductor.config.patch(
        fallback_random=True, layout_optimization=False
    ):  # torch's own random numbers, as in eager mode
        check_compiled("inductor")


def test_a_compiled_layer_does_not_ignore_its_generator():
    """Reproducible by the generator it was given, whatever torch's own is set to; or at least an error."""
    torch._dynamo.reset()
    layer, x = example(LRLinear)
    layer.generator = torch.Generator()
    compiled = torch.compile(layer, backend="aot_eager")
    samples = []
    for seed in (1, 2):
        layer.generator.manual_seed(0)
        samples.append(seeded(compiled, x, seed=seed))
    assert torch.equal(*samples)


# ---- data-parallel training -----------------------------------------------------------------------------------------


def train_in_parallel(rank: int, folder: str) -> None:
    """One of two processes: its gradients with and without DistributedDataParallel, from the same noise."""
    torch.set_num_threads(1)
    torch.distributed.init_process_group(
        "gloo", f"file://{folder}/store", rank=rank, world_size=2, timeout=timedelta(seconds=60)
    )
    try:
        model = nn.Sequential(LRConv1d(2, 3, 3), nn.ReLU(), nn.Flatten(), LRLinear(15, 2, values="binary")).double()
        torch.manual_seed(rank)
        with torch.no_grad():  # different in each process: the wrapper has to make them equal
            for tensor in model.state_dict().values():
                tensor.add_(0.1 * rank)
        x = torch.randn(4, 2, 7, dtype=torch.float64)
        parallel = nn.parallel.DistributedDataParallel(model)
        together = loss_gradients(model, seeded(parallel, x, seed=10 + rank))
        alone = loss_gradients(model, seeded(model, x, seed=10 + rank))
        torch.save({"together": together, "alone": alone, "state": model.state_dict()}, f"{folder}/{rank}.pt")
    finally:
        torch.distributed.destroy_process_group()


def test_two_processes_share_their_gradients(tmp_path):
    torch.multiprocessing.spawn(train_in_parallel, (str(tmp_path),), nprocs=2)
    first, second = (torch.load(tmp_path / f"{rank}.pt", weights_only=True) for rank in range(2))
    assert_same(first["state"], second["state"], rtol=0, atol=0)
    assert_same(first["together"], second["together"], rtol=0, atol=0)
    average = {name: (first["alone"][name] + second["alone"][name]) / 2 for name in first["alone"]}
    assert_same(first["together"], average, **REORDERED)
    assert set(average) == {"0.logits", "0.bias", "3.logits", "3.bias"}
    assert (first["alone"]["0.logits"] != second["alone"]["0.logits"]).all()  # two batches, two noises
