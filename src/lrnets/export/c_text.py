"""Pieces of C text: exact numbers, names that are safe, and the chosen sections of a template."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any

import numpy as np

from lrnets.export.coding import Array

WIDTH = 120
NAME = r"[A-Za-z]\w{0,49}"


def check_name(name: str) -> None:
    if not re.fullmatch(NAME, name, re.ASCII):
        raise ValueError(
            f"{name!r} cannot begin the names of C functions; use a letter, then letters, digits and _, 50 at most"
        )


def check_header_name(name: str) -> None:
    if not re.fullmatch(r"[\w+-][\w.+-]*", name, re.ASCII):
        raise ValueError(f"{name!r} is no file name for #include; use letters, digits and _ . + -, and no dot first")


def identifier(prefix: str, number: int, name: str) -> str:
    """A C identifier of its own, since numbered, in which a name is recognised."""
    return f"{prefix}{number}_{re.sub('[^A-Za-z0-9]+', '_', name)[:40].strip('_')}".rstrip("_")


def comment(text: str) -> str:
    """A text that ends no comment, and no line by a backslash or trigraph."""
    return re.sub(r"[^A-Za-z0-9 ._,()+-]", "_", text)


def select(template: str, features: set[str]) -> str:
    """The template without what stands between `#if HAS_A || HAS_B` and its #endif, if no feature asks for it."""
    kept = list[str]()
    open_ = list[bool | None]()  # whether each open #if of ours holds; None is C's own
    for line in template.splitlines():
        if line.startswith("#if"):
            ours = line.startswith("#if HAS_")
            open_.append(not features.isdisjoint(line.removeprefix("#if ").split(" || ")) if ours else None)
            if ours:
                continue
        elif line == "#else" and open_[-1] is not None:
            open_[-1] = not open_[-1]
            continue
        elif line == "#endif" and open_.pop() is not None:
            continue
        if False not in open_:
            kept.append(line)
    return re.sub(r"\n{3,}", "\n\n", "\n".join(kept)).rstrip() + "\n"


def number(value: float | np.floating) -> str:
    """A float32 as C has it, exactly."""
    value = float(np.float32(value))
    if value == int(value) and abs(value) < 10**6:
        return f"{value:.1f}f"
    mantissa, exponent = value.hex().split("p")
    return f"{mantissa.rstrip('0').rstrip('.')}p{exponent}f"


def filled(items: Sequence[str], indent: str = "    ") -> str:
    """Items with commas, in as few lines as hold them."""
    lines, line = [], indent
    for item in items:
        if len(line) + len(item) + 2 > WIDTH:
            lines.append(line.rstrip())
            line = indent
        line += f"{item}, "
    return "\n".join([*lines, line.rstrip()]) + "\n"


def constant(name: str, array: Array) -> str:
    kind = {"float32": "float", "int8": "int8_t", "uint8": "uint8_t"}[array.dtype.name]
    numbers = list(map(number if kind == "float" else str, array.reshape(-1).tolist()))
    return f"static const {kind} {name}[{array.size}] = {{\n{filled(numbers)}}};\n"


def initializer(value: Any) -> str:
    """A C initialiser."""
    if isinstance(value, (str, int)):
        return str(value)
    if isinstance(value, list):
        return f"{{{', '.join(map(initializer, value))}}}"
    if isinstance(value, dict):
        fields = ", ".join(f".{key} = {initializer(entry)}" for key, entry in value.items() if entry != {})
        return f"{{{fields or '0'}}}"
    return number(value)
