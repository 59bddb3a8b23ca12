"""A packed network on disk: a safetensors file with the graph in its metadata (docs/packed-format.md, "Container").

A file is not trusted. Every size is compared with what the graph asks for before a tensor is read, so that nothing is
allocated that the file does not hold.
"""

from __future__ import annotations

import json
import os
import secrets
import stat
from collections.abc import Iterator, Mapping, Set
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray
from safetensors import SafetensorError, safe_open

from lrnets_runtime.errors import PackedFileError, refuse, shown
from lrnets_runtime.graph import Activation, Affine, Conv2d, Graph, Linear, Multiply, Shape, Weight
from lrnets_runtime.packing import Coding, check_packed
from lrnets_runtime.reading import graph_from_json
from lrnets_runtime.shapes import infer_shapes

FORMAT, VERSION = "lrnets-packed", 3
LARGEST_FILE = 2**32
LONGEST_GRAPH = 2**24  # characters of JSON; 10,000 nodes take a quarter of it

Tensors = dict[str, NDArray[Any]]
NONE = Activation()
_CODES = {"float32": "F32", "int8": "I8", "uint8": "U8"}  # safetensors' names


class _Use(NamedTuple):
    """What a node expects of a tensor it names."""

    where: str
    tensor: str
    dtype: str
    shape: Shape
    weight: Weight | None  # None for a scale or bias


def write(path: str | os.PathLike[str], graph: Graph, tensors: Mapping[str, NDArray[Any]]) -> None:
    """Write a packed network, whole or not at all; refuses with PackedFileError what `read` would not accept.

    Tensors are weights as they are packed, scales and biases. Equal networks give equal bytes.
    """
    parts = _parts(graph, tensors)
    target = Path(path)
    temporary = target.with_name(f".{secrets.token_hex(8)}.lrnets-part")
    try:
        with open(temporary, "xb") as file:
            for part in parts:
                file.write(part)
        os.replace(temporary, target)
    finally:
        temporary.unlink(missing_ok=True)


def size(graph: Graph, tensors: Mapping[str, NDArray[Any]]) -> int:
    """Bytes of the file that `write` would write."""
    return sum(len(part) for part in _parts(graph, tensors))


def lowest_version(graph: Graph) -> int:
    """The lowest version of the format that can say what this graph says."""
    if graph.preparation is not None and graph.preparation.shorter_side is not None:
        return 3
    for node in graph.nodes:
        levels = isinstance(node, (Conv2d, Linear)) and node.weight.coding == "levels"
        vectors = (node.scale, node.bias) if isinstance(node, (Conv2d, Linear, Affine)) else ()
        alike = any(isinstance(vector, float) for vector in vectors)
        new = levels or alike or isinstance(node, Multiply)
        if new or getattr(node, "activation", NONE).kind in ("sign", "abs"):
            return 3
    return 2


def read(path: str | os.PathLike[str]) -> tuple[Graph, Tensors]:
    """The graph and tensors of a packed network; PackedFileError says what is wrong with the file."""
    path = Path(path)
    try:
        with open(path, "rb", opener=_open_without_waiting) as file:
            about = os.fstat(file.fileno())
    except FileNotFoundError:
        raise FileNotFoundError(f"there is no packed network at {str(path)!r}; check the path") from None
    if not stat.S_ISREG(about.st_mode):
        raise PackedFileError(f"{path}: is no regular file; give the path of a packed network")
    if about.st_size > LARGEST_FILE:
        raise PackedFileError(f"{path}: has {about.st_size} bytes; packed networks have at most {LARGEST_FILE}")
    try:
        return _read(path)
    except PackedFileError as error:
        raise PackedFileError(f"{path}: {error}") from error.__cause__


def _parts(graph: Graph, tensors: Mapping[str, NDArray[Any]]) -> Iterator[bytes]:
    """The file in parts, once all is checked as a reader would."""
    graph = graph_from_json(graph.to_json())
    tensors = {name: np.asarray(tensor) for name, tensor in tensors.items()}
    uses = list(_uses(graph))
    _check_presence(uses, tensors.keys())
    for use in uses:
        _check_spec(use, tensors[use.tensor].dtype.name, tensors[use.tensor].shape)
        _check_contents(use, tensors[use.tensor])
    text = json.dumps(graph.to_json(), separators=(",", ":"), allow_nan=False)
    _check_graph_length(text)
    return _safetensors(tensors, {"format": FORMAT, "version": str(lowest_version(graph)), "graph": text})


def _read(path: Path) -> tuple[Graph, Tensors]:
    try:
        file = safe_open(path, framework="numpy")
    except (SafetensorError, OSError, ValueError) as error:
        raise PackedFileError(f"is cut short, damaged or no packed network ({error}); export it again") from error
    with file:
        graph = _graph_from_metadata(file.metadata() or {})
        names = set(file.keys())
        uses = list(_uses(graph))
        _check_presence(uses, names)
        for use in uses:
            spec = file.get_slice(use.tensor)
            _check_spec(use, spec.get_dtype(), tuple(spec.get_shape()))
        tensors = {name: file.get_tensor(name) for name in names}
    for use in uses:
        _check_contents(use, tensors[use.tensor])
    return graph, tensors


def _graph_from_metadata(metadata: Mapping[str, str]) -> Graph:
    """The graph, once the format and its version are known to be ours."""
    if metadata.get("format") != FORMAT:
        raise PackedFileError(
            f"its format is {shown(metadata.get('format'))}, not {FORMAT!r}; write it with lrnets.export.save_packed"
        )
    version = metadata.get("version", "")
    if not (version.isascii() and version.isdigit() and len(version) < 10 and version[0] != "0"):
        raise PackedFileError(f"its version is {shown(version)}, no whole number from 1; export it again")
    if int(version) > VERSION:
        raise PackedFileError(f"its version is {version}, this library reads up to {VERSION}; update lrnets-runtime")
    if set(metadata) != {"format", "version", "graph"}:
        raise PackedFileError(f"its metadata has {shown(sorted(metadata))}; must have format, version and graph")
    text = metadata["graph"]
    _check_graph_length(text)
    try:
        raw = json.loads(text, object_pairs_hook=_unique_keys, parse_constant=_no_constant)
    except PackedFileError:
        raise
    except (ValueError, RecursionError) as error:  # also whole numbers of thousands of digits
        reason = "nested too deeply" if isinstance(error, RecursionError) else str(error)
        raise PackedFileError(f"its graph is no JSON ({reason}); export it again") from None
    return graph_from_json(raw)


def _uses(graph: Graph) -> Iterator[_Use]:
    """Every tensor that a node names, with what it must be."""
    shapes = infer_shapes(graph)
    for node in graph.nodes:
        if not isinstance(node, (Conv2d, Linear, Affine)):
            continue
        if isinstance(node, Affine):
            channels = shapes[node.output][0]
        else:
            weight = node.weight
            channels = weight.shape[0]
            packed = weight.packed
            dtype, shape = ("uint8", (weight.packed_bytes,)) if packed else (weight.coding, weight.shape)
            yield _Use(f"node {node.name!r}: weight", weight.tensor, dtype, shape, weight)
        for field, tensor in (("scale", node.scale), ("bias", node.bias)):
            if isinstance(tensor, str):
                yield _Use(f"node {node.name!r}: {field}", tensor, "float32", (channels,), None)


def _check_presence(uses: list[_Use], names: Set[str]) -> None:
    for use in uses:
        if use.tensor not in names:
            raise refuse(use.where, f"tensor {shown(use.tensor)} is missing; export the file again")
    if superfluous := names - {use.tensor for use in uses}:
        raise refuse("tensors", f"{shown(sorted(superfluous, key=str))} belong to no node; leave them out")


def _check_spec(use: _Use, dtype: str, shape: Shape) -> None:
    """Type (NumPy's or safetensors' name) and shape of a tensor, before its bytes are looked at."""
    if dtype not in (use.dtype, _CODES[use.dtype]) or tuple(shape) != use.shape:
        coded = f", {use.weight.coding} weights {list(use.weight.shape)}" if use.weight else ""
        raise refuse(
            use.where,
            f"tensor {shown(use.tensor)} is {dtype} {shown(list(shape))}, must be {use.dtype} {list(use.shape)}{coded}",
        )


def _check_contents(use: _Use, tensor: NDArray[Any]) -> None:
    """Floats finite, packed bytes in the one form that is allowed."""
    if use.dtype == "float32" and not (finite := np.isfinite(tensor)).all():
        place = int(np.argmin(finite.reshape(-1)))
        value = tensor.reshape(-1)[place]
        raise refuse(use.where, f"tensor {shown(use.tensor)} has {value} at {place}; all must be finite")
    if use.weight is not None and use.dtype == "uint8":
        try:
            coding: Coding = "binary" if use.weight.coding == "binary" else "ternary"
            check_packed(tensor, coding, use.weight.count)
        except PackedFileError as error:
            raise refuse(f"{use.where}: tensor {shown(use.tensor)}", str(error)) from None


def _check_graph_length(text: str) -> None:
    if len(text) > LONGEST_GRAPH:
        raise refuse("graph", f"has {len(text)} characters of JSON; at most {LONGEST_GRAPH} are allowed")


def _safetensors(tensors: Mapping[str, NDArray[Any]], metadata: Mapping[str, str]) -> Iterator[bytes]:
    """The file in parts, floats first and by name within a type; safetensors' own writer shuffles the metadata."""
    order = sorted(tensors, key=lambda name: (-tensors[name].itemsize, tensors[name].dtype.name, name))
    header: dict[str, Any] = {"__metadata__": dict(metadata)}
    end = 0
    for name in order:
        tensor = tensors[name]
        start, end = end, end + tensor.nbytes
        header[name] = {"dtype": _CODES[tensor.dtype.name], "shape": list(tensor.shape), "data_offsets": [start, end]}
    text = json.dumps(header, separators=(",", ":"), allow_nan=False).encode()
    text += b" " * (-len(text) % 8)  # the data starts at a multiple of 8
    yield len(text).to_bytes(8, "little")
    yield text
    for name in order:
        tensor = tensors[name]
        yield tensor.astype(tensor.dtype.newbyteorder("<"), copy=False).tobytes()


def _unique_keys(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found: dict[str, Any] = {}
    for key, value in pairs:
        if key in found:
            raise refuse("graph", f"the key {shown(key)} is given twice in one object")
        found[key] = value
    return found


def _no_constant(text: str) -> float:
    raise refuse("graph", f"{text} is not allowed; numbers must be finite")


def _open_without_waiting(path: str, flags: int) -> int:
    """A named pipe without a writer would make a plain open wait for ever."""
    return os.open(path, flags | getattr(os, "O_NONBLOCK", 0))
