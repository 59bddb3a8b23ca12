"""A figure that may turn out to be impossible."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

from lrnets.figures.figure import Figure


class Task(NamedTuple):
    """A figure's name and how to make it; `make` raises an OSError, ValueError or RuntimeError with the reason."""

    name: str
    make: Callable[[], Figure]
