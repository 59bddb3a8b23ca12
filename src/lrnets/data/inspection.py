"""A look at a folder of images: what is in it, how fast it is decoded; and the same as tar files."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from lrnets.data.image_folder import CLASSES_FILE, ImageFolder, images_a_second
from lrnets.data.image_list import FileList
from lrnets.data.progress import progress_bars
from lrnets.data.shards import write_shards
from lrnets.whole_files import whole_folder
from lrnets.words import counted

NO_MATTER = (0.5, 0.5, 0.5)  # mean and deviation, which are for networks


def inspect_folder(
    root: Path, *, size: int = 224, resize: int = 256, workers: int | None = None, measure: bool = False,
    shards: Path | None = None, shrink: bool = False,
) -> Iterator[str]:  # fmt: skip
    """About a folder of images; with `measure` the pace of decoding; with `shards` tar files are written there.

    With `shrink`, images in tar files have no more pixels than training looks at: a shorter side of `resize`.
    """
    if shrink and shards is None:
        raise ValueError("images are shrunk on their way into tar files only; say where to: --to-shards OUT")
    data = ImageFolder(
        root, size=size, resize=resize, valid_size=0, workers=workers, mean=NO_MATTER, deviation=NO_MATTER
    )
    yield f"{root}: {len(data.train)} images to train on and {len(data.test)} to test on, {len(data.classes)} classes"
    if measure:
        for count in sorted({1, max(1, data.workers)}):
            pace = images_a_second(data.train, workers=count, seconds=5)
            yield (
                f"{counted(count, 'worker')}: {pace:.0f} images of {size} pixels a second, {pace / count:.0f} a "
                f"worker; all training images in {len(data.train) / pace / 60:.1f} minutes"
            )
    if shards is not None:
        with whole_folder(shards) as folder, progress_bars() as report:  # half of it would do for training, unnoticed
            for part in ("train", "val"):
                images = data.images(part, report)
                if not isinstance(images, FileList):
                    raise ValueError(f"{root} holds tar files already")
                write_shards(images, folder, part, report, shorter=resize if shrink else None, workers=data.workers)
            names = "".join(f"{name}\n" for name in data.classes)
            (folder / CLASSES_FILE).write_text(names, "utf-8", "surrogateescape")
        yield f"written: {shards}; it does for --data-dir as the folder does"
