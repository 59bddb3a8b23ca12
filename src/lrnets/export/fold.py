"""Passes that make a traced graph smaller; each is a pure function from graph and tensors to graph and tensors."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import replace

import numpy as np
from lrnets_runtime.graph import Activate, Add, Affine, Conv2d, Graph, Linear, Multiply, Node, Reshape, Vector
from lrnets_runtime.shapes import infer_shapes

from lrnets.export.builder import fresh_name
from lrnets.export.coding import Array, Tensors, pack, quantized
from lrnets.export.trace import Traced

LARGEST_THRESHOLD = 2.0**126  # float32's largest is near 2^128
Vectored = (Conv2d, Linear, Affine)  # nodes with a scale and a bias


def fold(traced: Traced) -> Traced:
    """All passes, in the order in which they help each other; afterwards all tensors are ready for a file."""
    passes = (
        merge_reshapes, lift_over_reshapes, fold_affine, fuse_activations, drop_scales_under_signs, merge_reshapes,
        round_vectors, name_values,
    )  # fmt: skip
    for one in passes:
        traced = one(traced)
    return traced


def lift_over_reshapes(traced: Traced) -> Traced:
    """Batch norm and activations before the reshapes they follow, where that is the same, nearer to their layers.

    An activation never minds; batch norm does not if the first dimension, that of channels, stays.
    """
    graph, tensors = traced
    shapes, uses = infer_shapes(graph), _uses(graph)
    nodes: list[Node] = []
    for node in graph.nodes:
        before = _producer(nodes, node.inputs[0])
        if isinstance(node, (Affine, Activate)) and isinstance(before, Reshape) and uses[before.output] == 1:
            source = before.inputs[0]
            if isinstance(node, Activate) or shapes[source][:1] == before.shape[:1]:
                nodes.remove(before)
                nodes.append(replace(node, inputs=(source,), output=before.output))
                nodes.append(replace(before, inputs=(before.output,), output=node.output))
                shapes[before.output] = shapes[source]
                continue
        nodes.append(node)
    return Traced(replace(graph, nodes=tuple(nodes)), tensors)


def fold_affine(traced: Traced) -> Traced:
    """Batch norm a (y) + b into the layer y = s z + t before it, if nothing else reads y: s' = a s, t' = a t + b."""
    graph, tensors = traced[0], dict(traced[1])
    shapes, uses = infer_shapes(graph), _uses(graph)
    nodes: list[Node] = []
    for node in graph.nodes:
        before = _producer(nodes, node.inputs[0])
        if not (isinstance(node, Affine) and isinstance(before, Vectored) and _can_take_in(before, uses)):
            nodes.append(node)
            continue
        if isinstance(before, Linear) and len(shapes[before.output]) > 1:  # its channels are not the first dimension
            nodes.append(node)
            continue
        a, b = _vector(tensors, node.scale, 1.0), _vector(tensors, node.bias, 0.0)
        s, t = _vector(tensors, before.scale, 1.0), _vector(tensors, before.bias, 0.0)
        scale, bias = f"{before.name}.scale", f"{before.name}.bias"
        channels = shapes[before.output][:1]
        tensors[scale], tensors[bias] = (np.broadcast_to(v, channels).copy() for v in (a * s, a * t + b))
        joined = replace(before, output=node.output, scale=scale, bias=bias, activation=node.activation)
        nodes[nodes.index(before)] = joined
    return _without_unused(Traced(replace(graph, nodes=tuple(nodes)), tensors))


def fuse_activations(traced: Traced) -> Traced:
    """Activations into the layer, batch norm or sum before them, if nothing else reads that."""
    graph, tensors = traced
    uses = _uses(graph)
    nodes: list[Node] = []
    for node in graph.nodes:
        before = _producer(nodes, node.inputs[0])
        if isinstance(node, Activate) and isinstance(before, (*Vectored, Add, Multiply)) and _can_take_in(before, uses):
            nodes[nodes.index(before)] = replace(before, output=node.output, activation=node.activation)
        else:
            nodes.append(node)
    return Traced(replace(graph, nodes=tuple(nodes)), tensors)


def drop_scales_under_signs(traced: Traced) -> Traced:
    """sign(s z + t) = sign(+-z + t / |s|): a threshold without a scale, and exact where z is a whole number.

    A channel keeps its scale where it is 0, or so small (batch norm's weight decayed away) that the threshold would
    leave float32.
    """
    graph, tensors = traced[0], dict(traced[1])
    shapes = infer_shapes(graph)
    nodes = list(graph.nodes)
    for place, node in enumerate(nodes):
        if not (isinstance(node, Vectored) and node.activation.kind == "sign" and node.scale is not None):
            continue
        s, t = _vector(tensors, node.scale, 1.0), _vector(tensors, node.bias, 0.0)
        size = np.where(np.abs(t) >= LARGEST_THRESHOLD * np.abs(s), 1.0, np.abs(s))
        channels = shapes[node.output][-1 if isinstance(node, Linear) else 0]
        scale, bias = f"{node.name}.scale", f"{node.name}.bias"
        tensors[scale], tensors[bias] = (np.broadcast_to(v, channels).copy() for v in (s / size, t / size))
        nodes[place] = replace(node, scale=scale, bias=bias)
    return _without_unused(Traced(replace(graph, nodes=tuple(nodes)), tensors))


def merge_reshapes(traced: Traced) -> Traced:
    """One reshape for several in a row, none where the shape stays or nobody looks."""
    graph, tensors = traced
    shapes = infer_shapes(graph)
    same = {graph.input: graph.input}  # value -> the value it is a copy of
    nodes: list[Node] = []
    for node in graph.nodes:
        node = replace(node, inputs=tuple(same.get(name, name) for name in node.inputs))
        if isinstance(node, Reshape):
            before = _producer(nodes, node.inputs[0])
            if isinstance(before, Reshape):
                node = replace(node, inputs=before.inputs)
            if shapes[node.inputs[0]] == node.shape:
                same[node.output] = node.inputs[0]
                continue
        nodes.append(node)
    output = same.get(graph.output, graph.output)
    read = {name for node in nodes for name in node.inputs} | {output}
    kept = tuple(node for node in nodes if node.output in read or not isinstance(node, Reshape))
    return Traced(replace(graph, nodes=kept, output=output), tensors)


def round_vectors(traced: Traced) -> Traced:
    """Scales and biases as float32; one number if it is the same for all channels, none if that is 1 or 0."""
    graph, tensors = traced[0], dict(traced[1])
    nodes = list(graph.nodes)
    for place, node in enumerate(nodes):
        if not isinstance(node, Vectored):
            continue
        for name in (node.scale, node.bias):
            if isinstance(name, str):
                tensors[name] = _rounded(name, tensors[name])
        scale, bias = (_shortest(tensors, *vector) for vector in ((node.scale, 1.0), (node.bias, 0.0)))
        nodes[place] = replace(node, scale=scale, bias=bias)
    return _without_unused(Traced(replace(graph, nodes=tuple(nodes)), tensors))


def name_values(traced: Traced) -> Traced:
    """Values by the name of the node that makes them, which a file need not say."""
    graph, tensors = traced
    names = {graph.input} | {node.name for node in graph.nodes}
    if len(names) <= len(graph.nodes):  # two nodes of one name, or one that is called as the input is
        return traced
    called = {graph.input: graph.input} | {node.output: node.name for node in graph.nodes}
    nodes = (replace(n, inputs=tuple(called[name] for name in n.inputs), output=n.name) for n in graph.nodes)
    return Traced(replace(graph, nodes=tuple(nodes), output=called[graph.output]), tensors)


def with_tensors(traced: Traced, *, layer_scales: bool = True) -> Traced:
    """A tensor in place of each number that is the scale or bias of all channels; `layer_scales` may stay numbers."""
    graph, tensors = traced[0], dict(traced[1])
    shapes, nodes, taken = infer_shapes(graph), list(graph.nodes), set(tensors)

    def stored(vector: Vector, name: str, channels: int) -> Vector:
        if not isinstance(vector, float):
            return vector
        name = fresh_name(name, taken)
        tensors[name] = np.full(channels, vector, np.float32)
        return name

    for place, node in enumerate(nodes):
        if isinstance(node, Vectored):
            channels = shapes[node.output][-1 if isinstance(node, Linear) else 0]
            scale, bias = node.scale, stored(node.bias, f"{node.name}.bias", channels)
            if layer_scales or isinstance(node, Affine):
                scale = stored(scale, f"{node.name}.scale", channels)
            nodes[place] = replace(node, scale=scale, bias=bias)
    return Traced(replace(graph, nodes=tuple(nodes)), tensors)


def quantize_weights(traced: Traced) -> Traced:
    """Float weights as int8 with a scale for each output channel, which joins the layer's own."""
    graph, tensors = traced[0], dict(traced[1])
    nodes = list(graph.nodes)
    done: dict[str, Array] = {}  # scales by weight tensor: tied weights are quantised once
    for place, node in enumerate(nodes):
        if isinstance(node, (Conv2d, Linear)) and node.weight.coding == "float32":
            tensor = node.weight.tensor
            if tensor not in done:
                coded = quantized(tensors[tensor])
                assert coded.scale is not None
                tensors[tensor], done[tensor] = pack(coded), coded.scale
            scale = f"{node.name}.scale"
            tensors[scale] = (_vector(tensors, node.scale, 1.0) * done[tensor]).astype(np.float32)
            nodes[place] = replace(node, weight=replace(node.weight, coding="int8"), scale=scale)
    return Traced(replace(graph, nodes=tuple(nodes)), tensors)


def _uses(graph: Graph) -> Counter[str]:
    """How often each value is read; the output is read once more."""
    return Counter([*(name for node in graph.nodes for name in node.inputs), graph.output])


def _producer(nodes: Sequence[Node], value: str) -> Node | None:
    return next((node for node in reversed(nodes) if node.output == value), None)


def _can_take_in(node: Conv2d | Linear | Affine | Add | Multiply, uses: Counter[str]) -> bool:
    return node.activation.kind == "none" and uses[node.output] == 1


def _vector(tensors: Tensors, vector: Vector, neutral: float) -> Array:
    if isinstance(vector, str):
        return tensors[vector].astype(np.float64)
    return np.full(1, neutral if vector is None else vector)


def _shortest(tensors: Tensors, vector: Vector, neutral: float) -> Vector:
    """A vector of equal numbers as that number, in as few digits as float32 needs; None if it changes nothing."""
    numbers = _vector(tensors, vector, neutral)
    if np.any(numbers != numbers[0]):
        return vector
    first = np.float32(numbers[0])
    short = float(str(first))
    return None if first == neutral else short if np.float32(short) == first else float(first)


def _rounded(name: str, vector: Array) -> Array:
    with np.errstate(over="ignore"):
        rounded = vector.astype(np.float32)
    if not np.isfinite(rounded).all():
        raise ValueError(
            f"{name}: {np.abs(vector).max():g} is too large for float32; are running variances near 0? "
            "lrnets.update_bn estimates them anew"
        )
    return rounded


def _without_unused(traced: Traced) -> Traced:
    graph, tensors = traced
    used: set[Vector] = {v for node in graph.nodes if isinstance(node, Vectored) for v in (node.scale, node.bias)}
    used |= {node.weight.tensor for node in graph.nodes if isinstance(node, (Conv2d, Linear))}
    return Traced(graph, {name: tensor for name, tensor in tensors.items() if name in used})
