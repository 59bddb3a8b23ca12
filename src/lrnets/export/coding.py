"""How a layer's weights are stored: recognised from the numbers themselves, so that nothing is lost."""

from __future__ import annotations

from typing import Literal, NamedTuple, TypeAlias

import numpy as np
import torch
from lrnets_runtime import packing
from torch import Tensor

from lrnets.weights import MULTIPLES as INT8_MAX
from lrnets.weights import levels_of, unit_of

Array: TypeAlias = np.ndarray
Tensors: TypeAlias = dict[str, Array]
Coding: TypeAlias = Literal["binary", "ternary", "levels", "float32", "int8"]


class Coded(NamedTuple):
    """Weights as small whole numbers, or float32, and the scales that give them their size: w = scale * numbers."""

    coding: Coding
    numbers: Array  # int8, or float32
    scale: Array | None  # (out,) float64; None is 1
    levels: tuple[float, float] | None = None  # what numbers of -1 and +1 stand for, if not for themselves


def recognise(weight: Tensor) -> Coded:
    """The smallest coding that holds the weights exactly; shape (out, ...).

    {-s, +s} is binary and {-s, 0, +s} ternary, with one s or one for each output channel. {-n, 0, +p} are levels. A few
    more that are whole multiples of a unit, up to 127 of it, are int8. Anything else is float32.
    """
    exact = weight.detach().double().cpu().numpy()
    size = np.abs(exact)
    channel_sizes = size.max(axis=tuple(range(1, size.ndim)), keepdims=True)  # (out, 1, ...)
    # One weight, or one a channel, is always "binary": a scale in place of the number it stands for saves nothing.
    for largest, enough in ((size.max(), size.size > 1), (channel_sizes, size[0].size > 1)):
        if enough and np.all((size == 0) | (size == largest)):
            coding: Coding = "binary" if size.all() else "ternary"
            return Coded(coding, np.sign(exact).astype(np.int8), _scale_vector(largest, len(exact)))
    found = levels_of(weight) or ()
    negative, positive = [one for one in found if one < 0], [one for one in found if one > 0]
    if len(negative) == len(positive) == 1:
        return Coded("levels", np.sign(exact).astype(np.int8), None, (negative[0], positive[0]))
    unit = unit_of(found, torch.finfo(weight.dtype).eps) if found else None
    if unit is not None:
        return Coded("int8", np.rint(exact / unit).astype(np.int8), _scale_vector(unit, len(exact)))
    return Coded("float32", exact.astype(np.float32), None)


def quantized(weight: Array) -> Coded:
    """Float weights as int8, q = rint(w / s) with s = max|w| / 127 for each output channel; shape (out, ...)."""
    exact = weight.astype(np.float64)
    scale = np.abs(exact).max(axis=tuple(range(1, exact.ndim)), keepdims=True) / INT8_MAX
    scale[scale == 0] = 1.0
    return Coded("int8", np.rint(exact / scale).astype(np.int8), scale.reshape(-1))


def pack(coded: Coded) -> Array:
    """The packed tensor of these weights: bytes of bits or trits, or the numbers as they are."""
    if coded.coding == "levels":
        return packing.pack(coded.numbers, "ternary")
    if coded.coding == "binary" or coded.coding == "ternary":
        return packing.pack(coded.numbers, coded.coding)
    return np.ascontiguousarray(coded.numbers)


def _scale_vector(scale: Array | float, channels: int) -> Array | None:
    """One scale or one a channel as (channels,); channels without any weight but 0 have scale 1."""
    vector = np.broadcast_to(np.asarray(scale, dtype=np.float64).reshape(-1), (channels,)).copy()
    vector[vector == 0] = 1.0
    return None if np.all(vector == 1) else vector
