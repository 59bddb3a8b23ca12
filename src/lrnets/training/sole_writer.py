"""One process at a time in a folder."""

from __future__ import annotations

import os
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

try:
    import fcntl
except ImportError:  # not on Windows, where nothing keeps a second process out
    fcntl = None  # type: ignore[assignment]

PATIENCE = 5.0  # seconds: a job that is restarted may start while the killed one is still going down


class BusyFolderError(OSError):
    """Another process has the folder."""


@contextmanager
def sole_writer(folder: Path) -> Iterator[None]:
    """Make the folder if need be, and keep it to this process; one that was made and stays empty is removed.

    It is the folder itself that is locked: the system lets go of it however the process ends, and no file is left.
    """
    made = not folder.exists()
    folder.mkdir(parents=True, exist_ok=True)
    handle = os.open(folder, os.O_RDONLY) if fcntl is not None else None
    try:
        if handle is not None:
            _lock(handle, folder)
        yield
    finally:
        if made:
            with suppress(OSError):  # it holds something
                folder.rmdir()
        if handle is not None:
            os.close(handle)


def _lock(handle: int, folder: Path) -> None:
    deadline = time.monotonic() + PATIENCE
    while True:
        try:
            return fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            if time.monotonic() > deadline:
                raise BusyFolderError(
                    f"another process is training in {folder}; wait for it, end it, or name another folder with --out"
                ) from None
            time.sleep(0.1)
        except OSError:  # a file system without locks
            return None
