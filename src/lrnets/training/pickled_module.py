"""The state dict of a network that somebody saved whole, with torch.save(net, path); nothing of it is run.

Such a file names classes and has objects of them built. Torch's own restricted reader builds tensors and containers
alone, unless told of more; here every further name leads to one inert class, which keeps what it is given.
"""

from __future__ import annotations

import pickle
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from lrnets.data.pickles import Inert

DEEPEST = 100  # modules in modules


def pickled_state(path: Path) -> dict[str, Tensor]:
    """Names and tensors of a pickled torch.nn.Module, as its state_dict() would give them."""
    try:
        names = torch.serialization.get_unsafe_globals_in_checkpoint(path)
        with torch.serialization.safe_globals([(Inert, name) for name in names]):
            content = torch.load(path, map_location="cpu", weights_only=True)
        return dict(_state(content, ""))
    except (pickle.UnpicklingError, AttributeError, KeyError, RuntimeError, TypeError, ValueError) as error:
        first = str(error).partition("\n")[0]
        raise ValueError(
            f"{path} holds neither a state dict nor a whole network ({type(error).__name__}: {first}); save it with "
            "torch.save(net.state_dict(), path)"
        ) from error


def _state(module: Any, prefix: str) -> Iterator[tuple[str, Tensor]]:
    """Parameters, persistent buffers and those of the modules inside, from what a module's pickle holds."""
    if not isinstance(module, Inert) or not isinstance(module.state, dict):
        raise ValueError(f"{prefix.rstrip('.') or 'the content'} is no torch.nn.Module")
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
