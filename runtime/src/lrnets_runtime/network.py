"""A packed network that can be called."""

from __future__ import annotations

import dataclasses
import functools
import os
from collections.abc import Mapping
from typing import Any, Literal, NamedTuple

import numpy as np
from numpy.typing import ArrayLike, NDArray

from lrnets_runtime import file, native, reference
from lrnets_runtime.errors import PackedFileError, shown
from lrnets_runtime.graph import Affine, Conv2d, Graph, Linear, Node, Shape
from lrnets_runtime.plan import CannotRunError, make_plan
from lrnets_runtime.shapes import infer_shapes

Activations = Literal["float32", "int8"]
MOST_THREADS = 1024  # that the C core takes for one call


class Layer(NamedTuple):
    """A node as users see it."""

    name: str
    kind: str
    shape: Shape  # of what it gives, without the batch
    coding: str | None  # of its weights, None where there are none
    bytes: int  # of its weights, scale and bias in the file


class Network:
    """A network in memory; call it with a batch or with a single sample.

    `activations` says how values between layers are held: "int8" as the file's quantization has them, "float32" without
    it; None takes "int8" if the file has a quantization. `threads` are those of one call; calls from several threads at
    a time do not disturb each other. `kernels` names what computes ("avx2", ..., "reference" is NumPy): by default
    $LRNETS_KERNELS, or the fastest for this CPU; "reference" also where the C core lacks a step.
    """

    def __init__(
        self,
        graph: Graph,
        tensors: Mapping[str, NDArray[Any]],
        *,
        threads: int | None = None,
        activations: Activations | None = None,
        kernels: str | None = None,
    ) -> None:
        whole = isinstance(threads, int) and not isinstance(threads, bool)
        if threads is not None and not (whole and 1 <= threads <= MOST_THREADS):
            raise ValueError(
                f"threads is {threads!r}; must be a whole number from 1 to {MOST_THREADS}, or None for what is useful"
            )
        if activations not in (None, "float32", "int8"):
            raise ValueError(f"activations is {activations!r}; must be 'float32', 'int8' or None for the file's own")
        if activations == "int8" and not graph.quantization:
            raise PackedFileError(
                "activations='int8' needs a quantization, this network has none; export it with one, or use 'float32'"
            )
        self.threads = threads
        self.activations: Activations = activations or ("int8" if graph.quantization else "float32")
        self.graph = graph if self.activations == "int8" else dataclasses.replace(graph, quantization=None)
        self.tensors = dict(tensors)
        self._shapes = infer_shapes(self.graph)
        self.kernels, self._asked = native.chosen_kernels(kernels), kernels
        self._native = self._prepare()

    def __reduce__(self) -> tuple[Any, ...]:
        """Copies, in this process or another, have a part in the C core of their own."""
        settings: dict[str, Any] = {"threads": self.threads, "activations": self.activations, "kernels": self._asked}
        return functools.partial(Network, **settings), (self.graph, self.tensors)

    def __call__(self, x: ArrayLike) -> NDArray[np.float32]:
        """(batch, *input_shape) -> (batch, *output_shape), float32; a sample without a batch gives one without.

        Takes any real numbers, which are converted to float32. A batch may be empty.
        """
        values, single = self._as_batch(x)
        if self._native is None:
            result = reference.run(self.graph, self.tensors, values)
        else:
            result = self._native(values, self.threads or default_threads())
        return result[0] if single else result

    def _prepare(self) -> native.NativeNetwork | None:
        """The network in the C core; None where that was not built, is not wanted or lacks a step."""
        if self.kernels == "reference":
            return None
        try:
            return make_plan(self.graph, self.tensors).network(self.output_shape, self.kernels)
        except CannotRunError:
            self.kernels = "reference"
            return None

    @property
    def input_shape(self) -> Shape:
        """Without the batch."""
        return self.graph.input_shape

    @property
    def output_shape(self) -> Shape:
        """Without the batch."""
        return self._shapes[self.graph.output]

    @property
    def layers(self) -> tuple[Layer, ...]:
        """The nodes in the order of execution."""
        return tuple(self._layer(node) for node in self.graph.nodes)

    @property
    def nbytes(self) -> int:
        """Bytes of all tensors: packed weights, scales and biases."""
        return sum(tensor.nbytes for tensor in self.tensors.values())

    @property
    def bytes_in_memory(self) -> int:
        """Bytes of weights, scales and biases as the kernels hold them."""
        return self.nbytes if self._native is None else self._native.nbytes

    def __repr__(self) -> str:
        return (
            f"Network({list(self.input_shape)} -> {list(self.output_shape)}, {len(self.graph.nodes)} layers, "
            f"{self.nbytes} bytes, {self.activations} activations)"
        )

    def _as_batch(self, x: ArrayLike) -> tuple[NDArray[np.float32], bool]:
        """Float32 with a batch, and whether the batch was added."""
        values = np.asarray(x)
        usual = values.dtype == np.float32 and values.flags.c_contiguous and values.flags.aligned and values.ndim
        if usual and values.shape[1:] == self.input_shape:
            return values, False  # as it mostly is: a small network has no microseconds to spare
        if values.dtype.kind not in "biuf":
            raise TypeError(f"the input is {values.dtype}; give real numbers, such as float32 or uint8")
        single = values.shape == self.input_shape
        if not single and values.shape[1:] != self.input_shape:
            sizes = ", ".join(map(str, self.input_shape))
            raise ValueError(
                f"the input has shape {shown(list(values.shape))}; this network takes [batch, {sizes}] or [{sizes}]"
            )
        with np.errstate(over="ignore"):  # float64 beyond float32 becomes infinite
            values = np.require(values[None] if single else values, np.float32, ["C", "ALIGNED"])
        return values, single

    def _layer(self, node: Node) -> Layer:
        coding, names = None, []
        if isinstance(node, (Conv2d, Linear)):
            coding, names = node.weight.coding, [node.weight.tensor]
        if isinstance(node, (Conv2d, Linear, Affine)):
            names += [name for name in (node.scale, node.bias) if isinstance(name, str)]
        size = sum(self.tensors[name].nbytes for name in names)
        return Layer(node.name, node.op, self._shapes[node.output], coding, size)


def default_threads() -> int:
    """As many as this process may use."""
    found = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    return min(found, MOST_THREADS)


def load(
    path: str | os.PathLike[str],
    *,
    threads: int | None = None,
    activations: Activations | None = None,
    kernels: str | None = None,
) -> Network:
    """The packed network of a file, ready to be called; PackedFileError says what is wrong with a file."""
    return Network(*file.read(path), threads=threads, activations=activations, kernels=kernels)
