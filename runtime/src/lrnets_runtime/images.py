"""Images into a network's input, as its file's `preparation` says (docs/packed-format.md, "Images")."""

from __future__ import annotations

import math
import os
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from lrnets_runtime.errors import shown
from lrnets_runtime.graph import Preparation, Shape

FORMATS = ("PNG", "JPEG")
MODES = {1: "L", 3: "RGB"}  # Pillow's name of so many channels
EIGHT_BITS = ("1", "L", "LA", "P", "PA", "RGB", "RGBA", "RGBX", "CMYK", "YCbCr", "La", "RGBa")


def prepare(images: NDArray[Any], preparation: Preparation) -> NDArray[np.float32]:
    """Bytes (batch, channels, height, width) as the network's input, float32 of the same shape.

    fixed: (x - mean) / deviation of x = byte / 255, each operation rounded to float32. each: x minus its mean over its
    deviation, both over all N values of an image; the deviation counts as at least 1 / (255 sqrt(N)).
    """
    if images.dtype != np.uint8 or images.ndim != 4:
        raise ValueError(
            f"images are {images.dtype} of shape {shown(list(images.shape))}; "
            "give bytes (uint8, 0 to 255) of [batch, channels, height, width]"
        )
    x: NDArray[np.float32] = images.astype(np.float32) / np.float32(255)
    if preparation.kind == "each":
        return _standardized(x)
    with np.errstate(over="ignore"):  # a file may ask for it
        for numbers, apply in ((preparation.mean, np.subtract), (preparation.deviation, np.divide)):
            if numbers is not None:
                apply(x, np.array(numbers, np.float32)[:, None, None], out=x)
    return x


def _standardized(x: NDArray[np.float32]) -> NDArray[np.float32]:
    """Each image by itself; sums in float64, so that they depend on no order."""
    values = x.reshape(len(x), math.prod(x.shape[1:])).astype(np.float64)  # (batch, N)
    root = math.sqrt(values.shape[1])
    centred = values - values.mean(1, keepdims=True)
    deviation = np.sqrt(np.square(centred).mean(1, keepdims=True))
    result: NDArray[np.float32] = (centred / np.maximum(deviation, 1 / (255 * root))).astype(np.float32)
    return result.reshape(x.shape)


def read_image(path: str | os.PathLike[str], shape: Shape, *, shorter_side: int | None = None) -> NDArray[np.uint8]:
    """A PNG or JPEG file as bytes of a shape (channels, height, width): grey or RGB, upright.

    With a `shorter_side` (of the file's preparation) the picture is scaled until its shorter side has so many pixels,
    and the middle is taken; else it is stretched. Needs Pillow. Transparency is ignored; scaling is bilinear, over the
    whole area.
    """
    try:
        from PIL import Image, ImageOps
    except ModuleNotFoundError as error:
        raise ModuleNotFoundError(
            f"{path} needs Pillow to be read, which is not installed; pip install pillow, or give .npy arrays",
            name="PIL",
        ) from error
    channels, height, width = shape
    if channels not in MODES:
        raise ValueError(f"{path}: the network takes {channels} channels, a picture has 1 or 3; give .npy arrays")
    try:
        with Image.open(Path(path), formats=FORMATS) as image:
            if image.mode not in EIGHT_BITS:
                raise ValueError(f"its pixels are {image.mode!r}, not 8 bits a channel; save it with 8 bits")
            if shorter_side is not None:  # JPEG is decoded at a half, a quarter or an eighth, where that is enough
                width_enough, height_enough = (-(-side * shorter_side // min(image.size)) for side in image.size)
                image.draft(image.mode, (width_enough, height_enough))
            upright = ImageOps.exif_transpose(image).convert(MODES[channels])
            box = None if shorter_side is None else _middle(upright.size, (width, height), shorter_side)
            if box is not None or upright.size != (width, height):
                upright = upright.resize((width, height), Image.Resampling.BILINEAR, box)
            pixels = np.asarray(upright).reshape(height, width, channels)
    except FileNotFoundError:
        raise FileNotFoundError(f"there is no picture at {str(path)!r}; check the path") from None
    except (OSError, SyntaxError, ValueError, Image.DecompressionBombError) as error:
        raise ValueError(f"{path}: is no picture that can be read ({error}); give PNG, JPEG or .npy") from error
    return np.ascontiguousarray(pixels.transpose(2, 0, 1))


def _middle(size: tuple[int, int], wanted: tuple[int, int], shorter_side: int) -> tuple[float, float, float, float]:
    """Left, top, right and bottom of what becomes the `wanted` (width, height), in pixels of the unscaled picture."""
    scaled = [side * shorter_side // min(size) for side in size]
    start = [round((whole - part) / 2) for whole, part in zip(scaled, wanted)]
    unit = [side / whole for side, whole in zip(size, scaled)]
    (left, right), (top, bottom) = ((s * u, (s + part) * u) for s, u, part in zip(start, unit, wanted))
    return left, top, right, bottom
