"""How errors name what they were given."""

from __future__ import annotations


def describe(value: object) -> str:
    """A value with its type, short enough for one line: `42 (int)`."""
    text = repr(value)
    if len(text) > 60:
        text = text[:57] + "..."
    return f"{text} ({type(value).__name__})"
