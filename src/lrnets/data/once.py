"""What is computed once about a data set and kept, in our own folder: data are nobody's to write to."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from lrnets.data.folder import data_folder
from lrnets.whole_files import write_whole

try:
    import fcntl
except ImportError:  # Windows: two processes at once both compute
    fcntl = None  # type: ignore[assignment]


def once(root: Path, name: str, make: Callable[[], bytes]) -> bytes:
    """The content of a note about the data in `root`; made if it is not there, by one process while others wait.

    Notes are in `notes` in the folder of all data sets ($LRNETS_DATA or ~/.cache/lrnets). Where that cannot be written
    they are made each time.
    """
    path = data_folder() / "notes" / hashlib.sha256(os.fsencode(root.resolve())).hexdigest()[:16] / name
    if not path.exists():
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
        except OSError:
            return make()
        with _turn(path):
            if not path.exists():
                write_whole(path, make())
    return path.read_bytes()


@contextmanager
def _turn(path: Path) -> Iterator[None]:
    """Be alone at a file, if the file system can do that; where it cannot, everybody makes the same."""
    with open(path.with_name(f".{path.name}.lock"), "wb") as lock:
        if fcntl is not None:
            with suppress(OSError):  # some cluster file systems have no locks
                fcntl.flock(lock, fcntl.LOCK_EX)
        yield  # closing the file gives the turn away
