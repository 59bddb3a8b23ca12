"""Small image folders for tests: every picture is made here."""

import io
from pathlib import Path

import numpy as np
from PIL import Image


def pixels(seed: int, height: int = 12, width: int = 16) -> np.ndarray:
    """A picture (height, width, 3) that JPEG keeps well: a smooth blend of four random corners."""
    corners = np.random.default_rng(seed).integers(256, size=(2, 2, 3), dtype=np.uint8)
    return np.asarray(Image.fromarray(corners).resize((width, height), Image.Resampling.BILINEAR))


def encoded(picture: np.ndarray | Image.Image, kind: str = "JPEG", **options) -> bytes:
    """A picture as the bytes of a file."""
    image = picture if isinstance(picture, Image.Image) else Image.fromarray(picture)
    content = io.BytesIO()
    image.save(content, kind, **({"quality": 95} if kind == "JPEG" else {}), **options)
    return content.getvalue()


def make_folder(root: Path, *, classes: int = 3, train: int = 8, val: int = 4, side: int = 12) -> Path:
    """train/<class>/*.JPEG and val/<class>/*.JPEG; pictures of a class are alike, so that it can be learnt."""
    for part, count in (("train", train), ("val", val)):
        for label in range(classes):
            folder = root / part / f"class{label:02d}"
            folder.mkdir(parents=True, exist_ok=True)
            for number in range(count):
                noise = pixels(1000 * label + number + 500 * (part == "val"), side, side + 4)
                blend = 0.7 * pixels(label, side, side + 4) + 0.3 * noise
                (folder / f"{number}.JPEG").write_bytes(encoded(blend.astype(np.uint8)))
    return root
