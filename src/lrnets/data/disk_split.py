"""A split on disk: its images are decoded in worker processes when they are taken."""

from __future__ import annotations

import warnings
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field, replace
from itertools import tee

import numpy as np
import torch
from torch import Tensor
from torch.utils.data import DataLoader, Dataset

from lrnets.data.image_list import ImageList
from lrnets.data.pictures import DamagedImageError, View
from lrnets.data.shards import order_by_shards
from lrnets.data.shuffle import mix, permutation

PIECE = 64  # images that a worker decodes at a time
AHEAD = 2  # such pieces that wait for each worker's turn


class DamagedImageWarning(UserWarning):
    """An image was left out, since it cannot be read."""


@dataclass(eq=False)
class Damaged:
    """What could not be read, by name; more than `share` of all images is an error."""

    total: int
    share: float
    reasons: dict[str, str] = field(default_factory=dict)

    def note(self, found: Iterable[tuple[str, str]]) -> None:
        for name, reason in found:
            if name not in self.reasons:
                self.reasons[name] = reason
                warnings.warn(f"{name}: cannot be read and is left out ({reason})", DamagedImageWarning, stacklevel=2)
        if len(self.reasons) > self.share * self.total:
            some = "\n  ".join(f"{name}: {reason}" for name, reason in list(self.reasons.items())[:5])
            raise ValueError(
                f"{len(self.reasons)} of {self.total} images cannot be read, more than the {100 * self.share:g} % that "
                f"may be left out (damaged_share); bring them anew or remove them, the first are\n  {some}"
            )


@dataclass(frozen=True, eq=False)
class DiskSplit:
    """Some of the images of a list, by their numbers `index`, seen through `view`.

    `workers` processes decode them, 0 for this one. What they are does not depend on how many there are.
    """

    images: ImageList
    index: Tensor
    view: View
    workers: int
    damaged: Damaged

    @property
    def labels(self) -> Tensor:
        return self.images.labels[self.index]

    @property
    def shape(self) -> tuple[int, ...]:
        return (3, self.view.size, self.view.size)

    def __len__(self) -> int:
        return len(self.index)

    def __getitem__(self, index: Tensor | slice) -> DiskSplit:
        """Some of the examples."""
        return replace(self, index=self.index[index])

    def order(self, seed: int, epoch: int, *, batch_size: int, world: int) -> Tensor:
        """All places shuffled; of shards, so that each process reads its own."""
        if self.images.shards is None:
            return permutation(len(self), seed, epoch)
        return order_by_shards(self.images.shards[self.index], seed, epoch, batch_size=batch_size, world=world)

    def take(self, groups: Iterable[Tensor], noise: int | None = None) -> Iterator[tuple[Tensor, Tensor]]:
        """Images, uint8 (g, 3, size, size), and labels (g,) for each group of places; without those that are damaged.

        With `noise` image i is cut and mirrored by mix(noise, i), whichever worker does it. Groups may be endless: they
        are looked at when workers have time for them.
        """
        numbers, ahead = tee(self.index[group] for group in groups)
        pieces = (piece for group in ahead for piece in group.split(PIECE))
        loader = DataLoader(
            _Decoder(self.images, self.view, noise), batch_size=None, sampler=pieces, collate_fn=_as_it_is,
            num_workers=self.workers, prefetch_factor=AHEAD if self.workers else None,
            pin_memory=torch.cuda.is_available(), generator=torch.Generator(),  # leaves the global one alone
        )  # fmt: skip
        decoded = iter(loader)
        for group in numbers:
            parts = [_unless_lost(next(decoded)) for _ in group.split(PIECE)]
            for _, _, found in parts:
                self.damaged.note(found)
            images = torch.cat([images for images, _, _ in parts])
            if not len(images) and len(group):
                raise ValueError(
                    f"a whole batch of {len(group)} images cannot be read, {self.images.name(int(group[0]))} first"
                )
            yield images, torch.cat([labels for _, labels, _ in parts])


Piece = tuple[Tensor, Tensor, list[tuple[str, str]]]


@dataclass(frozen=True, eq=False)
class _Decoder(Dataset):
    """Images of a piece, their labels, and names and reasons of those that are damaged or gone.

    What ails the disk itself is returned, not raised: a worker's exceptions arrive as the text of a traceback.
    """

    images: ImageList
    view: View
    noise: int | None

    def __getitem__(self, piece: Tensor) -> Piece | OSError:
        squares = np.empty((len(piece), 3, self.view.size, self.view.size), np.uint8)
        good: list[int] = []
        bad: list[tuple[str, str]] = []
        for image in piece.tolist():
            noise = None if self.noise is None else mix(self.noise, image)
            try:
                squares[len(good)] = self.view.of(_read(self.images, image), noise)
                good.append(image)
            except (DamagedImageError, FileNotFoundError) as error:
                bad.append((self.images.name(image), str(error)))
            except OSError as error:
                return OSError(
                    f"{self.images.name(image)} cannot be read, tried twice ({error.strerror or error}); "
                    "see to its disk and its permissions, then go on"
                )
        labels = self.images.labels[good] if good else torch.empty(0, dtype=torch.long)
        return torch.from_numpy(squares[: len(good)]), labels, bad


def _read(images: ImageList, image: int) -> bytes:
    """An image's content; a disk that fails gets a second chance, since that is not the image's fault."""
    try:
        return images.read(image)
    except FileNotFoundError:
        raise
    except OSError:
        return images.read(image)


def _unless_lost(piece: Piece | OSError) -> Piece:
    if isinstance(piece, OSError):
        raise piece
    return piece


def _as_it_is(piece: object) -> object:
    return piece
