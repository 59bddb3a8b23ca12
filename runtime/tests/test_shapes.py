import dataclasses
import math

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from samples import everything

from lrnets_runtime import PackedFileError
from lrnets_runtime.graph import (
    LARGEST,
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
from lrnets_runtime.shapes import infer_shapes, windows_along


def shape_of(node, *sources, quantization=None):
    """The output shape of a node whose inputs have these shapes, each made from one number."""
    nodes = []
    for i, source in enumerate(sources):
        weight = Weight(f"w{i}", "binary", (math.prod(source), 1))
        nodes += [Linear(f"l{i}", ("x",), f"u{i}", weight, None, None), Reshape(f"r{i}", (f"u{i}",), f"v{i}", source)]
    node = dataclasses.replace(node, inputs=tuple(f"v{i}" for i in range(len(sources))), output="y")
    return infer_shapes(Graph("x", (1,), "y", (*nodes, node), quantization))["y"]


def conv(shape, **options):
    return Conv2d("conv", ("x",), "y", Weight("w", "ternary", shape), None, None, **options)


def pool(kernel, stride, padding=(0, 0), ceil_mode=False, kind="max"):
    return Pool2d("pool", ("x",), "y", kind, kernel, stride, padding, ceil_mode)


@settings(max_examples=300, deadline=None)
@given(*[st.integers(1, 9)] * 4, st.integers(0, 9), st.booleans())
def test_windows_by_listing_them(size, kernel, stride, dilation, padding, ceil):
    """Starts are tried one by one over the padded input."""
    extent = dilation * (kernel - 1) + 1
    if ceil:
        padding = min(padding, extent // 2)  # as pools have it
        kept = [
            start
            for start in range(0, 200 * stride, stride)
            # torch's rule: the window one stride earlier left something unseen, and this one starts before the padding
            if start - stride + extent < size + 2 * padding and start < size + padding
        ]
    else:
        kept = [start for start in range(0, 200 * stride, stride) if start + extent <= size + 2 * padding]
    assert windows_along(size, kernel, stride, padding, dilation=dilation, ceil=ceil) == len(kept)


@pytest.mark.parametrize(
    ("node", "sources", "expected"),
    [
        (conv((8, 3, 3, 3), padding=(1, 1)), [(3, 32, 30)], (8, 32, 30)),
        (conv((8, 3, 3, 5), stride=(2, 3), padding=(1, 0), dilation=(2, 1)), [(3, 32, 30)], (8, 15, 9)),
        (conv((6, 1, 1, 1), groups=3), [(3, 2, 2)], (6, 2, 2)),
        (Linear("l", (), "", Weight("w", "binary", (7, 4)), None, None), [(4,)], (7,)),
        (Linear("l", (), "", Weight("w", "binary", (7, 4)), None, None), [(2, 3, 4)], (2, 3, 7)),
        (pool((3, 3), (2, 2), (1, 1)), [(5, 7, 8)], (5, 4, 4)),
        (pool((2, 2), (2, 2), ceil_mode=True), [(5, 7, 8)], (5, 4, 4)),
        (pool((3, 2), (2, 2), ceil_mode=True), [(1, 2, 2)], (1, 1, 1)),
        (AdaptivePool2d("a", (), "", "max", (3, 9)), [(5, 7, 8)], (5, 3, 9)),
        (Affine("a", (), "", None, None), [(5, 7)], (5, 7)),
        (Add("a", (), ""), [(5, 7), (5, 7)], (5, 7)),
        (Concat("c", (), "", 1), [(2, 3), (2, 5), (2, 3)], (2, 11)),
        (Reshape("r", (), "", (6,)), [(2, 3)], (6,)),
        (Reshape("r", (), "", ()), [(1,)], ()),
        (Softmax("s", (), "", 1), [(2, 3)], (2, 3)),
        (Activate("a", (), "", Activation()), [(2, 3)], (2, 3)),
    ],
)
def test_shapes(node, sources, expected):
    assert shape_of(node, *sources) == expected


@pytest.mark.parametrize(
    ("node", "sources", "message"),
    [
        (conv((8, 3, 3, 3)), [(4, 9, 9)], "takes 3 x 1 groups channels, its input has 4"),
        (conv((8, 2, 3, 3), groups=3), [(6, 9, 9)], "8 output channels do not divide into 3 groups"),
        (conv((8, 3, 3, 3)), [(3, 9, 2)], "width 2 with padding 0 has no room for a kernel of extent 3"),
        (conv((8, 3, 3, 3), dilation=(5, 1)), [(3, 9, 9)], "height 9 .* extent 11"),
        (conv((8, 3, 3, 3), padding=(3, 0)), [(3, 9, 9)], "padding 3 in height must be below 3"),
        (conv((8, 3, 1, 1), padding=(0, 1)), [(3, 9, 9)], "padding 1 in width must be below 1"),
        (conv((8, 3, 3, 3)), [(9, 9)], r"takes channels, height and width, its input is \[9, 9\]"),
        (
            conv((1, 1, 2, 2), dilation=(2**20, 2**20), padding=(2**20, 2**20), stride=(2**20, 2**20)),
            [(1, 1, 1)],
            "padded input has 4398050705409 elements; at most 268435456",
        ),
        (conv((1, 1, 2, 2), dilation=(9000, 9000), padding=(9000, 9000)), [(1, 1, 1)], "padded input has"),
        (Linear("l", (), "", Weight("w", "binary", (7, 4)), None, None), [(5,)], r"takes 4 features, its input is \[5"),
        (Linear("l", (), "", Weight("w", "binary", (7, 1)), None, None), [()], r"takes 1 features, its input is \[\]"),
        (Linear("l", (), "", Weight("w", "binary", (2**20, 1)), None, None), [(2**10, 1)], "gives 1073741824 elements"),
        (pool((3, 3), (2, 2), (2, 1)), [(5, 7, 8)], "padding 2 in height is more than half of the kernel 3"),
        (pool((3, 9), (2, 2)), [(5, 7, 8)], "width 8 with padding 0 has no room for a kernel of 9"),
        (pool((3, 3), (2, 2)), [(7,)], "takes channels, height and width"),
        (AdaptivePool2d("a", (), "", "max", (2**14, 2**15)), [(1, 2, 2)], "gives 536870912 elements"),
        (
            AdaptivePool2d("a", (), "", "max", (1, 2**20)),
            [(1, 2, 2)],
            "brings the pools' rows and columns to 1048577; at most 1048576",
        ),
        (Affine("a", (), "", None, None), [()], "needs a channel dimension"),
        (Add("a", (), ""), [(1, 6), (6, 1)], r"adds \[1, 6\] and \[6, 1\]"),
        (Concat("c", (), "", 1), [(2, 3), (3, 2)], "differ in more than dimension 1"),
        (Concat("c", (), "", 1), [(2, 3), (6,)], "differ in more than dimension 1"),
        (Concat("c", (), "", 2), [(2, 3), (2, 3)], r"axis 2 of an input with 2 dimensions \[2, 3\]"),
        (Concat("c", (), ""), [(2**27,)] * 3, "gives 402653184 elements"),
        (Reshape("r", (), "", (7,)), [(2, 3)], r"6 elements \[2, 3\] into 7 \[7\]"),
        (Softmax("s", (), "", 1), [(3,)], "axis 1 of an input with 1 dimensions"),
    ],
)
def test_misfits_are_refused(node, sources, message):
    with pytest.raises(PackedFileError, match=f"node '{node.name}' .*{message}"):
        shape_of(node, *sources)


def test_windows_of_all_pools_count_together():
    """10,000 pools of a file that is small would each list as many."""
    pools = [AdaptivePool2d(f"p{i}", (f"v{i}",), f"v{i + 1}", "max", (1, 2**19 - 1)) for i in range(3)]
    infer_shapes(Graph("v0", (1, 1, 1), "v2", tuple(pools[:2]), None))
    with pytest.raises(PackedFileError, match=r"node 'p2' .*rows and columns to 1572864; at most 1048576"):
        infer_shapes(Graph("v0", (1, 1, 1), "v3", tuple(pools), None))


@pytest.mark.parametrize(
    "node", [pool((4096, 4096), (1, 1), kind="average"), AdaptivePool2d("pool", (), "", "average", (1, 1))]
)
def test_averages_of_bytes_fit_int32(node):
    """255 * 4096 * 4096 is beyond int32; in float32 there is nothing to overflow."""
    assert shape_of(node, (1, 4096, 4096)) == (1, 1, 1)
    with pytest.raises(PackedFileError, match="averages 16777216 bytes; the sum of at most 8421504 fits int32"):
        shape_of(node, (1, 4096, 4096), quantization={"v0": (0.1, 0)})


def test_every_kind_of_node():
    shapes = infer_shapes(everything(quantized=True)[0])
    assert shapes["b"] == (4, 3, 3)
    assert shapes["f"] == (4, 4, 4)
    assert shapes["i"] == (4, 3, 2)
    assert shapes["y"] == (3,)
    assert all(1 <= math.prod(shape) <= LARGEST for shape in shapes.values())
