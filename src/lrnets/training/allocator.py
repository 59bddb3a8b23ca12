"""Memory of freed tensors kept for the next step, instead of given back to the system."""

from __future__ import annotations

import ctypes
import os
import sys

TRIM_THRESHOLD, MMAP_MAX = -1, -4  # of malloc.h, for mallopt


def keep_freed_memory() -> bool:
    """Let this process reuse what it frees, however large; says whether that could be arranged.

    glibc takes large blocks from the system and returns them when they are freed, so that a training step on a CPU
    touches fresh pages, which the system has to clear, for each activation and gradient (benchmarks/freed_memory.py).
    What MALLOC_* variables of the environment say is left alone, and so are other systems and C libraries.
    """
    if sys.platform != "linux" or any(name.startswith("MALLOC_") for name in os.environ):
        return False
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None)  # musl has none
    return mallopt is not None and bool(mallopt(MMAP_MAX, 0) and mallopt(TRIM_THRESHOLD, -1))
