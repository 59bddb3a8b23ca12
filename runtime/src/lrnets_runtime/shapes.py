"""The shape of every value of a graph, without the batch: torch's formulas, and the limits that keep a run honest."""

from __future__ import annotations

import math

from lrnets_runtime.errors import PackedFileError, refuse
from lrnets_runtime.graph import (
    LARGEST,
    Activate,
    AdaptivePool2d,
    Add,
    Affine,
    Concat,
    Conv2d,
    Graph,
    Linear,
    Multiply,
    Node,
    Pool2d,
    Reshape,
    Shape,
    Softmax,
)
from lrnets_runtime.reading import LARGEST_SUM

SIDES = ("height", "width")
MOST_WINDOWS = 2**20  # along the sides of all pools of a graph: each is listed (reference.pool_windows)


def infer_shapes(graph: Graph) -> dict[str, Shape]:
    """Shape of each value by name; PackedFileError names the node whose inputs, window or size do not fit."""
    shapes = {graph.input: graph.input_shape}
    quantized, windows = graph.quantization or {}, 0
    for node in graph.nodes:
        sources = [shapes[name] for name in node.inputs]
        shape = _output_shape(node, sources)
        if min(shape, default=1) < 1:
            raise _misfit(node, f"gives an empty value of shape {list(shape)} from {list(sources[0])}")
        if (count := math.prod(shape)) > LARGEST:
            raise _misfit(node, f"gives {count} elements {list(shape)}; at most {LARGEST} are allowed")
        if node.inputs[0] in quantized and (window := _largest_average(node, sources[0])) * 255 > LARGEST_SUM:
            raise _misfit(node, f"averages {window} bytes; the sum of at most {LARGEST_SUM // 255} fits int32")
        windows += sum(shape[1:]) if isinstance(node, (Pool2d, AdaptivePool2d)) else 0
        if windows > MOST_WINDOWS:
            raise _misfit(node, f"brings the pools' rows and columns to {windows}; at most {MOST_WINDOWS} are allowed")
        shapes[node.output] = shape
    if graph.classes is not None and shapes[graph.output] != (len(graph.classes),):
        raise refuse(
            "graph: classes",
            f"{len(graph.classes)} names for an output of shape {list(shapes[graph.output])}; give one for each number "
            "of a flat output",
        )
    return shapes


def windows_along(size: int, kernel: int, stride: int, padding: int, *, dilation: int = 1, ceil: bool = False) -> int:
    """How many windows fit along a side: floor((size + 2 padding - dilation (kernel - 1) - 1) / stride) + 1 (torch).

    `ceil` rounds up instead, but the last window must start inside the input or its left padding.
    """
    room = size + 2 * padding - dilation * (kernel - 1) - 1
    if not ceil:
        return max(room // stride + 1, 0)
    count = max(-(-room // stride) + 1, 0)
    return count - 1 if count and (count - 1) * stride >= size + padding else count


def _output_shape(node: Node, sources: list[Shape]) -> Shape:
    source = sources[0]
    match node:
        case Conv2d():
            return _conv2d(node, source)
        case Linear():
            if not source or source[-1] != node.weight.shape[1]:
                raise _misfit(node, f"takes {node.weight.shape[1]} features, its input is {list(source)}")
            return *source[:-1], node.weight.shape[0]
        case Pool2d():
            return _pool2d(node, source)
        case AdaptivePool2d():
            return _channels(node, source), *node.size
        case Affine():
            if not source:
                raise _misfit(node, "needs a channel dimension, its input has none")
            return source
        case Add():
            if sources[0] != sources[1]:
                raise _misfit(node, f"adds {list(sources[0])} and {list(sources[1])}; their shapes must be equal")
            return source
        case Multiply():
            other = sources[1]
            if len(other) != len(source) or any(b not in (a, 1) for a, b in zip(source, other)):
                raise _misfit(
                    node, f"{list(source)} by {list(other)}; each size of the second must be the first's, or 1"
                )
            return source
        case Concat():
            return _concat(node, sources)
        case Reshape():
            if math.prod(source) != math.prod(node.shape):
                raise _misfit(
                    node, f"{math.prod(source)} elements {list(source)} into {math.prod(node.shape)} {list(node.shape)}"
                )
            return node.shape
        case Softmax():
            _check_axis(node, node.axis, source)
            return source
        case Activate():
            return source


def _conv2d(node: Conv2d, source: Shape) -> Shape:
    """(out, height, width). Padding is held below the window's extent: no window sees nothing but padding."""
    out, per_group, *kernel = node.weight.shape
    channels = _channels(node, source)
    if channels != per_group * node.groups:
        raise _misfit(node, f"takes {per_group} x {node.groups} groups channels, its input has {channels}")
    if out % node.groups:
        raise _misfit(node, f"{out} output channels do not divide into {node.groups} groups")
    sides, padded = [], channels
    for side, size, k, stride, padding, dilation in zip(
        SIDES, source[1:], kernel, node.stride, node.padding, node.dilation
    ):
        extent = dilation * (k - 1) + 1
        if padding >= extent:
            raise _misfit(node, f"padding {padding} in {side} must be below {extent}, the extent of the dilated kernel")
        if not (count := windows_along(size, k, stride, padding, dilation=dilation)):
            raise _misfit(
                node,
                f"{side} {size} with padding {padding} has no room for a kernel of extent {extent}, so it is empty",
            )
        padded *= size + 2 * padding
        sides.append(count)
    if padded > LARGEST:
        raise _misfit(node, f"its padded input has {padded} elements; at most {LARGEST} are allowed")
    return out, *sides


def _pool2d(node: Pool2d, source: Shape) -> Shape:
    """(channels, height, width), with padding of at most half a kernel, as torch demands."""
    sides = [_channels(node, source)]
    for side, size, kernel, stride, padding in zip(SIDES, source[1:], node.kernel, node.stride, node.padding):
        if 2 * padding > kernel:
            raise _misfit(node, f"padding {padding} in {side} is more than half of the kernel {kernel}")
        if not (count := windows_along(size, kernel, stride, padding, ceil=node.ceil_mode)):
            raise _misfit(
                node, f"{side} {size} with padding {padding} has no room for a kernel of {kernel}, so it is empty"
            )
        sides.append(count)
    return tuple(sides)


def _concat(node: Concat, sources: list[Shape]) -> Shape:
    first = sources[0]
    _check_axis(node, node.axis, first)
    for source in sources:
        if len(source) != len(first) or _without(source, node.axis) != _without(first, node.axis):
            raise _misfit(node, f"{list(first)} and {list(source)} differ in more than dimension {node.axis}")
    return *first[: node.axis], sum(source[node.axis] for source in sources), *first[node.axis + 1 :]


def _largest_average(node: Node, source: Shape) -> int:
    """At least as many elements as any average of this node is over; 0 if it does not average."""
    if isinstance(node, Pool2d) and node.kind == "average":
        return math.prod(min(kernel, size) for kernel, size in zip(node.kernel, source[1:]))
    if isinstance(node, AdaptivePool2d) and node.kind == "average":
        return math.prod(min(size, -(-size // parts) + 1) for parts, size in zip(node.size, source[1:]))
    return 0


def _channels(node: Node, source: Shape) -> int:
    if len(source) != 3:
        raise _misfit(node, f"takes channels, height and width, its input is {list(source)}")
    return source[0]


def _check_axis(node: Node, axis: int, source: Shape) -> None:
    if axis >= len(source):
        raise _misfit(node, f"axis {axis} of an input with {len(source)} dimensions {list(source)}")


def _without(shape: Shape, axis: int) -> Shape:
    return shape[:axis] + shape[axis + 1 :]


def _misfit(node: Node, problem: str) -> PackedFileError:
    return refuse(f"node {node.name!r} ({node.op})", problem)
