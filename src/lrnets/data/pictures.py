"""One picture, from the bytes of its file to what a network sees of it. Needs Pillow."""

from __future__ import annotations

import io
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from lrnets.data.shuffle import stream
from lrnets.errors import describe

if TYPE_CHECKING:
    from PIL import Image

SUFFIXES = (".jpg", ".jpeg", ".png")
FORMATS = ("JPEG", "PNG")  # by content: ImageNet has a PNG file that is called .JPEG
EIGHT_BITS = ("1", "L", "LA", "P", "PA", "RGB", "RGBA", "RGBX", "CMYK", "YCbCr", "La", "RGBa")
SHRUNK_QUALITY = 95  # hardly to be told from the original, at a third of its bytes
ORIENTATION = 0x0112  # EXIF's number for how a camera was held


class DamagedImageError(ValueError):
    """A file that is no picture, or not the whole of one."""


@dataclass(frozen=True)
class View:
    """What is seen of a picture: its shorter side becomes `resize` pixels, a square of `size` pixels is cut out."""

    size: int = 224
    resize: int = 256

    def __post_init__(self) -> None:
        for name in ("size", "resize"):
            value = getattr(self, name)
            if isinstance(value, bool) or not isinstance(value, int) or value < 1:
                raise ValueError(f"{name} must be a whole number of at least 1 pixel, got {describe(value)}")
        if self.size > self.resize:
            raise ValueError(
                f"a square of {self.size} pixels cannot be cut out of a shorter side of {self.resize}; raise resize"
            )

    def of(self, content: bytes, noise: int | None = None) -> np.ndarray:
        """The square as uint8 (3, size, size): from the middle, or by `noise` from anywhere and perhaps mirrored.

        Grey, CMYK and paletted pictures become RGB, transparency is ignored, and what a camera noted about being held
        sideways is followed. Only the square is scaled (bilinear, over the whole area), not what is around it.
        """
        with _opened(content) as image:
            return self._cut(_decoded(image, self.resize), noise)

    def _cut(self, image: Image.Image, noise: int | None) -> np.ndarray:
        from PIL import Image

        shorter = min(image.size)
        width, height = (side * self.resize // shorter for side in image.size)  # if all of it were scaled
        rooms = (width - self.size, height - self.size)
        mirrored = False
        if noise is None:
            left, top = (round(room / 2) for room in rooms)
        else:
            *places, coin = stream(3, noise).tolist()
            left, top = (place % (room + 1) for place, room in zip(places, rooms))
            mirrored = coin % 2 == 1
        across, down = image.width / width, image.height / height
        box = (left * across, top * down, (left + self.size) * across, (top + self.size) * down)
        square = image.resize((self.size, self.size), Image.Resampling.BILINEAR, box)
        pixels = np.asarray(square).transpose(2, 0, 1)
        return pixels[:, :, ::-1] if mirrored else pixels


def shrunk(content: bytes, shorter: int) -> bytes:
    """The picture as a JPEG whose shorter side has `shorter` pixels; as it is, if it has no more or is damaged."""
    from PIL import Image

    try:
        with _opened(content) as image:
            if min(image.size) <= shorter:
                return content
            picture = _decoded(image, shorter)
            width, height = (round(side * shorter / min(picture.size)) for side in picture.size)
            small = io.BytesIO()
            picture.resize((width, height), Image.Resampling.BILINEAR).save(small, "JPEG", quality=SHRUNK_QUALITY)
            return small.getvalue()
    except DamagedImageError:
        return content  # training reports it, and counts it


@contextmanager
def _opened(content: bytes) -> Iterator[Image.Image]:
    """The picture, nothing of it decoded yet; whatever is wrong with it within the block, it is damaged."""
    from PIL import Image, UnidentifiedImageError

    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # of palettes, EXIF data and sizes that are unusual
            with Image.open(io.BytesIO(content), formats=FORMATS) as image:
                yield image
    except UnidentifiedImageError as error:
        raise DamagedImageError(f"neither JPEG nor PNG, of {len(content)} bytes") from error
    except MemoryError:  # not the picture's fault
        raise
    except Exception as error:  # of damaged chunks Pillow may fail in any way, an assertion among them
        raise DamagedImageError(str(error) or type(error).__name__) from error


def _decoded(image: Image.Image, shorter: int) -> Image.Image:
    """All pixels in RGB, upright; of a JPEG no more than it takes for a shorter side of `shorter` pixels."""
    if image.mode not in EIGHT_BITS:
        raise ValueError(f"its pixels are {image.mode!r}, not 8 bits a channel")
    width, height = (-(-side * shorter // min(image.size)) for side in image.size)  # rounded up
    # JPEG can be decoded at 1/2, 1/4 or 1/8 of its size in a fraction of the time; never below what is asked for.
    image.draft(image.mode, (width, height))
    image.load()
    return _upright(image).convert("RGB")


def _upright(image: Image.Image) -> Image.Image:
    """The picture turned as its EXIF data say, if they can be read."""
    from PIL import Image

    turns = Image.Transpose
    try:
        turn = {
            2: turns.FLIP_LEFT_RIGHT, 3: turns.ROTATE_180, 4: turns.FLIP_TOP_BOTTOM, 5: turns.TRANSPOSE,
            6: turns.ROTATE_270, 7: turns.TRANSVERSE, 8: turns.ROTATE_90,
        }.get(int(image.getexif().get(ORIENTATION) or 1))  # fmt: skip
    except Exception:  # broken EXIF data may fail in any way, and do not matter
        return image
    return image if turn is None else image.transpose(turn)
