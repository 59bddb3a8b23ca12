"""Steps for values held as bytes, from the range each takes on a few batches."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import replace
from typing import Any, Literal, TypeAlias

import numpy as np
import torch
from lrnets_runtime import reference
from lrnets_runtime.graph import (
    Activate,
    Activation,
    AdaptivePool2d,
    Add,
    Concat,
    Conv2d,
    Graph,
    Linear,
    Multiply,
    Node,
    Pool2d,
    Reshape,
    Softmax,
)
from lrnets_runtime.shapes import infer_shapes

from lrnets.errors import describe
from lrnets.export.coding import INT8_MAX, Array, Tensors

Quantization: TypeAlias = dict[str, tuple[float, int]]  # value -> (step, zero point)
Method: TypeAlias = Literal["percentile", "max"]
UNCHANGED = Activation()
SMALLEST_RANGE = 2.0**-110  # below it, a value is 0 for all we care


def calibrate(
    graph: Graph, tensors: Tensors, batches: Any, method: Method = "percentile", percentile: float = 99.99
) -> Quantization:
    """Step and zero point for each value: q = clip(rint(x / step) + zero, 0, 255).

    r is the largest |x|, or with "percentile" the largest over the batches of the percentile of |x| within each. Values
    that are never negative have zero point 0 and step r / 255, others 128 and r / 127. Maximum pooling and reshapes
    pass bytes on, so both ends share an entry. The output and what a softmax reads stay float32, without an entry.

    `batches` are arrays or tensors (batch, *input_shape), or tuples and lists that begin with one.
    """
    if method not in ("percentile", "max"):
        raise ValueError(f"method must be 'percentile' or 'max', got {describe(method)}")
    if not 0 < percentile <= 100:
        raise ValueError(f"percentile must be above 0 and at most 100, got {percentile}; 99.99 is usual")
    graph = replace(graph, quantization=None)
    roots = _roots(graph)
    floats = {roots[value] for value in _kept_in_float(graph)}
    wanted = set(roots.values()) - floats
    ranges = dict.fromkeys(wanted, 0.0)
    signed: set[str] = set()
    seen = 0
    for x in _arrays(batches, graph):
        for name, values in float_values(graph, tensors, x):
            if name in wanted:
                ranges[name] = max(ranges[name], _range(values, method, percentile, name))
                if values.min() < 0:
                    signed.add(name)
        seen += 1
    if not seen:
        raise ValueError("there is no batch to calibrate with; is it an exhausted iterator?")
    entries = {name: _entry(limit, name in signed) for name, limit in ranges.items()}
    return {value: entries[root] for value, root in roots.items() if root in entries}


def _range(values: Array, method: Method, percentile: float, name: str) -> float:
    size = np.abs(values)
    largest = float(size.max())
    if not np.isfinite(largest):
        raise ValueError(f"value {name!r} is NaN or infinite on a calibration batch; check the data and the network")
    usual = float(np.percentile(size, percentile)) if method == "percentile" else largest
    return usual if usual > 0 else largest  # where almost all is 0, what is not counts


def _entry(limit: float, signed: bool) -> tuple[float, int]:
    """Step, as float32 has it, and zero point; a value that is always 0 may have any step."""
    steps = INT8_MAX if signed else 255
    return float(np.float32(limit / steps)) if limit > SMALLEST_RANGE else 1.0, 128 if signed else 0


def _roots(graph: Graph) -> dict[str, str]:
    """For each value, the one whose bytes it is made of: itself, unless only passed on."""
    roots = {graph.input: graph.input}
    for node in graph.nodes:
        roots[node.output] = roots[node.inputs[0]] if _passes_bytes(node) else node.output
    return roots


def _passes_bytes(node: Node) -> bool:
    return isinstance(node, Reshape) or (isinstance(node, (Pool2d, AdaptivePool2d)) and node.kind == "max")


def _kept_in_float(graph: Graph) -> Iterator[str]:
    """The output, inputs of softmax, and inputs of layers so deep that their sums of bytes would not fit int32.

    Signs too, which are bits at best, and what they are the signs of: a byte would have 0 where a number was below.
    """
    yield graph.output
    for node in graph.nodes:
        if getattr(node, "activation", UNCHANGED).kind == "sign":
            yield node.output
            if isinstance(node, Activate):
                yield node.inputs[0]
        if isinstance(node, Softmax):
            yield node.inputs[0]
        elif isinstance(node, (Conv2d, Linear)) and node.weight.coding != "float32":
            largest = 128 if node.weight.coding == "int8" else 1
            if node.weight.count // node.weight.shape[0] * largest * 255 > 2**31 - 1:
                yield node.inputs[0]


def float_values(graph: Graph, tensors: Tensors, x: Array) -> Iterator[tuple[str, Array]]:
    """Every value for one batch, by the reference, node by node; each is forgotten after its last use."""
    shapes = infer_shapes(graph)
    last_use = {name: place for place, node in enumerate(graph.nodes) for name in node.inputs}
    values = {graph.input: x}
    yield graph.input, x
    for place, node in enumerate(graph.nodes):
        inputs = [values[name] for name in node.inputs]
        if isinstance(node, Add):
            made = reference.activate(inputs[0] + inputs[1], node.activation)
        elif isinstance(node, Multiply):
            made = reference.activate(inputs[0] * inputs[1], node.activation)
        elif isinstance(node, Concat):
            made = np.concatenate(inputs, axis=node.axis + 1)
        else:
            source = node.inputs[0]
            made = reference.run(Graph(source, shapes[source], node.output, (node,)), tensors, inputs[0])
        values[node.output] = made
        yield node.output, made
        for name in {*node.inputs, node.output}:
            if last_use.get(name, -1) <= place:
                del values[name]


def _arrays(batches: Any, graph: Graph) -> Iterator[Array]:
    """Batches as float32 arrays of the graph's input shape."""
    some: Iterable[Any] = [batches] if isinstance(batches, (torch.Tensor, np.ndarray)) else batches
    if isinstance(some, (str, Mapping)) or not isinstance(some, Iterable):
        raise TypeError(f"calibration must be batches, such as a DataLoader gives, got {describe(some)}")
    for batch in some:
        array = _array(batch)
        if array.shape[1:] != graph.input_shape or not len(array):
            shape = ", ".join(map(str, ("batch", *graph.input_shape)))
            raise ValueError(f"a calibration batch has shape {array.shape}; the network takes ({shape})")
        yield array


def _array(batch: Any) -> Array:
    x = batch[0] if isinstance(batch, (tuple, list)) and batch else batch
    if isinstance(x, torch.Tensor):
        return x.detach().float().cpu().numpy()
    try:
        return np.asarray(x, dtype=np.float32)
    except (TypeError, ValueError) as error:
        raise TypeError(
            f"a calibration batch is {describe(x)}; give an array or tensor of inputs, or a tuple that begins with one"
        ) from error
