"""The state dict of a network that somebody saved whole, with torch.save(net, path); nothing of it is run.

Such a file names classes and has objects of them built. Torch's own restricted reader builds tensors and containers
alone, unless told of more; here every further name leads to one inert class, which keeps what it is given.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from lrnets.data.pickles import Inert

PARTS = {"_parameters", "_buffers", "_modules"}
DEEPEST = 100  # modules in modules


def inert_content(path: Path) -> Any:
    """What a file of torch.save holds, with an `Inert` for each object that is neither tensor, container nor number."""
    names = torch.serialization.get_unsafe_globals_in_checkpoint(path)
    with torch.serialization.safe_globals([(Inert, name) for name in names]):
        return torch.load(path, map_location="cpu", weights_only=True)


def is_module(content: Any) -> bool:
    """Whether an object was a torch.nn.Module, by what it holds."""
    return isinstance(content, Inert) and isinstance(content.state, dict) and content.state.keys() >= PARTS


def module_state(module: Any) -> dict[str, Tensor]:
    """Names and tensors of an inert torch.nn.Module, as its state_dict() would give them."""
    return dict(_state(module, ""))


def _state(module: Any, prefix: str) -> Iterator[tuple[str, Tensor]]:
    """Parameters, persistent buffers and those of the modules inside, from what a module's pickle holds."""
    if not is_module(module):
        raise ValueError(f"{prefix.rstrip('.')} is no torch.nn.Module")
    if prefix.count(".") > DEEPEST:
        raise ValueError(f"modules in more than {DEEPEST} modules")
    state = module.state
    passing = state.get("_non_persistent_buffers_set", ())
    own = {**state["_parameters"], **{k: v for k, v in state["_buffers"].items() if k not in passing}}
    for name, tensor in own.items():
        if tensor is not None:
            if not isinstance(tensor, Tensor):
                raise ValueError(f"{prefix}{name} is no tensor")
            yield f"{prefix}{name}", tensor.detach()
    for name, child in state["_modules"].items():
        if child is not None:
            yield from _state(child, f"{prefix}{name}.")
