"""Numbers too small for a float's full precision, taken as 0 while a network trains on CPUs."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import torch


@contextmanager
def flushed_denormals() -> Iterator[None]:
    """Take denormal numbers as 0 in this thread and in those it starts meanwhile, as torch's do on their first work.

    Once a weight has decided, its variance is next to nothing: sharpened by 100, a thousandth of them are below 1e-38
    and not yet 0, and a CPU takes a hundred cycles for a product of such a number (benchmarks/denormals.py).
    """
    before = _flushes()
    torch.set_flush_denormal(True)  # says False, and does nothing, on CPUs that cannot
    try:
        yield
    finally:
        torch.set_flush_denormal(before)


def _flushes() -> bool:
    smallest_normal = torch.tensor(torch.finfo(torch.float32).tiny)
    return (smallest_normal / 2).item() == 0
