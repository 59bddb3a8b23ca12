"""Sums and products of two values, and arithmetic of a value with constants: an affine map of its channels."""

from __future__ import annotations

import torch
from lrnets_runtime.graph import Add, Affine, Multiply
from torch import Tensor

from lrnets.export.builder import Builder, Call, Value


def arithmetic(b: Builder, call: Call) -> Value:
    """a + b, a b of two values; or x + c, x - c, c - x, x c, x / c with one c for each channel or for all."""
    first, second = call["self"], call["other"]
    if isinstance(first, Value) and isinstance(second, Value):
        pairs = {"add": _sum, "mul": _product}
        return pairs[call.operator](b, call, first, second) if call.operator in pairs else call.refuse("of two values")
    if call.arguments.get("rounding_mode") is not None:
        call.refuse(f"with rounding_mode={call['rounding_mode']!r}", "leave it out")
    x, constant = (first, second) if isinstance(first, Value) else (second, first)
    scale, bias = _map(call, _by_channel(call, x, constant), x is first)
    name = b.fresh(call.name)
    vectors = {
        key: b.vector(f"{name}.{key}", numbers.expand(x.shape[0]).clone())
        for key, numbers in (("scale", scale), ("bias", bias))
        if numbers is not None
    }
    return b.place(Affine, name, (x,), call.shape, **vectors)


def _sum(b: Builder, call: Call, first: Value, second: Value) -> Value:
    if call["alpha"] != 1 or first.shape != second.shape:
        shapes = f"{first.shape} and {second.shape}"
        call.refuse(f"of shapes {shapes} with alpha {call['alpha']}", "add equal shapes with alpha 1")
    return b.emit(Add, call.name, (first, second), call.shape)


def _product(b: Builder, call: Call, first: Value, second: Value) -> Value:
    """One of the two may be smaller: of size 1 where the other is not."""
    one, other = (first, second) if first.shape == call.shape else (second, first)
    spreads = len(one.shape) == len(other.shape) and all(m in (n, 1) for n, m in zip(one.shape, other.shape))
    if one.shape != call.shape or not spreads:
        call.refuse(f"of shapes {one.shape} and {other.shape}", "each size of one must be the other's, or 1")
    return b.emit(Multiply, call.name, (one, other), call.shape)


def _map(call: Call, c: Tensor, value_first: bool) -> tuple[Tensor | None, Tensor | None]:
    """Scale and bias of the affine map, for a value before or after the constant c; None is 1, or 0."""
    one, alpha = torch.ones_like(c), call.arguments.get("alpha", 1)
    if call.operator in ("mul", "div"):
        if call.operator == "div" and not value_first:
            call.refuse("of a constant by a value")
        return (c if call.operator == "mul" else 1 / c), None
    # first + sign * second; rsub(a, b) is b - alpha a
    if call.operator == "rsub":
        return (-alpha * one, c) if value_first else (None, -alpha * c)
    sign = alpha if call.operator == "add" else -alpha
    return (None if value_first or sign == 1 else sign * one, sign * c if value_first else c)


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
