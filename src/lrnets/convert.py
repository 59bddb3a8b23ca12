"""Turn the layers of any model into their twins in training, by rules, and report what was done and why not."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from torch import nn

from lrnets.errors import describe
from lrnets.layers import LAYERS, Values
from lrnets.methods import Method, method_named
from lrnets.methods.rewire import rewiring
from lrnets.methods.twin import AnyTwin, tie
from lrnets.selection import Found, Rule, find_layers, nothing_to_convert, reasons_to_keep, torch_kind, weight_key
from lrnets.tables import table
from lrnets.weights import BINARY, TERNARY, ValueSet, as_value_set

HOOKS = (
    "_forward_hooks", "_forward_hooks_with_kwargs", "_forward_hooks_always_called", "_forward_pre_hooks",
    "_forward_pre_hooks_with_kwargs", "_backward_hooks", "_is_full_backward_hook", "_backward_pre_hooks",
)  # fmt: skip


@dataclass(frozen=True)
class Row:
    """What became of one layer, or of a parameter that is no layer's own."""

    name: str
    kind: str
    shape: tuple[int, ...]
    values: str  # the value set, or "float"
    reason: str  # why it is as it was; empty for converted layers


@dataclass(frozen=True)
class ConversionReport:
    """All weights of a model, converted or not; prints as a table."""

    rows: tuple[Row, ...]
    notes: tuple[str, ...] = ()  # what else was changed

    @property
    def converted(self) -> list[str]:
        """Names of the layers that were converted."""
        return [row.name for row in self.rows if not row.reason]

    @property
    def kept(self) -> dict[str, str]:
        """Names of the layers that stay as they were, with the reason."""
        return {row.name: row.reason for row in self.rows if row.reason}

    def __str__(self) -> str:
        cells = [(r.name, r.kind, "x".join(map(str, r.shape)) or "?", r.values, r.reason) for r in self.rows]
        return "\n".join([table(("layer", "kind", "weights", "values", "why in float"), cells), *self.notes])


def convert_(
    model: nn.Module,
    values: Values | None = None,
    *,
    method: str = "lr",
    keep: Rule | None = None,
    only: Rule | None = None,
    keep_first: bool = False,
    **options: Any,
) -> ConversionReport:
    """Replace, in place, linear and convolution layers by layers that learn discrete weights.

    `method` is LR-net by default; the others are listed in `lrnets.methods.METHODS`, with the `values` they can do, of
    which the first is the default ("ternary" for LR-net), and their options. All start from the float weights.

    LR-net's options: `scale=True`, `p_min=0.05` and `p_max=0.95`. Its distributions start from the float weights as in
    section 4.1. With `scale` a layer's outputs keep their size, and each layer computes in expectation what the float
    one did, up to clipped weights. That adds up over many layers: conversion is where training starts, not a network
    to use. `scale="fitted"` fits each layer's scale to the float weights by least squares, which makes up for the
    clipped ones on the whole: for networks without batch norm. `scale=False` is the paper's setting, for layers that
    batch norm follows.

    `keep` names layers that stay in float: names, globs ("layer4.*"), or a function f(name, module) -> bool. A name
    covers all layers below it. By default the last linear layer stays in float, `keep=()` converts that too. `only`
    names the layers to convert, in the same ways; no layer but those, and none is kept by default. `keep_first` keeps
    the first layer in float, as the paper does for binary ResNet-18.

    A layer from elsewhere that computes what one of torch's own does is converted as that one, if `register_layer` has
    told how. Shared modules and tied weights stay shared and tied, and go by any of their names. What cannot be
    converted, such as a layer with parameters of its own, is left alone and reported.
    If anything is wrong an error is raised and the model is as it was.
    """
    chosen_method = method_named(method)
    chosen_values = _values_for(chosen_method, values)
    settings = chosen_method.complete(options)
    if not isinstance(model, nn.Module):
        raise TypeError(f"convert_ takes a torch.nn.Module, got {describe(model)}")
    makers: dict[type[nn.Module], Any] = {layer.plain: layer for layer in chosen_method.layers() or LAYERS}
    found = find_layers(model, list(makers), method)
    if "" in found.layers and "" not in found.obstacles:
        raise ValueError(
            f"the model is itself a {type(model).__name__} and cannot be replaced in place; wrap it in nn.Sequential"
        )
    if chosen_method.home is None:
        return _report(found, {name: f"method {method}" for name, _, _ in found.everything}, None)
    why = reasons_to_keep(model, found, keep, only, keep_first)
    chosen = {name: module for name, module in found.layers.items() if name not in why}
    if not chosen:
        raise ValueError(nothing_to_convert(model, why))
    around = rewiring(model, list(chosen), chosen_method)
    new: dict[int, nn.Module] = dict(around.replaced)
    tied: dict[tuple[int, ...], AnyTwin] = {}
    for name, module in chosen.items():
        plain = found.plain(name)
        maker = makers[torch_kind(plain, list(makers)) or type(plain)]
        try:
            twin = maker.from_plain(plain, chosen_values, **settings, **around.arguments[name])
        except ValueError as error:
            raise ValueError(f"layer {name!r}: {error}") from error
        # Tied weights: one parameter before, one parameter after.
        tie(twin, tied.setdefault(weight_key(module), twin))
        new[id(module)] = twin
    for parent in list(model.modules()):  # every place a shared module stands in
        for child_name, child in parent._modules.items():
            if child is not None and id(child) in new:
                parent._modules[child_name] = _in_place_of(child, new[id(child)])
    return _report(found, why, chosen_values, around.notes)


def _in_place_of(old: nn.Module, new: nn.Module) -> nn.Module:
    """The new module, with the hooks and the mode of the old one."""
    for hooks in HOOKS:
        setattr(new, hooks, getattr(old, hooks))
    return new.train(old.training)


def _values_for(method: Method, values: Values | None) -> ValueSet | None:
    """The value set of the weights, None for float ones, if the method has it."""
    if values is None:
        values = method.default_weights
    if isinstance(values, str) and values == "float":
        method.require("float")
        return None
    chosen = as_value_set(values)
    method.require(chosen.name if chosen in (BINARY, TERNARY) else chosen.levels)  # an own value set is levels
    return chosen


def _report(
    found: Found, why: dict[str, str], values: ValueSet | None, notes: tuple[str, ...] = ()
) -> ConversionReport:
    rows = [
        Row(name, kind, shape, "float" if values is None or name in why else str(values), why.get(name, ""))
        for name, kind, shape in found.everything
    ]
    return ConversionReport(tuple(rows), notes)
