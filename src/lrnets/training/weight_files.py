"""State dicts from files: our own, and checkpoints as others save them. Nothing is unpickled."""

from __future__ import annotations

import pickle
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from lrnets.training.pickled_module import inert_content, is_module, module_state

WRAPPERS = ("state_dict", "model", "model_state_dict")  # where training scripts put the network in a checkpoint
PREFIXES = ("module.", "_orig_mod.", "model.")  # of DataParallel and DDP, torch.compile, Lightning modules
SHOWN = 3  # names in an error


def read_weights(path: Path) -> dict[str, Tensor]:
    """A state dict from safetensors, or from what torch.save wrote: a state dict, a checkpoint, a whole network."""
    if not path.is_file():
        raise FileNotFoundError(f"no weights in {path}")
    if path.suffix == ".safetensors":
        from safetensors import SafetensorError
        from safetensors.torch import load_file

        try:
            return load_file(path)
        except SafetensorError as error:
            raise ValueError(f"{path} is damaged or cut short ({error}); copy or make it anew") from error
    try:
        state = _state_in(_torch_content(path))
    except OSError:
        raise
    except Exception as error:  # a file of another kind, or a damaged one, may fail in any way
        first = str(error).partition("\n")[0]
        raise ValueError(
            f"{path} cannot be read as a file of torch.save ({type(error).__name__}: {first}); is it whole? Copy it "
            "again, or save it with torch.save(net.state_dict(), path)"
        ) from error
    if state is None:
        raise ValueError(
            f"{path} holds neither a state dict (names with tensors) nor a whole network, and has none under "
            f"{', '.join(map(repr, WRAPPERS))}; save it with torch.save(net.state_dict(), path)"
        )
    return state


def load_init(model: nn.Module, path: Path) -> None:
    """Give a network the weights of a file, which must be those of the same network, in whatever wrapping."""
    state = read_weights(path)
    expected = model.state_dict()
    for prefix in 2 * PREFIXES:  # in either order
        if all(name.startswith(prefix) for name in state) and not any(name.startswith(prefix) for name in expected):
            state = {name.removeprefix(prefix): tensor for name, tensor in state.items()}
    try:
        model.load_state_dict(state)
    except RuntimeError as error:
        raise ValueError(f"{path} does not fit the network: {_misfit(state, expected)}") from error
    for name, tensor in model.state_dict().items():
        if bad := int((~tensor.isfinite()).sum()):
            raise ValueError(
                f"{path}: {bad} of the {tensor.numel()} numbers of {name} are NaN or infinite, as of a network that "
                "diverged; name an earlier checkpoint"
            )


def _torch_content(path: Path) -> Any:
    """What torch.save wrote, all but tensors, containers and numbers inert."""
    try:
        return torch.load(path, map_location="cpu", weights_only=True)
    except pickle.UnpicklingError:  # it names classes
        return inert_content(path)


def _state_in(content: Any) -> dict[str, Tensor] | None:
    """The state dict that a file holds, as it is or in a checkpoint of more; None if there is none."""
    inside = [content[key] for key in WRAPPERS if key in content] if isinstance(content, Mapping) else []
    for candidate in (content, *inside):
        if is_module(candidate):
            return module_state(candidate)
        if isinstance(candidate, Mapping) and candidate and all(isinstance(v, Tensor) for v in candidate.values()):
            return {str(name): tensor for name, tensor in candidate.items()}
    return None


def _misfit(state: Mapping[str, Tensor], expected: Mapping[str, Tensor]) -> str:
    """In words, what a file has otherwise than a network, and what to do."""
    shapes = [
        f"{name} is {_shape(state[name])} there and {_shape(expected[name])} here"
        for name in expected
        if name in state and state[name].shape != expected[name].shape
    ]
    if (
        shapes
        and state.keys() == expected.keys()
        and all(state[name].shape[1:] == expected[name].shape[1:] for name in expected)
    ):
        remedy = "for another number of classes, --set classes=... as in the file"
    else:
        remedy = "name the network it belongs to (--set network=...), or a file of this one"
    lacking, unknown = sorted(expected.keys() - state.keys()), sorted(state.keys() - expected.keys())
    words = [*_first(shapes), *_first(lacking, "lacks "), *_first(unknown, "has besides ")]
    return f"{'; '.join(words)}; {remedy}"


def _first(names: list[str], before: str = "") -> list[str]:
    more = f" and {len(names) - SHOWN} more" if len(names) > SHOWN else ""
    return [f"{before}{', '.join(names[:SHOWN])}{more}"] if names else []


def _shape(tensor: Tensor) -> str:
    return "x".join(map(str, tensor.shape)) or "a number"
