import copy
import dataclasses
import json

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from samples import described, signs, spelled_out

from lrnets_runtime import PackedFileError
from lrnets_runtime.errors import shown
from lrnets_runtime.graph import (
    KINDS,
    LARGEST,
    MOST_NODES,
    Activate,
    Activation,
    Add,
    Concat,
    Conv2d,
    Graph,
    Linear,
    Pool2d,
    Preparation,
    Reshape,
    Softmax,
    Weight,
)
from lrnets_runtime.reading import graph_from_json
from lrnets_runtime.shapes import infer_shapes

GRAPH = described(quantized=True)[0]
RAW = spelled_out(GRAPH)
SIGNS = spelled_out(signs()[0])
PLACES = {node.name: place for place, node in enumerate(GRAPH.nodes)}
GONE = object()
LEVELS = {"coding": "levels", "shape": [6, 2, 3, 3]}


def at(path):
    """'conv.stride.0' as keys into the JSON, with the names of nodes and plain fields of the graph."""
    first, *rest = path.split(".")
    keys = ["nodes", PLACES[first], *rest] if first in PLACES else [first, *rest]
    return [int(key) if isinstance(key, str) and key.isdigit() else key for key in keys]


def changed(path, value):
    raw = copy.deepcopy(RAW)
    *keys, last = at(path)
    inner = raw
    for key in keys:
        inner = inner[key]
    if value is GONE:
        del inner[last]
    else:
        inner[last] = value
    return raw


@pytest.mark.parametrize("quantized", [False, True])
def test_round_trip(quantized):
    graph = described(quantized=quantized)[0]
    assert {node.op for node in graph.nodes} == set(KINDS) - {"multiply"}
    assert graph_from_json(graph.to_json()) == graph
    assert graph_from_json(json.loads(json.dumps(graph.to_json()))) == graph
    assert json.loads(json.dumps(graph.to_json())) == graph.to_json()  # lists, not tuples


def test_round_trip_of_signs():
    graph = signs()[0]
    assert "multiply" in {node.op for node in graph.nodes}
    assert graph_from_json(json.loads(json.dumps(graph.to_json()))) == graph
    assert graph_from_json(spelled_out(graph)) == graph


@pytest.mark.parametrize(
    ("place", "change", "message"),
    [
        (
            0,
            {"weight": {**LEVELS}},
            "'first': weight: levels: is None; must be a list",
        ),
        (0, {"weight": {**LEVELS, "levels": [1]}}, "levels: has 1 entries"),
        (
            0,
            {"weight": {**LEVELS, "levels": [1, "2"]}},
            "levels: is '2'; must be a num",
        ),
        (0, {"weight": {**LEVELS, "levels": [1, 1e39]}}, r"levels: is 1e\+39"),
        (0, {"weight": {**LEVELS, "coding": "ternary", "levels": [-1, 1]}}, "ternary weights take none"),
        (1, {"activation": {"kind": "sign", "low": 0}}, "activation: low: is 0.0; sign takes none"),
        (2, {"activation": {"kind": "abs", "slope": 1}}, "activation: slope: is 1.0; abs takes none"),
        (5, {"inputs": ["e"]}, "inputs: 1 given; multiply takes 2"),
        (5, {"inputs": ["d", "e"]}, r"'product' \(multiply\): \[1, 5, 5\] by \[4, 5, 5\]; each size"),
        (5, {"inputs": ["e", "x"]}, r"\[4, 5, 5\] by \[2, 5, 5\]"),
    ],
)
def test_mutations_of_signs_are_refused(place, change, message):
    raw = signs()[0].to_json()
    raw["nodes"][place] |= change
    with pytest.raises(PackedFileError, match=message):
        infer_shapes(graph_from_json(raw))


@pytest.mark.parametrize("quantized", [False, True])
def test_defaults_may_be_written_out(quantized):
    """As version 1 did; a graph writes itself down again without them."""
    graph = described(quantized=quantized)[0]
    assert graph_from_json(spelled_out(graph)) == graph
    stated = {key for node in graph.to_json()["nodes"] for key in node}
    assert stated < {key for node in spelled_out(graph)["nodes"] for key in node}


def test_what_is_left_out_has_its_default():
    conv, pool = {"coding": "binary", "shape": [4, 1, 3, 3]}, {"op": "pool2d", "name": "pool", "kind": "max"}
    nodes = [
        {"op": "conv2d", "name": "first", "weight": conv},
        {**pool, "kernel": [3, 2]},
        {"op": "concat", "name": "twice", "inputs": ["pool", "pool"]},
        {"op": "softmax", "name": "last"},
    ]
    made = (
        Conv2d("first", ("input",), "first", Weight("first.weight", "binary", (4, 1, 3, 3)), None, None, (1, 1), (0, 0),
               (1, 1), 1, Activation("none", None, None, None)),
        Pool2d("pool", ("first",), "pool", "max", (3, 2), (3, 2), (0, 0), False, True),
        Concat("twice", ("pool", "pool"), "twice", 0),
        Softmax("last", ("twice",), "last", 0),
    )  # fmt: skip
    raw = {"input_shape": [1, 9, 9], "nodes": nodes}
    graph = Graph("input", (1, 9, 9), "last", made, None, None, None)
    assert graph_from_json(raw) == graph
    assert graph.to_json() == raw


def test_nothing_is_left_out_that_a_reader_would_fill_in_otherwise():
    """Fields that differ from their defaults by a little, next to a node that took the default's name."""
    weight = Weight("first.weight", "float32", (1, 1, 1, 1))
    nodes = (
        Conv2d("first", ("input",), "second", weight, stride=(1, 2), padding=(0, 1), dilation=(2, 1)),
        Conv2d("second", ("second",), "x", weight),
        Pool2d("pool", ("second",), "pool", "average", (2, 2), (1, 1), count_padding=False),
        Pool2d("ceil", ("second",), "ceil", "average", (2, 2), (2, 2), ceil_mode=True),
    )
    graph = Graph("input", (1, 9, 9), "pool", nodes, preparation=Preparation("each"))
    assert graph_from_json(graph.to_json()) == graph
    assert [set(node) for node in graph.to_json()["nodes"]] == [
        {"op", "name", "output", "weight", "stride", "padding", "dilation"},
        {"op", "name", "output", "weight"},
        {"op", "name", "inputs", "kind", "kernel", "stride", "count_padding"},
        {"op", "name", "inputs", "kind", "kernel", "ceil_mode"},
    ]


def test_preparations_are_for_images():
    told = (Preparation("each"), Preparation("fixed", (0.5,)), Preparation("fixed", shorter_side=5), None)
    for preparation in told:
        graph = Graph("x", (1, 4, 4), "x", (), preparation=preparation)
        assert graph_from_json(graph.to_json()) == graph
    with pytest.raises(PackedFileError, match=r"preparation: is for images, .* input_shape is \[4\]"):
        graph_from_json(Graph("x", (4,), "x", (), preparation=Preparation("each")).to_json())


def test_graph_without_nodes():
    graph = Graph("x", (3,), "x", ())
    assert graph_from_json(graph.to_json()) == graph


@pytest.mark.parametrize(
    ("path", "value", "message"),
    [
        ("input", "", "graph: input: is '' of 0 characters; must be a name of 1 to 200"),
        ("input", "n" * 201, "of 201 characters"),
        ("input", 3, "input: is 3"),
        ("input", "other", "node 0 'conv': inputs: 'x' is not made before"),
        ("input", None, "graph: input: is None"),
        ("input", GONE, "node 0 'conv': inputs: 'x' is not made before"),  # it is "input" then
        ("input_shape", GONE, "graph: input_shape: is missing"),
        ("nodes", GONE, "graph: nodes: is missing"),
        ("more", 1, "graph: unknown field 'more'"),
        ("input_shape", [2, 0, 5], "input_shape: is 0; must be a whole number of 1 to 268435456"),
        ("input_shape", [2, True], "input_shape: is True"),
        ("input_shape", [2, 5.0], "input_shape: is 5.0"),
        ("input_shape", [2**14, 2**15], "has 536870912 elements; at most 268435456"),
        ("input_shape", [1] * 9, "has 9 entries; must be a list of 0 to 8"),
        ("input_shape", "255", "is '255'; must be a list"),
        ("output", "nothing", "graph: output: 'nothing' is not made before"),
        ("output", None, "graph: output: None"),
        ("output", ["y"], "graph: output"),
        ("nodes", {}, "graph: nodes: is {}; must be a list"),
        ("nodes", [{}] * (MOST_NODES + 1), "has 10001 entries; must be a list of 0 to 10000"),
        ("conv", [], r"node 0: is \[\]; must be an object"),
        ("conv.op", "conv3d", "node 0: op: is 'conv3d'; this version knows conv2d, linear"),
        ("conv.op", ["conv2d"], "node 0: op"),
        ("conv.op", GONE, "node 0: op: is None"),
        ("conv.op", "linear", "node 0 'conv': unknown field 'stride'"),
        ("conv.name", "", "node 0: name"),
        ("conv.name", GONE, "node 0: name: is None"),
        ("conv.name", "a\nb", "node 0: name"),
        ("conv.name", "\ud800", "node 0: name"),
        ("conv.inputs", ["x", "x"], "node 0 'conv': inputs: 2 given; conv2d takes 1"),
        ("conv.inputs", [], "node 0 'conv': inputs: 0 given; conv2d takes 1"),
        ("conv.inputs", "x", "node 0 'conv': inputs: is 'x'; must be a list"),
        ("conv.inputs", ["a"], "node 0 'conv': inputs: 'a' is not made before"),
        ("conv.inputs", [7], "node 0 'conv': inputs: is 7"),
        ("conv.output", "x", "node 0 'conv': output: 'x' is made already"),
        ("pool.output", "a", "node 1 'pool': output: 'a' is made already"),
        ("conv.output", None, "node 0 'conv': output: is None"),
        ("conv.inputs", None, "node 0 'conv': inputs: is None"),
        ("add.inputs", GONE, "node 3 'add': inputs: 1 given; add takes 2"),
        ("pool.output", GONE, "node 2 'grouped': inputs: 'b' is not made before"),  # it is the node's name then
        ("conv.more", None, "node 0 'conv': unknown field 'more'"),
        ("conv.stride", None, "node 0 'conv': stride: is None"),
        ("conv.stride", 1, "node 0 'conv': stride: is 1; must be a list of 2"),
        ("conv.stride", [1], "has 1 entries; must be a list of 2"),
        ("conv.stride", [1, 0], "node 0 'conv': stride: is 0; must be a whole number of 1 to 268435456"),
        ("conv.stride", [1, LARGEST + 1], "is 268435457"),
        ("conv.stride", [10**5000, 1], "stride: is a whole number of 16610 bits"),
        ("conv.padding", [-1, 0], "padding: is -1; must be a whole number of 0"),
        ("conv.padding", [None, 0], "padding: is None"),
        ("conv.dilation", [1, False], "dilation: is False"),
        ("conv.groups", 0, "groups: is 0"),
        ("conv.groups", 1.0, "groups: is 1.0"),
        ("conv.scale", True, "node 0 'conv': scale: is True"),
        ("conv.scale", 1e39, "node 0 'conv': scale: is 1e\\+39"),
        ("conv.bias", [1.0], "node 0 'conv': bias: is \\[1.0\\]"),
        ("conv.bias", "__metadata__", "bias: is '__metadata__'"),
        ("conv.weight", None, "node 0 'conv': weight: is None; must be an object with tensor, coding, shape"),
        ("conv.weight.coding", "int4", "weight: coding: is 'int4'; this version knows binary, ternary, levels"),
        ("conv.weight", GONE, "node 0 'conv': weight: is missing"),
        ("conv.weight.tensor", None, "weight: tensor: is None"),
        ("conv.weight.coding", GONE, "weight: coding: is missing"),
        ("conv.weight.shape", GONE, "weight: shape: is missing"),
        ("conv.weight.shape", [4, 18], r"weight: has 2 dimensions \[4, 18\]; conv2d takes 4"),
        ("hidden.weight.shape", [5, 24, 1], "linear takes 2"),
        ("conv.weight.shape", [2**10, 2**10, 2**10, 1], "has 1073741824 elements"),
        ("conv.weight.shape", [4, 0, 3, 3], "weight: shape: is 0"),
        ("conv.weight.extra", 1, "weight: unknown field 'extra'"),
        ("conv.activation", "relu", "node 0 'conv': activation: is 'relu'; must be an object"),
        (
            "conv.activation.kind",
            "relu",
            "activation: kind: is 'relu'; this version knows none, clamp, leaky, sign",
        ),
        ("conv.activation.kind", "leaky", "activation: low: is 0.0; leaky takes none"),
        ("conv.activation.low", None, "activation: clamp without low or high"),
        ("conv.activation.high", -1.0, "activation: low: is 0.0, above high, which is -1.0"),
        ("conv.activation.low", float("nan"), "activation: low: is nan"),
        ("conv.activation.low", float("-inf"), "activation: low: is -inf"),
        ("conv.activation.high", 1e39, r"activation: high: is 1e\+39"),
        ("conv.activation.high", 10**400, "activation: high: is a whole number of"),
        ("conv.activation.low", "0", "activation: low: is '0'"),
        ("conv.activation.low", False, "activation: low: is False"),
        ("conv.activation.slope", 0.1, "activation: slope: is 0.1; clamp takes none"),
        ("conv.activation.kind", GONE, "activation: kind: is missing"),
        ("conv.activation.low", GONE, "activation: clamp without low or high"),
        ("conv.activation", None, "activation: is None; must be an object"),
        ("limit.activation", GONE, "node 12 'limit': activation: is missing"),
        ("add.activation.slope", None, "activation: leaky without slope"),
        ("grouped.activation.low", 1.0, "activation: low: is 1.0; none takes none"),
        ("pool.kind", "sum", "kind: is 'sum'; this version knows max, average"),
        ("pool.kernel", [0, 2], "kernel: is 0"),
        ("pool.kernel", GONE, "node 1 'pool': kernel: is missing"),
        ("pool.stride", None, "node 1 'pool': stride: is None"),
        ("adaptive.size", GONE, "node 6 'adaptive': size: is missing"),
        ("pool.ceil_mode", 1, "ceil_mode: is 1; must be true or false"),
        ("mean.count_padding", None, "count_padding: is None"),
        ("adaptive.size", [0, 1], "size: is 0"),
        ("add.inputs", ["b"], "inputs: 1 given; add takes 2"),
        ("add.inputs", ["b", "c", "c"], "inputs: 3 given; add takes 2"),
        ("concat.inputs", [], "inputs: 0 given; concat takes 1 to 10000"),
        ("concat.axis", -1, "axis: is -1"),
        ("concat.axis", 8, "axis: is 8; must be a whole number of 0 to 7"),
        ("softmax.axis", None, "axis: is None"),
        ("flatten.shape", [-1], "shape: is -1"),
        ("quantization", [], r"quantization: is \[\]; must be an object or null"),
        ("quantization.nothing", [1.0, 0], "quantization of 'nothing': 'nothing' is not made"),
        ("quantization.c", 1.0, "quantization of 'c': is 1.0; must be a list of 2"),
        ("quantization.c", [1.0], "has 1 entries; must be a list of 2"),
        ("quantization.c", [0.0, 0], "step: is 0.0; must be within"),
        ("quantization.c", [-1.0, 0], "step: is -1.0; must be within"),
        ("quantization.c", [1e-39, 0], "step: is 1e-39"),
        ("quantization.c", [1e38, 0], r"step: is 1e\+38"),
        ("quantization.c", [float("inf"), 0], "step: is inf"),
        ("quantization.c", [True, 0], "step: is True"),
        ("quantization.c", [1.0, 256], "zero point: is 256; must be a whole number of 0 to 255"),
        ("quantization.c", [1.0, 1.0], "zero point: is 1.0"),
        ("quantization.b", [0.004, 1], "quantization of 'b': is .*; pool2d passes bytes on, so both must be equal"),
        ("quantization.b", GONE, "quantization of 'b': is None, its source 'a' has"),
        ("quantization.h", [0.5, 0], "adaptive_pool2d passes bytes on"),
        ("quantization.i", [0.5, 0], "quantization of 'j': .* reshape passes bytes on"),
        ("preparation", "fixed", "graph: preparation: is 'fixed'; must be an object with kind, mean, deviation"),
        ("preparation", {}, "graph: preparation: kind: is missing"),
        ("preparation.kind", "crop", "preparation: kind: is 'crop'; this version knows fixed, each"),
        ("preparation.size", [5, 5], "graph: preparation: unknown field 'size'"),
        ("preparation.shorter_side", 3, "preparation: shorter_side: is 3; must be a whole number of [45] to 16384"),
        ("preparation.shorter_side", 2**14 + 1, "preparation: shorter_side: is 16385; must be a whole number"),
        ("preparation.shorter_side", 256.0, "preparation: shorter_side: is 256.0; must be a whole number"),
        ("preparation.kind", "each", r"preparation: mean: is \[0.25, 0.5\]; each takes none"),
        ("preparation", {"kind": "each", "deviation": [1.0]}, "preparation: deviation: .*; each takes none"),
        ("preparation.mean", 0.5, "preparation: mean: is 0.5; must be a list of 2"),
        ("preparation.mean", [0.5] * 3, "preparation: mean: has 3 entries; must be a list of 2"),
        ("preparation.mean", [0.5, None], "preparation: mean: is None; must be a number"),
        ("preparation.mean", [0.5, float("nan")], "preparation: mean: is nan; must be a number"),
        ("preparation.deviation", [0.5, 0], "preparation: deviation: is 0.0; must be within"),
        ("preparation.deviation", [-0.5, 1], "preparation: deviation: is -0.5; must be within"),
        ("preparation.deviation", [1, True], "preparation: deviation: is True"),
        ("classes", "abc", "graph: classes: is 'abc'; must be a list of 1 to 1048576"),
        ("classes", [], "graph: classes: has 0 entries"),
        ("classes", ["a", "", "c"], "graph: classes: is '' of 0 characters"),
        ("classes", ["a", "b\x1b[31m", "c"], "graph: classes: is .* printable"),
        ("classes", ["a", 2, "c"], "graph: classes: is 2; must be a name"),
    ],
)
def test_mutations_are_refused(path, value, message):
    with pytest.raises(PackedFileError, match=message):
        graph_from_json(changed(path, value))


@pytest.mark.parametrize("raw", [None, [], "graph", 1, True, {}])
def test_other_data_is_refused(raw):
    with pytest.raises(PackedFileError, match="graph"):
        graph_from_json(raw)


def test_whole_numbers_stand_for_floats():
    """JSON has only numbers, and writers may leave out the point."""
    graph = graph_from_json(changed("conv.activation.low", 0))
    assert type(graph.nodes[0].activation.low) is float
    assert graph == GRAPH


@pytest.mark.parametrize(("coding", "most"), [("binary", 8421504), ("ternary", 8421504), ("int8", 65793)])
def test_sums_of_bytes_fit_int32(coding, most):
    magnitude = 128 if coding == "int8" else 1
    assert most * 255 * magnitude < 2**31 <= (most + 1) * 255 * magnitude
    for depth in (most, most + 1):
        node = Linear("deep", ("x",), "y", Weight("w", coding, (1, depth)), None, None)
        graph = Graph("x", (depth,), "y", (node,))
        assert graph_from_json(graph.to_json()) == graph  # float32 does not overflow
        graph = dataclasses.replace(graph, quantization={"x": (0.1, 3)})
        if depth == most:
            assert graph_from_json(graph.to_json()) == graph
        else:
            with pytest.raises(PackedFileError, match=f"node 'deep': weight: {depth} products .* at most {most} fit"):
                graph_from_json(graph.to_json())


def test_most_nodes():
    def chain(length):
        names = [f"v{i}" for i in range(length + 1)]
        nodes = (Activate(f"n{i}", (names[i],), names[i + 1], Activation()) for i in range(length))
        return Graph("v0", (1,), names[-1], tuple(nodes))

    graph = chain(MOST_NODES)
    assert graph_from_json(graph.to_json()) == graph
    with pytest.raises(PackedFileError, match="10001 entries"):
        graph_from_json(chain(MOST_NODES + 1).to_json())


def test_add_of_a_value_to_itself_and_dead_nodes():
    graph = Graph("x", (2,), "y", (Add("a", ("x", "x"), "y"), Reshape("dead", ("y",), "z", (2, 1))))
    assert graph_from_json(graph.to_json()) == graph


def test_shown_is_short_whatever_the_value():
    deep = []
    for _ in range(100_000):
        deep = [deep]
    for value in (deep, "x" * 10**6, 10**9999, [10**9999], {"k": deep}, list(range(10**5))):
        assert len(shown(value)) < 200
    while deep:  # or freeing it would recurse
        deep = deep.pop()


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5) | st.sampled_from(list("abxy")),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=5), inner, max_size=4),
    max_leaves=6,
)


def every_path(raw, prefix=()):
    yield prefix
    entries = raw.items() if isinstance(raw, dict) else enumerate(raw) if isinstance(raw, list) else ()
    for key, value in entries:
        yield from every_path(value, (*prefix, key))


def some_mutations(raw):
    values = JSON | st.sampled_from([GONE, *range(7)])
    return st.lists(st.tuples(st.sampled_from(list(every_path(raw))[1:]), values), min_size=1, max_size=3)


@settings(max_examples=1000, deadline=None)
@given(some_mutations(RAW))
def test_random_mutations(mutations):
    reads_or_refuses(copy.deepcopy(RAW), mutations)


@settings(max_examples=400, deadline=None)
@given(some_mutations(SIGNS))
def test_random_mutations_of_signs(mutations):
    reads_or_refuses(copy.deepcopy(SIGNS), mutations)


def reads_or_refuses(raw, mutations):
    """What is read is a graph that writes itself down again, with shapes; everything else is a PackedFileError."""
    for (*keys, last), value in mutations:
        inner = raw
        try:
            for key in keys:
                inner = inner[key]
            if value is GONE:
                del inner[last]
            else:
                inner[last] = value
        except (LookupError, TypeError):  # an earlier mutation took the place away
            continue
    problem = ""
    try:
        graph = graph_from_json(raw)
        infer_shapes(graph)
    except PackedFileError as error:
        problem = str(error)
    assert len(problem) < 1000
    if not problem:
        assert graph_from_json(graph.to_json()) == graph
