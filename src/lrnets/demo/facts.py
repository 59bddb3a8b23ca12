"""What the page knows of its network, as JSON: how to run it, what to draw, which numbers to show."""

from __future__ import annotations

import base64
from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
from lrnets_runtime.graph import Conv2d, Graph, Linear, Softmax
from lrnets_runtime.packing import decode
from lrnets_runtime.shapes import infer_shapes
from numpy.typing import NDArray

from lrnets.demo.wasm import first_convolution
from lrnets.export.coding import Tensors
from lrnets.export.packed import packed_layers

MOST_BYTES = 4_000_000  # of weights: C code and page are several times as long
MOST_MAPS = 32


class Example(NamedTuple):
    """An image that a visitor may click."""

    pixels: NDArray[np.uint8]  # (channels, height, width)
    label: str


def check_graph(graph: Graph, tensors: Tensors) -> None:
    """Refuse a network that no page can be made of, before anything is compiled."""
    shape, output = graph.input_shape, infer_shapes(graph)[graph.output]
    if len(shape) != 3 or shape[0] not in (1, 3):
        raise ValueError(
            f"the network takes an input of shape {list(shape)}; a page draws images of [1, height, width], "
            "or shows pictures of [3, height, width]"
        )
    if len(output) != 1 or output[0] < 2:
        raise ValueError(f"the network's output has shape {list(output)}; a page shows a list of at least 2 classes")
    if graph.preparation is None:
        raise ValueError(
            "the network's file does not say how an image becomes its input; write it with save_packed(preparation=...)"
        )
    size = sum(tensor.nbytes for tensor in tensors.values())
    if size > MOST_BYTES:
        raise ValueError(f"the network has {size:,} bytes of weights, a page takes {MOST_BYTES:,} at most")


def facts_of(
    graph: Graph, tensors: Tensors, *, examples: Sequence[Example] = (), error: float | None = None
) -> dict[str, Any]:
    """All of it; `error` is that on validation data, in per cent."""
    layers = packed_layers(graph, tensors)
    weights = sum(layer.weights for layer in layers)
    classes = graph.classes or tuple(map(str, range(infer_shapes(graph)[graph.output][0])))
    preparation = graph.preparation
    assert preparation is not None
    return {
        "shape": list(graph.input_shape),
        "classes": list(classes),
        "preparation": {key: value for key, value in vars(preparation).items() if value is not None},
        "softmax": any(isinstance(node, Softmax) and node.output == graph.output for node in graph.nodes),
        "activations": "int8" if graph.quantization else "float32",
        "bytes": sum(layer.bytes for layer in layers),
        "float_bytes": 4 * weights + sum(layer.other_bytes for layer in layers),
        "weights": weights,
        "codings": _codings(graph),
        "layers": [(layer.name, layer.shape, layer.coding, layer.bytes) for layer in layers],
        "error": error,
        "maps": _maps(graph, tensors),
        "examples": [{"label": example.label, "pixels": _base64(example.pixels)} for example in examples],
    }


def _codings(graph: Graph) -> dict[str, int]:
    """How many weights are held in each way; a tied tensor counts once."""
    tensors = {node.weight.tensor: node.weight for node in graph.nodes if isinstance(node, (Conv2d, Linear))}
    counts: dict[str, int] = {}
    for weight in tensors.values():
        counts[weight.coding] = counts.get(weight.coding, 0) + weight.count
    return counts


def _maps(graph: Graph, tensors: Tensors) -> dict[str, Any] | None:
    """The first layer's output shape and kernels, as bytes -127 ... 127 of the largest weight."""
    node = first_convolution(graph)
    if node is None or node.groups != 1:
        return None
    kernels = decode(tensors[node.weight.tensor], node.weight).astype(np.float32)  # (out, in, height, width)
    largest = float(np.abs(kernels).max()) or 1.0
    shown = np.rint(kernels[:MOST_MAPS] * (127 / largest)).astype(np.int8)
    return {
        "layer": node.name,
        "coding": node.weight.coding,
        "shape": list(infer_shapes(graph)[node.output]),
        "kernel": list(shown.shape),
        "kernels": _base64(shown),
    }


def _base64(array: NDArray[Any]) -> str:
    return base64.b64encode(np.ascontiguousarray(array).tobytes()).decode()
