"""Layers from elsewhere that compute what one of torch's own does: restated as that, they convert like it.

    lrnets.register_layer(MyLinear, as_linear)      # as_linear(layer) -> an nn.Linear that computes the same

GPT-2's transposed linear layer, `Conv1D` of transformers, is known from the start.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from torch import nn

from lrnets.errors import describe

Restate = Callable[[Any], nn.Module]


def transposed_linear(layer: Any) -> nn.Linear:
    """y = x W + b with W (in, out), and b or None, as torch's linear layer: its weight is W^T, its bias b itself."""
    weight, bias = layer.weight, layer.bias
    size_in, size_out = weight.shape
    linear = nn.Linear(size_in, size_out, bias=bias is not None, device="meta")
    linear.weight = nn.Parameter(weight.detach().t().contiguous(), requires_grad=weight.requires_grad)
    linear.bias = bias
    return linear.train(layer.training)


_REGISTERED: dict[str, Restate] = {"transformers.pytorch_utils.Conv1D": transposed_linear}


def register_layer(kind: type[nn.Module] | str, restate: Restate) -> None:
    """Let `convert_` take layers of a class for the layer of torch's own that `restate(layer)` builds.

    That layer must compute the same from weights of its own and the given layer's very bias; what is converted then
    is that one. `kind` is a class, or its full name ("package.module.Class"), for which nothing is imported. Classes
    that derive from it are taken too, unless they have a `forward` of their own.
    """
    if isinstance(kind, type) and issubclass(kind, nn.Module):
        kind = _full_name(kind)
    if not isinstance(kind, str) or "." not in kind:
        raise TypeError(f"kind must be a class of modules or its full name, 'package.module.Class', got {kind!r}")
    if not callable(restate):
        raise TypeError(f"restate must be a function from a layer to a layer of torch's own, got {describe(restate)}")
    _REGISTERED[kind] = restate


def restatement(module: nn.Module) -> Restate | None:
    """How a module is restated as a layer of torch's own; None if it is not registered, or computes in its own way."""
    for kind in type(module).__mro__:
        if _full_name(kind) in _REGISTERED:
            as_told = type(module).forward is getattr(kind, "forward", None) and "forward" not in vars(module)
            return _REGISTERED[_full_name(kind)] if as_told else None
    return None


def restated(name: str, module: nn.Module) -> nn.Module | None:
    """The layer of torch's own that a module is converted as, if it is registered; `name` is for errors."""
    restate = restatement(module)
    if restate is None:
        return None
    plain = restate(module)
    if not isinstance(plain, nn.Module):
        raise TypeError(
            f"layer {name!r}: the function registered for {type(module).__name__} gave {describe(plain)}; "
            "let it return a layer of torch's own, such as nn.Linear"
        )
    return plain


def _full_name(kind: type) -> str:
    return f"{kind.__module__}.{kind.__qualname__}"
