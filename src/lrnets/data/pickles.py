"""CIFAR-10's Python batches, read without running what a pickle may ask for.

A pickle is a program: it names functions and has them called. Here every name leads to one inert class that keeps what
it is given and does nothing; NumPy never sees the file. Any name but those of NumPy's array is refused.
"""

from __future__ import annotations

import io
import pickle
from typing import Any

import numpy as np

ARRAY_NAMES = {
    ("numpy", "ndarray"),
    ("numpy", "dtype"),
    ("numpy.core.multiarray", "_reconstruct"),
    ("numpy._core.multiarray", "_reconstruct"),
}


class Inert:
    """What stands for an array or its type: the arguments and the state it was given, nothing done with them."""

    def __init__(self, *arguments: Any) -> None:
        self.arguments = arguments
        self.state: Any = None

    def __setstate__(self, state: Any) -> None:
        self.state = state


class InertUnpickler(pickle.Unpickler):
    """Builds numbers, strings, containers and `Inert`s; nothing else can be named."""

    def find_class(self, module: str, name: str) -> type[Inert]:
        if (module, name) not in ARRAY_NAMES:
            raise ValueError(f"it asks for {module}.{name}, which no official file does; nothing was run")
        return Inert


def read_batch(content: bytes, name: str) -> tuple[np.ndarray, np.ndarray]:
    """Pixels (n, 3072) and labels (n,) of a batch, both uint8; `name` is the file's, for errors.

    A hostile file can make the reader ask for much memory, though not run anything: check the checksum first.
    """
    try:
        batch = InertUnpickler(io.BytesIO(content), encoding="bytes").load()
        batch = {key.decode() if isinstance(key, bytes) else key: value for key, value in batch.items()}
        pixels, labels = _pixels(batch["data"]), np.array(batch["labels"], dtype=np.uint8)
    except Exception as error:  # a broken or hostile pickle may fail in any way
        raise ValueError(
            f"{name}: not a CIFAR-10 Python batch ({type(error).__name__}: {error}); fetch the official file again"
        ) from error
    if labels.shape != (len(pixels),):
        raise ValueError(
            f"{name}: {labels.size} labels, {len(pixels)} expected, one an image; fetch the official file again"
        )
    return pixels, labels


def _pixels(array: Inert) -> np.ndarray:
    """The array whose state a pickle holds: (version, shape, dtype, Fortran order, bytes); (n, 3072) uint8 only."""
    _, shape, dtype, fortran, content = array.state
    kind = dtype.arguments[0]
    if fortran or kind not in (b"u1", "u1") or len(shape) != 2 or shape[1] != 3072:
        raise ValueError(f"array of type {kind!r} and shape {shape}, expected b'u1' and (n, 3072) in C order")
    return np.frombuffer(content, dtype=np.uint8).reshape(shape)
