"""What a run keeps of its data, to be looked at later without it: a few validation images, and what each draw answered.

The file `examples.safetensors` is small (a fifth of a megabyte for MNIST), so a folder can be sent to somebody who has
no data, and figures read nothing but run folders.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import torch
from torch import Tensor

from lrnets.data import AnySplit, Transform
from lrnets.training.run_folder import RunFolder
from lrnets.training.weight_files import read_weights

FILE = "examples.safetensors"
EXAMPLES = 64  # the first of the validation data
MOST_VALUES = 1_000_000  # in them, so that the file stays small
DISPUTED = 24  # images on which draws disagree most


@dataclass(frozen=True)
class Answers:
    """Classes that the draws of a run named, and the validation images they disagree on most."""

    valid: Tensor  # (draws, n) int64
    valid_labels: Tensor  # (n,) int64
    test: Tensor  # (draws, m) int64
    test_labels: Tensor  # (m,) int64
    disputed: Tensor  # (k,) int64: which validation images, the most disputed first; none if all agree
    disputed_images: Tensor  # (k, channels, height, width) uint8


@dataclass(frozen=True)
class Examples:
    """A few validation images as they are and as a network sees them; `answers` are of methods that draw."""

    images: Tensor  # (n, channels, height, width) uint8
    inputs: Tensor  # (n, channels, height, width) float32
    labels: Tensor  # (n,) int64
    answers: Answers | None = None


def disagreement(answers: Tensor) -> Tensor:
    """Share of pairs of draws that name different classes, an image: (n,) of answers (draws, n)."""
    draws, n = answers.shape
    if draws < 2:
        return torch.zeros(n, dtype=torch.float64)
    pairs = sum(((answers[i + 1 :] != answers[i]).sum(0) for i in range(draws - 1)), torch.zeros(n, dtype=torch.int64))
    return pairs.double() / (draws * (draws - 1) / 2)


def answers_of(valid: Sequence[Tensor], valid_split: AnySplit, test: Sequence[Tensor], test_labels: Tensor) -> Answers:
    """From the classes (n,) that each draw named on both splits; images that cannot be read have none."""
    named, answers = torch.stack(list(valid)), torch.stack(list(test))
    if named.shape[1] != len(valid_split):  # some are left out: which they are is not known here
        empty = torch.empty(0, dtype=torch.int64)
        images = torch.empty(0, *valid_split.shape, dtype=torch.uint8)
        return Answers(named[:, :0], empty, answers, test_labels.cpu().long(), empty, images)
    differ = disagreement(named)
    order = torch.argsort(differ, descending=True, stable=True)[:DISPUTED]
    disputed = order[differ[order] > 0]
    images, _ = _taken(valid_split, disputed)
    return Answers(named, valid_split.labels.cpu().long(), answers, test_labels.cpu().long(), disputed, images)


def save_examples(folder: RunFolder, valid: AnySplit, transform: Transform, answers: Answers | None = None) -> None:
    """Write the file, with the first images of the validation data as evaluation would see them; fewer large ones."""
    count = min(EXAMPLES, len(valid), max(4, MOST_VALUES // math.prod(valid.shape)))
    images, labels = _taken(valid, torch.arange(count))
    content = {"images": images, "inputs": transform(images).float(), "labels": labels.long()}
    if answers is not None:
        # Classes are few: one byte each, unless there are more than a byte can name.
        most = max((int(named.max()) for named in (answers.valid, answers.test) if named.numel()), default=0)
        small = torch.uint8 if most < 256 else torch.int32
        content |= {f"answers.{name}": value for name, value in vars(answers).items()}
        content |= {f"answers.{name}": getattr(answers, name).to(small) for name in ("valid", "test")}
    folder.save_tensors(FILE, content)


def _taken(split: AnySplit, places: Tensor) -> tuple[Tensor, Tensor]:
    """Images and labels at some places, on the CPU."""
    if not len(places):
        return torch.empty(0, *split.shape, dtype=torch.uint8), torch.empty(0, dtype=torch.int64)
    images, labels = next(iter(split.take([places])))
    return images.cpu(), labels.cpu()


def load_examples(folder: RunFolder) -> Examples:
    """Read the file; one that is missing or damaged is named with its remedy."""
    path = folder.path / FILE
    if not path.is_file():
        raise FileNotFoundError(f"{path} is not there; {_remedy(folder.path)}")
    try:
        content = read_weights(path)
    except ValueError as error:
        raise ValueError(f"{error}; {_remedy(folder.path)}") from error
    try:
        few = Examples(content["images"], content["inputs"], content["labels"])
        if not any(name.startswith("answers.") for name in content):
            return few
        answers = {name: content[f"answers.{name}"] for name in Answers.__dataclass_fields__}
    except KeyError as error:
        raise ValueError(f"{path} has no {error}; {_remedy(folder.path)}") from error
    answers |= {name: answers[name].long() for name in ("valid", "test")}
    return replace(few, answers=Answers(**answers))


def _remedy(folder: Path) -> str:
    again = f"`lrnets train {folder / 'recipe.yaml'} --out {folder} --resume`"
    return f"a run's end writes it: {again} draws again, trains nothing and takes a minute"
