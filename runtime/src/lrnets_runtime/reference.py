"""What a packed network computes, in plain NumPy: the truth that every fast kernel is tested against.

A value with an entry (step s, zero point z) in `graph.quantization` is held as bytes q that stand for (q - z) s; every
other value is float32. Arithmetic that a fast kernel must match bit for bit is written with one NumPy operation for
each float32 rounding; layers on float32 values are summed in float64 and rounded once, and kernels are held to an
error bound. The rules in words: docs/packed-format.md, "Arithmetic".
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple, TypeAlias

import numpy as np
from numpy.typing import NDArray

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
    Multiply,
    Node,
    Pool2d,
    Reshape,
    Softmax,
    Vector,
)
from lrnets_runtime.packing import decode
from lrnets_runtime.shapes import windows_along

Entry: TypeAlias = tuple[float, int]  # step, zero point
Floats: TypeAlias = NDArray[np.float32]
Tensors: TypeAlias = Mapping[str, NDArray[Any]]


class Value(NamedTuple):
    """uint8 with an entry, or float32 with None; (batch, *shape)."""

    data: NDArray[Any]
    entry: Entry | None

    @property
    def real(self) -> Floats:
        """float32 of the value: float32(q - z) * s."""
        if self.entry is None:
            return self.data
        step, zero = self.entry
        return (self.data.astype(np.int32) - zero).astype(np.float32) * np.float32(step)


def run(graph: Graph, tensors: Tensors, x: Floats) -> Floats:
    """The network's output for a batch: (batch, *input_shape) -> (batch, *output_shape), both float32.

    Graph and tensors are as file.read returns them.
    """
    if x.dtype != np.float32 or x.shape[1:] != graph.input_shape:
        raise ValueError(
            f"the input is {x.dtype} {list(x.shape)}; must be float32 [batch, {str(list(graph.input_shape))[1:]}"
        )
    entries = graph.quantization or {}
    last_use = {name: place for place, node in enumerate(graph.nodes) for name in node.inputs}
    values = {graph.input: _hold(x, entries.get(graph.input))}
    with np.errstate(all="ignore"):  # NaN and infinities follow IEEE's rules without a word
        for place, node in enumerate(graph.nodes):
            result = _compute(node, [values[name] for name in node.inputs], tensors)
            values[node.output] = _hold(result, entries.get(node.output))
            for name in set(node.inputs):
                if last_use[name] == place and name != graph.output:
                    del values[name]
    return values[graph.output].real.copy()  # never the memory of the input


def quantize(x: Floats, entry: Entry) -> NDArray[np.uint8]:
    """q = clip(rint(x * (1 / s)) + z, 0, 255), half to even; NaN counts as 0."""
    step, zero = entry
    inverse = np.float32(1) / np.float32(step)
    q = np.clip(np.rint(x * inverse) + np.float32(zero), 0, 255)
    return np.where(np.isnan(q), np.float32(zero), q).astype(np.uint8)


def activate(x: Floats, activation: Activation) -> Floats:
    """The activation in float32; NaN stays NaN, save that its sign is -1."""
    if activation.kind == "sign":
        return np.where(x >= 0, np.float32(1), np.float32(-1))
    if activation.kind == "abs":
        return np.abs(x)
    if activation.kind == "leaky" and activation.slope is not None:
        return np.where(x < 0, x * np.float32(activation.slope), x)
    if activation.low is not None:
        x = np.maximum(x, np.float32(activation.low))
    if activation.high is not None:
        x = np.minimum(x, np.float32(activation.high))
    return x


def _hold(result: NDArray[Any], entry: Entry | None) -> Value:
    """A node's result as the graph wants it held; bytes that were passed on have the right entry already."""
    if entry is None or result.dtype == np.uint8:
        return Value(result, entry)
    with np.errstate(all="ignore"):
        return Value(quantize(result, entry), entry)


def _compute(node: Node, inputs: list[Value], tensors: Tensors) -> NDArray[Any]:
    """A node's result: float32, or bytes where they only pass through."""
    value = inputs[0]
    match node:
        case Conv2d() | Linear():
            return activate(_weighted(node, value, tensors), node.activation)
        case Pool2d() | AdaptivePool2d():
            return _pool(value, node.kind, pool_windows(node, value.data.shape[2:]))
        case Affine():
            channels = (-1, *[1] * (value.data.ndim - 2))
            scale, bias = (_number_each(name, tensors, channels) for name in (node.scale, node.bias))
            y = value.real if scale is None else value.real * scale
            return activate(y if bias is None else y + bias, node.activation)
        case Add():
            return activate(inputs[0].real + inputs[1].real, node.activation)
        case Multiply():
            return activate(inputs[0].real * inputs[1].real, node.activation)
        case Concat():
            return np.concatenate([part.real for part in inputs], axis=node.axis + 1)
        case Reshape():
            return value.data.reshape(value.data.shape[0], *node.shape)
        case Softmax():
            x = value.real.astype(np.float64)
            power = np.exp(x - x.max(node.axis + 1, keepdims=True))
            return (power / power.sum(node.axis + 1, keepdims=True)).astype(np.float32)
        case Activate():
            return activate(value.real, node.activation)


def _weighted(node: Conv2d | Linear, value: Value, tensors: Tensors) -> Floats:
    """scale * sum + bias. Bytes against whole weights: float32(sum w (q - z)) * (s * scale) + bias, rounding thrice."""
    weight = decode(tensors[node.weight.tensor], node.weight)
    exact = value.entry is not None and weight.dtype == np.int8
    # float64 holds every whole number that int32 does, and NumPy multiplies it fast.
    x = value.data.astype(np.float64) - value.entry[1] if exact and value.entry else value.real.astype(np.float64)
    if isinstance(node, Conv2d):
        total = _convolve(x, weight.astype(np.float64), node)  # (batch, out, height, width)
        channels: tuple[int, ...] = (-1, 1, 1)
    else:
        total = x @ weight.astype(np.float64).T  # (batch, ..., out)
        channels = (-1,)
    scale, bias = (_number_each(name, tensors, channels) for name in (node.scale, node.bias))
    if exact and value.entry:
        step = np.float32(value.entry[0])
        y = total.astype(np.int32).astype(np.float32) * (step if scale is None else step * scale)
        return y if bias is None else y + bias
    total = total if scale is None else total * scale.astype(np.float64)
    return (total if bias is None else total + bias.astype(np.float64)).astype(np.float32)


def _convolve(x: NDArray[np.float64], weight: NDArray[np.float64], node: Conv2d) -> NDArray[np.float64]:
    """Sum over kernel places of a matrix product each; zeros around. (batch, in, h, w) -> (batch, out, h', w')."""
    batch, _, *size = x.shape
    out, per_group, *kernel = weight.shape
    groups, (down, right) = node.groups, node.stride
    rows, columns = (
        windows_along(size[i], kernel[i], node.stride[i], node.padding[i], dilation=node.dilation[i]) for i in (0, 1)
    )
    x = np.pad(x, [(0, 0), (0, 0), *[(side, side) for side in node.padding]])
    weight = weight.reshape(groups, out // groups, per_group, *kernel)
    total = np.zeros((batch, groups, out // groups, rows * columns))
    for i in range(kernel[0]):
        for j in range(kernel[1]):
            top, left = i * node.dilation[0], j * node.dilation[1]
            seen = x[:, :, top : top + (rows - 1) * down + 1 : down, left : left + (columns - 1) * right + 1 : right]
            total += weight[:, :, :, i, j] @ seen.reshape(batch, groups, per_group, rows * columns)
    return total.reshape(batch, out, rows, columns)


Window: TypeAlias = tuple[int, int, int]  # first place, place after the last, how many count in an average


def pool_windows(node: Pool2d | AdaptivePool2d, size: tuple[int, ...]) -> list[list[Window]]:
    """The windows of the output's rows, and those of its columns."""
    return _windows(node, size) if isinstance(node, Pool2d) else _adaptive_windows(node, size)


def _windows(node: Pool2d, size: tuple[int, ...]) -> list[list[Window]]:
    """The windows along height and along width, clipped to the input; a padded place may count but is never seen."""
    sides = []
    for length, kernel, stride, padding in zip(size, node.kernel, node.stride, node.padding):
        side = []
        for i in range(windows_along(length, kernel, stride, padding, ceil=node.ceil_mode)):
            start, stop = i * stride - padding, i * stride - padding + kernel
            first, end = max(start, 0), min(stop, length)
            count = min(stop, length + padding) - start if node.count_padding else end - first
            side.append((first, end, count))
        sides.append(side)
    return sides


def _adaptive_windows(node: AdaptivePool2d, size: tuple[int, ...]) -> list[list[Window]]:
    """[floor(i h / n), ceil((i + 1) h / n)) for i below n, along height and along width."""
    sides = []
    for length, parts in zip(size, node.size):
        bounds = [(i * length // parts, -(-(i + 1) * length // parts)) for i in range(parts)]
        sides.append([(first, end, end - first) for first, end in bounds])
    return sides


def _pool(value: Value, kind: str, windows: list[list[Window]]) -> NDArray[Any]:
    """Maximum of the data as it is held, or float32(sum (q - z)) * (s / count); first rows, then columns."""
    rows, columns = windows
    x = value.data
    if kind == "max":
        x = np.stack([x[:, :, first:end].max(2) for first, end, _ in rows], 2)
        return np.stack([x[:, :, :, first:end].max(3) for first, end, _ in columns], 3)
    x = x.astype(np.float64) if value.entry is None else x.astype(np.int64) - value.entry[1]
    x = np.stack([x[:, :, first:end].sum(2) for first, end, _ in rows], 2)
    x = np.stack([x[:, :, :, first:end].sum(3) for first, end, _ in columns], 3)
    count = np.outer([row[2] for row in rows], [column[2] for column in columns])
    if value.entry is None:
        return (x / count).astype(np.float32)
    return x.astype(np.float32) * (np.float32(value.entry[0]) / count.astype(np.float32))


def _number_each(vector: Vector, tensors: Tensors, shape: tuple[int, ...]) -> Floats | np.float32 | None:
    """A scale or bias so shaped that it meets its channels; None if the node has none."""
    if isinstance(vector, str):
        return tensors[vector].reshape(shape)
    return None if vector is None else np.float32(vector)
