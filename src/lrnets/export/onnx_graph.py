"""A folded graph as an ONNX model: nodes and constants as onnxruntime runs them best.

What is behind the choices, as measured with onnxruntime 1.31 on a CPU with AVX2 but no VNNI:

- Two bits q in MatMulNBits stand for (q - 2) scale, four to a byte, the first in the lowest bits.
- `accuracy_level=0` sums in float32, exactly as the int8 file does, but unpacks the weights at each call (1.3 ms for
  1024 x 512 weights and one example; Gemm takes 0.12 ms). Level 4 rounds the layer's input to 8 bits, which puts its
  outputs up to 1% of the largest off, and takes 0.07 ms.
- Where bytes meet int8 weights, onnxruntime adds pairs of products in 16 bits without VNNI, and weights beyond 64
  overflow them: outputs were up to 25% off. Such weights are written as uint8 around 128, which it sums in 32 bits.
- DequantizeLinear next to MatMul becomes MatMulNBits of level 4 without being asked, so a Transpose stands between.
- A layer on bytes has its bias in int32 steps of input step times scale. Where that overflows (a scale near 0), the
  bias is added in float32 instead; onnxruntime left to itself makes it 0 without a word. So is it where the
  result stays float32: half a step would turn one sign in a thousand.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Sequence
from hashlib import sha256
from itertools import pairwise
from typing import Any, Literal

import numpy as np
from lrnets_runtime import reference
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
    Shape,
    Softmax,
)
from lrnets_runtime.packing import decode
from lrnets_runtime.reading import LARGEST_SUM
from lrnets_runtime.reference import Entry
from lrnets_runtime.shapes import infer_shapes, windows_along

from lrnets import __version__
from lrnets.export.builder import UnsupportedError, fresh_name
from lrnets.export.coding import Array, Tensors
from lrnets.export.fold import with_tensors
from lrnets.export.packed import PackedLayer
from lrnets.export.trace import Traced

Weights = Literal["int8", "float32", "2bit"]
OPSET, IR_VERSION = 13, 7  # the first with a scale for each channel; onnxruntime reads them since 1.6 (2020)
BLOCK = 128  # weights that share a scale in MatMulNBits
UNCHANGED = Activation()
LARGEST_PAIRED = 64  # |weight| whose product with 255, twice, fits 16 bits


class OnnxWriter:
    """Walks the graph's nodes; `real` has the float32 ONNX tensor of each value."""

    def __init__(self, onnx: Any, graph: Graph, tensors: Tensors, weights: Weights, accuracy_level: int) -> None:
        graph, tensors = with_tensors(Traced(graph, tensors))
        self.onnx, self.graph, self.tensors = onnx, graph, tensors
        self.weights, self.accuracy_level = weights, accuracy_level
        self.shapes = infer_shapes(graph)
        self.entries = graph.quantization or {}
        self.nodes: list[Any] = []
        self.constants: dict[tuple[str, Shape, bytes], str] = {}  # type, shape, hash: equal arrays are stored once
        self.stored: list[Any] = []
        self.added = Counter[str]()  # bytes that the present value has stored, by role
        self.names = {*self.shapes}
        self.at = graph.input  # the value that is being made
        self.real: dict[str, str] = {}
        self.layers: list[PackedLayer] = []

    def model(self) -> Any:
        graph, helper = self.graph, self.onnx.helper
        entry = self.entries.get(graph.input)
        self.real[graph.input] = graph.input if entry is None else self.held(graph.input, entry)
        for node in graph.nodes:
            self.at, self.added = node.output, Counter()
            y, activation = self.computed(node, [self.real[name] for name in node.inputs])
            self.finish(y, activation)
        ends = (
            helper.make_tensor_value_info(name, self.onnx.TensorProto.FLOAT, ["batch", *self.shapes[name]])
            for name in (graph.input, graph.output)
        )
        body = helper.make_graph(self.nodes, "lrnets", *([end] for end in ends), initializer=self.stored)
        domains = [("", OPSET), ("com.microsoft", 1)] if any(node.domain for node in self.nodes) else [("", OPSET)]
        return helper.make_model(
            body,
            opset_imports=[helper.make_opsetid(*domain) for domain in domains],
            ir_version=IR_VERSION,
            producer_name="lrnets",
            producer_version=__version__,
        )

    def emit(self, kind: str, inputs: Sequence[str], **attributes: Any) -> str:
        """Add an ONNX node; the name of its output."""
        output = self.fresh(f"{self.at}.{kind}")
        self.nodes.append(self.onnx.helper.make_node(kind, inputs, [output], name=output, **attributes))
        return output

    def constant(self, array: Any, role: str) -> str:
        """Store an array, unless its equal is stored already; its name."""
        array = np.asarray(array)
        key = str(array.dtype), array.shape, sha256(array.tobytes()).digest()
        if key not in self.constants:
            self.constants[key] = fresh = self.fresh(f"{self.at}.{role}")
            self.stored.append(self.onnx.numpy_helper.from_array(array.copy(order="C"), fresh))
            self.added[role] += array.nbytes
        return self.constants[key]

    def fresh(self, name: str) -> str:
        return fresh_name(name, self.names)

    # What comes after a node's arithmetic.

    def finish(self, y: str, activation: Activation) -> None:
        """The activation, and the value as the graph wants it held, under the name it has there."""
        entry = self.entries.get(self.at)
        if entry is None:
            y = self.activated(y, activation)
        elif activation.kind == "clamp":  # on bytes: the same comes out, and Conv stays next to QuantizeLinear
            y = self.held(y, entry, activation)
        else:
            y = self.held(self.activated(y, activation), entry)
        if y in self.real.values():  # batch norm that does nothing
            self.emit("Identity", [y])
        self.nodes[-1].output[0] = self.real[self.at] = self.at

    def activated(self, y: str, activation: Activation) -> str:
        if activation.kind == "leaky":
            return self.emit("LeakyRelu", [y], alpha=activation.slope)
        if activation.kind == "none":
            return y
        if activation.kind == "abs":
            return self.emit("Abs", [y])
        if activation.kind == "sign":  # NaN is not at least 0
            up = self.emit("GreaterOrEqual", [y, self.constant(np.float32(0), "low")])
            return self.emit("Where", [up, *(self.constant(np.float32(one), "sign") for one in (1, -1))])
        if activation.low == 0 and activation.high is None:
            return self.emit("Relu", [y])
        bounds = [
            "" if bound is None else self.constant(np.float32(bound), name)
            for name, bound in (("low", activation.low), ("high", activation.high))
        ]
        return self.emit("Clip", [y, *bounds] if bounds[1] else [y, bounds[0]])

    def held(self, y: str, entry: Entry, activation: Activation = UNCHANGED) -> str:
        """A value through bytes: quantised, clamped to what the activation's bounds become, dequantised."""
        step, zero = entry
        numbers = [self.constant(np.float32(step), "step"), self.constant(np.uint8(zero), "zero")]
        q = self.emit("QuantizeLinear", [y, *numbers])
        lowest, highest = (
            end if bound is None else reference.quantize(np.array(bound, np.float32), entry).item()
            for bound, end in ((activation.low, 0), (activation.high, 255))
        )
        if (lowest, highest) != (0, 255):
            q = self.emit("Clip", [q, self.constant(np.uint8(lowest), "low"), self.constant(np.uint8(highest), "high")])
        return self.emit("DequantizeLinear", [q, *numbers])

    # The nodes' arithmetic.

    def computed(self, node: Node, inputs: list[str]) -> tuple[str, Activation]:
        """What a node makes, and the activation that is still to come."""
        match node:
            case Conv2d() | Linear():
                return self.layer(node, inputs[0]), node.activation
            case Pool2d():
                return self.pool(node, inputs[0]), UNCHANGED
            case AdaptivePool2d():
                return self.adaptive_pool(node, inputs[0]), UNCHANGED
            case Affine():
                return self.affine(node, inputs[0]), node.activation
            case Add():
                return self.emit("Add", inputs), node.activation
            case Multiply():
                return self.emit("Mul", inputs), node.activation
            case Concat():
                return self.emit("Concat", inputs, axis=node.axis + 1), UNCHANGED
            case Reshape():
                shape = self.constant(np.array([0, *node.shape], np.int64), "shape")  # 0: the batch as it is
                return self.emit("Reshape", [inputs[0], shape]), UNCHANGED
            case Softmax():
                return self.emit("Softmax", inputs, axis=node.axis + 1), UNCHANGED
            case Activate():
                return inputs[0], node.activation

    def layer(self, node: Conv2d | Linear, x: str) -> str:
        numbers = decode(self.tensors[node.weight.tensor], node.weight)
        scale = self.tensors[node.scale].astype(np.float64) if isinstance(node.scale, str) else np.ones(len(numbers))
        bias = self.tensors[node.bias] if isinstance(node.bias, str) else None
        few = isinstance(node, Linear) and node.weight.coding in ("binary", "ternary")
        if numbers.dtype == np.float32 or self.weights == "float32":
            coding, scaled = "float32", (numbers * _column(scale, numbers)).astype(np.float32)
            y = self.product(node, x, scaled, None, bias)
        elif few and self.weights == "2bit":
            coding, y = "2bit", self.product_of_2_bits(x, *_with_positive_scale(numbers, scale), bias)
        else:
            coding, y = "int8", self.product(node, x, *_with_positive_scale(numbers, scale), bias)
        self.report(node, node.weight.shape, coding)
        return y

    def product(self, node: Conv2d | Linear, x: str, numbers: Array, scale: Array | None, bias: Array | None) -> str:
        """Conv, Gemm, or MatMul over the last of several dimensions."""
        entry = None if scale is None else self.entries.get(node.inputs[0])
        several = isinstance(node, Linear) and len(self.shapes[node.output]) > 1
        weight = self.weight(numbers, scale, several, entry is not None)
        exact = entry is not None and node.output not in self.entries
        taken = None if bias is None or several or exact else self.bias(bias, entry, numbers, scale)
        inputs = [x, weight] if taken is None else [x, weight, taken]
        if isinstance(node, Conv2d):
            y = self.emit(
                "Conv", inputs, kernel_shape=node.weight.shape[2:], strides=node.stride, pads=node.padding * 2,
                dilations=node.dilation, group=node.groups,
            )  # fmt: skip
        else:
            y = self.emit("MatMul", inputs) if several else self.emit("Gemm", inputs, transB=1)
        if bias is not None and taken is None:
            numbers = bias.reshape(-1, 1, 1) if isinstance(node, Conv2d) else bias
            y = self.emit("Add", [y, self.constant(numbers, "bias")])
        return y

    def weight(self, numbers: Array, scale: Array | None, transposed: bool, on_bytes: bool) -> str:
        """(out, ...), or (in, out) transposed: float32 as they are, whole numbers dequantised."""
        if scale is None:
            return self.constant(numbers.T if transposed else numbers, "weight")
        zero = 0
        if on_bytes and np.abs(numbers).max() > LARGEST_PAIRED:
            numbers, zero = (numbers.astype(np.int16) + 128).astype(np.uint8), 128
        stored = [
            self.constant(numbers.T if transposed and on_bytes else numbers, "weight"),
            self.constant(scale.astype(np.float32), "scale"),
        ]
        if on_bytes:  # onnxruntime has no integer Gemm without
            stored.append(self.constant(np.full(len(scale), zero, numbers.dtype), "zeros"))
            return self.emit("DequantizeLinear", stored, axis=int(transposed))
        weight = self.emit("DequantizeLinear", stored, axis=0)
        return self.emit("Transpose", [weight], perm=(1, 0)) if transposed else weight

    def bias(self, bias: Array, entry: Entry | None, numbers: Array, scale: Array | None) -> str | None:
        """float32, or where bytes are summed int32 in steps of the sum; None if it and the sum could overflow."""
        if entry is None or scale is None:
            return self.constant(bias, "bias")
        steps = np.float32(entry[0]) * scale.astype(np.float32)
        with np.errstate(all="ignore"):
            whole = np.rint(bias / steps.astype(np.float64))
        largest_sums = 255 * np.abs(numbers.astype(np.int64)).reshape(len(numbers), -1).sum(1)
        if not np.all(np.abs(whole) + largest_sums <= LARGEST_SUM):  # also NaN
            return None
        return self.emit(
            "DequantizeLinear", [self.constant(whole.astype(np.int32), "bias"), self.constant(steps, "unit")], axis=0
        )

    def product_of_2_bits(self, x: str, numbers: Array, scale: Array, bias: Array | None) -> str:
        """MatMulNBits: 2 bits q stand for (q - 2) scale; rows in blocks, filled up with 0, each with its scale."""
        out, size = numbers.shape
        blocks = -(-size // BLOCK)
        q = np.full((out, blocks * BLOCK), 2, np.uint8)
        q[:, :size] = numbers + 2
        packed = (q.reshape(out, blocks, BLOCK // 4, 4) << np.array([0, 2, 4, 6], np.uint8)).sum(-1, dtype=np.uint8)
        scales = np.repeat(scale.astype(np.float32), blocks)
        inputs = [x, self.constant(packed, "weight"), self.constant(scales, "scale")]
        return self.emit(
            "MatMulNBits", inputs if bias is None else [*inputs, "", "", self.constant(bias, "bias")],
            domain="com.microsoft", K=size, N=out, bits=2, block_size=BLOCK, accuracy_level=self.accuracy_level,
        )  # fmt: skip

    def affine(self, node: Affine, x: str) -> str:
        channels = (-1, *[1] * (len(self.shapes[node.output]) - 1))
        for kind, role, name in (("Mul", "scale", node.scale), ("Add", "bias", node.bias)):
            if isinstance(name, str):
                x = self.emit(kind, [x, self.constant(self.tensors[name].reshape(channels), role)])
        self.report(node, (), "")
        return x

    def report(self, node: Conv2d | Linear | Affine, shape: Shape, coding: str) -> None:
        stored = self.added.pop("weight", 0)
        weights = math.prod(shape) if stored else 0
        self.layers.append(PackedLayer(node.name, node.op, shape, coding, weights, stored, self.added.total()))

    def pool(self, node: Pool2d, x: str) -> str:
        """Windows as torch has them, padding the far side as much as the last one needs: ONNX's ceil_mode differs."""
        near, far = node.padding, []
        for length, kernel, stride, padding in zip(self.shapes[node.inputs[0]][1:], node.kernel, node.stride, near):
            count = windows_along(length, kernel, stride, padding, ceil=node.ceil_mode)
            far.append(max((count - 1) * stride + kernel - padding - length, 0))
        window = {"kernel_shape": node.kernel, "strides": node.stride}
        if node.kind == "max":
            return self.emit("MaxPool", [x], pads=(*near, *far), **window)
        count_padding = node.count_padding
        if count_padding and any(f > n for f, n in zip(far, near)):  # places beyond the padding do not count
            if any(near):
                x = self.emit("Pad", [x, self.constant(np.array([0, 0, *near, 0, 0, *near], np.int64), "pads")])
            near, far, count_padding = (0, 0), [max(f - n, 0) for f, n in zip(far, near)], False
        return self.emit("AveragePool", [x], pads=(*near, *far), count_include_pad=int(count_padding), **window)

    def adaptive_pool(self, node: AdaptivePool2d, x: str) -> str:
        kind, size = {"max": "MaxPool", "average": "AveragePool"}[node.kind], self.shapes[node.inputs[0]][1:]
        if node.size == (1, 1):
            return self.emit(f"Global{kind}", [x])
        sides = reference.pool_windows(node, size)
        kernel = [{end - first for first, end, _ in side} for side in sides]
        stride = [{b[0] - a[0] for a, b in pairwise(side)} or {1} for side in sides]
        if any(len(found) > 1 for found in (*kernel, *stride)):
            raise UnsupportedError(
                f"layer {node.name!r}: adaptive {node.kind} pooling of {size[0]}x{size[1]} to "
                f"{node.size[0]}x{node.size[1]} has windows of different sizes, which ONNX does not know; "
                "use a size that divides, or a pool of fixed windows"
            )
        return self.emit(kind, [x], kernel_shape=[k for (k,) in kernel], strides=[s for (s,) in stride])


def _column(vector: Array, like: Array) -> Array:
    """A number for each output channel, so shaped that it meets weights (out, ...)."""
    return vector.reshape(-1, *[1] * (like.ndim - 1))


def _with_positive_scale(numbers: Array, scale: Array) -> tuple[Array, Array]:
    """The same weights with scales above 0, as tools expect them: signs go into the numbers, and a scale of 0 too."""
    positive = np.where(scale == 0, 1.0, np.abs(scale))
    return (numbers * _column(np.sign(scale), numbers)).astype(np.int8), positive
