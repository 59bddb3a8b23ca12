"""Numbers in sentences."""

from __future__ import annotations


def counted(count: int, one: str, many: str = "") -> str:
    """A number with its noun: 1 epoch, 2 epochs; `many` where an s is not enough."""
    return f"{count:,} {one if count == 1 else many or one + 's'}"
