"""One process after the other, of those that were started at once."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path

try:
    import fcntl
except ImportError:  # Windows: all at once
    fcntl = None  # type: ignore[assignment]


@contextmanager
def turn(path: Path) -> Iterator[None]:
    """Be alone at a folder, or at a file, which is made; where the file system has no locks, nobody waits."""
    with ExitStack() as stack:
        if fcntl is not None:
            handle = os.open(path, os.O_RDONLY if path.is_dir() else os.O_RDWR | os.O_CREAT, 0o666)
            stack.callback(os.close, handle)  # gives the turn away
            with suppress(OSError):  # as on some clusters
                fcntl.flock(handle, fcntl.LOCK_EX)
        yield
