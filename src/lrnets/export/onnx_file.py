"""A drawn network as an ONNX file, run by onnxruntime and compared with the network before it is there.

It is written from the folded graph (see onnx_graph.py), not by torch.onnx, so that weights stay the small whole numbers
they are, and the scale of each output channel, with batch norm in it, goes into their DequantizeLinear.
"""

from __future__ import annotations

import os
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path
from typing import Any, Literal

import numpy as np
import torch
from lrnets_runtime import reference
from torch import Tensor, nn

from lrnets.errors import describe
from lrnets.export.builder import UnsupportedError
from lrnets.export.coding import Array
from lrnets.export.onnx_graph import OnnxWriter, Weights
from lrnets.export.packed import Numbers, PackedReport, Prepared, check_choices, folder_checked, prepare
from lrnets.whole_files import whole_file

LARGEST_FILE = 2**31 - 1  # bytes that protobuf can write


@dataclass(frozen=True)
class OnnxReport(PackedReport):
    """An ONNX file, layer by layer; prints as a table. Its header is all that is no weight, scale or bias."""

    runtime: str | None  # that ran the example; without one, `difference` is NaN

    def __str__(self) -> str:
        text = super().__str__()
        if self.runtime is None:
            return text.rpartition("; ")[0] + "; not run, since onnxruntime is not installed"
        return f"{text}, in {self.runtime}"


@torch.no_grad()
def save_onnx(
    net: nn.Module,
    example_input: Tensor,
    path: str | os.PathLike[str],
    *,
    weights: Weights = "int8",
    activations: Numbers = "float32",
    calibration: Any = None,
    accuracy_level: Literal[0, 4] = 0,
) -> OnnxReport:
    """Write a drawn network to an ONNX file for any batch size and report what is in it.

    Binary, ternary and other discrete weights are stored exactly: as int8, as float32, or with "2bit" as int8 except
    in linear layers of at most three levels, which become onnxruntime's MatMulNBits; `accuracy_level=4` makes those
    faster than float32 but rounds their inputs. Other weights are float32, or int8 if activations are.

    With `activations="int8"`, values between layers pass through QuantizeLinear and DequantizeLinear, in steps found
    on the batches of `calibration`, which onnxruntime turns into integer arithmetic.

    The file is checked, and run if onnxruntime is installed, before it gets its name: no wrong file is left behind.
    """
    _import_onnx()
    _check_choices(weights, activations, calibration, accuracy_level)
    target = folder_checked(path)
    prepared = prepare(net, example_input, activations, calibration, None)
    return write_onnx(prepared, target, weights=weights, accuracy_level=accuracy_level)


def write_onnx(
    prepared: Prepared, target: Path, *, weights: Weights = "int8", accuracy_level: Literal[0, 4] = 0
) -> OnnxReport:
    """The file, checked, and run if onnxruntime is installed, before it gets its name."""
    onnx = _import_onnx()
    graph, tensors, x, expected, precision = prepared
    wanted, largest = reference.run(graph, tensors, x), float(np.abs(expected).max())
    bound = max(1e-4, 16 * precision) * largest + 1e-5
    # A byte here and there may round to its neighbour, which is less than quantisation does to each of them.
    bound += 2 * float(np.abs(wanted - expected).max()) + 0.01 * largest if prepared.activations == "int8" else 0
    bound += 0.1 * largest if accuracy_level == 4 else 0

    writer = OnnxWriter(onnx, graph, tensors, weights, accuracy_level)
    model = writer.model()
    if (size := model.ByteSize()) > LARGEST_FILE:
        raise UnsupportedError(f"the file would have {size:,} bytes, ONNX allows {LARGEST_FILE:,}; use smaller weights")
    onnx.checker.check_model(model, full_check=True)
    with whole_file(target) as temporary:
        temporary.write_bytes(model.SerializeToString())
        runtime, outputs = _run(temporary, x)
        if outputs is not None:
            _check_close(runtime, outputs, wanted, bound)
        header = os.path.getsize(temporary) - sum(layer.bytes for layer in writer.layers)
    off = float("nan") if outputs is None else float(np.abs(outputs - expected).max())
    return OnnxReport(target, tuple(writer.layers), header, prepared.activations, off, largest, runtime)


def _import_onnx() -> Any:
    try:
        return import_module("onnx")
    except ModuleNotFoundError as error:
        raise ModuleNotFoundError(
            "save_onnx needs onnx, which is not installed; pip install onnx", name="onnx"
        ) from error


def _check_choices(weights: Any, activations: Any, calibration: Any, accuracy_level: Any) -> None:
    for argument, chosen, choices in (
        ("weights", weights, ("int8", "float32", "2bit")),
        ("accuracy_level", accuracy_level, (0, 4)),
    ):
        if chosen not in choices:
            raise ValueError(f"{argument} must be one of {', '.join(map(repr, choices))}, got {describe(chosen)}")
    check_choices(activations, calibration, None)
    if activations == "int8" and weights == "float32":
        raise ValueError("activations='int8' with weights='float32'; integer arithmetic takes weights='int8' or '2bit'")
    if accuracy_level and weights != "2bit":
        raise ValueError(f"accuracy_level={accuracy_level} with weights={weights!r}; it is for weights='2bit'")


def _check_close(runtime: str | None, outputs: Array, wanted: Array, bound: float) -> None:
    off = np.abs(outputs - wanted).max() if outputs.shape == wanted.shape else np.inf
    if not off <= bound:  # also NaN
        raise RuntimeError(
            f"{runtime}'s output {list(outputs.shape)} for the example is {off:.3g} off the reference's "
            f"{list(wanted.shape)}, at most {bound:.3g} is rounding; nothing was written. "
            "This is a bug in lrnets or onnxruntime: please report it"
        )


def _run(path: Path, x: Array) -> tuple[str | None, Array | None]:
    """The name of the run-time and what it computes from the file, or None twice if it is not installed."""
    try:
        onnxruntime: Any = import_module("onnxruntime")
    except ModuleNotFoundError:
        return None, None
    runtime = f"onnxruntime {onnxruntime.__version__}"
    options = onnxruntime.SessionOptions()
    options.log_severity_level = 4  # what goes wrong is raised
    options.intra_op_num_threads = torch.get_num_threads()
    try:
        session = onnxruntime.InferenceSession(str(path), options, providers=["CPUExecutionProvider"])
        (outputs,) = session.run(None, {session.get_inputs()[0].name: x})
    except Exception as error:  # of many kinds, none of them public
        raise RuntimeError(f"{runtime} cannot run the file: {str(error).strip()}; nothing was written") from error
    return runtime, outputs
