"""Pictures and arrays through a packed file: their most probable classes. Needs lrnets_runtime, never torch."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np
from lrnets_runtime import Network
from lrnets_runtime.graph import Shape, Softmax
from lrnets_runtime.images import prepare, read_image
from numpy.typing import NDArray

from lrnets.tables import table

PICTURES = (".png", ".jpg", ".jpeg")
AT_ONCE = 64  # images


@dataclass(frozen=True)
class Prediction:
    """An image, and its most probable classes with their probabilities, the best first."""

    image: str
    top: tuple[tuple[str, float], ...]

    def to_json(self) -> dict[str, Any]:
        return {"image": self.image, "top": [{"class": name, "probability": p} for name, p in self.top]}


def predict(network: Network, paths: Sequence[Path], *, top: int = 3) -> Iterator[Prediction]:
    """The `top` classes of every image; paths are PNG, JPEG and .npy files, and folders of them.

    An array of bytes is one or several raw images, an array of floats what the network takes, prepared already.
    """
    if top < 1:
        raise ValueError(f"top is {top}; give a whole number from 1")
    if len(network.output_shape) != 1:
        raise ValueError(
            f"the network's output has shape {list(network.output_shape)}, which is no list of classes; "
            "call it from Python: lrnets_runtime.load(path)(x)"
        )
    classes = network.graph.classes or tuple(map(str, range(network.output_shape[0])))
    inputs = (pair for path in find_images(paths) for pair in _inputs(path, network))
    while some := list(islice(inputs, AT_ONCE)):
        names, arrays = zip(*some)
        for image, p in zip(names, probabilities(network, np.stack(arrays))):
            if not np.isfinite(p).all():
                raise ValueError(f"{image}: the network's output is NaN or infinite; are there such numbers in it?")
            best = np.argsort(-p, kind="stable")[:top]
            yield Prediction(image, tuple((classes[k], float(p[k])) for k in best))


def predictions_table(predictions: Iterable[Prediction]) -> str:
    """An image a row, its classes side by side."""
    rows = [(p.image, *(cell for name, chance in p.top for cell in (name, _per_cent(chance)))) for p in predictions]
    places = max((len(row) for row in rows), default=1) // 2
    header = ("image", *(cell for place in range(places) for cell in (_ordinal(place), "")))
    return table(header, rows, right=range(2, len(header), 2))


def find_images(paths: Sequence[Path]) -> list[Path]:
    """Files as they are given, and what a folder has of pictures and arrays, by name."""
    found: list[Path] = []
    for path in paths:
        if path.is_dir():
            inside = sorted(file for file in path.iterdir() if file.suffix.lower() in (*PICTURES, ".npy"))
            if not inside:
                raise FileNotFoundError(f"{path} has no {', '.join(PICTURES)} or .npy file; name another folder")
            found += inside
        elif path.exists():
            found.append(path)
        else:
            raise FileNotFoundError(f"there is no image or array at {str(path)!r}; check the path")
    return found


def probabilities(network: Network, x: NDArray[np.float32]) -> NDArray[np.float64]:
    """(batch, classes): the network's output, or its softmax unless a softmax made it."""
    y = network(x).astype(np.float64)
    maker = next((node for node in network.graph.nodes if node.output == network.graph.output), None)
    if isinstance(maker, Softmax):
        return y
    with np.errstate(invalid="ignore"):  # infinities give NaN, which the caller looks for
        powers = np.exp(y - y.max(1, keepdims=True))
    result: NDArray[np.float64] = powers / powers.sum(1, keepdims=True)
    return result


def _inputs(path: Path, network: Network) -> Iterator[tuple[str, NDArray[np.float32]]]:
    """Names and network inputs of all images in a file."""
    suffix = path.suffix.lower()
    if suffix not in (*PICTURES, ".npy"):
        raise ValueError(f"{path}: neither a picture ({', '.join(PICTURES)}) nor a .npy array")
    array = _load_array(path) if suffix == ".npy" else None
    if array is not None and array.dtype.kind == "f":
        yield from ((name, item.astype(np.float32)) for name, item in _items(path, array, [network.input_shape]))
        return
    if (preparation := network.graph.preparation) is None:
        raise ValueError(
            f"{path}: the network's file does not say how an image becomes its input; give .npy arrays of float32 "
            f"{list(network.input_shape)}, prepared as in training, or export the run again"
        )
    for name, image in _images(path, array, network.input_shape, preparation.shorter_side):
        yield name, prepare(image[None], preparation)[0]


def _images(
    path: Path, array: NDArray[Any] | None, shape: Shape, shorter_side: int | None
) -> Iterator[tuple[str, NDArray[np.uint8]]]:
    """Names and bytes, as (channels, height, width), of the images in an array or else a picture."""
    if array is None:
        yield str(path), read_image(path, shape, shorter_side=shorter_side)
        return
    if array.dtype != np.uint8:
        raise ValueError(
            f"{path}: numbers of type {array.dtype}; give raw images as uint8, or the network's input as float32"
        )
    # A grey image may do without its dimension of one channel.
    shapes = [shape, shape[1:]] if shape[0] == 1 else [shape]
    yield from ((name, item.reshape(shape)) for name, item in _items(path, array, shapes))


def _load_array(path: Path) -> NDArray[Any]:
    """An array as it lies in its file: nothing is unpickled, and nothing read that is not there."""
    try:
        array: NDArray[Any] = np.load(path, mmap_mode="r", allow_pickle=False)
    except (OSError, ValueError, EOFError) as error:
        raise ValueError(f"{path}: is no .npy array that can be read ({error}); write it with numpy.save") from error
    if not isinstance(array, np.ndarray):  # several, as numpy.savez writes them
        raise ValueError(f"{path}: holds several arrays; write the one to be run with numpy.save")
    return array


def _items(path: Path, array: NDArray[Any], shapes: Sequence[Shape]) -> Iterator[tuple[str, NDArray[Any]]]:
    """One item of one of these shapes, or all of a batch of them."""
    if array.shape in shapes:
        yield str(path), np.asarray(array)
    elif array.shape[1:] in shapes:
        yield from ((f"{path}[{place}]", np.asarray(item)) for place, item in enumerate(array))
    else:
        allowed = " or ".join(f"{list(shape)}" for shape in shapes)
        raise ValueError(f"{path}: an array of shape {list(array.shape)}; give {allowed}, or a batch of such")


def _per_cent(share: float) -> str:
    return f"{100 * share:.2f} %"


def _ordinal(place: int) -> str:
    return ("best", "second", "third")[place] if place < 3 else f"{place + 1}th"
