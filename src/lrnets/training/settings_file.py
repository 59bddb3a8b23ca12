"""YAML files of settings: those that come with lrnets, by name, and anybody's own, by path."""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING, Any

import yaml

if TYPE_CHECKING:  # stands elsewhere in Python 3.10
    from importlib.resources.abc import Traversable


def shipped(folder: Traversable) -> list[str]:
    """Names of the files in a folder of ours."""
    return sorted(file.name.removesuffix(".yaml") for file in folder.iterdir() if file.name.endswith(".yaml"))


def read_settings(kind: str, source: str | os.PathLike[str], folder: Traversable) -> tuple[Any, str]:
    """What a file says, and its name; `source` is a name in our folder or a path, `kind` is for error messages."""
    text = str(source)
    if text in shipped(folder):
        content, name = folder.joinpath(f"{text}.yaml").read_text(), text
    elif Path(text).is_file():
        content, name = Path(text).read_text(), Path(text).stem
    else:
        raise ValueError(f"no {kind} {text!r}, neither a file nor one of {', '.join(shipped(folder))}")
    try:
        return yaml.safe_load(content), name
    except yaml.YAMLError as error:
        raise ValueError(f"{kind} {text!r} is not YAML: {error}") from error
