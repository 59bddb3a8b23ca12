"""Memory shared by what is not needed at the same time."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple


class Span(NamedTuple):
    """So many bytes, needed from one step to another, both included."""

    bytes: int
    first: int
    last: int


def place(spans: Sequence[Span]) -> tuple[list[int], int]:
    """The lowest offset for each, the largest first, where nothing lies that is needed meanwhile; and the bytes of all.

    Large ones first leave fewer gaps. Offsets are sums of sizes: aligned if all sizes are.
    """
    offsets: dict[int, int] = {}
    for number in sorted(range(len(spans)), key=lambda number: -spans[number].bytes):
        span, offset = spans[number], 0
        for other, start in sorted(offsets.items(), key=lambda item: item[1]):
            there = spans[other]
            together = span.first <= there.last and there.first <= span.last
            if together and offset < start + there.bytes and start < offset + span.bytes:
                offset = start + there.bytes
        offsets[number] = offset
    total = max((offset + spans[number].bytes for number, offset in offsets.items()), default=0)
    return [offsets[number] for number in range(len(spans))], total
