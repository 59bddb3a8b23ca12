"""Files and folders that are whole or not there: written under another name, and renamed when all is well."""

from __future__ import annotations

import os
import secrets
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path


@contextmanager
def whole_file(target: Path) -> Iterator[Path]:
    """A temporary name beside the target, to be written to; it becomes the target's, or nothing is left of it."""
    temporary = temporary_beside(target)
    try:
        yield temporary
        os.replace(temporary, target)
    finally:
        temporary.unlink(missing_ok=True)


@contextmanager
def whole_folder(target: Path) -> Iterator[Path]:
    """A temporary folder beside the target, to be filled; it becomes the target, or nothing is left of it."""
    if target.exists() and (not target.is_dir() or any(target.iterdir())):
        raise FileExistsError(f"{target} is there already; name another folder, or remove it")
    temporary = temporary_beside(target)
    temporary.mkdir(parents=True)
    try:
        yield temporary
        os.replace(temporary, target)
    finally:
        shutil.rmtree(temporary, ignore_errors=True)


def write_whole(target: Path, content: bytes) -> None:
    """Write a file, whole or not at all."""
    with whole_file(target) as temporary:
        temporary.write_bytes(content)


def temporary_beside(target: Path) -> Path:
    """A name that nobody else has, in the same folder and so on the same disk."""
    return target.with_name(f".{target.name[:100]}.{secrets.token_hex(4)}.part")
