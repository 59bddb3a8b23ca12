"""A network as data: typed nodes in the order of execution (read strictly from JSON in reading.py).

Values are named; shapes go without the batch, which is always the first dimension. One input, one output. The meaning
of each node is that of the torch layer of its name (see reference.py for it in NumPy, docs/packed-format.md for it in
words). Tensors (weights, scales, biases) are named, and live beside the graph in a safetensors file.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar, Literal, TypeAlias

from lrnets_runtime.errors import refuse as refuse  # exported here too

Shape: TypeAlias = tuple[int, ...]
Vector: TypeAlias = str | float | None  # a number for each channel: tensor name; one for all of them; none
CODINGS = ("binary", "ternary", "levels", "float32", "int8")
ACTIVATIONS = ("none", "clamp", "leaky", "sign", "abs")
LARGEST = 2**28  # elements of one value, or of a weight; and bound of every whole number in a graph
MOST_NODES = 10_000


@dataclass(frozen=True)
class Weight:
    """A weight tensor: how it is coded, its shape once decoded, the name of its packed tensor.

    With coding levels it is packed as ternary weights are, and -1 and +1 stand for the two `levels`.
    """

    tensor: str
    coding: Literal["binary", "ternary", "levels", "float32", "int8"]
    shape: Shape
    levels: tuple[float, float] | None = None

    @property
    def count(self) -> int:
        return math.prod(self.shape)

    @property
    def packed(self) -> bool:
        """Whether several weights share a byte."""
        return self.coding in ("binary", "ternary", "levels")

    @property
    def packed_bytes(self) -> int:
        """Bytes of the packed tensor: 1 bit, 5 to a byte, 4 bytes, or 1 byte a weight."""
        per = {"binary": (1, 8), "ternary": (1, 5), "levels": (1, 5), "float32": (4, 1), "int8": (1, 1)}
        bytes_, weights = per[self.coding]
        return -(-self.count * bytes_ // weights)


@dataclass(frozen=True)
class Activation:
    """none: x; clamp: min(max(x, low), high), where a missing bound does not bind; leaky: x or slope x below 0.

    sign: +1 where x >= 0, else -1; abs: |x|.
    """

    kind: Literal["none", "clamp", "leaky", "sign", "abs"] = "none"
    low: float | None = None
    high: float | None = None
    slope: float | None = None


@dataclass(frozen=True)
class Step:
    """What every node has: a name, the values it reads, the value it makes."""

    name: str
    inputs: tuple[str, ...]
    output: str


@dataclass(frozen=True)
class Conv2d(Step):
    """y = activation(scale * conv(x, weight) + bias), scale and bias a number for each output channel."""

    op: ClassVar[str] = "conv2d"
    weight: Weight  # (out, in / groups, height, width)
    scale: Vector = None  # None counts as 1
    bias: Vector = None  # None counts as 0
    stride: tuple[int, int] = (1, 1)
    padding: tuple[int, int] = (0, 0)  # rows above and below, columns left and right; zeros
    dilation: tuple[int, int] = (1, 1)
    groups: int = 1
    activation: Activation = Activation()


@dataclass(frozen=True)
class Linear(Step):
    """y = activation(scale * (x weight^T) + bias), over the last dimension."""

    op: ClassVar[str] = "linear"
    weight: Weight  # (out, in)
    scale: Vector = None
    bias: Vector = None
    activation: Activation = Activation()


@dataclass(frozen=True)
class Pool2d(Step):
    """Maximum or average over windows; a padded place never wins, and counts in an average only if told so."""

    op: ClassVar[str] = "pool2d"
    kind: Literal["max", "average"]
    kernel: tuple[int, int]
    stride: tuple[int, int]
    padding: tuple[int, int] = (0, 0)
    ceil_mode: bool = False
    count_padding: bool = True


@dataclass(frozen=True)
class AdaptivePool2d(Step):
    """Maximum or average over size[0] x size[1] windows, [i h / size, ceil((i + 1) h / size)), as torch has them."""

    op: ClassVar[str] = "adaptive_pool2d"
    kind: Literal["max", "average"]
    size: tuple[int, int]


@dataclass(frozen=True)
class Affine(Step):
    """y = activation(scale * x + bias), a number for each channel (dimension 1): batch norm nothing could take in."""

    op: ClassVar[str] = "affine"
    scale: Vector = None
    bias: Vector = None
    activation: Activation = Activation()


@dataclass(frozen=True)
class Add(Step):
    """y = activation(a + b), of equal shapes."""

    op: ClassVar[str] = "add"
    activation: Activation = Activation()


@dataclass(frozen=True)
class Multiply(Step):
    """y = activation(a * b); each dimension of b is a's, or 1, and then b is the same all along it."""

    op: ClassVar[str] = "multiply"
    activation: Activation = Activation()


@dataclass(frozen=True)
class Concat(Step):
    """Values one after the other along a dimension; 0 is the first after the batch."""

    op: ClassVar[str] = "concat"
    axis: int = 0


@dataclass(frozen=True)
class Reshape(Step):
    """The same numbers in row-major order in another shape; the batch stays."""

    op: ClassVar[str] = "reshape"
    shape: Shape


@dataclass(frozen=True)
class Softmax(Step):
    """exp(x) over its sum along a dimension; 0 is the first after the batch."""

    op: ClassVar[str] = "softmax"
    axis: int = 0


@dataclass(frozen=True)
class Activate(Step):
    """y = activation(x), where nothing could take it in."""

    op: ClassVar[str] = "activate"
    activation: Activation


Node: TypeAlias = (
    Conv2d | Linear | Pool2d | AdaptivePool2d | Affine | Add | Multiply | Concat | Reshape | Softmax | Activate
)  # fmt: skip
KINDS: dict[str, type] = {kind.op: kind for kind in Node.__args__}


@dataclass(frozen=True)
class Preparation:
    """How an image of bytes (channels, height, width) becomes the network's input; see images.py.

    fixed: (byte / 255 - mean) / deviation, with a number for each channel; None counts as 0 or 1. each: byte / 255,
    minus the image's own mean, over its own deviation. A picture of another size is scaled so that its shorter side has
    `shorter_side` pixels, and its middle is taken; with None it is stretched.
    """

    kind: Literal["fixed", "each"]
    mean: tuple[float, ...] | None = None
    deviation: tuple[float, ...] | None = None
    shorter_side: int | None = None


@dataclass(frozen=True)
class Graph:
    """Nodes in an order in which each finds its inputs made; `quantization` has int8's step for each value, or None.

    `preparation` and `classes`, the names of the outputs, are for people who have images and no data set; no arithmetic
    depends on them.
    """

    input: str
    input_shape: Shape
    output: str
    nodes: tuple[Node, ...]
    quantization: Mapping[str, tuple[float, int]] | None = None  # value -> (step, zero point), q = x / step + zero
    preparation: Preparation | None = None
    classes: tuple[str, ...] | None = None

    def to_json(self) -> dict[str, Any]:
        """Plain lists and dictionaries, without what a reader fills in; reading.graph_from_json is the way back."""
        nodes, before = [], self.input
        for node in self.nodes:
            nodes.append(_node_to_json(node, before))
            before = node.output
        implied = graph_defaults(before)
        return {
            field.name: nodes if field.name == "nodes" else _plain(value)
            for field in dataclasses.fields(self)
            if (value := getattr(self, field.name)) != implied.get(field.name, _NEVER)
        }


_NEVER = object()  # equals no field


def graph_defaults(last: str = "input") -> dict[str, Any]:
    """What fields of a graph are where a file leaves them out; `last` is the value made last."""
    return {"input": "input", "output": last, "quantization": None, "preparation": None, "classes": None}


def node_defaults(kind: type, name: str, before: str) -> dict[str, Any]:
    """The same for a node that follows the one which made `before`; a pool's stride is its kernel besides."""
    own = {field.name: field.default for field in dataclasses.fields(kind) if field.default is not dataclasses.MISSING}
    return {**own, "inputs": (before,), "output": name}


def weight_tensor(name: str) -> str:
    """The tensor of a node's weight where a file does not say."""
    return f"{name}.weight"


def _node_to_json(node: Node, before: str) -> dict[str, Any]:
    implied = node_defaults(type(node), node.name, before)
    if isinstance(node, Pool2d):
        implied["stride"] = node.kernel
    raw: dict[str, Any] = {"op": node.op}
    for field in dataclasses.fields(node):
        if (value := getattr(node, field.name)) != implied.get(field.name, _NEVER):
            raw[field.name] = _plain(value)
    if isinstance(node, (Conv2d, Linear)) and node.weight.tensor == weight_tensor(node.name):
        del raw["weight"]["tensor"]
    return raw


def _plain(value: Any) -> Any:
    """Tuples, mappings and data classes, however deep, as JSON has them; fields of None are left out."""
    if isinstance(value, (Weight, Activation, Preparation)):
        return {key: _plain(entry) for key, entry in vars(value).items() if entry is not None}
    if isinstance(value, Mapping):
        return {key: _plain(entry) for key, entry in value.items()}
    return [_plain(entry) for entry in value] if isinstance(value, (list, tuple)) else value
