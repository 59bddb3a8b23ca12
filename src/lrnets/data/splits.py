"""A data set in memory: train, validation and test."""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import cached_property, partial
from pathlib import Path

import torch
from torch import Tensor

from lrnets.data.folder import data_folder, read_examples
from lrnets.data.known import DataSet, known
from lrnets.data.shuffle import permutation
from lrnets.errors import describe

SPLIT_SEED = 2018  # never change it: published validation errors belong to this split


@dataclass(frozen=True, eq=False)
class Split:
    """Images, uint8 (n, c, h, w), and their labels, int64 (n,)."""

    images: Tensor
    labels: Tensor

    def __post_init__(self) -> None:
        if self.images.ndim != 4 or self.labels.shape != self.images.shape[:1]:
            raise ValueError(
                f"images of shape {tuple(self.images.shape)} and labels of shape {tuple(self.labels.shape)}, "
                "expected (n, c, h, w) and (n,)"
            )

    def __len__(self) -> int:
        return len(self.labels)

    def __getitem__(self, index: Tensor | slice) -> Split:
        """Some of the examples."""
        return Split(self.images[index], self.labels[index])

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
    train: Split
    valid: Split
    _read_test: Callable[[], Split] = field(repr=False)

    @cached_property
    def test(self) -> Split:
        """The official test set, read at this moment. Take it once, when everything has been chosen."""
        return self._read_test()

    @property
    def test_was_read(self) -> bool:
        """Whether `test` has been asked for."""
        return "test" in self.__dict__


def load(name: str, data_dir: str | os.PathLike[str] | None = None, *, valid_size: int = 5000) -> Data:
    """Read a data set ("mnist" or "cifar10") from the folder into memory; every file is verified, none is downloaded.

    `valid_size` training images, the same ones always, become the validation set; 0 trains on all of them.
    """
    data_set, root = known(name), data_folder(data_dir)
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
