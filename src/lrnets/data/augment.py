"""Augmentation of whole batches (n, c, h, w) on the device they are on; no loop over images.

The paper's (section 5): MNIST none. CIFAR-10: each image minus its mean over its deviation, then, in training, 4 pixels
of padding on each side, a random crop, a random flip. We pad after standardising, the order in which the paper tells
it: the border is the image's own mean, and an image has the same mean and deviation in training as in evaluation. The
authors' code pads first, with 2 black pixels a side, and standardises what it cut out.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple, Protocol

import torch
import torch.nn.functional as F
from torch import Tensor

from lrnets.errors import describe


class Transform(Protocol):
    """uint8 images to the network's input, with randomness from a generator if there is any."""

    def __call__(self, x: Tensor, generator: torch.Generator | None = None) -> Tensor: ...


def to_float(x: Tensor) -> Tensor:
    """Bytes 0 ... 255 as float32 0 ... 1."""
    if x.dtype != torch.uint8:
        raise ValueError(f"images of dtype {x.dtype}, expected torch.uint8 (0 ... 255); are they transformed already?")
    return x.float().div_(255)


def standardize_each(x: Tensor) -> Tensor:
    """Each image minus its mean over its deviation, both over all of its c h w = N values.

    The deviation counts as at least 1 / (255 sqrt(N)), a single grey level in a single value; so a constant image
    becomes zero. This is TensorFlow's `per_image_standardization` of bytes.
    """
    values = x.flatten(1)  # (n, N)
    root = values.shape[1] ** 0.5
    centred = values - values.mean(dim=1, keepdim=True)
    deviation = torch.linalg.vector_norm(centred, dim=1, keepdim=True) / root  # torch.std takes ten times as long
    return (centred / deviation.clamp_min(1 / (255 * root))).view_as(x)


def pad_crop(x: Tensor, pad: int = 4, *, generator: torch.Generator | None = None) -> Tensor:
    """Pad each side with zeros and cut out, for each image, a window of the old size at a random place."""
    if pad < 0:
        raise ValueError(f"pad must be at least 0 pixels, got {describe(pad)}")
    n, _, height, width = x.shape
    top, left = _draw(2 * pad + 1, (2, n), x, generator)
    windows = F.pad(x, (pad,) * 4).unfold(2, height, 1).unfold(3, width, 1)  # a view: (n, c, 2p + 1, 2p + 1, h, w)
    return windows[torch.arange(n, device=x.device), :, top, left]  # (n, c, h, w)


def flip(x: Tensor, *, generator: torch.Generator | None = None) -> Tensor:
    """Mirror each image left to right, or not, with equal chances."""
    mirrored = _draw(2, (len(x), 1, 1, 1), x, generator).bool()
    return torch.where(mirrored, x.flip(-1), x)


def scale(x: Tensor, generator: torch.Generator | None = None) -> Tensor:
    """MNIST, training and evaluation: 0 ... 1."""
    return to_float(x)


def standardize(x: Tensor, generator: torch.Generator | None = None) -> Tensor:
    """CIFAR-10, evaluation: each image standardised."""
    return standardize_each(to_float(x))


def standardize_crop_flip(x: Tensor, generator: torch.Generator | None = None) -> Tensor:
    """CIFAR-10, training: each image standardised, padded, cropped and perhaps flipped."""
    return flip(pad_crop(standardize(x), generator=generator), generator=generator)


@dataclass(frozen=True)
class StandardizeChannels:
    """(x - mean) / deviation of x = byte / 255, with a number for each channel."""

    mean: tuple[float, ...]
    deviation: tuple[float, ...]

    def __post_init__(self) -> None:
        numbers = all(isinstance(value, (int, float)) for value in (*self.mean, *self.deviation))
        if not numbers or len(self.mean) != len(self.deviation) or not all(value > 0 for value in self.deviation):
            raise ValueError(
                f"mean {self.mean} and deviation {self.deviation}; give a number a channel to both, deviations above 0"
            )

    def __call__(self, x: Tensor, generator: torch.Generator | None = None) -> Tensor:
        mean, deviation = (torch.tensor(v, device=x.device).view(-1, 1, 1) for v in (self.mean, self.deviation))
        return to_float(x).sub_(mean).div_(deviation)


class Transforms(NamedTuple):
    """What a data set's images go through in training and in evaluation."""

    train: Transform
    evaluation: Transform


TRANSFORMS = {"mnist": Transforms(scale, scale), "cifar10": Transforms(standardize_crop_flip, standardize)}


def _draw(choices: int, shape: tuple[int, ...], like: Tensor, generator: torch.Generator | None) -> Tensor:
    """Whole numbers below `choices`, drawn where the generator lives and moved to where `like` is."""
    device = like.device if generator is None else generator.device
    return torch.randint(choices, shape, generator=generator, device=device).to(like.device)
