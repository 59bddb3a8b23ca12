"""Layers against plain loops over enumerated moments, and gradients against autograd through torch's own layers."""

from __future__ import annotations

import numpy as np
import pytest
import references
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from layer_examples import FIVE, REORDERED, example, seeded
from torch import Tensor

from lrnets.functional import VARIANCE_FLOOR
from lrnets.layers import LRConv1d, LRConv2d, LRConv3d, LRConvTranspose2d, LRLayer, LRLinear

CONVOLUTIONS = {1: LRConv1d, 2: LRConv2d, 3: LRConv3d}
FORMS = st.sampled_from(["binary", "ternary", FIVE])

# Derandomised: the same examples on every run. Loops are slow at times, so no deadline.
loops = settings(max_examples=60, deadline=None, derandomize=True, database=None)


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
