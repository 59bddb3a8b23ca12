"""ATen operators of networks with binary activations: the sign, |x|, means over channels, repeats.

XNOR-Net's scale map K, the mean size of what a place sees, is |x|, a mean over channels and a convolution by a
constant. A mean over channels is a layer too: all its weights are 1 / channels, which is a bit each and a scale.
"""

from __future__ import annotations

import torch
from lrnets_runtime.graph import Activate, Activation, Conv2d, Linear
from torch import Tensor

from lrnets.export import operators
from lrnets.export.builder import Builder, Call, Condition, Value
from lrnets.export.operators import Lowering


def at_least(b: Builder, call: Call) -> Condition:
    """x >= 0, of which the sign is made."""
    if not _is_all(call["other"], 0):
        call.refuse("with anything but 0", SIGNS_ONLY)
    return Condition(call.value("self"))


def sign(b: Builder, call: Call) -> Value:
    """where(x >= 0, 1, -1)."""
    condition = call["condition"]
    chosen = _is_all(call["self"], 1) and _is_all(call["other"], -1)
    if not isinstance(condition, Condition) or not chosen or condition.value.shape != call.shape:
        call.refuse(remedy=SIGNS_ONLY)
    return b.emit(Activate, call.name, (condition.value,), call.shape, activation=Activation("sign"))


def _is_all(constant: object, number: float) -> bool:
    """Whether it is this number, or a tensor of nothing else."""
    if isinstance(constant, Tensor):
        return bool((constant == number).all())
    return isinstance(constant, (int, float)) and constant == number


def size(b: Builder, call: Call) -> Value:
    return b.emit(Activate, call.name, (call.value("self"),), call.shape, activation=Activation("abs"))


def mean(b: Builder, call: Call) -> Value:
    """Over channels, (channels, ...) or (groups, channels, ...); or over places, as pooling."""
    x = call.value("self")
    dims = {d % (len(x.shape) + 1) for d in call["dim"] or ()}
    if dims == {1}:
        return _channel_mean(b, call, x, 1, x.shape[0], x.shape[1:])
    if dims == {2} and len(x.shape) > 2:
        return _channel_mean(b, call, x, x.shape[0], x.shape[1], x.shape[2:])
    return operators.mean(b, call)


def _channel_mean(b: Builder, call: Call, x: Value, groups: int, channels: int, places: tuple[int, ...]) -> Value:
    """A layer of weights 1 / channels; places are none, a width, or a height and a width."""
    if len(places) > 2:
        call.refuse(f"over channels of {len(places)} dimensions", "the packed format knows up to 2")
    ones = torch.full((groups, channels), 1 / channels, dtype=torch.float64)
    if not places:
        y = b.weighted(Linear, call, x, ones, None, (1,))
        return b.reshape(y, call.shape, f"{call.name}.flat")
    raised = (1, *places)[-2:]
    x = b.reshape(x, (groups * channels, *raised), f"{call.name}.raised")
    y = b.weighted(Conv2d, call, x, ones[:, :, None, None], None, (groups, *raised), groups=groups)
    return b.reshape(y, call.shape, f"{call.name}.flat")


def repeat(b: Builder, call: Call) -> Value:
    """Each channel so many times, one after the other: a layer of weights 1, with a group for each channel."""
    x, times, rank = call.value("self"), call["repeats"], len(call.shape)
    if not isinstance(times, int) or call["dim"] is None or call["dim"] % (rank + 1) != 1 or rank not in (2, 3):
        call.refuse("of anything but channels, so many times each", "repeat along dimension 1")
    raised = b.reshape(x, (x.shape[0], *(1, *x.shape[1:])[-2:]), f"{call.name}.raised")
    ones = torch.ones(x.shape[0] * times, 1, 1, 1)
    y = b.weighted(Conv2d, call, raised, ones, None, (len(ones), *raised.shape[1:]), groups=x.shape[0])
    return b.reshape(y, call.shape, f"{call.name}.flat")


SIGNS_ONLY = "the packed format knows comparisons only as torch.where(x >= 0, 1.0, -1.0)"
CONDITIONS = ("ge", "where")  # their arguments or results are no numbers
LOWERINGS: dict[str, Lowering] = {
    **operators.LOWERINGS, "ge": at_least, "where": sign, "abs": size, "mean": mean,
    "repeat_interleave": repeat,
}  # fmt: skip
