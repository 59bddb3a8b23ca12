"""The local folder: where it is, what lies in it, and how a file gets there whole or not at all."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from tempfile import TemporaryDirectory

from lrnets.data.formats import AGAIN, Examples
from lrnets.data.known import DataSet, File, Form

VARIABLE = "LRNETS_DATA"
DEFAULT = "~/.cache/lrnets"


def data_folder(data_dir: str | os.PathLike[str] | None = None) -> Path:
    """The folder of all data sets: `data_dir`, else $LRNETS_DATA, else ~/.cache/lrnets."""
    return Path(data_dir or os.environ.get(VARIABLE) or DEFAULT).expanduser()


def verified(content: bytes, checksum: str, name: str) -> bytes:
    """The content, if its checksum ("md5:..." or "sha256:...") is the known one."""
    algorithm, expected = checksum.split(":")
    found = hashlib.new(algorithm, content, usedforsecurity=False).hexdigest()
    if found != expected:
        raise ValueError(f"{name}: {algorithm} {found} of {len(content)} bytes, expected {expected}; {AGAIN}")
    return content


def read_file(data_set: DataSet, file: File, root: Path) -> bytes:
    """The verified plain content of an official file, in whatever form and place it lies below `root`.

    A damaged copy is passed over as long as there is a good one.
    """
    damaged = []
    for path, form in _places(data_set, file, root):
        if path.is_file():
            try:
                return form.decode(verified(path.read_bytes(), form.checksum, str(path)), str(path))
            except ValueError as error:
                damaged.append(error)
    if damaged:
        raise damaged[0]
    raise FileNotFoundError(f"{' or '.join(form.name for form in file.forms)} not found in {root}")


def read_examples(data_set: DataSet, files: tuple[File, ...], root: Path) -> Examples:
    """Images and labels of some files (the train or the test files) of a data set."""
    return data_set.parse([read_file(data_set, file, root) for file in files], f"{data_set.name} in {root}")


def _places(data_set: DataSet, file: File, root: Path) -> Iterator[tuple[Path, Form]]:
    for base in (root / data_set.name, root):
        for folder in ("", *data_set.folders):
            for form in file.forms:
                yield base / folder / form.name, form


@contextmanager
def workshop(target: Path) -> Iterator[Path]:
    """A temporary folder inside `target`, which is made if need be; what is left empty in the end goes away again."""
    made = [folder for folder in (target, *target.parents) if not folder.exists()]
    target.mkdir(parents=True, exist_ok=True)
    try:
        with TemporaryDirectory(prefix=".fetch-", dir=target) as folder:
            yield Path(folder)
    finally:
        for folder_made in made:
            with suppress(OSError):  # it holds something
                folder_made.rmdir()


def store(content: bytes, target: Path, shop: Path) -> None:
    """Write a file under a temporary name in the workshop, on the same disk, then rename it."""
    temporary = shop / f"{target.name}.part"
    temporary.write_bytes(content)
    temporary.replace(target)
