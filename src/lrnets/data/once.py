"""What is computed once about a data set and kept, in our own folder: data are nobody's to write to."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Callable
from contextlib import ExitStack, suppress
from pathlib import Path

from lrnets.data.folder import data_folder
from lrnets.data.turns import turn
from lrnets.whole_files import write_whole


def once(root: Path, name: str, make: Callable[[], bytes]) -> bytes:
    """The content of a note about the data in `root`; made if it is not there, by one process while others wait.

    Notes are in `notes` in the folder of all data sets ($LRNETS_DATA or ~/.cache/lrnets). Where that cannot be written
    they are made each time.
    """
    path = data_folder() / "notes" / hashlib.sha256(os.fsencode(root.resolve())).hexdigest()[:16] / name
    with ExitStack() as stack:
        if not path.exists():
            try:
                path.parent.mkdir(parents=True, exist_ok=True)
                stack.enter_context(turn(path.with_name(f".{name}.lock")))
            except OSError:  # not ours to write to
                return make()
        if not path.exists():  # nor did another make it meanwhile
            content = make()
            with suppress(OSError):
                write_whole(path, content)
            return content
    return path.read_bytes()
