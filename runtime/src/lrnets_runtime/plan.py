"""From a graph to what the C core runs: images in memory, steps between them, and where each image lies.

Values become images with channels innermost: (c,) is 1 x 1 x c, (c, w) is 1 x w x c, (c, h, w) is h x w x c, and what
lies between the first and last of more dimensions is h. A linear layer on a flattened image becomes a convolution that
covers the image, so nothing is flattened. On several dimensions it is a convolution of 1 x 1 over rows of features, the
other form that a value can have; values stay in it from one such layer to the next. Zeros around an image that a
convolution wants are part of it in memory. Memory is shared by values that are not needed at the same time.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from lrnets_runtime import native
from lrnets_runtime.arena import Span, place
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
from lrnets_runtime.reference import pool_windows
from lrnets_runtime.shapes import infer_shapes
from lrnets_runtime.signs import layers_on_signs, taken_in

ALIGNMENT = 64
BITS = {"binary": 1, "ternary": 2, "levels": 32, "int8": 8, "float32": 32}
ONE = (1, 1)


class CannotRunError(ValueError):
    """The C core has no step for this; the reference has."""


@dataclass
class Image:
    """A value in memory; `first` and `last` are the steps that write and read it."""

    height: int
    width: int
    channels: int
    entry: tuple[float, int] | None
    border: tuple[int, int] = (0, 0)
    first: int = -1
    last: int = -1
    offset: int = 0

    @property
    def bytes(self) -> int:
        rows, columns = self.height + 2 * self.border[0], self.width + 2 * self.border[1]
        return _aligned(rows * columns * self.channels * (4 if self.entry is None else 1))


@dataclass
class Plan:
    """All that native.NativeNetwork needs; `kept` holds the arrays the steps point to."""

    images: list[Image] = field(default_factory=list)
    steps: list[native.Step] = field(default_factory=list)
    kept: list[NDArray[Any]] = field(default_factory=list)
    input: int = 0
    output: int = 0

    def network(self, output_shape: Shape, kernels: str) -> native.NativeNetwork:
        arena = place_images(self.images, self.output, len(self.steps))
        return native.NativeNetwork(
            [value_of(image) for image in self.images], self.steps, input=self.input, output=self.output,
            arena_bytes=arena, output_shape=output_shape, kernels=kernels,
        )  # fmt: skip

    def image(self, shape: Shape, entry: tuple[float, int] | None) -> int:
        self.images.append(Image(*_height_width_channels(shape), entry))
        return len(self.images) - 1

    def keep(self, array: NDArray[Any]) -> int:
        """The address of an array that lives as long as the plan."""
        self.kept.append(np.ascontiguousarray(array))
        return self.kept[-1].ctypes.data

    def step(self, kind: int, input: int, output: int, **settings: Any) -> None:
        step = native.Step(kind=kind, input=input, output=output, **{"other": input, "groups": 1} | settings)
        place = len(self.steps)
        for number in {input, step.other}:
            self.images[number].last = place
        if self.images[output].first < 0:
            self.images[output].first = place
        self.images[output].last = max(self.images[output].last, place)
        self.steps.append(step)


@dataclass
class Forms:
    """The images of each value, made when somebody wants them: as the shape says, or (features, rows)."""

    plan: Plan
    shapes: Mapping[str, Shape]
    entries: Mapping[str, tuple[float, int]]
    images: dict[str, int] = field(default_factory=dict)
    rows: dict[str, int] = field(default_factory=dict)

    def make(self, value: str) -> int:
        """A new image, to be written by the next step."""
        self.images[value] = self.plan.image(self.shapes[value], self.entries.get(value))
        return self.images[value]

    def make_rows(self, value: str) -> int:
        """The same for its rows."""
        self.rows[value] = self.plan.image(self._rows_of(value), self.entries.get(value))
        return self.rows[value]

    def image(self, value: str) -> int:
        if value not in self.images:
            self.images[value] = self._reshaped(self.rows[value], self.shapes[value], native.FROM_ROWS)
        return self.images[value]

    def as_rows(self, value: str) -> int:
        if value not in self.rows:
            self.rows[value] = self._reshaped(self.images[value], self._rows_of(value), native.TO_ROWS)
        return self.rows[value]

    def _rows_of(self, value: str) -> Shape:
        *rows, features = self.shapes[value]
        return features, math.prod(rows)

    def _reshaped(self, source: int, shape: Shape, axis: int) -> int:
        """Held as the source is: signs that a layer takes in are still the bytes they are taken from."""
        target = self.plan.image(shape, self.plan.images[source].entry)
        self.plan.step(native.RESHAPE, source, target, axis=axis)
        return target


def make_plan(graph: Graph, tensors: Mapping[str, NDArray[Any]]) -> Plan:
    """Steps for a graph that file.read found in order; CannotRunError if the C core lacks something."""
    shapes, plan = infer_shapes(graph), Plan()
    forms = Forms(plan, shapes, graph.quantization or {})
    flattened = _flattened(graph, shapes)
    on_signs = layers_on_signs(graph)
    same = taken_in(graph, on_signs, flattened) | flattened.keys()
    plan.input = forms.make(graph.input)
    for node in graph.nodes:
        counts = node.output in on_signs
        if node.output in same:  # its readers read what it reads
            forms.images[node.output] = forms.image(node.inputs[0])
        elif isinstance(node, Linear) and len(shapes[node.output]) > 1:
            source = forms.as_rows(node.inputs[0])
            weight = decode(tensors[node.weight.tensor], node.weight)[:, :, None, None]
            _add_conv(plan, node, source, forms.make_rows(node.output), weight, tensors, {}, on_signs=counts)
        elif isinstance(node, Add) and all(name in forms.rows for name in node.inputs):
            one, other = (forms.rows[name] for name in node.inputs)
            plan.step(native.ADD, one, forms.make_rows(node.output), other=other, **_activation(node.activation))
        else:
            sources = [forms.image(name) for name in node.inputs]
            _add(plan, node, sources, forms.make(node.output), shapes, tensors, on_signs=counts)
    plan.output = forms.image(graph.output)
    return plan


def _flattened(graph: Graph, shapes: Mapping[str, Shape]) -> dict[str, Shape]:
    """Vectors that only linear layers read and that are an image in another shape: the image's shape."""
    readers: dict[str, list[Node]] = {}
    for node in graph.nodes:
        for name in node.inputs:
            readers.setdefault(name, []).append(node)
    found: dict[str, Shape] = {}
    for node in graph.nodes:
        if isinstance(node, Reshape) and len(node.shape) == 1 and node.output != graph.output:
            source = shapes[node.inputs[0]]
            linear = all(isinstance(reader, Linear) for reader in readers.get(node.output, []))
            if node.inputs[0] not in found and len(source) in (2, 3) and linear:
                found[node.output] = source
    return found


def _add(
    plan: Plan, node: Node, sources: list[int], target: int, shapes: Mapping[str, Shape],
    tensors: Mapping[str, NDArray[Any]], *, on_signs: bool,
) -> None:  # fmt: skip
    source, shape = sources[0], shapes[node.inputs[0]]
    match node:
        case Conv2d():
            weight = decode(tensors[node.weight.tensor], node.weight)
            settings = {name: getattr(node, name) for name in ("stride", "padding", "dilation", "groups")}
            _add_conv(plan, node, source, target, weight, tensors, settings, on_signs=on_signs)
        case Linear():
            weight = decode(tensors[node.weight.tensor], node.weight)
            image = plan.images[source]
            weight = weight.reshape(len(weight), image.channels, image.height, image.width)
            _add_conv(plan, node, source, target, weight, tensors, {}, on_signs=on_signs)
        case Pool2d() | AdaptivePool2d():
            windows = np.array([window for side in pool_windows(node, shape[1:]) for window in side], np.int32)
            plan.step(
                native.POOL, source, target, pool=native.POOLS[node.kind], windows=plan.keep(windows),
                window_count=windows.size,
            )  # fmt: skip
        case Affine() | Activate():
            vectors = _vectors(plan, node, shape[0] if shape else 1, tensors)
            plan.step(native.AFFINE, source, target, **vectors, **_activation(node.activation))
        case Add():
            plan.step(native.ADD, source, target, other=sources[1], **_activation(node.activation))
        case Multiply():
            one, other = plan.images[source], plan.images[sources[1]]
            if other.height not in (one.height, 1):  # of several dimensions in one, only some are 1
                raise CannotRunError(f"{node.name}: {list(shapes[node.inputs[1]])} by {list(shape)}")
            plan.step(native.MULTIPLY, source, target, other=sources[1], **_activation(node.activation))
        case Concat():
            start, each = 0, math.prod(shape[2:-1]) if node.axis == 1 else 1  # h of an image for one along the axis
            for name, part in zip(node.inputs, sources):
                plan.step(native.PLACE, part, target, axis=_axis(node, shape), start=start)
                start += shapes[name][node.axis] * each
        case Reshape():
            plan.step(native.RESHAPE, source, target)
        case Softmax():
            plan.step(native.SOFTMAX, source, target, axis=_axis(node, shape))


def _add_conv(
    plan: Plan, node: Conv2d | Linear, source: int, target: int, weight: NDArray[Any],
    tensors: Mapping[str, NDArray[Any]], settings: dict[str, Any], *, on_signs: bool,
) -> None:  # fmt: skip
    """`weight` is (out, in / groups, height, width). On signs, the step takes them itself and needs no border."""
    if weight.dtype == np.float32 and plan.images[source].entry is not None:
        source = _add_dequantized(plan, source)
    image, padding = plan.images[source], settings.get("padding", (0, 0))
    if not on_signs:
        image.border = (max(image.border[0], padding[0]), max(image.border[1], padding[1]))
    kind = native.SIGNS if on_signs else native.CONV
    plan.step(
        kind, source, target, bits=BITS[node.weight.coding], kernel=weight.shape[2:],
        **{"stride": ONE, "dilation": ONE} | settings, weights=plan.keep(weight.transpose(0, 2, 3, 1)),
        weight_count=weight.size, **_vectors(plan, node, len(weight), tensors), **_activation(node.activation),
    )  # fmt: skip


def _add_dequantized(plan: Plan, source: int) -> int:
    """The same value in float32."""
    image = plan.images[source]
    plan.images.append(Image(image.height, image.width, image.channels, None))
    channels = image.channels
    plan.step(
        native.AFFINE, source, len(plan.images) - 1, scale=plan.keep(np.ones(channels, np.float32)),
        bias=plan.keep(np.zeros(channels, np.float32)), channel_count=channels,
    )  # fmt: skip
    return len(plan.images) - 1


def _vectors(plan: Plan, node: Any, channels: int, tensors: Mapping[str, NDArray[Any]]) -> dict[str, int]:
    filled = {}
    for key, neutral in (("scale", 1.0), ("bias", 0.0)):
        given = getattr(node, key, None)
        numbers = tensors[given] if isinstance(given, str) else neutral if given is None else given
        filled[key] = np.full(channels, numbers, np.float32)
    return {**{key: plan.keep(vector) for key, vector in filled.items()}, "channel_count": channels}


def _activation(activation: Activation) -> dict[str, float]:
    return {
        "activation": native.ACTIVATIONS[activation.kind],
        "low": -math.inf if activation.low is None else activation.low,
        "high": math.inf if activation.high is None else activation.high,
        "slope": activation.slope or 0.0,
    }


def place_images(images: list[Image], output: int, steps: int) -> int:
    """Give each image its place; returns the bytes of all."""
    images[output].last = steps
    offsets, total = place([Span(image.bytes, image.first, image.last) for image in images])
    for image, offset in zip(images, offsets):
        image.offset = offset
    return total


def value_of(image: Image) -> native.Value:
    """An image as the C core sees it."""
    step, zero = image.entry or (0.0, 0)
    return native.Value(
        type=native.FLOAT32 if image.entry is None else native.UINT8, height=image.height, width=image.width,
        channels=image.channels, border_height=image.border[0], border_width=image.border[1], offset=image.offset,
        step=step, zero=zero,
    )  # fmt: skip


def _height_width_channels(shape: Shape) -> tuple[int, int, int]:
    width = shape[-1] if len(shape) > 1 else 1
    return math.prod(shape[1:-1]), width, shape[0] if shape else 1


def _axis(node: Concat | Softmax, shape: Shape) -> int:
    """The C core's number of a dimension: 0 channels, 1 rows, 2 columns."""
    if node.axis in (0, len(shape) - 1):
        return 2 if node.axis else 0
    if len(shape) > 3 and not (isinstance(node, Concat) and node.axis == 1):
        raise CannotRunError(f"{node.name}: dimension {node.axis} of {len(shape)}")
    return 1


def _aligned(size: int) -> int:
    return -(-size // ALIGNMENT) * ALIGNMENT
