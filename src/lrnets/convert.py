"""Turn the layers of any model into their stochastic twins, by rules, and report what was done and why not."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from fnmatch import fnmatchcase

from torch import nn
from torch.nn.modules.lazy import LazyModuleMixin
from torch.nn.parameter import UninitializedParameter
from torch.nn.utils import parametrize

from lrnets.errors import describe
from lrnets.layers import LAYERS, LRLayer, Values
from lrnets.tables import table
from lrnets.weights import P_MAX, P_MIN, as_value_set

Rule = str | Iterable[str] | Callable[[str, nn.Module], bool]

TWINS = {layer.plain: layer for layer in LAYERS}
HOOKS = (
    "_forward_hooks", "_forward_hooks_with_kwargs", "_forward_hooks_always_called", "_forward_pre_hooks",
    "_forward_pre_hooks_with_kwargs", "_backward_hooks", "_backward_pre_hooks",
)  # fmt: skip


@dataclass(frozen=True)
class Row:
    """What became of one layer, or of a parameter that is no layer's own."""

    name: str
    kind: str
    shape: tuple[int, ...]
    values: str  # the value set, or "float"
    reason: str  # why it stays in float; empty for converted layers


@dataclass(frozen=True)
class ConversionReport:
    """All weights of a model, converted or not; prints as a table."""

    rows: tuple[Row, ...]

    @property
    def converted(self) -> list[str]:
        """Names of the layers that have random discrete weights now."""
        return [row.name for row in self.rows if row.values != "float"]

    @property
    def kept(self) -> dict[str, str]:
        """Names of the layers that stay in float, with the reason."""
        return {row.name: row.reason for row in self.rows if row.values == "float"}

    def __str__(self) -> str:
        cells = [(r.name, r.kind, "x".join(map(str, r.shape)) or "?", r.values, r.reason) for r in self.rows]
        return table(("layer", "kind", "weights", "values", "why in float"), cells)


def convert_(
    model: nn.Module,
    values: Values = "ternary",
    *,
    keep: Rule | None = None,
    only: Rule | None = None,
    keep_first: bool = False,
    scale: bool = True,
    p_min: float = P_MIN,
    p_max: float = P_MAX,
) -> ConversionReport:
    """Replace, in place, linear and convolution layers by layers with random discrete weights.

    The distributions start from the float weights (section 4.1). With `scale` (the default) a layer's outputs keep
    their size, so the network computes in expectation what the float one did, up to clipped weights; `scale=False` is
    the paper's setting, for layers that batch norm follows.

    `keep` names layers that stay in float: names, globs ("layer4.*"), or a function f(name, module) -> bool. A name
    covers all layers below it. By default the last linear layer stays in float, `keep=()` converts that too. `only`
    names the layers to convert, in the same ways; no layer but those, and none is kept by default. `keep_first` keeps
    the first layer in float, as the paper does for binary ResNet-18.

    Shared modules and tied weights stay shared and tied. What cannot be converted is left alone and reported. If
    anything is wrong an error is raised and the model is as it was.
    """
    chosen_values = as_value_set(values)
    if not isinstance(model, nn.Module):
        raise TypeError(f"convert_ takes a torch.nn.Module, got {describe(model)}")
    if type(model) in TWINS:
        raise ValueError(
            f"the model is itself a {type(model).__name__} and cannot be replaced in place; wrap it in nn.Sequential"
        )
    found = _find_layers(model)
    why = _reasons_to_keep(model, found, keep, only, keep_first)
    chosen = {name: module for name, module in found.layers.items() if name not in why}
    if not chosen:
        raise ValueError(_nothing_to_convert(model, why))
    twins: dict[int, nn.Module] = {}
    logits: dict[int, nn.Parameter] = {}
    for name, module in chosen.items():
        try:
            twin = TWINS[_torch_kind(module) or type(module)].from_plain(module, chosen_values, scale, p_min, p_max)
        except ValueError as error:
            raise ValueError(f"layer {name!r}: {error}") from error
        # Tied weights: one parameter before, one parameter after.
        twin.logits = logits.setdefault(id(module.weight), twin.logits)
        for hooks in HOOKS:
            setattr(twin, hooks, getattr(module, hooks))
        twins[id(module)] = twin
    for parent in list(model.modules()):  # every place a shared layer stands in
        for child_name, child in parent._modules.items():
            if id(child) in twins:
                parent._modules[child_name] = twins[id(child)]
    rows = [
        Row(name, kind, shape, str(chosen_values) if name in chosen else "float", why.get(name, ""))
        for name, kind, shape in found.everything
    ]
    return ConversionReport(tuple(rows))


@dataclass
class _Found:
    layers: dict[str, nn.Module]  # convertible kinds, by their first name
    obstacles: dict[str, str]  # what cannot be converted, and why
    everything: list[tuple[str, str, tuple[int, ...]]]  # in the model's order: name, kind, shape


def _find_layers(model: nn.Module) -> _Found:
    """All that has weights: parameters of two or more dimensions."""
    found = _Found({}, {}, [])
    inside: dict[str, str] = {}  # parts of modules that use their parts' weights behind the layers' backs
    for name, module in model.named_modules():
        if "parametrizations" in name.split("."):  # reported with the layer they parametrise
            continue
        owner = next((text for prefix, text in inside.items() if name.startswith(prefix)), None)
        if isinstance(module, nn.MultiheadAttention):
            inside[f"{name}." if name else ""] = owner = "nn.MultiheadAttention computes with it directly"
        kind = _torch_kind(module)
        if kind is not None and owner is None:
            obstacle = _obstacle(module)
            found.layers[name] = module
            if obstacle:
                found.obstacles[name] = obstacle
            found.everything.append((name, type(module).__name__, _weight_shape(module)))
        elif not isinstance(module, LRLayer):
            for parameter_name, parameter in module.named_parameters(recurse=False):
                uninitialised = isinstance(parameter, UninitializedParameter)
                if uninitialised or parameter.dim() >= 2:
                    full_name = f"{name}.{parameter_name}" if name else parameter_name
                    found.obstacles[full_name] = owner or f"{type(module).__name__} has no discrete twin"
                    shape = () if uninitialised else tuple(parameter.shape)
                    found.everything.append((full_name, type(module).__name__, shape))
    return found


def _torch_kind(module: nn.Module) -> type[nn.Module] | None:
    return next((kind for kind in TWINS if isinstance(module, kind)), None)


def _weight_shape(module: nn.Module) -> tuple[int, ...]:
    weight = module._parameters.get("weight")
    return () if weight is None or isinstance(weight, UninitializedParameter) else tuple(weight.shape)


def _obstacle(module: nn.Module) -> str | None:
    """Why a linear or convolution layer cannot be converted, if so."""
    kind = _torch_kind(module)
    assert kind is not None
    if isinstance(module, LazyModuleMixin) or isinstance(module._parameters.get("weight"), UninitializedParameter):
        return "lazy: its shape is not known before the first batch; run one, then convert"
    if parametrize.is_parametrized(module, "weight"):
        return "its weight is parametrised; torch.nn.utils.parametrize.remove_parametrizations first"
    if module._parameters.get("weight") is None:
        return "its weight is computed from other parameters (weight norm, pruning?); make it a plain parameter first"
    if not module.get_parameter("weight").is_floating_point():
        return f"its weight is {module.get_parameter('weight').dtype}"
    forward_methods = ("forward", "_conv_forward")
    if any(getattr(type(module), m, None) is not getattr(kind, m, None) or m in vars(module) for m in forward_methods):
        return f"{type(module).__name__} computes in its own way"
    return None


def _reasons_to_keep(
    model: nn.Module, found: _Found, keep: Rule | None, only: Rule | None, keep_first: bool
) -> dict[str, str]:
    """Why each layer that stays in float does so."""
    why = dict(found.obstacles)
    names = list(found.layers)
    linear = [name for name in names if isinstance(found.layers[name], nn.Linear)]
    if only is not None:
        selected = _matches("only", only, found.layers)
        why.update({name: "not among those to convert" for name in names if name not in selected and name not in why})
    if keep is not None:
        why.update({name: "kept" for name in _matches("keep", keep, found.layers) if name not in why})
    elif only is None and linear:
        why.setdefault(linear[-1], "the classifier: the last linear layer")
    if keep_first and names:
        why.setdefault(names[0], "the first layer")
    tied: dict[int, list[str]] = {}
    for full_name, parameter in model.named_parameters(remove_duplicate=False):
        tied.setdefault(id(parameter), []).append(full_name)
    for name, module in found.layers.items():
        weight = module._parameters.get("weight")
        owners = [owner.removesuffix(".weight") for owner in tied.get(id(weight), [])]
        for owner in owners:
            if name not in why and not _will_convert(owner, model, found, why):
                why[name] = f"tied to {owner!r}, which stays in float"
    return why


def _will_convert(owner: str, model: nn.Module, found: _Found, why: dict[str, str]) -> bool:
    """Whether the parameter's owner is a layer that is converted, under whichever of its names."""
    try:
        module = model.get_submodule(owner)
    except AttributeError:  # a bare parameter
        return False
    return any(layer is module and name not in why for name, layer in found.layers.items())


def _matches(argument: str, rule: Rule, layers: dict[str, nn.Module]) -> set[str]:
    """Names of the layers a rule means."""
    if callable(rule):
        return {name for name, module in layers.items() if rule(name, module)}
    chosen: set[str] = set()
    for pattern in [rule] if isinstance(rule, str) else rule:
        if not isinstance(pattern, str):
            raise TypeError(f"{argument} takes names, globs or a function f(name, module), got {describe(pattern)}")
        matched = {name for name in layers if _covers(pattern, name)}
        if not matched:
            raise ValueError(f"{argument}={pattern!r} matches no layer; the layers are {', '.join(layers) or 'none'}")
        chosen |= matched
    return chosen


def _covers(pattern: str, name: str) -> bool:
    """Whether a glob matches a name or that of a module it is in."""
    parts = name.split(".")
    return any(fnmatchcase(".".join(parts[:n]), pattern) for n in range(1, len(parts) + 1))


def _nothing_to_convert(model: nn.Module, why: dict[str, str]) -> str:
    if any(isinstance(module, LRLayer) for module in model.modules()):
        return "nothing is left to convert: the model has been converted already"
    if not why:
        return f"nothing to convert: {type(model).__name__} has no linear or convolution layers"
    listed = "; ".join(f"{name}: {reason}" for name, reason in why.items())
    return f"nothing to convert, every layer stays in float ({listed}); keep=() converts the classifier too"
