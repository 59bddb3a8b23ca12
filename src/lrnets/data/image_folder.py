"""Image folders of any size, such as ImageNet: train/<class>/*, val/<class>/*, or tar files of them."""

from __future__ import annotations

import os
import time
import warnings
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import replace
from itertools import count
from pathlib import Path

import torch

from lrnets.cores import cores
from lrnets.data.augment import StandardizeChannels, Transforms
from lrnets.data.disk_split import AHEAD, PIECE, Damaged, DiskSplit
from lrnets.data.folder import data_folder
from lrnets.data.image_list import ImageList, class_folders, list_files
from lrnets.data.pictures import SUFFIXES, View
from lrnets.data.progress import Report, progress_bars
from lrnets.data.shards import SortedShardsWarning, class_by_class, list_shards, shard_files
from lrnets.data.splits import Data, require_classes, stratified
from lrnets.data.statistics import channel_statistics
from lrnets.errors import describe

LAYOUT = "train/<class>/* and val/<class>/*, or train-000000.tar ... and val-000000.tar ..."
COLOURS = 3
CLASSES_FILE = "classes.txt"
FEW = 8  # images between two looks at the clock


class ImageFolder(Data):
    """A data set of JPEG and PNG images on disk.

    The shorter side is scaled to `resize` pixels; training sees random squares of `size` pixels, perhaps mirrored,
    evaluation the one in the middle. `valid_size` images of train, the same ones always, are for choosing; val is the
    test set. Colours are standardised by the training set's mean and deviation, computed once, or by those given
    (public checkpoints want mean=(0.485, 0.456, 0.406), deviation=(0.229, 0.224, 0.225)). `workers` processes decode,
    by default as many as there are cores. Damaged images are reported and left out, up to `damaged_share` of all.
    Where `class_count` is given, another number of classes is refused before anything is computed.

    Tar files in webdataset's layout do as well: key.jpg with key.cls, and class names in classes.txt, one a line. Their
    images should be in a random order, since a few files at a time are shuffled; a warning tells if they are not.
    """

    train: DiskSplit
    valid: DiskSplit

    def __init__(
        self,
        root: str | os.PathLike[str],
        *,
        size: int = 224,
        resize: int = 256,
        valid_size: int = 10_000,
        mean: tuple[float, ...] | None = None,
        deviation: tuple[float, ...] | None = None,
        workers: int | None = None,
        damaged_share: float = 0.01,
        class_count: int | None = None,
        report: Report | None = None,
    ) -> None:
        if (mean is None) != (deviation is None):
            raise ValueError("give mean and deviation both, or neither: then they are computed")
        for name, colours in (("mean", mean), ("deviation", deviation)):
            if colours is not None and (not isinstance(colours, Sequence) or len(colours) != COLOURS):
                raise ValueError(f"{name} must be three numbers, one for each colour, got {describe(colours)}")
        if not isinstance(damaged_share, (int, float)) or not 0 <= damaged_share < 1:
            raise ValueError(f"damaged_share must be a number from 0 to below 1, got {describe(damaged_share)}")
        if workers is not None and (isinstance(workers, bool) or not isinstance(workers, int) or workers < 0):
            raise ValueError(f"workers must be a whole number of at least 0, got {describe(workers)}")
        self.root, self.view = Path(root).expanduser(), View(size, resize)
        self.workers = cores() if workers is None else workers
        self.damaged_share = damaged_share
        _require_pillow()
        with ExitStack() as stack:
            report = report or stack.enter_context(progress_bars())
            classes = self._classes()
            everything = self._split(self._list("train", classes, report))
            if not classes:  # shards that name none
                classes = tuple(map(str, range(int(everything.labels.max()) + 1)))
            if class_count is not None:
                require_classes(classes, class_count)
            if self.sharded:  # read but for its index at the end of training: a file cut short would show no sooner
                self._list("val", classes, report)
            train, valid = stratified(everything.labels, valid_size)
            if mean is None or deviation is None:
                standardize = channel_statistics(everything, self.root, report)
            else:
                standardize = StandardizeChannels(tuple(mean), tuple(deviation))
        super().__init__(
            "imagenet", classes, everything[train], everything[valid], self._read_val,
            Transforms(standardize, standardize),
        )  # fmt: skip

    def about(self) -> str:
        """What there is, and how fast this process alone decodes it; takes half a second."""
        pace = images_a_second(self.train, seconds=0.5)
        return (
            f"{len(self.train)} images of {len(self.classes)} classes to train on, {len(self.valid)} to choose on, "
            f"{self.view.size} pixels; decoded by {self.workers} workers, about {pace:.0f} images a second each"
        )

    def images(self, part: str, report: Report) -> ImageList:
        """All images of "train" or "val"."""
        return self._list(part, self.classes, report)

    @property
    def sharded(self) -> bool:
        """Whether the images are in tar files."""
        return not (self.root / "train").is_dir()

    def _classes(self) -> tuple[str, ...]:
        """Class names; empty if shards do not tell. Complains of what would only be noticed after training."""
        if self.sharded:
            for part in ("train", "val"):
                if not shard_files(self.root, part):
                    raise FileNotFoundError(f"{self.root} has neither {part} nor {part}-*.tar; expected {LAYOUT}")
            file = self.root / CLASSES_FILE
            text = file.read_text("utf-8", "surrogateescape") if file.is_file() else ""
            return tuple(text.removesuffix("\n").split("\n")) if text else ()
        classes = class_folders(self.root / "train")
        if not classes:
            raise ValueError(f"{self.root / 'train'} has no class folders; expected {LAYOUT}")
        if not (self.root / "val").is_dir():
            raise FileNotFoundError(f"{self.root} has train and no val, which is the test set; expected {LAYOUT}")
        tested = class_folders(self.root / "val")
        if not tested:
            hint = "; ImageNet's validation images come unsorted, move each into its class's folder"
            flat = any(file.name.lower().endswith(SUFFIXES) for file in os.scandir(self.root / "val"))
            raise ValueError(f"{self.root / 'val'} has no class folders; expected {LAYOUT}{hint if flat else ''}")
        if unknown := sorted(set(tested) - set(classes)):
            raise ValueError(
                f"{self.root / 'val'} has {len(unknown)} classes that train has not, {unknown[0]!r} first; "
                "give both the same class folders"
            )
        return classes

    def _list(self, part: str, classes: tuple[str, ...], report: Report) -> ImageList:
        if not self.sharded:
            return list_files(self.root / part, classes, all_needed=part == "train")
        images = list_shards(self.root, part, report)
        if part == "train" and class_by_class(images.labels):
            warnings.warn(
                f"{self.root}: the train shards hold images class by class; batches, of four shards at a time, and "
                "batch norm's statistics, of the first images, see few classes. Write them in random order, as `lrnets "
                "data FOLDER --to-shards OUT` does", SortedShardsWarning, stacklevel=3,
            )  # fmt: skip
        if classes and int(images.labels.max()) >= len(classes):
            raise ValueError(
                f"{self.root}: class {int(images.labels.max())} among the {part} shards, "
                f"and {len(classes)} classes, counted from 0; name all in {CLASSES_FILE}"
            )
        return images

    def _split(self, images: ImageList) -> DiskSplit:
        count = len(images.labels)
        return DiskSplit(images, torch.arange(count), self.view, self.workers, Damaged(count, self.damaged_share))

    def _read_val(self) -> DiskSplit:
        with progress_bars() as report:
            return self._split(self.images("val", report))


def find_root(data_dir: str | os.PathLike[str] | None = None) -> Path:
    """The folder that holds train and val: `data_dir`, or `imagenet` below it or below the default data folder."""
    base = data_folder(data_dir)
    for root in (base, base / "imagenet"):
        if (root / "train").is_dir() or shard_files(root, "train"):
            return root
    raise FileNotFoundError(
        f"imagenet: no train folder and no train-*.tar in {base} or {base / 'imagenet'}; bring the images yourself "
        f"({LAYOUT}) and name their folder with data_dir, --data-dir or $LRNETS_DATA"
    )


def images_a_second(split: DiskSplit, *, workers: int = 0, seconds: float = 2.0) -> float:
    """How many training images are decoded in a second, for so long, by so many workers (0: by this process).

    The pieces that workers had time for while they were starting are not counted. There is always a next piece, so that
    as many are under way in the end as in the beginning.
    """
    size = PIECE if workers else FEW
    places = (torch.arange(first, first + size) % len(split) for first in count(step=size))
    decoded = replace(split, workers=workers).take(places, noise=0)
    for _ in range((AHEAD + 1) * workers):
        next(decoded)
    done, start, passed = 0, time.perf_counter(), 0.0
    while not done or passed < seconds:
        done += len(next(decoded)[0])
        passed = time.perf_counter() - start
    return done / passed


def _require_pillow() -> None:
    try:
        import PIL  # noqa: F401
    except ImportError as error:
        raise ImportError("image folders need Pillow: pip install pillow") from error
