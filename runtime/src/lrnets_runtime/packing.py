"""Weights of -1, 0 and +1 in bytes and back: 8 binary or 5 ternary to a byte (docs/packed-format.md, "Codings").

Weights are counted along the row-major flattened tensor. There is one way to write a tensor down: what is left over in
the last byte is fixed, and anything else is refused on reading.
"""

from __future__ import annotations

from typing import Any, Literal, TypeAlias

import numpy as np
from numpy.typing import ArrayLike, NDArray

from lrnets_runtime.errors import PackedFileError
from lrnets_runtime.graph import Weight

Coding: TypeAlias = Literal["binary", "ternary"]
PER_BYTE = {"binary": 8, "ternary": 5}
LARGEST_TERNARY_BYTE = 3**5 - 1

_POWERS = 3 ** np.arange(5)
_BYTES = np.arange(256)[:, None]
# Row b holds the weights of byte b, the first weight first.
_TABLES: dict[str, NDArray[np.int8]] = {
    "binary": ((_BYTES >> np.arange(8) & 1) * 2 - 1).astype(np.int8),  # (256, 8)
    "ternary": (_BYTES[: LARGEST_TERNARY_BYTE + 1] // _POWERS % 3 - 1).astype(np.int8),  # (243, 5)
}


def pack(values: ArrayLike, coding: Coding) -> NDArray[np.uint8]:
    """Bytes of weights of any shape: bit i of byte j is weight 8j+i, or byte j is sum_k (w[5j+k] + 1) 3^k; 1-d."""
    _check_coding(coding)
    flat = np.asarray(values).reshape(-1)
    allowed = (flat == -1) | (flat == 1) if coding == "binary" else (flat == -1) | (flat == 0) | (flat == 1)
    if not allowed.all():
        place = int(np.argmin(allowed))
        levels = "-1 and +1" if coding == "binary" else "-1, 0 and +1"
        raise ValueError(
            f"weight {place} is {flat[place]}; {coding} weights are {levels}, divide their scale out first"
        )
    if coding == "binary":
        return np.packbits(flat > 0, bitorder="little")
    digits = np.ones(-(-flat.size // 5) * 5, np.uint8)  # digit 1, weight 0, is what pads
    digits[: flat.size] = flat + 1
    return (digits.reshape(-1, 5) * _POWERS.astype(np.uint8)).sum(1, dtype=np.uint8)


def unpack(packed: NDArray[np.uint8], coding: Coding, count: int) -> NDArray[np.int8]:
    """The first `count` weights of packed bytes, flat; refuses bytes that `pack` would not have written."""
    check_packed(packed, coding, count)
    return _TABLES[coding][packed].reshape(-1)[:count]


def check_packed(packed: NDArray[np.uint8], coding: Coding, count: int) -> None:
    """Raise PackedFileError unless these bytes are what `pack` writes for some `count` weights."""
    _check_coding(coding)
    per = PER_BYTE[coding]
    expected = -(-count // per)
    if packed.dtype != np.uint8 or packed.ndim != 1:
        raise PackedFileError(f"packed weights are one-dimensional uint8, got {packed.dtype} of shape {packed.shape}")
    if packed.size != expected:
        raise PackedFileError(
            f"{packed.size} bytes of {coding} weights, {expected} expected for {count} weights; export the file again"
        )
    if coding == "ternary" and packed.size and int(packed.max()) > LARGEST_TERNARY_BYTE:
        place = int(np.argmax(packed > LARGEST_TERNARY_BYTE))
        raise PackedFileError(
            f"byte {place} is {packed[place]}, above {LARGEST_TERNARY_BYTE}, so it is no five ternary weights; "
            "the file is damaged, export it again"
        )
    if count % per and (_TABLES[coding][packed[-1]][count % per :] != (-1 if coding == "binary" else 0)).any():
        raise PackedFileError(
            f"the last byte is {packed[-1]}, but what follows weight {count - 1} must be "
            f"{'bits of 0' if coding == 'binary' else 'weights of 0'}; the file is damaged, export it again"
        )


def decode(tensor: NDArray[Any], weight: Weight) -> NDArray[Any]:
    """A weight tensor in its shape: int8 for binary, ternary and int8 codings, float32 for levels and float32."""
    if weight.coding == "binary" or weight.coding == "ternary":
        tensor = unpack(tensor, weight.coding, weight.count)
    elif weight.levels is not None:
        low, high = weight.levels
        tensor = np.array([low, 0, high], np.float32)[unpack(tensor, "ternary", weight.count) + 1]
    return tensor.reshape(weight.shape)


def _check_coding(coding: str) -> None:
    if coding not in PER_BYTE:
        raise ValueError(f"coding is {coding!r}; only 'binary' and 'ternary' weights are packed into bits")
