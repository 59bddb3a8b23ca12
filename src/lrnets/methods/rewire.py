"""What conversion changes beside the layers themselves: activations and norms, for methods with binary activations."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from importlib import import_module
from typing import Any

from torch import nn

from lrnets.methods import Method
from lrnets.methods.flow import NEVER_NEGATIVE, Surroundings, surroundings


@dataclass(frozen=True)
class Rewiring:
    """Modules to be replaced (by id), what layers are told when they are built, and what to tell the user."""

    replaced: dict[int, nn.Module] = field(default_factory=dict)
    arguments: dict[str, dict[str, Any]] = field(default_factory=dict)
    notes: tuple[str, ...] = ()


def rewiring(model: nn.Module, layers: Collection[str], method: Method) -> Rewiring:
    """What a method needs changed around these layers; nothing is changed here."""
    if method.activations == "unchanged":
        return Rewiring(arguments={name: {} for name in layers})
    found = surroundings(model, layers, method.name)
    if method.activations == "signs":
        return _signs_before(model, found)
    return _signs_behind(model, found, import_module(str(method.home)).ACTIVATION)


def _signs_before(model: nn.Module, found: dict[str, Surroundings]) -> Rewiring:
    """Layers take the sign of their input; activations that would leave nothing of it but +1 become the identity."""
    signed = [name for name, here in found.items() if not here.reads_input]
    before = dict.fromkeys(name for layer in signed for name in found[layer].before)
    gone = [name for name in before if isinstance(model.get_submodule(name), NEVER_NEGATIVE)]
    elsewhere = [name for name in gone if _called_elsewhere(model, name, [found[layer] for layer in signed])]
    return Rewiring(
        {id(model.get_submodule(name)): nn.Identity() for name in gone},
        {name: {"binary_input": not here.reads_input} for name, here in found.items()},
        _notes(
            {
                "layers that take the sign of their input": signed,
                "identities now, since a sign follows": gone,
                "of these also called where no sign follows (a module for each place keeps it)": elsewhere,
            }
        ),
    )


def _called_elsewhere(model: nn.Module, name: str, signed: Sequence[Surroundings]) -> bool:
    """Whether an activation is called where none of these layers reads what it gives."""
    followed = {call for here in signed for call in here.calls}
    activation = model.get_submodule(name)
    return any(
        node not in followed
        for graph in {call.graph for call in followed}
        for node in graph.nodes
        if node.op == "call_module" and model.get_submodule(str(node.target)) is activation
    )


def _signs_behind(model: nn.Module, found: dict[str, Surroundings], activation: Any) -> Rewiring:
    """The activation behind each layer becomes the method's own; a norm in between is told to the layer, and goes."""
    replaced: dict[int, nn.Module] = {}
    signs, norms = dict[str, None](), dict[str, None]()
    for name, here in found.items():
        if here.after is None:
            raise ValueError(
                f"layer {name!r}: no activation follows it (batch norm, pooling and dropout may lie between), so "
                f"there is nowhere to put its sign; keep it in float (keep={name!r}), or add an nn.ReLU"
            )
        replaced[id(model.get_submodule(here.after))] = activation()
        signs[here.after] = None
        if here.norm is not None:
            replaced[id(model.get_submodule(here.norm))] = nn.Identity()
            norms[here.norm] = None
    arguments = {
        name: {
            "binary_input": not here.reads_input and bool(here.before) and signs.keys() >= set(here.before),
            "norm": None if here.norm is None else model.get_submodule(here.norm),
        }
        for name, here in found.items()
    }
    changes = {f"each a {activation.__name__} now": signs, "identities now, as thresholds in their layers": norms}
    return Rewiring(replaced, arguments, _notes(changes))


def _notes(changes: Mapping[str, Collection[str]]) -> tuple[str, ...]:
    return tuple(f"{what}: {', '.join(names)}" for what, names in changes.items() if names)
