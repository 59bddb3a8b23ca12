"""One JSON value of an untrusted file at a time: of the right type and within its limits, or PackedFileError."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from typing import Any, TypeVar

from lrnets_runtime.errors import refuse, shown
from lrnets_runtime.graph import LARGEST, Shape

LONGEST_NAME = 200
MOST_DIMENSIONS = 8  # of a value, without the batch
LARGEST_FLOAT = float.fromhex("0x1.fffffep+127")  # float32's

T = TypeVar("T")


def fields(raw: object, where: str, required: Collection[str], optional: Collection[str] = ()) -> Mapping[str, Any]:
    """A JSON object with these keys and no others; the optional ones may be missing."""
    allowed = [*required, *optional]
    if not isinstance(raw, Mapping):
        raise refuse(where, f"is {shown(raw)}; must be an object with {', '.join(allowed)}")
    for key in required:
        if key not in raw:
            raise refuse(f"{where}: {key}", f"is missing; must have {', '.join(required)}")
    for key in raw:
        if key not in allowed:
            raise refuse(where, f"unknown field {shown(key)}; may have only {', '.join(allowed)}")
    return raw


def sequence(raw: object, where: str, *, fewest: int = 0, most: int) -> list[Any]:
    if not isinstance(raw, list) or not fewest <= len(raw) <= most:
        found = f"has {len(raw)} entries" if isinstance(raw, list) else f"is {shown(raw)}"
        raise refuse(where, f"{found}; must be a list of {fewest if fewest == most else f'{fewest} to {most}'}")
    return raw


def whole(raw: object, where: str, *, least: int = 0, most: int = LARGEST) -> int:
    if type(raw) is not int or not least <= raw <= most:  # a bool is an int to isinstance
        raise refuse(where, f"is {shown(raw)}; must be a whole number of {least} to {most}")
    return raw


def number(raw: object, where: str) -> float:
    """A finite number that float32 can hold, near enough; JSON writers may leave the point out of 1.0."""
    if not isinstance(raw, (int, float)) or isinstance(raw, bool) or not -LARGEST_FLOAT <= raw <= LARGEST_FLOAT:
        raise refuse(where, f"is {shown(raw)}; must be a number of at most {LARGEST_FLOAT:g} either side of 0")
    return float(raw)


def name_or_number(raw: object, where: str) -> str | float:
    """Of a tensor, or of all channels alike."""
    return name(raw, where) if isinstance(raw, str) else number(raw, where)


def truth(raw: object, where: str) -> bool:
    if not isinstance(raw, bool):
        raise refuse(where, f"is {shown(raw)}; must be true or false")
    return raw


def choice(raw: object, choices: Collection[str], where: str) -> str:
    if not isinstance(raw, str) or raw not in choices:
        raise refuse(where, f"is {shown(raw)}; this version knows {', '.join(choices)}; update lrnets-runtime")
    return raw


def name(raw: object, where: str) -> str:
    """A name that can be printed; `__metadata__` is safetensors' own."""
    if not isinstance(raw, str) or not 0 < len(raw) <= LONGEST_NAME or not raw.isprintable() or raw == "__metadata__":
        found = f"is {shown(raw)}" + (f" of {len(raw)} characters" if isinstance(raw, str) else "")
        raise refuse(where, f"{found}; must be a name of 1 to {LONGEST_NAME} printable characters, not __metadata__")
    return raw


def known(raw: object, made: Collection[str], where: str) -> str:
    if not isinstance(raw, str) or raw not in made:
        raise refuse(where, f"{shown(raw)} is not made before; nodes must be in the order of execution")
    return raw


def shape(raw: object, where: str) -> Shape:
    """At most MOST_DIMENSIONS sizes from 1 with a product of at most LARGEST."""
    sizes = tuple(whole(size, where, least=1) for size in sequence(raw, where, most=MOST_DIMENSIONS))
    count = 1
    for size in sizes:
        count *= size
    if count > LARGEST:
        raise refuse(where, f"{list(sizes)} has {count} elements; at most {LARGEST} are allowed")
    return sizes


def pair(least: int) -> Callable[[object, str], tuple[int, ...]]:
    return lambda raw, where: tuple(whole(size, where, least=least) for size in sequence(raw, where, fewest=2, most=2))


def optional(read: Callable[[object, str], T]) -> Callable[[object, str], T | None]:
    return lambda raw, where: None if raw is None else read(raw, where)
