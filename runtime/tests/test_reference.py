import dataclasses
import math

import loops
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from samples import RELU, everything, random_weights

from lrnets_runtime.graph import (
    Activate,
    Activation,
    AdaptivePool2d,
    Add,
    Affine,
    Concat,
    Conv2d,
    Graph,
    Linear,
    Pool2d,
    Reshape,
    Softmax,
    Weight,
)
from lrnets_runtime.reading import graph_from_json
from lrnets_runtime.reference import activate, quantize, run
from lrnets_runtime.shapes import infer_shapes

f32 = np.float32
IN, OUT = (0.037, 101), (0.21, 17)
MODES = {"float": {}, "bytes": {"x": IN, "y": OUT}, "bytes in": {"x": IN}, "bytes out": {"y": OUT}}
LEAKY = Activation("leaky", slope=0.3)
each_mode = pytest.mark.parametrize("mode", MODES)
each_coding = pytest.mark.parametrize("coding", ["binary", "ternary", "int8", "float32"])


def inputs_like(shape, seed=0):
    return np.random.default_rng(seed).normal(size=shape).astype(f32) * f32(2)


def held(x, entry):
    """An input as a network holds it, number by number."""
    if entry is None:
        return x
    return np.array([loops.quantized(v, entry) for v in x.flat], np.uint8).reshape(x.shape)


def given_back(y, entry):
    """A result as a network returns it: through bytes, if its output has an entry."""
    if entry is None:
        return y
    bytes_ = y.flat if y.dtype == np.uint8 else (loops.quantized(v, entry) for v in y.flat)
    return np.array([loops.real(q, entry) for q in bytes_], f32).reshape(y.shape)


def run_one(node, x, entries=None, tensors=None):
    """The output of a network of one node, which reading accepts."""
    graph = graph_from_json(Graph("x", x.shape[1:], "y", (node,), entries or None).to_json())
    y = run(graph, tensors or {}, x)
    assert y.dtype == f32
    assert y.shape == (len(x), *infer_shapes(graph)["y"])
    return y


def check(node, x, entries, by_loops, tensors=None):
    """Equal to the loops: bit for bit where there are bytes, to the last place where floats are summed."""
    expected = given_back(by_loops(held(x, entries.get("x")), entries.get("x")), entries.get("y"))
    actual = run_one(node, x, entries, tensors)
    np.testing.assert_allclose(actual, expected, rtol=0 if "x" in entries else 2**-22, atol=0 if entries else 1e-30)


def weighted_node(coding, shape, *, seed, scale, bias, **options):
    """A convolution or linear layer with its tensors and plain weights."""
    rng = np.random.default_rng(seed)
    packed, plain = random_weights(rng, coding, shape)
    tensors = {"w": packed}
    if scale:
        tensors["s"] = rng.normal(size=shape[0]).astype(f32) / f32(100 if coding == "int8" else 1)
    if bias:
        tensors["b"] = rng.normal(size=shape[0]).astype(f32)
    kind = Conv2d if len(shape) == 4 else Linear
    names = ("s" if scale else None, "b" if bias else None)
    return kind("node", ("x",), "y", Weight("w", coding, shape), *names, **options), tensors, plain


@each_mode
@each_coding
@pytest.mark.parametrize(("scale", "bias"), [(True, True), (False, True), (True, False), (False, False)])
def test_linear(mode, coding, scale, bias):
    node, tensors, plain = weighted_node(coding, (4, 7), seed=1, scale=scale, bias=bias, activation=LEAKY)

    def by_loops(x, entry):
        return loops.linear(node, x, entry, plain, tensors.get("s"), tensors.get("b"))

    check(node, inputs_like((3, 7)), MODES[mode], by_loops, tensors)
    check(node, inputs_like((2, 3, 7)), MODES[mode], by_loops, tensors)  # over the last dimension


@each_mode
@each_coding
@settings(max_examples=6, deadline=None)
@given(data=st.data())
def test_conv2d(mode, coding, data):
    def pair(least, most):
        return data.draw(st.tuples(st.integers(least, most), st.integers(least, most)))

    kernel, stride, dilation, groups = pair(1, 3), pair(1, 3), pair(1, 2), data.draw(st.integers(1, 2))
    extent = [d * (k - 1) + 1 for d, k in zip(dilation, kernel)]
    padding = tuple(data.draw(st.integers(0, min(e - 1, 2))) for e in extent)
    size = [max(e - 2 * p, 1) + data.draw(st.integers(0, 2)) for e, p in zip(extent, padding)]
    shape = (2 * groups, data.draw(st.integers(1, 2)), *kernel)
    node, tensors, plain = weighted_node(
        coding, shape, seed=data.draw(st.integers(0, 99)), scale=data.draw(st.booleans()), bias=True,
        stride=stride, padding=padding, dilation=dilation, groups=groups, activation=RELU,
    )  # fmt: skip
    check(
        node,
        inputs_like((2, groups * shape[1], *size)),
        MODES[mode],
        lambda x, entry: loops.conv2d(node, x, entry, plain, tensors.get("s"), tensors.get("b")),
        tensors,
    )


@pytest.mark.parametrize("mode", ["float", "bytes", "bytes in"])
@pytest.mark.parametrize("kind", ["max", "average"])
@settings(max_examples=30, deadline=None)
@given(data=st.data())
def test_pool2d(mode, kind, data):
    def pair(least, most):
        return data.draw(st.tuples(st.integers(least, most), st.integers(least, most)))

    kernel, stride, size = pair(1, 4), pair(1, 5), pair(4, 6)
    padding = tuple(data.draw(st.integers(0, k // 2)) for k in kernel)
    node = Pool2d(
        "node", ("x",), "y", kind, kernel, stride, padding, data.draw(st.booleans()), data.draw(st.booleans())
    )
    entries = MODES[mode]
    if kind == "max" and entries:
        entries = {"x": IN, "y": IN}
    x = inputs_like((2, 2, *size))
    given_shape = infer_shapes(Graph("x", x.shape[1:], "y", (node,)))["y"][1:]
    check(node, x, entries, lambda x, entry: loops.pool2d(node, x, entry, given_shape))


@pytest.mark.parametrize("mode", ["float", "bytes", "bytes in"])
@pytest.mark.parametrize("kind", ["max", "average"])
@pytest.mark.parametrize("size", [(1, 1), (2, 3), (5, 7), (6, 9)])
def test_adaptive_pool2d(mode, kind, size):
    node = AdaptivePool2d("node", ("x",), "y", kind, size)
    entries = {"x": IN, "y": IN} if kind == "max" and mode != "float" else MODES[mode]
    check(node, inputs_like((2, 3, 5, 7)), entries, lambda x, entry: loops.adaptive_pool2d(node, x, entry))


@each_mode
@pytest.mark.parametrize("shape", [(3,), (3, 4), (3, 2, 2)])
@pytest.mark.parametrize(("scale", "bias"), [("s", "b"), ("s", None), (None, "b"), (None, None)])
def test_affine(mode, shape, scale, bias):
    tensors = {"s": np.array([0.5, -2.0, 3.3], f32), "b": np.array([0.1, 0.0, -7.7], f32)}
    node = Affine("node", ("x",), "y", scale, bias, LEAKY)

    def by_loops(x, entry):
        y = np.empty(x.shape, f32)
        for place in np.ndindex(*x.shape):
            number = loops.real(x[place], entry)
            number = number * tensors["s"][place[1]] if scale else number
            number = number + tensors["b"][place[1]] if bias else number
            y[place] = loops.activated(number, LEAKY)
        return y

    check(node, inputs_like((2, *shape)), MODES[mode], by_loops, tensors)


@pytest.mark.parametrize("activation", [Activation(), RELU, Activation("clamp", -1.0, 0.5), LEAKY])
@each_mode
def test_activate(mode, activation):
    def by_loops(x, entry):
        return np.array([loops.activated(loops.real(v, entry), activation) for v in x.flat], f32).reshape(x.shape)

    check(Activate("node", ("x",), "y", activation), inputs_like((3, 4, 2)), MODES[mode], by_loops)


@pytest.mark.parametrize("entry", [None, IN])
def test_reshape(entry):
    entries = {"x": entry, "y": entry} if entry else {}
    node = Reshape("node", ("x",), "y", (4, 6))
    check(node, inputs_like((2, 2, 3, 4)), entries, lambda x, entry: np.array(list(x.flat), x.dtype).reshape(2, 4, 6))


@each_mode
@pytest.mark.parametrize("axis", [0, 1])
def test_softmax(mode, axis):
    def by_loops(x, entry):
        y = np.empty(x.shape, f32)
        for place in np.ndindex(*x.shape):
            line = x[place[0], :, place[2]] if axis == 0 else x[place[0], place[1]]
            along = [loops.real(v, entry) for v in line]
            powers = [math.exp(float(v) - float(max(along))) for v in along]
            y[place] = f32(powers[place[axis + 1]] / math.fsum(powers))
        return y

    x = inputs_like((2, 3, 4)) * f32(1000)  # exp alone would overflow, in float64 too
    expected = given_back(by_loops(held(x, MODES[mode].get("x")), MODES[mode].get("x")), MODES[mode].get("y"))
    np.testing.assert_allclose(run_one(Softmax("node", ("x",), "y", axis), x, MODES[mode]), expected, rtol=2**-22)


@pytest.mark.parametrize(
    "entries", [{}, {"a": IN, "b": (0.11, 128), "y": OUT}, {"a": IN, "y": OUT}, {"a": IN, "b": IN, "y": IN}, {"b": IN}]
)
@pytest.mark.parametrize("op", ["add", "concat"])
def test_two_inputs(op, entries):
    """Two values made from one input, held in different ways."""
    last = Add("n", ("a", "b"), "y", RELU) if op == "add" else Concat("n", ("a", "b", "a"), "y", 1)
    nodes = (
        Activate("first", ("x",), "a", Activation()),
        Affine("second", ("x",), "b", "s", None),
        last,
    )
    graph = graph_from_json(Graph("x", (2, 3), "y", nodes, entries or None).to_json())
    x, scale = inputs_like((4, 2, 3)), np.array([0.7, -1.3], f32)
    values = {"a": x, "b": x * scale[:, None]}
    a, b = (given_back(values[name], entries.get(name)) for name in "ab")
    if op == "add":
        y = np.array([loops.activated(p + q, RELU) for p, q in zip(a.flat, b.flat)], f32).reshape(a.shape)
    else:
        y = np.concatenate([a, b, a], 2)
    np.testing.assert_array_equal(run(graph, {"s": scale}, x), given_back(y, entries.get("y")))


def test_bytes_with_equal_entries_pass_a_concat_unchanged():
    """Requantising with the same step and zero point is the identity, so a kernel may copy."""
    rng = np.random.default_rng(0)
    for _ in range(50):
        entry = (float(2.0 ** rng.uniform(-120, 120)), int(rng.integers(256)))
        q = np.arange(256, dtype=np.uint8)
        x = (q.astype(f32) - f32(entry[1])) * f32(entry[0])
        np.testing.assert_array_equal(quantize(x, entry), q)


@pytest.mark.parametrize(
    ("x", "entry", "expected"),
    [
        ([0.5, 1.5, 2.5, -0.5, -1.5], (1.0, 10), [10, 12, 12, 10, 8]),  # half to even
        ([np.inf, -np.inf, np.nan], (0.5, 7), [255, 0, 7]),
        ([3e38, -3e38], (1e-30, 128), [255, 0]),
        ([300.0, -300.0], (1.0, 0), [255, 0]),
        ([0.0044999998062849045], (0.003, 0), [2]),  # divided by the step it would be 1
        ([1.649999976158142], (1.1, 0), [1]),  # and here 2
    ],
)
def test_quantize(x, entry, expected):
    with np.errstate(over="ignore"):
        actual = quantize(np.array(x, f32), entry)
        assert [loops.quantized(v, entry) for v in np.array(x, f32)] == expected
    assert actual.dtype == np.uint8
    assert actual.tolist() == expected


@given(st.lists(st.floats(width=32), min_size=1), st.floats(2.0**-126, 2.0**126), st.integers(0, 255))
def test_quantize_any_number(x, step, zero):
    with np.errstate(all="ignore"):
        actual = quantize(np.array(x, f32), (step, zero))
        expected = [loops.quantized(v, (step, zero)) for v in np.array(x, f32)]
    assert actual.tolist() == expected


def test_activations_keep_nan():
    x = np.array([np.nan, -2.0, 3.0], f32)
    for activation in (Activation(), RELU, Activation("clamp", 0.0, 1.0), LEAKY):
        assert np.isnan(activate(x, activation)[0])
    np.testing.assert_array_equal(activate(x, LEAKY)[1:], np.array([-2 * f32(0.3), 3], f32))
    np.testing.assert_array_equal(activate(x, Activation("clamp", high=1.0))[1:], [-2, 1])


@pytest.mark.parametrize("quantized", [False, True])
def test_every_kind_of_node(quantized):
    """The same for a batch as for its samples, never the input's memory, and warnings are errors here."""
    graph, tensors = everything(quantized=quantized)
    x = inputs_like((6, 2, 5, 5))
    x[0, 0, 0, 0], x[1, 1, 2, 2] = np.nan, np.inf
    y = run(graph, tensors, x)
    assert y.shape == (6, 3)
    assert np.isfinite(y[2:]).all()
    assert quantized == bool(np.isfinite(y).all())
    singles = np.concatenate([run(graph, tensors, sample[None]) for sample in x])
    np.testing.assert_allclose(y, singles, rtol=1e-6)
    assert run(graph, tensors, x[:0]).shape == (0, 3)


def test_quantised_is_near_float():
    graph, tensors = everything(quantized=True)
    x = np.random.default_rng(3).uniform(-1, 1, (20, 2, 5, 5)).astype(f32)
    exact = run(dataclasses.replace(graph, quantization=None), tensors, x)
    np.testing.assert_allclose(run(graph, tensors, x), exact, atol=0.03)
    assert np.ptp(exact, axis=0).min() > 0.1  # the network tells its inputs apart


def test_result_is_not_the_input():
    x = inputs_like((2, 4))
    for graph in (Graph("x", (4,), "x", ()), Graph("x", (4,), "y", (Reshape("r", ("x",), "y", (2, 2)),))):
        assert not np.shares_memory(run(graph, {}, x), x)


def test_wrong_input_is_refused():
    graph = Graph("x", (4, 2), "x", ())
    with pytest.raises(ValueError, match=r"float64 \[3, 4, 2\]; must be float32 \[batch, 4, 2\]"):
        run(graph, {}, np.zeros((3, 4, 2)))
    with pytest.raises(ValueError, match=r"float32 \[4, 2\]; must be"):
        run(graph, {}, np.zeros((4, 2), f32))
