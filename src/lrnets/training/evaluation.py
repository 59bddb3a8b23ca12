"""Errors of networks on data in memory."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import islice

import torch
from torch import Tensor, nn

from lrnets.data import Split, Transform
from lrnets.discretize import update_bn
from lrnets.modes import evaluating

AT_ONCE = 1000  # images


def inputs(
    split: Split, transform: Transform, device: torch.device | str | None = None
) -> Iterator[tuple[Tensor, Tensor]]:
    """A split as the network sees it in evaluation, some at a time."""
    for start in range(0, len(split), AT_ONCE):
        part = split[slice(start, start + AT_ONCE)]
        yield transform(part.images.to(device)), part.labels.to(device)


@torch.no_grad()
def error(net: nn.Module, split: Split, transform: Transform) -> float:
    """Classification error in per cent, in eval mode."""
    with evaluating(net):
        wrong = sum(int((net(x).argmax(1) != y).sum()) for x, y in inputs(split, transform, _device(net)))
    return 100 * wrong / len(split)


def mend_norms(net: nn.Module, train: Split, transform: Transform, batches: int) -> nn.Module:
    """Re-estimate batch norm on the first batches of the training split, as evaluation would see them."""
    return update_bn(net, islice(inputs(train, transform, _device(net)), batches))


def _device(net: nn.Module) -> torch.device:
    return next(net.parameters()).device
