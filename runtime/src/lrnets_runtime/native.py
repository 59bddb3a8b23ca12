"""The C core by ctypes: structs as in native/lrnets.h, the library found and checked, networks as objects."""

from __future__ import annotations

import ctypes
import os
import sys
from collections.abc import Sequence
from ctypes import POINTER, c_char_p, c_float, c_int, c_int32, c_int64, c_size_t, c_void_p
from functools import lru_cache
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from lrnets_runtime.errors import PackedFileError

ABI = 2
VARIABLE = "LRNETS_KERNELS"  # names the kernels to use; "reference" is NumPy
FLOAT32, UINT8 = 0, 1
CONV, POOL, AFFINE, ADD, PLACE, RESHAPE, SOFTMAX, MULTIPLY, SIGNS = range(9)
ACTIVATIONS = {"none": 0, "clamp": 1, "leaky": 2, "sign": 3, "abs": 4}
TO_ROWS, FROM_ROWS = 1, 2  # axis of a RESHAPE
POOLS = {"max": 0, "average": 1}


class Value(ctypes.Structure):
    """lrn_value: an image in memory."""

    _fields_ = (
        *[(name, c_int32) for name in ("type", "height", "width", "channels", "border_height", "border_width")],
        ("offset", c_int64), ("step", c_float), ("zero", c_int32),
    )  # fmt: skip


class Step(ctypes.Structure):
    """lrn_step: what is computed from what; the arrays it points to must outlive the call that creates a network."""

    _fields_ = (
        *[(name, c_int32) for name in ("kind", "input", "other", "output")],
        *[(name, c_int32 * 2) for name in ("kernel", "stride", "padding", "dilation")],
        *[(name, c_int32) for name in ("groups", "bits", "pool", "axis", "start", "activation")],
        *[(name, c_float) for name in ("low", "high", "slope")],
        *[(name, c_void_p) for name in ("weights", "scale", "bias", "windows")],
        *[(name, c_int64) for name in ("weight_count", "channel_count", "window_count")],
    )


@lru_cache(maxsize=1)
def library() -> ctypes.CDLL | None:
    """The C core beside this file, or None where it was not built."""
    suffix = "dylib" if sys.platform == "darwin" else "so"
    path = os.environ.get("LRNETS_LIBRARY") or Path(__file__).with_name(f"liblrnets.{suffix}")
    if not Path(path).exists():
        return None
    core = ctypes.CDLL(str(path))
    core.lrn_abi.restype = c_int
    if core.lrn_abi() != ABI:
        raise ImportError(f"{path} speaks version {core.lrn_abi()}, this package {ABI}; install lrnets-runtime again")
    core.lrn_kernels_name.argtypes, core.lrn_kernels_name.restype = [c_int], c_char_p
    core.lrn_create.argtypes = [
        POINTER(Value), c_int32, POINTER(Step), c_int32, c_int32, c_int32, c_int64, c_char_p, c_char_p, c_size_t,
    ]  # fmt: skip
    core.lrn_create.restype = c_void_p
    core.lrn_run.argtypes, core.lrn_run.restype = [c_void_p, c_void_p, c_int64, c_void_p, c_int], c_int
    core.lrn_bytes.argtypes, core.lrn_bytes.restype = [c_void_p], c_int64
    core.lrn_destroy.argtypes, core.lrn_destroy.restype = [c_void_p], None
    return core


def kernels() -> list[str]:
    """Names of the kernels that this CPU can run, the fastest first; "reference" (NumPy) is always the last."""
    core = library()
    names: list[str] = []
    while core is not None and (name := core.lrn_kernels_name(len(names))) is not None:
        names.append(name.decode())
    return [*names, "reference"]


def chosen_kernels(name: str | None = None) -> str:
    """What is asked for by name or by $LRNETS_KERNELS, or the fastest."""
    there = kernels()
    source, name = ("kernels", name) if name is not None else (VARIABLE, os.environ.get(VARIABLE) or there[0])
    if name not in there:
        raise ValueError(f"{source} is {name!r}; this machine has {', '.join(there)}")
    return name


class NativeNetwork:
    """A network in the C core; any number of threads may call it at a time."""

    def __init__(
        self, values: Sequence[Value], steps: Sequence[Step], *, input: int, output: int, arena_bytes: int,
        output_shape: tuple[int, ...], kernels: str,
    ) -> None:  # fmt: skip
        core = library()
        assert core is not None
        self._core, self._output_shape = core, output_shape
        message = ctypes.create_string_buffer(400)
        self._network = core.lrn_create(
            (Value * len(values))(*values), len(values), (Step * max(1, len(steps)))(*steps), len(steps), input, output,
            arena_bytes, kernels.encode(), message, len(message),
        )  # fmt: skip
        if not self._network:
            raise PackedFileError(f"the network cannot run: {message.value.decode(errors='replace')}")

    def __call__(self, x: NDArray[np.float32], threads: int) -> NDArray[np.float32]:
        """x: (batch, *input shape), contiguous float32."""
        y = np.empty((len(x), *self._output_shape), np.float32)
        outcome = self._core.lrn_run(self._network, x.ctypes.data, len(x), y.ctypes.data, threads)
        if outcome:
            raise MemoryError(f"no memory or threads for a batch of {len(x)} on {threads} threads")
        return y

    @property
    def nbytes(self) -> int:
        """Bytes of weights, scales and biases in memory."""
        return int(self._core.lrn_bytes(self._network))

    def __del__(self) -> None:
        if getattr(self, "_network", None):
            self._core.lrn_destroy(self._network)
            self._network = None
