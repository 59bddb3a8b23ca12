"""Tar files of many images (webdataset's layout): key.jpg and key.cls, its class number, side by side.

A folder of a million files is slow to list and to read on the shared disks of clusters; a thousand tar files are not.
"""

from __future__ import annotations

import io
import os
import tarfile
import warnings
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path, PurePosixPath
from typing import IO

import numpy as np
import torch
from torch import Tensor

from lrnets.data.image_list import FileList, digest
from lrnets.data.once import once
from lrnets.data.pictures import SUFFIXES, shrunk
from lrnets.data.progress import Report
from lrnets.data.shuffle import permutation
from lrnets.whole_files import whole_file

AGAIN = "write the file again"
TOGETHER = 4  # shards whose images are shuffled among each other
ENOUGH = 100  # images, of which chance does not put those of a class together


class SortedShardsWarning(UserWarning):
    """Images of a class stand together in tar files, where a random order is relied on."""


@dataclass(frozen=True, eq=False)
class ShardList:
    """Images in tar files, by where their bytes begin; in the order of the files, which should be a random one."""

    files: tuple[Path, ...]
    keys: np.ndarray  # bytes
    labels: Tensor
    shards: Tensor
    offsets: np.ndarray  # int64
    sizes: np.ndarray  # int64
    stamp: str  # of the files: their names, sizes and times

    def name(self, image: int) -> str:
        return f"{self.files[int(self.shards[image])]}: {os.fsdecode(self.keys[image])}"

    def read(self, image: int) -> bytes:
        file = _opened(self.files[int(self.shards[image])], os.getpid())
        try:
            file.seek(self.offsets[image])
            return file.read(self.sizes[image])
        except OSError:
            _opened.cache_clear()  # whoever tries again opens it anew: of a disk that came back, old handles are stale
            raise

    def fingerprint(self) -> str:
        return self.stamp


@lru_cache(maxsize=2 * TOGETHER)
def _opened(path: Path, process: int) -> IO[bytes]:
    """A file of this process: one inherited from a parent would share its position."""
    return open(path, "rb")


def shard_files(root: Path, part: str) -> tuple[Path, ...]:
    """part-*.tar in a folder, by name."""
    return tuple(sorted(root.glob(f"{part}-*.tar")))


def list_shards(root: Path, part: str, report: Report) -> ShardList:
    """The images of all shards of a part; where they are is found out once and kept."""
    files = shard_files(root, part)
    stats = [(file.name, file.stat().st_size, file.stat().st_mtime_ns) for file in files]
    stamp = digest(np.array([os.fsencode(name) for name, _, _ in stats]), np.array([s[1:] for s in stats]))
    content = once(root, f"shards-{part}-{stamp}.npz", lambda: _index(files, report))
    with np.load(io.BytesIO(content), allow_pickle=False) as kept:
        found = {name: kept[name] for name in ("keys", "labels", "shards", "offsets", "sizes")}
    labels, shards = (torch.from_numpy(found.pop(name)) for name in ("labels", "shards"))
    return ShardList(files, labels=labels, shards=shards, stamp=stamp, **found)


def _index(files: Sequence[Path], report: Report) -> bytes:
    rows = []
    for shard, file in enumerate(files):
        rows += [(key, label, shard, offset, size) for key, label, offset, size in read_index(file)]
        report("looking into tar files", shard + 1, len(files))
    names, *numbers = zip(*rows)
    headings = ("labels", "shards", "offsets", "sizes")
    arrays = {name: np.array(values, np.int64) for name, values in zip(headings, numbers)}
    content = io.BytesIO()
    np.savez(content, keys=np.array(names), **arrays)  # type: ignore[arg-type]
    return content.getvalue()


def read_index(path: Path) -> list[tuple[bytes, int, int, int]]:
    """Key, class, offset and size of each image in a tar file."""
    images: dict[str, tuple[int, int]] = {}
    classes: dict[str, int] = {}
    dotted: dict[str, str] = {}  # images of which a part of the name counts as suffix
    try:
        with tarfile.open(path, "r:") as archive:
            for member in archive:
                key, dot, suffix = PurePosixPath(member.name).name.partition(".")
                key = str(PurePosixPath(member.name).with_name(key)) if key else ""
                if not key or not member.isreg() or member.sparse is not None:
                    continue
                if dot + suffix.lower() in SUFFIXES:
                    if key in images:
                        raise ValueError(f"{path}: {key} is there twice; {AGAIN}")
                    images[key] = (member.offset_data, member.size)
                elif suffix.lower() == "cls":
                    classes[key] = _class_number(archive, member, path)
                elif suffix.lower().endswith(SUFFIXES):
                    dotted.setdefault(key, member.name)
            ended = path.stat().st_size >= archive.offset + tarfile.BLOCKSIZE  # by zeros, or tarfile had complained
    except (tarfile.TarError, EOFError) as error:
        raise ValueError(f"{path}: not a whole, uncompressed tar file ({error}); {AGAIN}") from error
    if left_out := sorted(dotted.keys() - images.keys()):  # beside an image, it is something else about it
        raise ValueError(
            f"{path}: {dotted[left_out[0]]} has a dot in its name, and in this layout a name ends at the first one; "
            "write the tar file without such dots"
        )
    if lone := sorted(images.keys() ^ classes.keys()):
        missing = "image" if lone[0] in classes else "class (.cls)"
        raise ValueError(f"{path}: {lone[0]} has no {missing} beside it, {len(lone)} such in all; {AGAIN}")
    if not images:
        raise ValueError(f"{path}: no image ({', '.join(SUFFIXES)}) with a .cls file beside it; {AGAIN}")
    if not ended:
        raise ValueError(f"{path}: the file is cut short; {AGAIN}")
    return [(os.fsencode(key), classes[key], *place) for key, place in images.items()]


def _class_number(archive: tarfile.TarFile, member: tarfile.TarInfo, path: Path) -> int:
    stream = archive.extractfile(member)
    text = b"" if stream is None else stream.read(20)
    if not text.strip().isdigit():
        raise ValueError(f"{path}: {member.name} holds {text!r}, expected a class number from 0 on; {AGAIN}")
    return int(text)


def class_by_class(labels: Tensor) -> bool:
    """Whether images of a class stand together: neighbours are of one more often than (1 + c) / 2.

    In a random order they would be with chance c = sum_k (n_k / n)^2 (up to 1 / n), of n_k images in class k.
    """
    if len(labels) < ENOUGH:
        return False
    by_chance = (torch.bincount(labels).double() / len(labels)).square().sum()
    return bool((labels[1:] == labels[:-1]).double().mean() > (1 + by_chance) / 2)


def order_by_shards(shards: Tensor, seed: int, epoch: int, *, batch_size: int, world: int) -> Tensor:
    """All places in an order in which each process reads shards of its own, a few at a time, images shuffled.

    Shards are dealt out in a random order, each to the process that has the fewest images so far; what one has too many
    in the end goes to those that have too few. `shards` has the shard of each place, (n,).
    """
    count = len(shards)
    keys = permutation(count, seed, epoch)
    numbers = shards.unique()
    hands: list[list[Tensor]] = [[] for _ in range(world)]
    held = [0] * world
    by_shard = shards.argsort(stable=True).split(torch.bincount(shards)[numbers].tolist())
    for number in permutation(len(numbers), seed, epoch, 1).tolist():
        least = held.index(min(held))
        hands[least].append(by_shard[number])
        held[least] += len(by_shard[number])
    streams = [torch.cat([torch.empty(0, dtype=torch.long), *_shuffled(hand, keys)]) for hand in hands]
    whole, rest = divmod(count, batch_size * world)
    ends = [rest * rank // world for rank in range(world + 1)]
    wanted = [whole * batch_size + ends[rank + 1] - ends[rank] for rank in range(world)]
    spare = torch.cat([stream[size:] for stream, size in zip(streams, wanted)])
    even = []
    for stream, size in zip(streams, wanted):
        lacking = size - min(size, len(stream))
        even.append(torch.cat([stream[:size], spare[:lacking]]))
        spare = spare[lacking:]
    steps = torch.stack([stream[: whole * batch_size] for stream in even]).view(world, whole, batch_size)
    return torch.cat([steps.transpose(0, 1).reshape(-1), *(stream[whole * batch_size :] for stream in even)])


def _shuffled(hand: Sequence[Tensor], keys: Tensor) -> Iterator[Tensor]:
    for first in range(0, len(hand), TOGETHER):
        places = torch.cat(list(hand[first : first + TOGETHER]))
        yield places[keys[places].argsort()]


def write_shards(
    images: FileList, root: Path, part: str, report: Report,
    *, images_each: int = 1000, shorter: int | None = None, workers: int = 1,
) -> None:  # fmt: skip
    """Write images as part-000000.tar and so on, in the list's order.

    With `shorter` they are shrunk to so many pixels of their shorter side, by `workers` threads (Pillow lets go of
    Python's lock while it decodes and scales).
    """
    root.mkdir(parents=True, exist_ok=True)
    count = len(images.labels)

    def stored(image: int) -> tuple[str, bytes]:
        content = images.read(image)
        smaller = content if shorter is None else shrunk(content, shorter)
        return Path(images.name(image)).suffix.lower() if smaller is content else ".jpg", smaller

    # Decoding ignores warnings for a moment, of all threads: they are as before only once all threads are done.
    with warnings.catch_warnings(), ThreadPoolExecutor(max(1, workers)) as pool:
        for shard, first in enumerate(range(0, count, images_each)):
            target, last = root / f"{part}-{shard:06d}.tar", min(count, first + images_each)
            with (
                whole_file(target) as temporary,
                tarfile.open(temporary, "w:", format=tarfile.USTAR_FORMAT) as archive,
            ):
                for image, (suffix, picture) in zip(range(first, last), pool.map(stored, range(first, last))):
                    for ending, content in ((suffix, picture), (".cls", b"%d" % int(images.labels[image]))):
                        member = tarfile.TarInfo(f"{image:08d}{ending}")
                        member.size = len(content)
                        archive.addfile(member, io.BytesIO(content))
            report(f"writing {part} shards", last, count)
