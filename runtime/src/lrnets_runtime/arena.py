"""Memory shared by what is not needed at the same time."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np


class Span(NamedTuple):
    """So many bytes, needed from one step to another, both included."""

    bytes: int
    first: int
    last: int


def place(spans: Sequence[Span]) -> tuple[list[int], int]:
    """The lowest offset for each, the largest first, where nothing lies that is needed meanwhile; and the bytes of all.

    Large ones first leave fewer gaps. Offsets are sums of sizes: aligned if all sizes are.
    """
    offsets = [0] * len(spans)
    placed = np.empty((4, 0), np.int64)  # first step, last step, start and end of each, by start
    for number in sorted(range(len(spans)), key=lambda number: -spans[number].bytes):
        span = spans[number]
        _, _, starts, ends = placed[:, (placed[0] <= span.last) & (placed[1] >= span.first)]
        taken = np.maximum.accumulate(np.concatenate(([0], ends)))  # up to where, before each of them and after all
        gaps = np.flatnonzero(starts >= taken[:-1] + span.bytes)
        offset = offsets[number] = int(taken[gaps[0] if len(gaps) else -1])
        column = [span.first, span.last, offset, offset + span.bytes]
        placed = np.insert(placed, np.searchsorted(placed[2], offset), column, axis=1)
    return offsets, int(placed[3].max(initial=0))
