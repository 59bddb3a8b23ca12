"""What jsonargparse says of an impossible recipe, in a line that names setting, value and what it may be."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import fields, is_dataclass
from typing import Any, get_args, get_type_hints

TYPES = {"int": "a whole number", "float": "a number", "bool": "true or false", "tuple": "a list", "str": "a text"}
NO_REASONS = ("Expected a", "Problem with", "Does not validate", "Not a valid subclass")  # lines that say nothing new


def in_short(message: str, recipe: type) -> str:
    """The message without subtypes, classes and all other settings; as it is where nothing of that is in it."""
    path = re.findall(r"(?:Parser key \"|Group ')([\w.]+)['\"]", message)
    unknown = re.search(r"(?:not accept option '([\w.]+)'|Option '([\w.]+)' is not accepted)", message)
    if unknown:
        name = ".".join([*path, unknown[1] or unknown[2]])
        return f"there is no setting {name}; there are {', '.join(_settings_at(recipe, path))}"
    for reason in re.findall(r"^ +- (.+)$", message, re.MULTILINE):
        if not path and not reason.startswith(NO_REASONS):  # of our own checks, which name the setting themselves
            return str(reason)
    kinds = re.findall(r"Expected a (.+?)(?:\. Got value: .*)?$", message, re.MULTILINE)
    expected = [word for kind in kinds if (word := _in_words(kind))] or ["a group of settings"]
    got = re.search(r"(?:Got|Given) value: (.*)$", message, re.MULTILINE)  # the innermost is first
    if path and got:
        return f"{'.'.join(path)} must be {' or '.join(expected)}, got {got[1]}"
    return message


def forgotten(raw: Mapping[str, Any], recipe: type) -> str | None:
    """Name of a setting without a value ("lr:" in YAML), unless none is one of its values; the parser lets it pass."""
    for name, hint in get_type_hints(recipe).items():
        if name in raw and raw[name] is None and type(None) not in get_args(hint):
            return name
        group = _group(hint) if isinstance(raw.get(name), Mapping) else None
        if group is not None and (inside := forgotten(raw[name], group)):
            return f"{name}.{inside}"
    return None


def _in_words(kind: str) -> str:
    """What "<class 'int'>" or "typing.Literal['step', 'one-cycle']" is to those who write YAML; nothing for None."""
    if kind.startswith("typing.Literal"):
        return " or ".join(re.findall(r"'([^']*)'", kind))
    name = kind.removeprefix("<class '").removesuffix("'>")
    return "" if name == "NoneType" else TYPES.get(name, name)


def _settings_at(group: type, path: list[str]) -> list[str]:
    """Names of the settings in the group at this path."""
    for name in ".".join(path).split(".") if path else []:
        group = _group(get_type_hints(group)[name]) or group
    return [entry.name for entry in fields(group)]


def _group(hint: Any) -> type | None:
    """The class of a group of settings, if a setting is one."""
    return next((kind for kind in (hint, *get_args(hint)) if is_dataclass(kind)), None)  # type: ignore[return-value]
