"""Which activation and which norm stand before and behind a layer: needed by methods that make activations binary.

A layer with a binary input takes the sign of what reaches it, itself. Where a ReLU comes before it the sign would be
+1 always, so that ReLU gives way to the identity; pooling, dropout and reshapes may lie in between. For the paper's
MNIST network, convolution - batch norm - ReLU - pooling - convolution ..., that makes batch norm - pooling - sign -
convolution, which is XNOR-Net's block (an increasing batch norm and max pooling can change places). The first layer,
which reads the network's own input, normalised in the network or not, takes it as it is, and the ReLU before a layer
that stays in float stays.

The network is traced with torch.fx, so its data flow must not depend on the data; nothing is computed.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass, field
from operator import attrgetter
from typing import Any

import torch
import torch.nn.functional as F
from torch import fx, nn
from torch.nn.modules.batchnorm import _BatchNorm
from torch.nn.modules.dropout import _DropoutNd
from torch.nn.modules.pooling import _AdaptiveAvgPoolNd, _AdaptiveMaxPoolNd, _AvgPoolNd, _MaxPoolNd

# What a value may pass on its way without a change of sign, or which of it is where.
PASSING_MODULES = (
    nn.Identity, nn.Flatten, nn.Unflatten, _DropoutNd, _MaxPoolNd, _AvgPoolNd, _AdaptiveAvgPoolNd, _AdaptiveMaxPoolNd,
)  # fmt: skip
PASSING_FUNCTIONS = {
    torch.flatten, torch.reshape, torch.squeeze, torch.unsqueeze, torch.permute, torch.transpose, F.max_pool1d,
    F.max_pool2d, F.max_pool3d, F.avg_pool1d, F.avg_pool2d, F.avg_pool3d, F.adaptive_avg_pool1d, F.adaptive_avg_pool2d,
    F.adaptive_avg_pool3d, F.adaptive_max_pool2d, F.dropout, torch.cat,
}  # fmt: skip
PASSING_METHODS = {"flatten", "view", "reshape", "contiguous", "squeeze", "unsqueeze", "permute", "transpose", "mean"}
NEVER_NEGATIVE = (nn.ReLU, nn.ReLU6, nn.Sigmoid, nn.Hardsigmoid, nn.Softplus)
NEVER_NEGATIVE_FUNCTIONS = {F.relu, F.relu6, F.sigmoid, F.hardsigmoid, F.softplus, torch.relu, torch.sigmoid}
NEVER_NEGATIVE_METHODS = {"relu", "relu_", "sigmoid"}
ACTIVATIONS = (*NEVER_NEGATIVE, nn.Hardtanh, nn.Tanh, nn.LeakyReLU, nn.ELU, nn.GELU, nn.SiLU, nn.Hardswish)


@dataclass
class Surroundings:
    """What a layer stands between."""

    reads_input: bool = False  # the network's own, or what is made of it without weights: normalised pixels, say
    before: list[str] = field(default_factory=list)  # names of the activations its input comes from
    calls: list[fx.Node] = field(default_factory=list)  # where these are called, as a shared one is in several places
    norm: str | None = None  # name of the batch norm behind it
    after: str | None = None  # name of the activation behind it


class _Tracer(fx.Tracer):
    def __init__(self, layers: Collection[str]) -> None:
        super().__init__()
        self.layers = layers

    def is_leaf_module(self, module: nn.Module, name: str) -> bool:
        return name in self.layers or not list(module.children()) or super().is_leaf_module(module, name)


def surroundings(model: nn.Module, layers: Collection[str], method: str) -> dict[str, Surroundings]:
    """What stands around each of the layers, all named as `model.named_modules` does; `method` is for the errors."""
    names = {id(module): name for name, module in model.named_modules()}
    try:
        graph = _Tracer(layers).trace(model)
    except Exception as error:
        raise ValueError(
            f"method {method} has to know where each layer's input comes from, and torch.fx cannot follow it through "
            f"{type(model).__name__} ({error}); write the forward pass without branches on data, or choose a method "
            "that leaves activations alone"
        ) from error
    found: dict[str, Surroundings] = {}
    for node in graph.nodes:
        # A shared module has several names, of which one counts.
        name = names.get(id(model.get_submodule(node.target))) if node.op == "call_module" else None
        if name is not None and name in layers:
            here = found.setdefault(name, Surroundings())
            _look_back(model, names, node, here, name)
            here.reads_input |= _no_weights_before(model, node)
            _look_ahead(model, names, node, here)
    for name in layers:
        if name not in found:
            raise ValueError(
                f"layer {name!r}: the trace of {type(model).__name__} does not show where its input comes from; keep "
                f"it in float (keep={name!r}), or choose a method that leaves activations alone"
            )
    return found


def _look_back(model: nn.Module, names: dict[int, str], node: fx.Node, here: Surroundings, name: str) -> None:
    for source in node.all_input_nodes[:1] if node.op == "call_module" else node.all_input_nodes:
        module = model.get_submodule(str(source.target)) if source.op == "call_module" else None
        if source.op == "placeholder":
            here.reads_input = True
        elif isinstance(module, ACTIVATIONS):
            here.before.append(names[id(module)])
            here.calls.append(source)
        elif source.target in (NEVER_NEGATIVE_FUNCTIONS if source.op == "call_function" else ()) or (
            source.op == "call_method" and source.target in NEVER_NEGATIVE_METHODS
        ):
            raise ValueError(
                f"layer {name!r} would take the sign of what {source.name!r} gives, which is never negative, and a "
                f"function cannot be replaced; make it a module (nn.ReLU), or keep the layer in float (keep={name!r})"
            )
        elif _passes(source, module):
            _look_back(model, names, source, here, name)


def _no_weights_before(model: nn.Module, node: fx.Node) -> bool:
    """Whether nothing with weights, parameters of two or more dimensions, lies between the network's input and here."""
    ahead, seen = list(node.all_input_nodes), set[fx.Node]()
    while ahead:
        source = ahead.pop()
        if source in seen:
            continue
        seen.add(source)
        found: list[Any] = []
        if source.op == "call_module":
            found = list(model.get_submodule(str(source.target)).parameters())
        elif source.op == "get_attr":
            found = [attrgetter(str(source.target))(model)]
        if any(isinstance(each, nn.Parameter) and each.dim() >= 2 for each in found):
            return False
        ahead += source.all_input_nodes
    return True


def _look_ahead(model: nn.Module, names: dict[int, str], node: fx.Node, here: Surroundings) -> None:
    for user in node.users:
        module = model.get_submodule(str(user.target)) if user.op == "call_module" else None
        if isinstance(module, ACTIVATIONS):
            here.after = names[id(module)]
        elif isinstance(module, _BatchNorm) and here.norm is None:
            here.norm = names[id(module)]
            _look_ahead(model, names, user, here)
        elif _passes(user, module):
            _look_ahead(model, names, user, here)


def _passes(node: fx.Node, module: nn.Module | None) -> bool:
    if node.op == "call_module":
        return isinstance(module, PASSING_MODULES)
    if node.op == "call_method":
        return node.target in PASSING_METHODS
    return node.op == "call_function" and node.target in PASSING_FUNCTIONS
