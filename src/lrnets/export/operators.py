"""Each ATen operator that the packed format knows, as nodes of the run-time's graph.

A lowering takes the builder and a call and returns the value the call makes, or a tuple of them. An operator over one
dimension becomes its two-dimensional twin at height 1.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Literal, TypeAlias

from lrnets_runtime.graph import (
    Activate,
    Activation,
    AdaptivePool2d,
    Affine,
    Concat,
    Conv2d,
    Linear,
    Pool2d,
    Softmax,
)
from torch import Tensor

from lrnets.export.arithmetic import arithmetic
from lrnets.export.builder import Builder, Call, Condition, Value

Result: TypeAlias = Value | Condition | tuple[Value | None, ...]
Lowering: TypeAlias = Callable[[Builder, Call], Result]


def convolution(b: Builder, call: Call) -> Value:
    """conv1d, conv2d and convolution."""
    x, weight = call.value("input"), call.constant("weight")
    if call.arguments.get("transposed"):
        call.refuse("(transposed)")
    if weight.dim() not in (3, 4):
        call.refuse(f"over {weight.dim() - 2} dimensions", "the packed format knows convolutions over 1 or 2")
    flat = weight.dim() == 3
    stride, dilation = _pair(call["stride"], flat, 1), _pair(call["dilation"], flat, 1)
    weight = weight.unsqueeze(2) if flat else weight  # (out, in / groups, height, width)
    padding = _padding(call, dilation, tuple(weight.shape[2:]), flat)
    y = b.weighted(
        Conv2d, call, _at_height_1(b, call, x, flat), weight, _bias(call), _raised(call.shape, flat),
        stride=stride, padding=padding, dilation=dilation, groups=call["groups"],
    )  # fmt: skip
    return b.reshape(y, call.shape, f"{call.name}.flat")


def _padding(call: Call, dilation: tuple[int, int], kernel: tuple[int, ...], flat: bool) -> tuple[int, int]:
    """Zeros on either side; "same" is dilation (kernel - 1) in all, which must come in two halves."""
    if not isinstance(call["padding"], str):
        return _pair(call["padding"], flat, 0)
    if call["padding"] == "valid":
        return 0, 0
    total = [d * (k - 1) for d, k in zip(dilation, kernel)]
    if any(t % 2 for t in total):
        size = "x".join(map(str, kernel[1:] if flat else kernel))
        call.refuse(f"with padding='same' and kernel {size}, more zeros on one side", "use an odd kernel size")
    return total[0] // 2, total[1] // 2


def linear(b: Builder, call: Call) -> Value:
    weight = call.constant("weight")
    if weight.dim() != 2:
        call.refuse(f"with a weight of {weight.dim()} dimensions", "use two: (out, in)")
    return b.weighted(Linear, call, call.value("input"), weight, _bias(call), call.shape)


def addmm(b: Builder, call: Call) -> Value:
    """bias + x W, W (in, out)."""
    bias, weight = call.constant("self"), call.constant("mat2")
    if call["beta"] != 1 or call["alpha"] != 1 or bias.shape != weight.shape[1:]:
        call.refuse(f"with beta {call['beta']}, alpha {call['alpha']} and a bias of shape {tuple(bias.shape)}")
    return b.weighted(Linear, call, call.value("mat1"), weight.t(), bias, call.shape)


def matmul(b: Builder, call: Call) -> Value:
    """x W, W (in, out)."""
    weight = call.constant("mat2" if "mat2" in call.arguments else "other")
    if weight.dim() != 2:
        call.refuse(f"with a weight of {weight.dim()} dimensions", "use two: (in, out)")
    return b.weighted(Linear, call, call.value("self"), weight.t(), None, call.shape)


def _bias(call: Call) -> Tensor | None:
    return None if call["bias"] is None else call.constant("bias")


def batch_norm(b: Builder, call: Call) -> Result:
    """scale = gamma / sqrt(var + eps), bias = beta - mean scale, with running statistics."""
    if call.arguments.get("training") or call["running_mean"] is None:
        call.refuse("with statistics of the batch", REMEDIES["_native_batch_norm_legit"])
    mean, variance = call.constant("running_mean").double(), call.constant("running_var").double()
    scale = (variance + call["eps"]).rsqrt()
    if call["weight"] is not None:
        scale = scale * call.constant("weight").double()
    bias = -mean * scale if call["bias"] is None else call.constant("bias").double() - mean * scale
    name = b.fresh(call.name)
    y = b.place(
        Affine, name, (call.value("input"),), call.shape,
        scale=b.vector(f"{name}.scale", scale), bias=b.vector(f"{name}.bias", bias),
    )  # fmt: skip
    return y if call.operator == "batch_norm" else (y, None, None)


def pool(b: Builder, call: Call, kind: Literal["max", "average"]) -> Result:
    x, flat = call.value("self"), call.operator.endswith("1d")
    dilation = call.arguments.get("dilation") or [1]
    if any(d != 1 for d in dilation):
        call.refuse(f"with dilation {dilation}", "use dilation 1")
    if call.arguments.get("divisor_override") is not None:
        call.refuse(f"with divisor_override={call['divisor_override']}", "leave it out")
    kernel = _pair(call["kernel_size"], flat, 1)
    y = b.emit(
        Pool2d, call.name, (_at_height_1(b, call, x, flat),), _raised(call.shape, flat), kind=kind, kernel=kernel,
        stride=_pair(call["stride"], flat, 1) if call["stride"] else kernel, padding=_pair(call["padding"], flat, 0),
        ceil_mode=call["ceil_mode"], count_padding=call.arguments.get("count_include_pad", True),
    )  # fmt: skip
    y = b.reshape(y, call.shape, f"{call.name}.flat")
    return (y, None) if call.operator.endswith("with_indices") else y


def adaptive_pool(b: Builder, call: Call, kind: Literal["max", "average"]) -> Result:
    x, flat = call.value("self"), call.operator.endswith("1d")
    raised = _raised(call.shape, flat)
    y = b.emit(
        AdaptivePool2d, call.name, (_at_height_1(b, call, x, flat),), raised, kind=kind, size=(raised[1], raised[2])
    )
    y = b.reshape(y, call.shape, f"{call.name}.flat")
    return (y, None) if kind == "max" else y  # torch's maximum comes with its indices


def mean(b: Builder, call: Call) -> Value:
    """The mean over all places of a channel, as adaptive average pooling to one place."""
    x = call.value("self")
    dims = {d % (len(x.shape) + 1) for d in call["dim"] or ()}
    if (len(x.shape), dims) not in ((3, {2, 3}), (2, {2})):
        call.refuse(
            f"over dimensions {call['dim']} of shape (batch, {', '.join(map(str, x.shape))})",
            "the packed format knows the mean over height and width, and over channels",
        )
    places = _at_height_1(b, call, x, len(x.shape) == 2)
    y = b.emit(AdaptivePool2d, call.name, (places,), (x.shape[0], 1, 1), kind="average", size=(1, 1))
    return b.reshape(y, call.shape, f"{call.name}.flat")


def concat(b: Builder, call: Call) -> Value:
    parts = call["tensors"]
    if not all(isinstance(part, Value) for part in parts):
        call.refuse("with a constant")
    return b.emit(Concat, call.name, parts, call.shape, axis=_axis(call, len(call.shape)))


def softmax(b: Builder, call: Call) -> Value:
    return b.emit(Softmax, call.name, (call.value("self"),), call.shape, axis=_axis(call, len(call.shape)))


def _axis(call: Call, rank: int) -> int:
    """A dimension, counted from the first after the batch."""
    axis: int = call["dim"] % (rank + 1) - 1
    if axis < 0:
        call.refuse("along the batch", "choose another dimension: examples must not depend on each other")
    return axis


def clamp(b: Builder, call: Call) -> Value:
    """relu, relu6, hardtanh, clamp: min(max(x, low), high)."""
    low, high = {
        "relu": lambda: (0.0, None),
        "relu6": lambda: (0.0, 6.0),
        "hardtanh": lambda: (call["min_val"], call["max_val"]),
        "clamp": lambda: (call["min"], call["max"]),
        "clamp_min": lambda: (call["min"], None),
        "clamp_max": lambda: (None, call["max"]),
    }[call.operator]()
    if isinstance(low, (Value, Tensor)) or isinstance(high, (Value, Tensor)):
        call.refuse("with a tensor as bound", "use numbers")
    bounds = [None if bound is None or math.isinf(bound) else float(bound) for bound in (low, high)]
    if bounds == [None, None]:
        return call.value("self")
    if None not in bounds and low > high:
        call.refuse(f"with bounds {low:g} above {high:g}", "swap them")
    return _activate(b, call, Activation("clamp", *bounds))


def leaky_relu(b: Builder, call: Call) -> Value:
    return _activate(b, call, Activation("leaky", slope=float(call["negative_slope"])))


def _activate(b: Builder, call: Call, activation: Activation) -> Value:
    return b.emit(Activate, call.name, (call.value("self"),), call.shape, activation=activation)


def reshape(b: Builder, call: Call) -> Value:
    return b.reshape(call.value("self"), call.shape, call.name)


def identity(b: Builder, call: Call) -> Value:
    """What leaves the numbers alone: copies, memory formats, dropout in eval mode, the whole of a dimension (`:`)."""
    if call.arguments.get("train"):
        call.refuse("in training mode", "give F.dropout training=self.training, or leave it out")
    x = call.value("self" if "self" in call.arguments else "input")
    if x.shape != call.shape:
        call.refuse(f"from shape {x.shape} to {call.shape}")
    return x


def _pair(numbers: int | Sequence[int], flat: bool, height: int) -> tuple[int, int]:
    """Settings for height and width; `height` is that of an operator over one dimension."""
    n = [numbers] if isinstance(numbers, int) else list(numbers)
    return (height, n[0]) if flat else (n[0], n[-1])


def _raised(shape: Sequence[int], flat: bool) -> tuple[int, ...]:
    return (shape[0], 1, shape[1]) if flat else tuple(shape)


def _at_height_1(b: Builder, call: Call, x: Value, flat: bool) -> Value:
    return b.reshape(x, _raised(x.shape, flat), f"{call.name}.raised")


def _kind(lowering: Callable[..., Result], kind: str) -> Lowering:
    return lambda b, call: lowering(b, call, kind)


LOWERINGS: dict[str, Lowering] = {
    **dict.fromkeys(("conv1d", "conv2d", "convolution"), convolution),
    "linear": linear, "addmm": addmm, "mm": matmul, "matmul": matmul,
    **dict.fromkeys(("batch_norm", "_native_batch_norm_legit_no_training"), batch_norm),
    **dict.fromkeys(("max_pool1d", "max_pool2d", "max_pool2d_with_indices"), _kind(pool, "max")),
    **dict.fromkeys(("avg_pool1d", "avg_pool2d"), _kind(pool, "average")),
    **dict.fromkeys(("adaptive_max_pool1d", "adaptive_max_pool2d"), _kind(adaptive_pool, "max")),
    **dict.fromkeys(
        ("adaptive_avg_pool1d", "adaptive_avg_pool2d", "_adaptive_avg_pool2d"), _kind(adaptive_pool, "average")
    ),
    "mean": mean, **dict.fromkeys(("add", "sub", "rsub", "mul", "div"), arithmetic), "cat": concat,
    **dict.fromkeys(("softmax", "_softmax"), softmax),
    **dict.fromkeys(("relu", "relu6", "hardtanh", "clamp", "clamp_min", "clamp_max"), clamp),
    "leaky_relu": leaky_relu,
    **dict.fromkeys(("view", "_unsafe_view", "reshape", "flatten", "unflatten", "squeeze", "unsqueeze"), reshape),
    **dict.fromkeys(
        ("clone", "alias", "detach", "contiguous", "to", "_to_copy", "expand", "lift_fresh_copy", "dropout",
         "feature_dropout", "alpha_dropout", "feature_alpha_dropout", "slice"),
        identity,
    ),
}  # fmt: skip

KNOWN = (
    "the packed format knows convolution, linear, batch norm, ReLU and other clamps, leaky ReLU, signs, pooling, sums "
    "and products of two values, arithmetic with a constant a channel, concatenation, reshapes and softmax"
)
REMEDIES = {
    **dict.fromkeys(("log_softmax", "_log_softmax"), "leave it off: the largest logit has the largest probability"),
    **dict.fromkeys(("gelu", "silu", "sigmoid", "tanh", "elu"), "use ReLU, leaky ReLU or a clamp"),
    **dict.fromkeys(("sign", "sgn"), "use torch.where(x >= 0, 1.0, -1.0), which is never 0"),
    **dict.fromkeys(("native_dropout", "bernoulli"), "give F.dropout training=self.training, or leave it out"),
    **dict.fromkeys(
        ("_native_batch_norm_legit", "instance_norm"),
        "use running statistics (track_running_stats=True)",
    ),
}
