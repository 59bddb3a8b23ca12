"""Whether two recipes train the same thing."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict
from typing import Any

from lrnets.training.recipe import Recipe

WITHOUT_EFFECT = ("name", "about", "cost", "data_options.damaged_share")  # on what is trained: words, and a limit


def settings_difference(old: Recipe, new: Recipe) -> str:
    """The settings in which two recipes differ, with both values; empty if they train the same thing."""
    there, asked = _flat(asdict(old)), _flat(asdict(new))
    return ", ".join(
        f"{key}: {there.get(key)} there, {asked.get(key)} asked for"
        for key in dict.fromkeys([*there, *asked])
        if key not in WITHOUT_EFFECT and there.get(key) != asked.get(key)
    )


def _flat(settings: Mapping[str, Any], prefix: str = "") -> dict[str, Any]:
    """Nested settings by dotted names."""
    flat: dict[str, Any] = {}
    for key, value in settings.items():
        flat |= _flat(value, f"{prefix}{key}.") if isinstance(value, Mapping) else {f"{prefix}{key}": value}
    return flat
