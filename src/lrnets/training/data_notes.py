"""What a run keeps about images on disk: their colours, their classes, and which of them could not be read."""

from __future__ import annotations

from typing import Any

from lrnets.data import Data, ImageFolder, Transforms
from lrnets.data.augment import StandardizeChannels
from lrnets.data.disk_split import DiskSplit
from lrnets.training.run_folder import RunFolder

FILE = "data.json"
DAMAGED = "damaged.txt"  # part, name and reason, with tabs between them


def keep_data(folder: RunFolder, data: Data, transforms: Transforms) -> None:
    """Write the mean and deviation that images are standardised by, and the classes; nothing of other data."""
    colours = transforms.evaluation
    if isinstance(colours, StandardizeChannels):
        folder.write_json(FILE, {"mean": colours.mean, "deviation": colours.deviation, "classes": data.classes})


def kept_colours(folder: RunFolder) -> dict[str, tuple[float, ...]]:
    """Mean and deviation that a run trains with, as options of its data; nothing if it kept none."""
    kept = _kept(folder)
    return {name: kept[name] for name in ("mean", "deviation") if name in kept}


def require_kept(folder: RunFolder, data: Data, transforms: Transforms) -> None:
    """Refuse data of other colours or classes than those that a run kept, if it did."""
    kept, colours = _kept(folder), transforms.evaluation
    if not kept:
        return
    if kept["classes"] != tuple(data.classes):
        raise ValueError(
            f"{folder.path} was trained on {_words(kept['classes'])}, and the data have {_words(data.classes)}; "
            "name data of the same classes with --data-dir"
        )
    if isinstance(colours, StandardizeChannels):
        for name in ("mean", "deviation"):
            if kept[name] != tuple(getattr(colours, name)):
                raise ValueError(
                    f"{folder.path} was trained with {name} {kept[name]}, and the data come with "
                    f"{tuple(getattr(colours, name))}; give them mean and deviation of {folder.path / FILE}"
                )


def left_out(folder: RunFolder, data: Data) -> dict[str, Any]:
    """How many images could not be read, of each part, for the results; damaged.txt names them. Of image folders only.

    Those of all sittings; of several processes, those that the first one met.
    """
    if not isinstance(data, ImageFolder) or not isinstance(data.test, DiskSplit):
        return {}
    file = folder.path / DAMAGED
    lines = dict.fromkeys(file.read_text("utf-8").splitlines() if file.is_file() else ())
    met, valid = data.train.damaged.reasons, data.valid  # train and valid have one list together
    of_valid = {valid.images.name(image) for image in valid.index.tolist()} if met else set()
    for name, reason in met.items():
        lines[_line("valid" if name in of_valid else "train", name, reason)] = None
    for name, reason in data.test.damaged.reasons.items():
        lines[_line("test", name, reason)] = None
    if lines:
        folder.write_text(DAMAGED, "".join(f"{line}\n" for line in lines))
    parts = ("train", "valid", "test")
    return {"left_out": {part: sum(line.startswith(f"{part}\t") for line in lines) for part in parts}}


def _line(*texts: str) -> str:
    """A line of damaged.txt, whatever is in a file's name."""
    return "\t".join(" ".join(text.encode("utf-8", "backslashreplace").decode().split()) for text in texts)


def _kept(folder: RunFolder) -> dict[str, tuple[Any, ...]]:
    """What the file says; nothing if there is none, as in older runs."""
    path = folder.path / FILE
    if not path.is_file():
        return {}
    try:
        content = folder.read_json(FILE)
        return {name: tuple(content[name]) for name in ("mean", "deviation", "classes")}
    except (ValueError, KeyError, TypeError) as error:
        raise ValueError(
            f"{path} is damaged ({error}); remove it, and mean and deviation come from the data again"
        ) from error


def _words(classes: tuple[str, ...]) -> str:
    return f"{len(classes)} classes ({', '.join(classes[:3])}{', ...' if len(classes) > 3 else ''})"
