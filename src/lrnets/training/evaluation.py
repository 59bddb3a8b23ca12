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


def channels_last(x: Tensor) -> Tensor:
    """Images with channels innermost in memory, and strides that say so.

    With a single channel torch calls any strides channels-last and copies nothing, but then runs a whole network of
    channels-last weights in the other, slower layout.
    """
    if x.dim() != 4:
        return x
    n, channels, height, width = x.shape
    return x.permute(0, 2, 3, 1).reshape(-1).view(n, height, width, channels).permute(0, 3, 1, 2)


def inputs(net: nn.Module, split: Split, transform: Transform) -> Iterator[tuple[Tensor, Tensor]]:
    """A split as the network sees it in evaluation, some at a time, on its device and in its precision."""
    like = next(net.parameters())
    for start in range(0, len(split), AT_ONCE):
        part = split[slice(start, start + AT_ONCE)]
        x = transform(part.images.to(like.device)).to(like.dtype)
        yield channels_last(x), part.labels.to(like.device)


@torch.no_grad()
def probabilities(net: nn.Module, split: Split, transform: Transform) -> Tensor:
    """Class probabilities of all examples, in eval mode: (n, classes) float64, on the CPU."""
    with evaluating(net):
        logits = [net(x).cpu() for x, _ in inputs(net, split, transform)]
    # In double precision the greatest logit stays the only greatest, and its probability is not rounded to 1.
    return torch.cat(logits).double().softmax(1)


def error_of(p: Tensor, labels: Tensor) -> float:
    """Classification error of probabilities (n, classes), in per cent."""
    return 100 * int((p.argmax(1) != labels.cpu()).sum()) / len(labels)


def error(net: nn.Module, split: Split, transform: Transform) -> float:
    """Classification error of a network in per cent, in eval mode."""
    return error_of(probabilities(net, split, transform), split.labels)


def mend_norms(net: nn.Module, train: Split, transform: Transform, batches: int) -> nn.Module:
    """Re-estimate batch norm on the first batches of the training split, as evaluation would see them."""
    return update_bn(net, islice(inputs(net, train, transform), batches))
