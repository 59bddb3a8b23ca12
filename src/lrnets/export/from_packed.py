"""A packed file as another kind of file: its graph is all that C and ONNX are written from."""

from __future__ import annotations

import os
from dataclasses import replace
from pathlib import Path
from typing import Literal

import numpy as np
from lrnets_runtime import file, reference
from lrnets_runtime.graph import Graph
from lrnets_runtime.images import prepare as prepare_images

from lrnets.errors import describe
from lrnets.export.c_file import CReport, write_c
from lrnets.export.coding import Array
from lrnets.export.onnx_file import OnnxReport, write_onnx
from lrnets.export.packed import Numbers, PackedReport, Prepared, folder_checked, write_packed

EXAMPLES = 4


def export_packed(
    source: str | os.PathLike[str],
    path: str | os.PathLike[str],
    *,
    to: Literal["packed", "onnx", "c"],
    activations: Numbers | None = None,
) -> PackedReport | OnnxReport | CReport:
    """Write the network of a packed file as C, as ONNX, or packed again by today's rules; report what is in it.

    `activations` are the file's own, or "float32", which leaves its quantisation out. The result is compared with what
    the reference computes in float32 from random examples: images, if the file knows how to prepare them.
    """
    writers = {"packed": write_packed, "onnx": write_onnx, "c": write_c}
    if to not in writers:
        raise ValueError(f"to must be one of {', '.join(map(repr, writers))}, got {describe(to)}")
    target = folder_checked(path)
    prepared = from_packed(Path(source), activations)
    return writers[to](prepared, target)  # type: ignore[operator]


def from_packed(source: Path, activations: Numbers | None = None) -> Prepared:
    """A packed file's network with random examples, ready to be written elsewhere."""
    graph, tensors = file.read(source)
    if activations == "int8" and not graph.quantization:
        raise ValueError(
            f"{source} has float32 activations, and int8 is calibrated on data, which a file has not; "
            "export the run itself with --activations int8"
        )
    exact = replace(graph, quantization=None)
    x = _examples(graph)
    expected = reference.run(exact, tensors, x).astype(np.float64)
    wanted = exact if activations == "float32" else graph
    return Prepared(wanted, tensors, x, expected, float(np.finfo(np.float32).eps))


def _examples(graph: Graph) -> Array:
    """The same ones each time."""
    random, shape = np.random.default_rng(0), (EXAMPLES, *graph.input_shape)
    if graph.preparation is None:
        return random.normal(size=shape).astype(np.float32)
    return prepare_images(random.integers(0, 256, shape, dtype=np.uint8), graph.preparation)
