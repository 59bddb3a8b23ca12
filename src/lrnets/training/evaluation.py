"""Errors of networks on a split."""

from __future__ import annotations

import math
from collections.abc import Iterator
from itertools import islice

import torch
from torch import Tensor, nn

from lrnets.data import TRANSFORMS, AnySplit, Data, Transform, Transforms
from lrnets.discretize import update_bn
from lrnets.modes import evaluating

AT_ONCE = 1000  # images, or fewer if they are large:
VALUES_AT_ONCE = 40_000_000
TOP5_ABOVE = 10  # classes; of so few, five guesses say little


def transforms_of(data: Data, name: str) -> Transforms:
    """What the images of some data go through; `name` is what a recipe calls them, if they do not say it themselves."""
    transforms = data.transforms or TRANSFORMS.get(name)
    if transforms is None:
        raise ValueError(f"own data for {name} need their transforms; give transforms=lrnets.data.Transforms(...)")
    return transforms


def channels_last(x: Tensor) -> Tensor:
    """Images with channels innermost in memory, and strides that say so.

    With a single channel torch calls any strides channels-last and copies nothing, but then runs a whole network of
    channels-last weights in the other, slower layout.
    """
    if x.dim() != 4:
        return x
    n, channels, height, width = x.shape
    return x.permute(0, 2, 3, 1).reshape(-1).view(n, height, width, channels).permute(0, 3, 1, 2)


def inputs(net: nn.Module, split: AnySplit, transform: Transform) -> Iterator[tuple[Tensor, Tensor]]:
    """A split as the network sees it in evaluation, some at a time, on its device and in its precision."""
    like = next(net.parameters())
    at_once = max(1, min(AT_ONCE, VALUES_AT_ONCE // math.prod(split.shape)))
    for images, labels in split.take(torch.arange(len(split)).split(at_once) if len(split) else ()):
        x = transform(images.to(like.device)).to(like.dtype)
        yield channels_last(x), labels.to(like.device)


@torch.no_grad()
def probabilities(net: nn.Module, split: AnySplit, transform: Transform) -> tuple[Tensor, Tensor]:
    """Class probabilities, in eval mode, and labels of all examples: (n, classes) float64 and (n,), on the CPU.

    The labels are those of the split, unless there are images in it that cannot be read.
    """
    with evaluating(net):
        logits, labels = zip(*((net(x).cpu(), y.cpu()) for x, y in inputs(net, split, transform)))
    # In double precision the greatest logit stays the only greatest, and its probability is not rounded to 1.
    return torch.cat(logits).double().softmax(1), torch.cat(labels)


def error_of(p: Tensor, labels: Tensor) -> float:
    """Classification error of probabilities (n, classes), in per cent."""
    return 100 * int((p.argmax(1) != labels.cpu()).sum()) / len(labels)


def errors_of(p: Tensor, labels: Tensor) -> dict[str, float]:
    """Errors in per cent; of more than ten classes, also how often the right one is not among the five likeliest."""
    errors = {"error": error_of(p, labels)}
    if p.shape[1] > TOP5_ABOVE:
        found = (p.topk(5, 1).indices == labels.cpu()[:, None]).any(1)
        errors["top5_error"] = 100 * int((~found).sum()) / len(labels)
    return errors


def error(net: nn.Module, split: AnySplit, transform: Transform) -> float:
    """Classification error of a network in per cent, in eval mode."""
    return error_of(*probabilities(net, split, transform))


def mend_norms(net: nn.Module, train: AnySplit, transform: Transform, batches: int) -> nn.Module:
    """Re-estimate batch norm on the first batches of the training split, as evaluation would see them."""
    return update_bn(net, islice(inputs(net, train, transform), batches))
