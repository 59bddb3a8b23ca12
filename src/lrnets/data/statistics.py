"""Mean and deviation of each colour over all training images, exact, computed once."""

from __future__ import annotations

import json
import math
from pathlib import Path

import torch
from torch import Tensor

from lrnets.data.augment import StandardizeChannels
from lrnets.data.disk_split import DiskSplit
from lrnets.data.once import once
from lrnets.data.progress import Report

AT_ONCE = 256  # images
FORMAT = 1  # of the notes; raise it whenever images are decoded or counted otherwise


def channel_statistics(split: DiskSplit, root: Path, report: Report) -> StandardizeChannels:
    """Of all values byte / 255 in the evenly cut images: mean, and deviation sqrt(E[x^2] - mean^2), a number a channel.

    Kept for the data in `root`, this list of images and this view.
    """
    view = split.view
    name = f"statistics-{FORMAT}-{view.size}-{view.resize}-{split.images.fingerprint()}.json"
    kept = json.loads(once(root, name, lambda: json.dumps(_measure(split, report), indent=1).encode()))
    return StandardizeChannels(tuple(kept["mean"]), tuple(kept["deviation"]))


def _measure(split: DiskSplit, report: Report) -> dict[str, object]:
    sums, squares = torch.zeros(3, dtype=torch.int64), torch.zeros(3, dtype=torch.int64)
    count = done = 0
    for images, labels in split.take(torch.arange(len(split)).split(AT_ONCE)):
        histogram = torch.stack([_histogram(images[:, channel]) for channel in range(3)])  # (3, 256)
        level = torch.arange(256)
        sums += (histogram * level).sum(1)  # whole numbers: exact, in whatever order
        squares += (histogram * level.square()).sum(1)
        count += images[:, 0].numel()
        done += len(labels)
        report("mean and deviation of the training images", done, len(split))
    mean = [int(total) / count / 255 for total in sums]
    # n sum(x^2) - sum(x)^2 is a whole number, and never negative.
    deviation = [math.sqrt(count * int(q) - int(s) ** 2) / count / 255 for s, q in zip(sums, squares)]
    return {"mean": mean, "deviation": [max(d, 1 / 255) for d in deviation], "images": done}


def _histogram(channel: Tensor) -> Tensor:
    return torch.bincount(channel.flatten(), minlength=256)
