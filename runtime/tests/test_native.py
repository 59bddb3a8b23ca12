"""Every kernel this CPU has against the reference: bytes equal, floats within a bound that grows with the depth."""

import dataclasses
import math
import threading
import zlib

import numpy as np
import pytest
from samples import RELU, everything, random_weights

from lrnets_runtime import Network, native, reference
from lrnets_runtime.graph import (
    Activate,
    Activation,
    AdaptivePool2d,
    Add,
    Concat,
    Conv2d,
    Graph,
    Linear,
    Pool2d,
    Reshape,
    Softmax,
    Weight,
)
from lrnets_runtime.packing import pack
from lrnets_runtime.plan import Image, make_plan, place_images

KERNELS = native.kernels()[:-1]
EPSILON = 2.0**-24  # half a unit in the last place of 1

pytestmark = pytest.mark.skipif(not KERNELS, reason="the C core was not built")


@pytest.fixture(params=KERNELS or ["none"])
def kernels(request, monkeypatch):
    monkeypatch.setenv(native.VARIABLE, request.param)
    return request.param


def seeded(*case):
    return np.random.default_rng(zlib.crc32(repr(case).encode()))


def layer(rng, coding, shape, *, quantized, conv=True, size=(7, 6), activation=RELU, out_entry=True, **settings):
    """A network of one convolution or linear layer, with the tensors it needs."""
    packed, _ = random_weights(rng, coding, shape)
    tensors = {
        "w": packed,
        "s": rng.uniform(0.001, 0.1, shape[0]).astype(np.float32),
        "b": rng.normal(size=shape[0]).astype(np.float32),
    }
    kind = Conv2d if conv else Linear
    node = kind("layer", ("x",), "y", Weight("w", coding, shape), "s", "b", activation=activation, **settings)
    entries = None
    if quantized:
        entries = {"x": (0.037, 131)} | ({"y": (0.05, 3)} if out_entry else {})
    channels = shape[1] * settings.get("groups", 1)
    return Graph("x", (channels, *size) if conv else (channels,), "y", (node,), entries), tensors


def agree(graph, tensors, x, threads=1):
    expected = reference.run(graph, tensors, x)
    network = Network(graph, tensors, threads=threads)
    assert network.kernels != "reference"
    found = network(x)
    assert found.shape == expected.shape
    if graph.quantization:
        np.testing.assert_array_equal(found, expected)
    else:
        np.testing.assert_allclose(found, expected, rtol=0, atol=float_bound(graph, tensors, x))


def float_bound(graph, tensors, x):
    """Any order of summing n terms errs by at most n eps sum |w x|, and scaling and shifting by two roundings more.

    Winograd's way for kernels of 3 x 3 sums 4 inputs (each sum is at most 4 max |x|, after 2 roundings), then c
    products for each of 9 places, whose factors are in sum at most 4 sum |w|, then those (4 roundings): together
    (c + 8) eps 16 sum |w x|. Larger kernels are cut into pieces, which count as so many times the channels.
    """
    (node,) = graph.nodes
    weight = np.abs(reference.decode(tensors["w"], node.weight).astype(np.float64))
    depth = math.prod(node.weight.shape[1:])
    if set(node.weight.shape[2:]) <= {3, 5, 6}:
        pieces = math.prod(-(-side // 3) for side in node.weight.shape[2:])
        depth = 16 * (node.weight.shape[1] * pieces + 8)
    most = np.abs(x).max() * weight.reshape(len(weight), -1).sum(1)
    return float(((depth + 4) * EPSILON * (most * tensors["s"] + np.abs(tensors["b"]))).max())


CONVS = [
    ((16, 16, 3, 3), {"padding": (1, 1)}),
    ((1, 1, 1, 1), {}),
    ((21, 35, 3, 3), {"padding": (1, 1)}),
    ((16, 17, 3, 3), {"padding": (0, 2)}),
    ((18, 17, 5, 5), {"padding": (2, 2)}),
    ((16, 16, 6, 5), {"padding": (2, 1)}),
    ((17, 19, 5, 6), {"padding": (1, 2)}),
    ((20, 16, 6, 6), {"padding": (2, 2)}),
    ((16, 21, 3, 5), {"padding": (1, 1)}),
    ((16, 18, 5, 3), {"padding": (2, 0)}),
    ((5, 3, 3, 3), {"padding": (1, 1)}),
    ((17, 7, 2, 3), {"stride": (2, 1), "padding": (0, 2)}),
    ((33, 5, 3, 2), {"dilation": (2, 3), "padding": (2, 1)}),
    ((12, 4, 3, 3), {"groups": 3, "padding": (2, 2)}),
    ((9, 1, 3, 3), {"groups": 9, "padding": (1, 1), "stride": (2, 2)}),
    ((19, 1, 2, 3), {"groups": 19, "padding": (1, 0), "dilation": (2, 1)}),
    ((16, 1, 3, 3), {"groups": 16, "padding": (1, 1)}),
    ((24, 1, 3, 3), {"groups": 12, "padding": (1, 1)}),
    ((20, 70, 1, 1), {}),
    ((8, 130, 2, 2), {"stride": (3, 2)}),
]


@pytest.mark.parametrize("quantized", [False, True], ids=["floats", "bytes"])
@pytest.mark.parametrize("coding", ["binary", "ternary", "int8", "float32"])
@pytest.mark.parametrize(("shape", "settings"), CONVS)
def test_convolutions(kernels, coding, shape, settings, quantized):
    rng = seeded(coding, shape)
    graph, tensors = layer(rng, coding, shape, quantized=quantized and coding != "float32", **settings)
    x = rng.normal(size=(3, *graph.input_shape)).astype(np.float32)
    for threads in (1, 4):  # four of them part in the midst of images
        agree(graph, tensors, x, threads)


@pytest.mark.parametrize("quantized", [False, True], ids=["floats", "bytes"])
@pytest.mark.parametrize("coding", ["binary", "ternary", "int8"])
@pytest.mark.parametrize("shape", [(10, 512), (1, 1), (37, 1001), (16, 64), (100, 3)])
@pytest.mark.parametrize("batch", [1, 2, 7, 70])
def test_linear_layers(kernels, coding, shape, batch, quantized):
    rng = seeded(coding, shape, batch)
    graph, tensors = layer(rng, coding, shape, quantized=quantized, conv=False, out_entry=batch != 2)
    agree(graph, tensors, rng.normal(size=(batch, shape[1])).astype(np.float32), threads=2)


@pytest.mark.parametrize("quantized", [False, True], ids=["floats", "bytes"])
@pytest.mark.parametrize("coding", ["binary", "ternary", "int8", "float32"])
@pytest.mark.parametrize("shape", [(1, 5), (3, 40), (2, 7, 33), (2, 1, 3, 4, 19)])
def test_linear_layers_on_several_dimensions(kernels, coding, shape, quantized):
    """Each row as the same layer makes it of a vector: (..., in) -> (..., out)."""
    rng = seeded(coding, shape)
    quantized = quantized and coding != "float32"
    graph, tensors = layer(rng, coding, (21, shape[-1]), quantized=quantized, conv=False)
    several = dataclasses.replace(graph, input_shape=shape)
    x = rng.normal(size=(3, *shape)).astype(np.float32)
    for threads in (1, 2):
        agree(several, tensors, x, threads)
    rows = reference.run(graph, tensors, x.reshape(-1, shape[-1]))
    np.testing.assert_array_equal(reference.run(several, tensors, x).reshape(-1, 21), rows)


@pytest.mark.parametrize("quantized", [False, True], ids=["floats", "bytes"])
def test_rows_and_images_take_turns(kernels, quantized):
    """Layers over the last dimension, a sum of rows, and steps that want them as images, one after the other."""
    rng = np.random.default_rng(11)
    weights = {"u": (12, 10), "v": (10, 12), "w": (7, 10), "f": (4, 3 * 5 * 7)}
    tensors = {name: random_weights(rng, "ternary", shape)[0] for name, shape in weights.items()}
    scales = {f"{name}.s": np.full(shape[0], 0.5, np.float32) for name, shape in weights.items()}
    nodes = (
        *(Linear(name, (source,), name, Weight(name, "ternary", weights[name]), f"{name}.s", None, RELU)
          for name, source in (("u", "x"), ("v", "u"))),
        Add("a", ("x", "v"), "a"),
        Pool2d("p", ("v",), "p", "max", (3, 3), (1, 1), (1, 1)),
        Add("b", ("a", "p"), "b"),
        Linear("w", ("b",), "w", Weight("w", "ternary", weights["w"]), "w.s", None),
        Reshape("r", ("w",), "r", (3 * 5 * 7,)),
        Linear("f", ("r",), "f", Weight("f", "ternary", weights["f"]), "f.s", None),
    )  # fmt: skip
    names = ["x", *[node.output for node in nodes]]
    graph = Graph("x", (3, 5, 10), "f", nodes, dict.fromkeys(names, (0.1, 100)) if quantized else None)
    x = rng.normal(size=(4, 3, 5, 10)).astype(np.float32)
    network = Network(graph, tensors | scales, threads=2)
    assert network.kernels == kernels
    expected = reference.run(graph, tensors | scales, x)
    np.testing.assert_allclose(network(x), expected, rtol=0, atol=0 if quantized else 1e-4 * np.abs(expected).max())
    reshapes = sum(step.kind == native.RESHAPE for step in make_plan(graph, tensors | scales).steps)
    assert reshapes == 5  # x and b to rows; v, a and w from rows


@pytest.mark.parametrize("quantized", [False, True], ids=["floats", "bytes"])
def test_values_of_any_number_of_dimensions(kernels, quantized):
    nodes = (
        Activate("c", ("x",), "c", RELU),
        Concat("d", ("x", "c"), "d", 1),
        Concat("e", ("d", "d"), "e", 3),
        Concat("f", ("e", "e"), "f", 0),
        Reshape("g", ("f",), "g", (2 * 2 * 6, 4, 10)),
        Reshape("h", ("g",), "h", (2, 2, 3, 2, 2, 2, 10)),
        Add("i", ("h", "h"), "y"),
    )
    names = ["x", *[node.output for node in nodes]]
    graph = Graph("x", (2, 3, 4, 5), "y", nodes, dict.fromkeys(names, (0.03, 120)) if quantized else None)
    x = np.random.default_rng(12).normal(size=(3, 2, 3, 4, 5)).astype(np.float32)
    network = Network(graph, {}, threads=2)
    assert network.kernels == kernels
    np.testing.assert_array_equal(network(x), reference.run(graph, {}, x))
    number = Graph("x", (), "y", (Activate("a", ("x",), "y", RELU),))
    assert Network(number, {})(np.array([-1.0, 2.0], np.float32)).tolist() == [0, 2]
    for axis in (0, 3):
        softmax = Graph("x", (2, 3, 4, 5), "y", (Softmax("s", ("x",), "y", axis),))
        assert Network(softmax, {}).kernels == kernels
        np.testing.assert_allclose(Network(softmax, {})(x), reference.run(softmax, {}, x), rtol=1e-6, atol=0)


def test_what_the_core_lacks_is_left_to_the_reference(kernels):
    graph = Graph("x", (2, 3, 4, 5), "y", (Softmax("s", ("x",), "y", 2),))
    x = np.random.default_rng(13).normal(size=(3, 2, 3, 4, 5)).astype(np.float32)
    network = Network(graph, {})
    assert network.kernels == "reference"
    np.testing.assert_array_equal(network(x), reference.run(graph, {}, x))


def test_the_extremes_of_bytes_do_not_overflow(kernels):
    for coding in ("binary", "ternary", "int8"):
        graph, tensors = layer(seeded(coding), coding, (16, 4000), quantized=True, conv=False, out_entry=False)
        for fill in (-1e9, 1e9):
            for weight in (0, 255 if coding == "binary" else 242) if coding != "int8" else (-128, 127):
                tensors["w"] = np.full_like(tensors["w"], weight)
                agree(graph, tensors, np.full((1, 4000), fill, np.float32))


@pytest.mark.parametrize("activation", [Activation(), Activation("clamp", -0.5, 0.5), Activation("leaky", slope=0.1)])
def test_activations(kernels, activation):
    rng = np.random.default_rng(5)
    for quantized in (False, True):
        graph, tensors = layer(rng, "ternary", (6, 4, 3, 3), quantized=quantized, activation=activation)
        agree(graph, tensors, rng.normal(size=(2, *graph.input_shape)).astype(np.float32))


@pytest.mark.parametrize("quantized", [False, True], ids=["floats", "bytes"])
def test_a_network_of_everything(kernels, quantized):
    graph, tensors = everything(quantized=quantized)
    x = np.random.default_rng(1).normal(size=(5, *graph.input_shape)).astype(np.float32)
    for threads in (1, 2, 4):
        found = Network(graph, tensors, threads=threads)(x)
        # The last layer's weights and the softmax are float32 in both.
        np.testing.assert_allclose(found, reference.run(graph, tensors, x), rtol=2e-5, atol=1e-6)


@pytest.mark.parametrize("quantized", [False, True], ids=["floats", "bytes"])
def test_steps_that_only_move_numbers_are_exact(kernels, quantized):
    nodes = (
        Pool2d("p", ("x",), "p", "max", (2, 3), (1, 2), (1, 1), ceil_mode=True),
        AdaptivePool2d("q", ("x",), "q", "max", (4, 3)),
        Concat("c", ("p", "q"), "c", 1),
        Reshape("r", ("c",), "r", (11, 3, 3)),
        Concat("d", ("r", "r"), "d", 2),
        Concat("e", ("d", "d"), "e", 0),
        Reshape("f", ("e",), "y", (22, 18)),
    )
    names = ["x", *[node.output for node in nodes]]
    graph = Graph("x", (3, 6, 5), "y", nodes, dict.fromkeys(names, (0.03, 120)) if quantized else None)
    x = np.random.default_rng(2).normal(size=(4, 3, 6, 5)).astype(np.float32)
    np.testing.assert_array_equal(Network(graph, {}, threads=2)(x), reference.run(graph, {}, x))


@pytest.mark.parametrize("axis", [0, 1, 2])
def test_softmax_along_any_dimension(kernels, axis):
    graph = Graph("x", (4, 3, 5), "y", (Softmax("s", ("x",), "y", axis),))
    x = 30 * np.random.default_rng(3).normal(size=(2, 4, 3, 5)).astype(np.float32)
    np.testing.assert_allclose(Network(graph, {})(x), reference.run(graph, {}, x), rtol=1e-6, atol=0)


def test_nan_and_infinities_pass_or_are_clipped_as_in_the_reference(kernels):
    rng = np.random.default_rng(6)
    for quantized in (False, True):
        graph, tensors = layer(rng, "binary", (5, 4, 1, 1), quantized=quantized)
        x = rng.normal(size=(1, *graph.input_shape)).astype(np.float32)
        x[0, 0, 0, 0], x[0, 1, 1, 1], x[0, 2, 2, 2] = np.nan, np.inf, -np.inf
        np.testing.assert_allclose(Network(graph, tensors)(x), reference.run(graph, tensors, x), rtol=1e-5, atol=1e-5)
    pool = Graph("x", (1, 2, 2), "y", (Pool2d("p", ("x",), "y", "max", (2, 2), (2, 2)),))
    for order in ([np.nan, 1, 2, 3], [1, 2, 3, np.nan]):
        assert np.isnan(Network(pool, {})(np.array(order, np.float32).reshape(1, 1, 2, 2))).all()


def test_several_threads_may_call_one_network(kernels):
    graph, tensors = everything(quantized=True)
    network = Network(graph, tensors, threads=2)
    inputs = [np.random.default_rng(i).normal(size=(3, *graph.input_shape)).astype(np.float32) for i in range(4)]
    expected = [network(x) for x in inputs]
    problems = []

    def call(x, y):
        for _ in range(50):
            if not np.array_equal(network(x), y):
                problems.append("differs")

    threads = [threading.Thread(target=call, args=pair) for pair in zip(inputs, expected)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not problems


def test_large_batches_go_through_in_parts(kernels):
    """Of at most 64 images: with two threads, a part for each and then one together; with three, all together."""
    rng = np.random.default_rng(7)
    graph, tensors = layer(rng, "ternary", (3, 2, 3, 3), quantized=True)
    x = rng.normal(size=(150, *graph.input_shape)).astype(np.float32)
    for threads in (1, 2, 3):
        agree(graph, tensors, x, threads)
    assert Network(graph, tensors)(x[:0]).shape == (0, 3, 5, 4)


def test_large_images_go_through_one_by_one(kernels):
    """Each on one thread, with memory of its own; the odd one on both."""
    rng = np.random.default_rng(8)
    graph, tensors = layer(rng, "ternary", (16, 16, 3, 3), quantized=False, size=(72, 72), padding=(1, 1))
    x = rng.normal(size=(5, *graph.input_shape)).astype(np.float32)
    agree(graph, tensors, x, threads=2)
    np.testing.assert_array_equal(Network(graph, tensors, threads=2)(x), Network(graph, tensors, threads=1)(x))


def test_memory_is_shared_but_never_by_values_that_are_needed_together():
    rng = np.random.default_rng(8)
    for _ in range(50):
        images = []
        for _ in range(12):
            first = int(rng.integers(0, 20))
            image = Image(int(rng.integers(1, 9)), 3, int(rng.integers(1, 40)), None)
            image.first, image.last = first, first + int(rng.integers(0, 6))
            images.append(image)
        arena = place_images(images, 0, 30)
        for i, a in enumerate(images):
            assert a.offset % 64 == 0
            assert a.offset + a.bytes <= arena
            for b in images[:i]:
                together = a.first <= b.last and b.first <= a.last
                assert not together or a.offset + a.bytes <= b.offset or b.offset + b.bytes <= a.offset
    chain = tuple(Add("n", (f"v{i}", f"v{i}"), f"v{i + 1}") for i in range(20))
    plan = make_plan(Graph("v0", (1000,), "v20", chain), {})
    assert place_images(plan.images, plan.output, len(plan.steps)) == 2 * 4032


def test_a_plan_that_does_not_fit_is_refused_by_the_core(kernels):
    graph, tensors = layer(np.random.default_rng(9), "ternary", (4, 3, 3, 3), quantized=False)
    for change, words in [
        (lambda plan: setattr(plan.steps[0], "weight_count", 5), "5 weights, 108 expected"),
        (lambda plan: setattr(plan.steps[0], "padding", (1, 0)), "padding 1"),
        (lambda plan: setattr(plan.steps[0], "bits", 3), "3 bits"),
        (lambda plan: setattr(plan.steps[0], "input", 9), "no such value"),
        (lambda plan: setattr(plan.steps[0], "kind", 77), "kind 77"),
        (lambda plan: setattr(plan.images[1], "channels", 3), "81 expected"),
        (lambda plan: setattr(plan.images[1], "height", 6), "reads place 7"),
    ]:
        plan = make_plan(graph, tensors)
        change(plan)
        with pytest.raises(ValueError, match=words):
            plan.network((4, 5, 4), kernels)


def test_unknown_kernels_are_refused(monkeypatch):
    monkeypatch.setenv(native.VARIABLE, "quantum")
    with pytest.raises(ValueError, match=r"'quantum'.*reference"):
        Network(*everything(quantized=False))


def test_kernels_by_name_come_before_those_of_the_environment(monkeypatch):
    monkeypatch.setenv(native.VARIABLE, KERNELS[0])
    graph, tensors = everything(quantized=False)
    assert Network(graph, tensors, kernels="reference").kernels == "reference"
    assert Network(graph, tensors, kernels=KERNELS[-1]).kernels == KERNELS[-1]
    assert Network(graph, tensors).bytes_in_memory != Network(graph, tensors, kernels="reference").bytes_in_memory
    with pytest.raises(ValueError, match=f"kernels is 'quantum'; this machine has .*{KERNELS[-1]}, reference"):
        Network(graph, tensors, kernels="quantum")


@pytest.mark.parametrize("coding", ["binary", "ternary"])
def test_the_deepest_sums_of_bytes_are_exact(kernels, coding):
    """They fit 32 bits, and the sums of codes on the way do not; the sanitizers look on (test_sanitized.py)."""
    depth = (2**31 - 1) // 255
    weights = np.ones((1, depth), np.int8)
    weights[0, -1] = -1
    node = Linear("layer", ("x",), "y", Weight("w", coding, weights.shape))
    network = Network(Graph("x", (depth,), "y", (node,), {"x": (1.0, 0)}), {"w": pack(weights, coding)}, threads=1)
    assert network(np.full(depth, 255, np.float32)) == np.float32(255 * (depth - 2))
