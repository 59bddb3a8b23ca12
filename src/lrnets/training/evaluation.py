"""Errors of networks on data in memory."""

from __future__ import annotations

from collections.abc import Callable, Iterator
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
def outputs(
    net: Callable[[Tensor], Tensor], split: Split, transform: Transform, device: torch.device | str
) -> tuple[Tensor, Tensor]:
    """All outputs of a network, and the labels."""
    pairs = [(net(x), y) for x, y in inputs(split, transform, device)]
    return torch.cat([z for z, _ in pairs]), torch.cat([y for _, y in pairs])


def error(net: nn.Module, split: Split, transform: Transform) -> float:
    """Classification error in per cent, in eval mode."""
    device = next(net.parameters()).device
    with evaluating(net):
        z, y = outputs(net, split, transform, device)
    return 100 * (z.argmax(1) != y).float().mean().item()


def mend_norms(net: nn.Module, train: Split, transform: Transform, batches: int) -> nn.Module:
    """Re-estimate batch norm on the first batches of the training split, as evaluation would see them."""
    return update_bn(net, islice(inputs(train, transform, next(net.parameters()).device), batches))
