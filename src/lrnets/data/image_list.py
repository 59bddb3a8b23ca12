"""Which images there are on disk, and their bytes."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

import numpy as np
import torch
from torch import Tensor

from lrnets.data.pictures import SUFFIXES
from lrnets.data.shuffle import permutation
from lrnets.data.splits import SPLIT_SEED

STAMPED = 1000  # files whose sizes and times tell new images under old names; shared disks take minutes for a million


class ImageList(Protocol):
    """Images by number. Names are in arrays: lists of 1.3 million strings would be copied into every worker."""

    @property
    def labels(self) -> Tensor:
        """Classes, int64 (n,)."""

    @property
    def shards(self) -> Tensor | None:
        """The number of the file that an image is in, int64 (n,), if there are files of many images."""

    def name(self, image: int) -> str:
        """Where an image is, for people."""

    def read(self, image: int) -> bytes:
        """Its content."""

    def fingerprint(self) -> str:
        """Another text for another list, and for other images under the same names."""


@dataclass(frozen=True, eq=False)
class FileList:
    """Images in files of their own: folder/<class>/<file>."""

    folder: Path
    files: np.ndarray  # paths below the folder, bytes
    labels: Tensor
    shards: Tensor | None = None

    def name(self, image: int) -> str:
        return os.path.join(self.folder, os.fsdecode(self.files[image]))

    def read(self, image: int) -> bytes:
        with open(self.name(image), "rb") as file:
            return file.read()

    def fingerprint(self) -> str:
        stamps = [_stamp(self.name(image)) for image in range(min(STAMPED, len(self.files)))]
        return digest(self.files, self.labels.numpy(), np.array(stamps))


def _stamp(path: str) -> tuple[int, int]:
    """A file's size and time; of a link that leads nowhere none."""
    try:
        found = os.stat(path)
    except FileNotFoundError:
        return 0, 0
    return found.st_size, found.st_mtime_ns


def digest(names: np.ndarray, *numbers: np.ndarray) -> str:
    """A short hash of names and whole numbers."""
    content = b"\0".join(names.tolist()) + b"".join(array.astype("<i8").tobytes() for array in numbers)
    return hashlib.sha256(content).hexdigest()[:16]


def class_folders(folder: Path) -> tuple[str, ...]:
    """Names of the folders in a folder, sorted; hidden ones do not count."""
    with os.scandir(folder) as entries:
        return tuple(sorted(e.name for e in entries if e.is_dir() and not e.name.startswith(".")))


def list_files(folder: Path, classes: Sequence[str], *, all_needed: bool = True) -> FileList:
    """The JPEG and PNG files of all class folders, in a fixed random order: the first n are a fair sample of all."""
    files: list[bytes] = []
    labels: list[int] = []
    for label, name in enumerate(classes):
        found = _pictures(folder / name) if all_needed or (folder / name).is_dir() else []
        if not found and all_needed:
            raise ValueError(
                f"{folder / name} holds no image ({', '.join(SUFFIXES)}); bring its images, or remove the folder"
            )
        files += [os.fsencode(f"{name}/{file}") for file in found]
        labels += [label] * len(found)
    if not files:
        raise ValueError(f"{folder} holds no image ({', '.join(SUFFIXES)}) in any class folder")
    order = permutation(len(files), SPLIT_SEED)
    return FileList(folder, np.array(files)[order.numpy()], torch.tensor(labels)[order])


def _pictures(folder: Path) -> list[str]:
    """Names of the images in a folder; a link that leads nowhere is one that cannot be read, to be reported as such."""
    with os.scandir(folder) as entries:
        return sorted(
            e.name for e in entries
            if e.name.lower().endswith(SUFFIXES) and not e.name.startswith(".")
            and (e.is_file() or (e.is_symlink() and not os.path.exists(e.path)))
        )  # fmt: skip
