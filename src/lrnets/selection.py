"""Which layers of a model are converted, by rules, and why the others are not."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from fnmatch import fnmatchcase

from torch import nn
from torch.nn.modules.lazy import LazyModuleMixin
from torch.nn.parameter import UninitializedParameter
from torch.nn.utils import parametrize

from lrnets.errors import describe
from lrnets.foreign import restated, restatement
from lrnets.methods.twin import AnyTwin, twins

Rule = str | Iterable[str] | Callable[[str, nn.Module], bool]
Kinds = Sequence[type[nn.Module]]


@dataclass
class Found:
    """What has weights in a model."""

    layers: dict[str, nn.Module]  # convertible kinds, by their first name
    obstacles: dict[str, str]  # what cannot be converted, and why
    everything: list[tuple[str, str, tuple[int, ...]]]  # in the model's order: name, kind, shape
    restated: dict[str, nn.Module]  # layers from elsewhere, as torch's own that compute the same

    def plain(self, name: str) -> nn.Module:
        """The layer of torch's own that a layer is converted as: itself, or what it is restated as."""
        return self.restated.get(name, self.layers[name])


def find_layers(model: nn.Module, kinds: Kinds, method: str) -> Found:
    """All that has weights: parameters of two or more dimensions. `kinds` are the layers that have a twin."""
    found = Found({}, {}, [], {})
    twin = "discrete" if method == "lr" else method
    inside: dict[str, str] = {}  # parts of modules that use their parts' weights behind the layers' backs
    wrappers: tuple[str, ...] = ()  # layers from elsewhere: what is in them goes with them
    for name, module in model.named_modules():
        if "parametrizations" in name.split(".") or name.startswith(wrappers):  # reported with the layer they are in
            continue
        owner = next((text for prefix, text in inside.items() if name.startswith(prefix)), None)
        if isinstance(module, nn.MultiheadAttention):
            inside[f"{name}." if name else ""] = owner = "nn.MultiheadAttention computes with it directly"
        if isinstance(module, AnyTwin):
            continue  # converted before
        foreign = restated(name, module) if owner is None else None
        plain = module if foreign is None else foreign
        kind = torch_kind(plain, kinds)
        if kind is not None and owner is None:
            obstacle = _obstacle(plain, kind)
            found.layers[name] = module
            if foreign is not None:
                found.restated[name] = foreign
                wrappers += (f"{name}." if name else "",)
            if obstacle:
                found.obstacles[name] = obstacle
            found.everything.append((name, type(module).__name__, _weight_shape(plain)))
        else:
            for parameter_name, parameter in module.named_parameters(recurse=False):
                uninitialised = isinstance(parameter, UninitializedParameter)
                if uninitialised or parameter.dim() >= 2:
                    full_name = f"{name}.{parameter_name}" if name else parameter_name
                    found.obstacles[full_name] = owner or f"{type(module).__name__} has no {twin} twin"
                    shape = () if uninitialised else tuple(parameter.shape)
                    found.everything.append((full_name, type(module).__name__, shape))
    return found


def torch_kind(module: nn.Module, kinds: Kinds) -> type[nn.Module] | None:
    """The kind of layer that a module is, its own or one that it derives from."""
    return next((kind for kind in kinds if isinstance(module, kind)), None)


def _weight_shape(module: nn.Module) -> tuple[int, ...]:
    weight = module._parameters.get("weight")
    return () if weight is None or isinstance(weight, UninitializedParameter) else tuple(weight.shape)


def _obstacle(module: nn.Module, kind: type[nn.Module]) -> str | None:
    """Why a linear or convolution layer cannot be converted, if so."""
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
    parts = {**module._parameters, **module._buffers, **module._modules}
    own = [name for name, part in parts.items() if part is not None and name not in ("weight", "bias")]
    if own:
        has = f"{type(module).__name__} has {', '.join(own)} of its own"
        return f"{has}; tell convert_ what it computes with lrnets.register_layer"
    return None


def reasons_to_keep(
    model: nn.Module, found: Found, keep: Rule | None, only: Rule | None, keep_first: bool
) -> dict[str, str]:
    """Why each layer that stays in float does so."""
    why = dict(found.obstacles)
    names = list(found.layers)
    linear = [name for name in names if isinstance(found.plain(name), nn.Linear)]
    aliases: dict[int, list[str]] = {}  # a shared module has several names
    for name, module in model.named_modules(remove_duplicate=False):
        aliases.setdefault(id(module), []).append(name)
    if only is not None:
        selected = _matches("only", only, found.layers, aliases)
        why.update({name: "not among those to convert" for name in names if name not in selected and name not in why})
    if keep is not None:
        why.update({name: "kept" for name in _matches("keep", keep, found.layers, aliases) if name not in why})
    elif only is None and linear:
        why.setdefault(linear[-1], "the classifier: the last linear layer")
    if keep_first and names:
        why.setdefault(names[0], "the first layer")
    tied: dict[int, list[str]] = {}
    for full_name, parameter in model.named_parameters(remove_duplicate=False):
        tied.setdefault(id(parameter), []).append(full_name)
    for name, module in found.layers.items():
        for full_name in [full_name for key in weight_key(module) for full_name in tied.get(key, [])]:
            owner, shown = _owner(full_name, model, found), full_name.removesuffix(".weight")
            if name not in why and not any(owner is layer and n not in why for n, layer in found.layers.items()):
                why[name] = f"tied to {shown!r}, which stays in float"
            if name not in why and restatement(owner) is not restatement(module):
                why[name] = f"tied to {shown!r}, which reads its weights in another way"
    return why


def weight_key(layer: nn.Module) -> tuple[int, ...]:
    """Equal for layers whose weights, parameters of two or more dimensions, are tied; else a layer's own."""
    known = (p for p in layer.parameters() if not isinstance(p, UninitializedParameter))
    return tuple(id(p) for p in known if p.dim() >= 2) or (id(layer),)


def _owner(parameter: str, model: nn.Module, found: Found) -> nn.Module:
    """The layer from elsewhere that a parameter is somewhere in, if there is one, or the module that has it."""
    wrappers = {id(found.layers[name]) for name in found.restated}
    owner = model
    for part in parameter.split(".")[:-1]:
        owner = owner.get_submodule(part)
        if id(owner) in wrappers:
            break
    return owner


def _matches(argument: str, rule: Rule, layers: dict[str, nn.Module], aliases: dict[int, list[str]]) -> set[str]:
    """First names of the layers a rule means by any of their names; `aliases` has these by a module's id."""
    names = {name: aliases[id(module)] for name, module in layers.items()}
    if callable(rule):
        return {name for name, module in layers.items() for alias in names[name] if rule(alias, module)}
    chosen: set[str] = set()
    for pattern in rule if isinstance(rule, Iterable) and not isinstance(rule, str) else [rule]:
        if not isinstance(pattern, str):
            raise TypeError(f"{argument} takes names, globs or a function f(name, module), got {describe(pattern)}")
        matched = {name for name in layers if any(_covers(pattern, alias) for alias in names[name])}
        if not matched:
            raise ValueError(f"{argument}={pattern!r} matches no layer; the layers are {', '.join(layers) or 'none'}")
        chosen |= matched
    return chosen


def _covers(pattern: str, name: str) -> bool:
    """Whether a glob matches a name or that of a module it is in."""
    parts = name.split(".")
    return any(fnmatchcase(".".join(parts[:n]), pattern) for n in range(1, len(parts) + 1))


def nothing_to_convert(model: nn.Module, why: dict[str, str]) -> str:
    """Why a model has no layer to convert."""
    if any(True for _ in twins(model)):
        return "nothing is left to convert: the model has been converted already"
    if not why:
        return f"nothing to convert: {type(model).__name__} has no linear or convolution layers"
    listed = "; ".join(f"{name}: {reason}" for name, reason in why.items())
    return f"nothing to convert, every layer stays in float ({listed}); keep=() converts the classifier too"
