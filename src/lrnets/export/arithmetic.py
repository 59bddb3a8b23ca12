"""Sums of two values, and arithmetic of a value with constants, which is an affine map of its channels."""

from __future__ import annotations

import torch
from lrnets_runtime.graph import Add, Affine
from torch import Tensor

from lrnets.export.builder import Builder, Call, Value


def arithmetic(b: Builder, call: Call) -> Value:
    """a + b of two values; or x + c, x - c, c - x, x c, x / c with one c for each channel or for all."""
    first, second = call["self"], call["other"]
    if isinstance(first, Value) and isinstance(second, Value):
        return _sum(b, call, first, second) if call.operator == "add" else call.refuse("of two values")
    if call.arguments.get("rounding_mode") is not None:
        call.refuse(f"with rounding_mode={call['rounding_mode']!r}", "leave it out")
    x, constant = (first, second) if isinstance(first, Value) else (second, first)
    scale, bias = _map(call, _by_channel(call, x, constant), x is first)
    name = b.fresh(call.name)
    vectors = {
        key: b.vector(f"{name}.{key}", numbers.expand(x.shape[0]).clone())
        for key, numbers in (("scale", scale), ("bias", bias))
    }
    return b.place(Affine, name, (x,), call.shape, **vectors)


def _sum(b: Builder, call: Call, first: Value, second: Value) -> Value:
    if call["alpha"] != 1 or first.shape != second.shape:
        shapes = f"{first.shape} and {second.shape}"
        call.refuse(f"of shapes {shapes} with alpha {call['alpha']}", "add equal shapes with alpha 1")
    return b.emit(Add, call.name, (first, second), call.shape)


def _map(call: Call, c: Tensor, value_first: bool) -> tuple[Tensor, Tensor]:
    """Scale and bias of the affine map, for a value before or after the constant c."""
    one, zero, alpha = torch.ones_like(c), torch.zeros_like(c), call.arguments.get("alpha", 1)
    if call.operator in ("mul", "div"):
        if call.operator == "div" and not value_first:
            call.refuse("of a constant by a value")
        return (c if call.operator == "mul" else 1 / c), zero
    # first + sign * second; rsub(a, b) is b - alpha a
    if call.operator == "rsub":
        return (-alpha * one, c) if value_first else (one, -alpha * c)
    sign = alpha if call.operator == "add" else -alpha
    return (one, sign * c) if value_first else (sign * one, c)


def _by_channel(call: Call, x: Value, constant: Tensor | float) -> Tensor:
    """A constant as numbers for the channels of x, the first dimension after the batch, or as one for all; float64."""
    numbers = torch.as_tensor(constant, dtype=torch.float64)
    rank = len(x.shape) + 1
    shape = (1,) * (rank - numbers.dim()) + tuple(numbers.shape)
    others = shape[:1] + shape[2:]
    if not x.shape or len(shape) != rank or call.shape != x.shape or any(n != 1 for n in others):
        call.refuse(
            f"of shape (batch, {', '.join(map(str, x.shape))}) with a constant of shape {tuple(numbers.shape)}",
            "use one number, or one for each channel",
        )
    return numbers.reshape(-1)
