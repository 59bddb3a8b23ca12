"""Signs, sizes, products and weights of two levels: the reference against loops, every kernel against the reference."""

import dataclasses

import loops
import numpy as np
import pytest
from samples import LEVELS, SIGN, random_weights, signs
from test_native import KERNELS, kernels, seeded
from test_reference import MODES, check, given_back, inputs_like

from lrnets_runtime import Network, file, native, reference
from lrnets_runtime.graph import (
    Activate,
    Activation,
    Concat,
    Conv2d,
    Graph,
    Linear,
    Multiply,
    Pool2d,
    Reshape,
    Weight,
)
from lrnets_runtime.packing import decode
from lrnets_runtime.plan import make_plan
from lrnets_runtime.shapes import infer_shapes
from lrnets_runtime.signs import layers_on_signs, taken_in, values_of_signs

__all__ = ["kernels"]  # the fixture
f32 = np.float32
needs_core = pytest.mark.skipif(not KERNELS, reason="the C core was not built")
ABS = Activation("abs")


# The reference.


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("activation", [SIGN, ABS])
def test_signs_and_sizes(mode, activation):
    x = inputs_like((3, 4, 2))
    x[0, 0] = [0.0, -0.0]

    def by_loops(x, entry):
        return np.array([loops.activated(loops.real(v, entry), activation) for v in x.flat], f32).reshape(x.shape)

    check(Activate("node", ("x",), "y", activation), x, MODES[mode], by_loops)


def test_the_sign_of_0_is_plus_and_that_of_nan_is_minus():
    x = np.array([0.0, -0.0, np.nan, -1e-45, 1e-45, np.inf, -np.inf], f32)
    assert reference.activate(x, SIGN).tolist() == [1, 1, -1, -1, 1, 1, -1]
    sizes = reference.activate(x, ABS)
    assert np.isnan(sizes[2])
    assert sizes[[0, 3, 6]].tolist() == [0, f32(1e-45), np.inf]


@pytest.mark.parametrize("entries", [{}, {"x": (0.1, 100), "b": (0.03, 7), "y": (0.5, 128)}])
@pytest.mark.parametrize("small", [(3, 4, 2), (1, 4, 2), (3, 1, 1), (1, 1, 1), (1, 4, 1)])
def test_products_spread_over_sizes_of_1(entries, small):
    other = Pool2d("p", ("x",), "b", "average", (4 // small[1], 2 // small[2]), (1, 1))
    nodes = [other, Multiply("m", ("x", "b"), "y", ABS)]
    tensors = {}
    if small[0] == 1:
        nodes[0] = Conv2d("p", ("x",), "b0", Weight("w", "float32", (1, 3, 1, 1)), None, None)
        nodes.insert(1, Pool2d("q", ("b0",), "b", "average", other.kernel, (1, 1)))
        tensors = {"w": np.array([0.5, -2, 1], f32).reshape(1, 3, 1, 1)}
    graph = Graph("x", (3, 4, 2), "y", tuple(nodes), entries or None)
    assert infer_shapes(graph)["b"] == small
    x = inputs_like((2, 3, 4, 2))
    b = reference.run(Graph("x", (3, 4, 2), "b", tuple(nodes[:-1]), entries or None), tensors, x)
    expected = np.empty_like(x)
    held = given_back(x, entries.get("x"))
    for n, c, i, j in np.ndindex(*x.shape):
        factor = b[n, min(c, small[0] - 1), min(i, small[1] - 1), min(j, small[2] - 1)]
        expected[n, c, i, j] = abs(held[n, c, i, j] * factor)
    np.testing.assert_array_equal(reference.run(graph, tensors, x), given_back(expected, entries.get("y")))
    for name in KERNELS:  # the averages of floats may differ in the last place
        np.testing.assert_allclose(
            Network(graph, tensors, kernels=name)(x), reference.run(graph, tensors, x), rtol=1e-5, atol=1e-6
        )


@pytest.mark.parametrize("mode", MODES)
def test_weights_of_two_levels(mode):
    packed, plain = random_weights(np.random.default_rng(3), "levels", (4, 7))
    assert set(np.unique(plain)) == {f32(LEVELS[0]), f32(0), f32(LEVELS[1])}
    node = Linear("node", ("x",), "y", Weight("w", "levels", (4, 7), LEVELS), "s", "b")
    tensors = {"w": packed, "s": inputs_like((4,), 1), "b": inputs_like((4,), 2)}
    x = inputs_like((3, 7))
    expected = given_back(
        loops.linear(node, given_back(x, MODES[mode].get("x")), None, plain, tensors["s"], tensors["b"]),
        MODES[mode].get("y"),
    )
    graph = Graph("x", (7,), "y", (node,), MODES[mode] or None)
    np.testing.assert_allclose(reference.run(graph, tensors, x), expected, rtol=2**-22)
    for name in KERNELS:
        np.testing.assert_allclose(Network(graph, tensors, kernels=name)(x), expected, rtol=1e-5, atol=1e-5)


def test_levels_by_hand():
    """The example of docs/packed-format.md."""
    found = decode(np.array([0x30, 0x7A], np.uint8), Weight("w", "levels", (6,), (-0.75, 0.5)))
    assert found.dtype == f32
    assert found.tolist() == [-0.75, 0, 0.5, 0, -0.75, 0.5]


# Layers that count bits: equal to the reference, to the bit.

SHAPES = [  # weight, input's height and width, settings
    ((1, 1, 1, 1), (1, 1), {}),
    ((16, 64, 3, 3), (6, 5), {"padding": (1, 1)}),
    ((21, 70, 3, 3), (5, 7), {"padding": (2, 1)}),
    ((5, 3, 3, 3), (7, 6), {"padding": (1, 1), "stride": (2, 1)}),
    ((17, 7, 2, 3), (7, 6), {"stride": (2, 1), "padding": (0, 2)}),
    ((33, 5, 3, 2), (7, 6), {"dilation": (2, 3), "padding": (2, 1)}),
    ((12, 4, 3, 3), (4, 4), {"groups": 3, "padding": (2, 2)}),
    ((32, 9, 3, 3), (4, 5), {"groups": 2, "padding": (1, 1), "dilation": (1, 2)}),
    ((9, 1, 3, 3), (7, 6), {"groups": 9, "padding": (1, 1), "stride": (2, 2)}),
    ((20, 300, 1, 1), (5, 5), {}),
    ((16, 8, 5, 5), (5, 5), {"padding": (4, 4)}),
    ((24, 10, 4, 3), (4, 3), {}),  # covers its input
    ((3, 2, 1, 200), (1, 200), {"padding": (0, 199)}),
]


def layer_on_signs(rng, shape, size, activation=Activation(), entries=None, **settings):  # noqa: B008
    packed, plain = random_weights(rng, "binary", shape)
    tensors = {"w": packed, "s": rng.normal(size=shape[0]).astype(f32), "b": rng.normal(size=shape[0]).astype(f32)}
    weight = Weight("w", "binary", shape)
    kind = Conv2d if len(shape) == 4 else Linear
    nodes = (
        Activate("sign", ("x",), "v", SIGN),
        kind("layer", ("v",), "y", weight, "s", "b", activation=activation, **settings),
    )
    return Graph("x", (shape[1] * settings.get("groups", 1), *size), "y", nodes, entries), tensors, plain


def some_inputs(rng, shape):
    x = rng.normal(size=shape).astype(f32)
    x.flat[:: max(7, x.size // 50)] = np.nan
    x.flat[3 :: max(7, x.size // 50)] = -0.0
    return x


@needs_core
@pytest.mark.parametrize(("shape", "size", "settings"), SHAPES)
@pytest.mark.parametrize("entries", [None, {"x": (0.1, 131)}], ids=["floats", "bytes"])
def test_convolutions_of_signs(kernels, shape, size, settings, entries):
    rng = seeded("signs", shape)
    graph, tensors, _ = layer_on_signs(rng, shape, size, entries=entries, **settings)
    x = some_inputs(rng, (3, *graph.input_shape))
    expected = reference.run(graph, tensors, x)
    network = make_plan(graph, tensors)
    assert [step.kind for step in network.steps] == [native.SIGNS]  # the sign is taken on the way
    for threads in (1, 3):
        found = Network(graph, tensors, threads=threads)(x)
        np.testing.assert_array_equal(found, expected)


@pytest.mark.parametrize(("shape", "size", "settings"), [case for case in SHAPES if case[0][1] < 20])
def test_the_reference_on_signs_is_exact(shape, size, settings):
    """Whole sums by a loop, padding 0; then scale and bias, rounded once."""
    rng = seeded("exact", shape)
    graph, tensors, plain = layer_on_signs(rng, shape, size, **settings)
    x = some_inputs(rng, (1, *graph.input_shape))
    v = np.where(x >= 0, f32(1), f32(-1))
    whole = loops.conv2d(graph.nodes[1], v, None, plain, None, None)
    assert np.array_equal(whole, np.rint(whole))
    scale, bias = (tensors[name].astype(np.float64).reshape(-1, 1, 1) for name in "sb")
    np.testing.assert_array_equal(reference.run(graph, tensors, x), (whole * scale + bias).astype(f32))


@needs_core
@pytest.mark.parametrize("shape", [(10, 512), (1, 1), (37, 1001), (16, 64), (100, 3), (5, 4500)])
@pytest.mark.parametrize("batch", [1, 2, 7, 70])
def test_linear_layers_on_signs(kernels, shape, batch):
    rng = seeded("signs", shape, batch)
    graph, tensors, _ = layer_on_signs(rng, shape, (), activation=SIGN if batch == 2 else Activation())
    x = some_inputs(rng, (batch, shape[1]))
    np.testing.assert_array_equal(Network(graph, tensors, threads=2)(x), reference.run(graph, tensors, x))


@needs_core
@pytest.mark.parametrize("quantization", [None, {"x": (0.05, 128)}], ids=["float32", "int8"])
def test_linear_layers_on_signs_of_several_dimensions_count_bits_too(kernels, quantization):
    """The signs of bytes too, which the layer takes from the bytes."""
    rng = seeded("rows")
    graph, tensors, _ = layer_on_signs(rng, (10, 70), ())
    graph = dataclasses.replace(graph, input_shape=(3, 5, 70), quantization=quantization)
    x = some_inputs(rng, (2, 3, 5, 70))
    assert native.SIGNS in [step.kind for step in make_plan(graph, tensors).steps]
    np.testing.assert_array_equal(Network(graph, tensors, threads=2)(x), reference.run(graph, tensors, x))


@needs_core
def test_all_equal_and_all_different_bits_are_counted(kernels):
    """As many as a byte of a counter takes, and more."""
    rng = seeded("extremes")
    for inputs in (31 * 64, 31 * 64 + 1, 5000):
        graph, tensors, _ = layer_on_signs(rng, (16, inputs), ())
        tensors |= {"w": np.packbits(np.ones(16 * inputs, bool), bitorder="little"), "s": np.ones(16, f32)}
        tensors["b"] = np.zeros(16, f32)
        for value in (-1, 1):
            y = Network(graph, tensors)(np.full((3, inputs), value, f32))
            np.testing.assert_array_equal(y, np.full((3, 16), value * inputs, f32))


@needs_core
def test_a_network_of_signs(kernels):
    graph, tensors = signs()
    x = np.random.default_rng(1).normal(size=(9, *graph.input_shape)).astype(f32)
    expected = reference.run(graph, tensors, x)
    for threads in (1, 2, 4):
        np.testing.assert_array_equal(Network(graph, tensors, threads=threads)(x), expected)
    kinds = [step.kind for step in make_plan(graph, tensors).steps]
    assert kinds.count(native.SIGNS) == 3
    assert Network(graph, tensors, kernels="reference")(x).shape == (9, 3)


@needs_core
def test_a_bad_layer_on_signs_is_refused_by_the_core(kernels):
    graph, tensors, _ = layer_on_signs(seeded("bad"), (4, 3, 3, 3), (7, 6), padding=(1, 1))
    for change, words in [
        (lambda plan: setattr(plan.steps[0], "weight_count", 5), "5 weights, 108 expected"),
        (lambda plan: setattr(plan.steps[0], "padding", (2**28, 0)), "padding of 268435456|reads place"),
        (lambda plan: setattr(plan.steps[0], "stride", (2**28, 1)), "reads place"),
        (lambda plan: setattr(plan.steps[0], "bits", 2), "1 bit"),
        (lambda plan: setattr(plan.steps[0], "groups", 2), "2 groups"),
        (lambda plan: setattr(plan.steps[0], "activation", 5), "activation 5"),
        (lambda plan: plan.kept[0].__setitem__((0, 0, 0, 0), 0), "a weight of 0"),
        (lambda plan: setattr(plan.images[1], "height", 9), "reads place"),
    ]:
        plan = make_plan(graph, tensors)
        change(plan)
        with pytest.raises(ValueError, match=words):
            plan.network((4, 7, 6), kernels)


# Which values are signs.


def test_signs_stay_signs_when_they_only_move():
    weight = Weight("w", "binary", (2, 3, 1, 1))
    nodes = (
        Activate("s", ("x",), "s", SIGN),
        Pool2d("p", ("s",), "p", "max", (2, 2), (1, 1), (1, 1)),
        Pool2d("q", ("s",), "q", "average", (3, 3), (1, 1), (1, 1)),
        Concat("c", ("p", "p"), "c", 1),
        Concat("d", ("s", "q"), "d", 1),
        Reshape("r", ("c",), "r", (3, 5, 10)),
        Conv2d("k", ("r",), "k", weight),
        Conv2d("l", ("d",), "l", weight),
    )
    graph = Graph("x", (3, 4, 4), "l", nodes)
    assert values_of_signs(graph) == {"s", "p", "c", "r"}
    on_signs = layers_on_signs(graph)
    assert on_signs == {"k"}
    assert taken_in(graph, on_signs, set()) == set()  # others read them too


def test_a_sign_that_is_held_as_bytes_is_no_sign_but_a_byte(kernels):
    graph, tensors, _ = layer_on_signs(seeded("bytes"), (4, 9), (), entries={"v": (0.3, 100)})
    assert not values_of_signs(graph)
    x = some_inputs(seeded("x"), (4, 9))
    np.testing.assert_array_equal(Network(graph, tensors)(x), reference.run(graph, tensors, x))


# Files.


def test_files_bring_them_back_as_version_3(tmp_path):
    graph, tensors = signs()
    file.write(tmp_path / "net", graph, tensors)
    found, stored = file.read(tmp_path / "net")
    assert found == graph
    assert all(np.array_equal(stored[name], tensors[name]) for name in tensors)
    assert b'"version":"3"' in (tmp_path / "net").read_bytes()
