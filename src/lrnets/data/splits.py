"""A data set: train, validation and test; what every split can do, and a split in memory."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from functools import cached_property, partial
from pathlib import Path
from typing import Any, Protocol

import torch
from torch import Tensor

from lrnets.data.augment import TRANSFORMS, Transforms
from lrnets.data.folder import data_folder, read_examples
from lrnets.data.known import DataSet, known
from lrnets.data.shuffle import permutation
from lrnets.errors import describe

SPLIT_SEED = 2018  # never change it: published validation errors belong to this split


class AnySplit(Protocol):
    """Examples that can be taken in any order, wherever they are."""

    @property
    def labels(self) -> Tensor:
        """Classes of all examples, int64 (n,)."""

    @property
    def shape(self) -> tuple[int, ...]:
        """An image as it is taken: (c, h, w)."""

    def __len__(self) -> int: ...

    def __getitem__(self, index: Tensor | slice) -> AnySplit:
        """Some of the examples."""

    def order(self, seed: int, epoch: int, *, batch_size: int, world: int) -> Tensor:
        """All places, int64 (n,), in an order for training that is a function of the arguments.

        Of the k-th `world * batch_size` of them rank r takes the r-th `batch_size`.
        """

    def take(self, groups: Iterable[Tensor], noise: int | None = None) -> Iterator[tuple[Tensor, Tensor]]:
        """Images, uint8 (g, c, h, w), and labels (g,) for each group of places, in turn.

        With `noise` images that have to be cut are cut at random, as a function of it and of the image; else evenly.
        """


@dataclass(frozen=True, eq=False)
class Split:
    """A split in memory: images, uint8 (n, c, h, w), and their labels, int64 (n,)."""

    images: Tensor
    labels: Tensor

    def __post_init__(self) -> None:
        if self.images.ndim != 4 or self.labels.shape != self.images.shape[:1]:
            raise ValueError(
                f"images of shape {tuple(self.images.shape)} and labels of shape {tuple(self.labels.shape)}, "
                "expected (n, c, h, w) and (n,)"
            )

    @property
    def shape(self) -> tuple[int, ...]:
        """An image: (c, h, w)."""
        return tuple(self.images.shape[1:])

    def __len__(self) -> int:
        return len(self.labels)

    def __getitem__(self, index: Tensor | slice) -> Split:
        """Some of the examples."""
        return Split(self.images[index], self.labels[index])

    def order(self, seed: int, epoch: int, *, batch_size: int, world: int) -> Tensor:
        """All places shuffled, whoever takes them."""
        return permutation(len(self), seed, epoch)

    def take(self, groups: Iterable[Tensor], noise: int | None = None) -> Iterator[tuple[Tensor, Tensor]]:
        """Images and labels for each group of places; they are as large as they are, so nothing is cut."""
        for group in groups:
            part = self[group.to(self.labels.device)]
            yield part.images, part.labels

    def to(self, device: torch.device | str) -> Split:
        """The same on a device."""
        return Split(self.images.to(device), self.labels.to(device))


@dataclass(eq=False)
class Data:
    """A data set: what to learn from (`train`), what to choose by (`valid`), and what to report once (`test`).

    The test files are not even opened before `test` is asked for; `test_was_read` tells whether that has happened.
    """

    name: str
    classes: tuple[str, ...]
    train: AnySplit
    valid: AnySplit
    _read_test: Callable[[], AnySplit] = field(repr=False)
    transforms: Transforms | None = None  # of its images; None if they are not known

    def __post_init__(self) -> None:
        self.transforms = self.transforms or TRANSFORMS.get(self.name)

    @cached_property
    def test(self) -> AnySplit:
        """The official test set, read at this moment. Take it once, when everything has been chosen."""
        return self._read_test()

    def about(self) -> str:
        """What a person may want to know of it before training; nothing of images in memory."""
        return ""

    @property
    def test_was_read(self) -> bool:
        """Whether `test` has been asked for."""
        return "test" in self.__dict__


def require_classes(classes: tuple[str, ...], wanted: int) -> None:
    """Refuse data of another number of classes than the network has."""
    if len(classes) != wanted:
        raise ValueError(
            f"the data have {len(classes)} classes and the network {wanted}; --set classes={len(classes)}, or name "
            "other data"
        )


def load(name: str, data_dir: str | os.PathLike[str] | None = None, *, valid_size: int = 5000, **options: Any) -> Data:
    """Read a data set ("mnist" or "cifar10") from the folder into memory; every file is verified, none is downloaded.

    `valid_size` training images, the same ones always, become the validation set; 0 trains on all of them. "imagenet"
    is any folder of images or of tar files, which stay on disk; `options` are those of `lrnets.data.ImageFolder`.
    """
    if name == "imagenet":
        from lrnets.data.image_folder import ImageFolder, find_root

        return ImageFolder(find_root(data_dir), valid_size=valid_size, **options)
    data_set, root = known(name), data_folder(data_dir)
    if options:
        raise ValueError(f"{name} is read as it is, and has no option {', '.join(options)}; imagenet has")
    everything = _read(data_set, root, "train")
    train, valid = stratified(everything.labels, valid_size)
    return Data(name, data_set.classes, everything[train], everything[valid], partial(_read, data_set, root, "test"))


def stratified(labels: Tensor, size: int) -> tuple[Tensor, Tensor]:
    """Indices of the training and of `size` validation examples, ascending; classes as frequent in both as in `labels`.

    Class k of n_k has size n_k / n places, rounded by largest remainder. Depends on nothing but the labels and `size`.
    """
    count = len(labels)
    if isinstance(size, bool) or not isinstance(size, int) or not 0 <= size < count:
        raise ValueError(
            f"{describe(size)} validation examples of {count}; choose a whole number from 0 to {count - 1}"
        )
    labels = labels.cpu()
    places = size * torch.bincount(labels)
    quota, remainder = places // count, places % count
    quota[remainder.argsort(descending=True, stable=True)[: size - int(quota.sum())]] += 1
    order = permutation(count, SPLIT_SEED)
    chosen = torch.zeros(count, dtype=torch.bool)
    for label, places_of_class in enumerate(quota.tolist()):
        chosen[order[labels[order] == label][:places_of_class]] = True
    return (~chosen).nonzero().flatten(), chosen.nonzero().flatten()


def _read(data_set: DataSet, root: Path, part: str) -> Split:
    try:
        return Split(*read_examples(data_set, data_set.test if part == "test" else data_set.train, root))
    except FileNotFoundError as error:
        raise FileNotFoundError(
            f"{data_set.name}: {error}; bring it with `lrnets data {data_set.name}` or "
            f"lrnets.data.fetch({data_set.name!r}), or name its folder with data_dir or $LRNETS_DATA"
        ) from error
