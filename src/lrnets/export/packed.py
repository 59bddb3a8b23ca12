"""A drawn network as a packed file that lrnets_runtime runs, checked against the network before it is there."""

from __future__ import annotations

import copy
import os
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Literal, NamedTuple

import numpy as np
import torch
from lrnets_runtime import file, reference
from lrnets_runtime.graph import Activation, Affine, Conv2d, Graph, Linear, Preparation
from torch import Tensor, nn
from torch.utils import _pytree as pytree

from lrnets.errors import describe
from lrnets.export.calibrate import calibrate
from lrnets.export.coding import Array, Tensors
from lrnets.export.fold import fold, quantize_weights
from lrnets.export.trace import trace
from lrnets.modes import evaluating
from lrnets.tables import table
from lrnets.whole_files import whole_file

Numbers = Literal["float32", "int8"]
UNCHANGED = Activation()


@dataclass(frozen=True)
class PackedLayer:
    """What one layer takes in the file. Tied weights count with the first layer that has them."""

    name: str
    kind: str
    shape: tuple[int, ...]  # of the weights
    coding: str
    weights: int
    weight_bytes: int
    other_bytes: int  # scales and biases

    @property
    def bytes(self) -> int:
        return self.weight_bytes + self.other_bytes

    @property
    def bits(self) -> float:
        """Bits a weight."""
        return 8 * self.weight_bytes / self.weights if self.weights else 0.0


@dataclass(frozen=True)
class PackedReport:
    """A packed file, layer by layer; prints as a table."""

    path: Path
    layers: tuple[PackedLayer, ...]
    header_bytes: int  # the graph, and the names and places of tensors
    activations: Numbers
    difference: float  # largest, from the network's output for the example
    largest_output: float

    @property
    def bytes(self) -> int:
        """Of the whole file."""
        return self.header_bytes + sum(layer.bytes for layer in self.layers)

    @property
    def weights(self) -> int:
        return sum(layer.weights for layer in self.layers)

    def __str__(self) -> str:
        rows: list[tuple[object, ...]] = [
            (
                r.name, r.kind, "x".join(map(str, r.shape)), r.coding, f"{r.bits:.2f}" if r.weights else "",
                f"{r.weight_bytes:,}", f"{r.other_bytes:,}", f"{r.bytes:,}",
            )
            for r in self.layers
        ]  # fmt: skip
        rows.append(("header", "", "", "", "", "", "", f"{self.header_bytes:,}"))
        rows.append(("total", "", "", "", "", "", "", f"{self.bytes:,}"))
        header = ("layer", "kind", "weights", "coding", "bits", "weight bytes", "others", "bytes")
        off = f"{self.difference:.2g} off where the largest is {self.largest_output:.3g}"
        last = f"{self.path}: {self.bytes:,} bytes, {self.activations} activations; outputs for the example {off}"
        return table(header, rows, right=range(4, 8)) + "\n" + last


@torch.no_grad()
def save_packed(
    net: nn.Module,
    example_input: Tensor,
    path: str | os.PathLike[str],
    *,
    float_weights: Numbers | None = None,
    activations: Numbers = "float32",
    calibration: Any = None,
    preparation: Preparation | None = None,
    classes: Sequence[str] | None = None,
) -> PackedReport:
    """Write a drawn network to one packed file and report what is in it, byte for byte.

    Batch norm and activations are folded into their layers. Discrete weights are stored exactly; layers in float as
    float32, or as int8 with a scale for each output channel (the default with int8 activations). With
    `activations="int8"`, values between layers are held as bytes, in steps found on the batches of `calibration`.
    `preparation` and `classes` tell `lrnets run` how an image becomes the input, and what the outputs are called.

    The graph's float32 result for `example_input` is compared with the network's own, and the file is read back and
    run, before it gets its name: a wrong file is never left behind.
    """
    target = folder_checked(path)
    if isinstance(classes, str):
        raise TypeError(f"classes must be a list of names, got {describe(classes)}; ['{classes}'] is a list of one")
    prepared = prepare(net, example_input, activations, calibration, float_weights)
    graph = replace(prepared.graph, preparation=preparation, classes=None if classes is None else tuple(classes))
    return write_packed(prepared._replace(graph=graph), target)


class Prepared(NamedTuple):
    """A folded graph with its tensors as a file holds them, an example, and the output that it is to have."""

    graph: Graph
    tensors: Tensors
    x: Array  # float32
    expected: Array  # float64
    precision: float  # of the arithmetic that gave it

    @property
    def activations(self) -> Numbers:
        return "int8" if self.graph.quantization else "float32"


def write_packed(prepared: Prepared, target: Path) -> PackedReport:
    """The file, read back and run before it gets its name."""
    graph, tensors, x, expected, _ = prepared
    with whole_file(target) as temporary:
        file.write(temporary, graph, tensors)
        outputs = reference.run(*file.read(temporary), x)
        if not np.array_equal(outputs, reference.run(graph, tensors, x)):
            raise RuntimeError(f"{target}: the file read back computes something else; nothing was written")
        layers = packed_layers(graph, tensors)
        header = os.path.getsize(temporary) - sum(layer.bytes for layer in layers)
    off, largest = float(np.abs(outputs - expected).max()), float(np.abs(expected).max())
    return PackedReport(target, layers, header, prepared.activations, off, largest)


@torch.no_grad()
def prepare(
    net: nn.Module, example_input: Tensor, activations: Numbers, calibration: Any, float_weights: Numbers | None
) -> Prepared:
    """Trace, fold and check a network against its own output, then quantise what is asked for; see save_packed."""
    check_choices(activations, calibration, float_weights)
    exact = fold(trace(net, example_input))
    x = example_input.detach().float().cpu().numpy()
    with evaluating(net):
        (expected,) = (y.detach().double().cpu().numpy() for y in pytree.tree_leaves(net(example_input.clone())))
    precision = torch.finfo(example_input.dtype).eps
    outputs = reference.run(*exact, x)
    if any(getattr(node, "activation", UNCHANGED).kind == "sign" for node in exact.graph.nodes):
        expected = _surely(net, example_input, expected, outputs, precision)
    _check(outputs, expected, precision)

    graph, tensors = quantize_weights(exact) if (float_weights or activations) == "int8" else exact
    if activations == "int8":
        graph = replace(graph, quantization=calibrate(graph, tensors, calibration) or None)
    return Prepared(graph, tensors, x, expected, precision)


def check_choices(activations: Any, calibration: Any, float_weights: Any) -> None:
    for argument, chosen in (("float_weights", float_weights), ("activations", activations)):
        if chosen not in ("float32", "int8") and (chosen is not None or argument == "activations"):
            raise ValueError(f"{argument} must be 'float32' or 'int8', got {describe(chosen)}")
    if (activations == "int8") != (calibration is not None):
        raise ValueError(
            f"activations={activations!r} with {'no ' if calibration is None else ''}calibration; "
            "activations='int8' takes calibration=batches, 'float32' takes none"
        )


def folder_checked(path: str | os.PathLike[str]) -> Path:
    """The path, if its folder is there and it can be a file."""
    target = Path(path)
    if target.is_dir():
        raise IsADirectoryError(f"{str(target)!r} is a folder; name a file to write, in it or elsewhere")
    if not target.parent.is_dir():
        raise FileNotFoundError(
            f"there is no folder {str(target.parent)!r} to write {target.name!r} to; create it first"
        )
    return target


def source_checked(path: Path) -> Path:
    """The path, if a run folder or a packed file may be there."""
    if not path.exists():
        raise FileNotFoundError(f"there is no run folder or packed file at {str(path)!r}; check the path")
    return path


def _surely(net: nn.Module, example_input: Tensor, expected: Array, outputs: Array, precision: float) -> Array:
    """What the network computes; if it and the graph differ, in float64.

    A sum that is 0 but for the order of its terms has either sign in float32, and the rest of the network follows it.
    """
    off, bound = _difference(outputs, expected, precision)
    if off <= bound:
        return expected
    with evaluating(twin := copy.deepcopy(net).double()):
        (exact,) = (y.detach().cpu().numpy() for y in pytree.tree_leaves(twin(example_input.double())))
    return exact


def _difference(outputs: Array, expected: Array, precision: float) -> tuple[float, float]:
    """How far outputs are off, and how far rounding may put them."""
    off = float(np.abs(outputs - expected).max()) if outputs.shape == expected.shape else np.inf
    return off, float(max(1e-4, 16 * precision) * np.abs(expected).max() + 1e-5)


def _check(outputs: Array, expected: Array, precision: float) -> None:
    """Refuse a graph that computes something else than the network, up to the rounding of its layers."""
    off, bound = _difference(outputs, expected, precision)
    if not off <= bound:  # also NaN
        raise RuntimeError(
            f"the exported graph's output {list(outputs.shape)} is {off:.3g} off the network's {list(expected.shape)} "
            f"for the example input, at most {bound:.3g} is rounding; nothing was written. If the network's output is "
            "finite and the same each time, this is a bug in lrnets"
        )


def packed_layers(graph: Graph, tensors: Tensors) -> tuple[PackedLayer, ...]:
    """What each layer takes in a packed file, in the order of execution; what several share, the first takes."""
    rows, counted = [], set[str]()

    def first_bytes(*names: object) -> int:
        """Of the tensors among these that no layer had before."""
        new = {name for name in names if isinstance(name, str)} - counted
        counted.update(new)
        return sum(tensors[name].nbytes for name in new)

    for node in graph.nodes:
        if not isinstance(node, (Conv2d, Linear, Affine)):
            continue
        weight = None if isinstance(node, Affine) else node.weight
        weight_bytes = 0 if weight is None else first_bytes(weight.tensor)
        rows.append(
            PackedLayer(
                name=node.name,
                kind=node.op,
                shape=() if weight is None else weight.shape,
                coding="" if weight is None else weight.coding,
                weights=weight.count if weight is not None and weight_bytes else 0,
                weight_bytes=weight_bytes,
                other_bytes=first_bytes(node.scale, node.bias),
            )
        )
    return tuple(rows)
