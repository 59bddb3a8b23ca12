"""How many of MNIST's test digits the page of `lrnets demo` names, when their lines are drawn on it.

Each digit is thinned to its middle line (Zhang and Suen, 1984), which is followed stroke by stroke and drawn with a
finger in headless Chromium (about 2 seconds each). The page makes an image of the strokes by itself; its answer is
compared with the label, and with the run-time's for the same image, which must be equal. `--part train` is for trying
things out.

    lrnets demo RUN --out page.html
    python experiments/demo_digits.py page.html RUN.int8.safetensors --data-dir DATA --count 200
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

import lrnets_runtime
import numpy as np
from lrnets_runtime.images import prepare
from numpy.typing import NDArray

from lrnets.data import load

TESTS = Path(__file__).parents[1] / "tests"
sys.path[:0] = [str(TESTS), str(TESTS / "demo")]
AROUND = [(-1, 0), (-1, 1), (0, 1), (1, 1), (1, 0), (1, -1), (0, -1), (-1, -1)]  # clockwise from above
INK = 215  # of 255, as far as a line goes: named best of 60 ... 215, on 300 training digits
Points = list[tuple[float, float]]


def thinned(ink: NDArray[np.bool_]) -> NDArray[np.bool_]:
    """Lines one pixel wide: pixels of the border are taken away, as long as that parts nothing."""
    ink = np.pad(ink, 1)
    while True:
        before = ink.sum()
        for corners in ((0, 2, 4, 2, 4, 6), (0, 2, 6, 0, 4, 6)):
            near = np.stack([np.roll(ink, (-dy, -dx), (0, 1)) for dy, dx in AROUND])
            count = near.sum(0)
            steps = (~near & np.roll(near, -1, 0)).sum(0)
            a, b, c, d, e, f = (near[k] for k in corners)
            ink &= ~((count >= 2) & (count <= 6) & (steps == 1) & ~(a & b & c) & ~(d & e & f))
        if ink.sum() == before:
            return ink[1:-1, 1:-1]


def strokes_of(line: NDArray[np.bool_]) -> list[Points]:
    """A thin line as strokes from end to end, in fractions of the image; every pixel is on one of them."""
    left = {(int(y), int(x)) for y, x in zip(*np.nonzero(line))}
    everything, found = set(left), list[Points]()

    def neighbours(at: tuple[int, int], among: set[tuple[int, int]]) -> list[tuple[int, int]]:
        near = [(at[0] + dy, at[1] + dx) for dy, dx in sorted(AROUND, key=lambda step: abs(step[0]) + abs(step[1]))]
        return [place for place in near if place in among]

    while left:
        at = min(left, key=lambda place: (len(neighbours(place, left)), place))  # an end, if there is one
        joined = [place for place in neighbours(at, everything) if place not in left][:1]
        path, way = [*joined, at], (0, 0)
        left.remove(at)
        while near := neighbours(at, left):
            ahead = max(near, key=lambda place: (place[0] - at[0]) * way[0] + (place[1] - at[1]) * way[1])
            way, at = (ahead[0] - at[0], ahead[1] - at[1]), ahead
            left.remove(at)
            path.append(at)
        path += [place for place in neighbours(at, everything) if place not in path[-3:]][:1]  # closes a ring
        found.append(smooth(path, line.shape[0]))
    return found


def smooth(path: list[tuple[int, int]], side: int) -> Points:
    """Means of three neighbours; ends stay."""
    points = np.array(path, float)
    if len(points) > 2:
        points[1:-1] = (points[:-2] + points[1:-1] + points[2:]) / 3
    return [((x + 0.5) / side, (y + 0.5) / side) for y, x in points]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("page", type=Path)
    parser.add_argument("packed", type=Path, help="the same network as a packed file with int8 activations")
    parser.add_argument("--data-dir")
    parser.add_argument("--first", type=int, default=0)
    parser.add_argument("--count", type=int, default=200)
    parser.add_argument("--part", choices=["train", "test"], default="test")
    args = parser.parse_args()
    from chromium_pipe import Chromium
    from demo_pages import READY

    data = load("mnist", args.data_dir)
    split = getattr(data, args.part)
    network = lrnets_runtime.load(args.packed)
    right = equal = as_is = 0
    with Chromium(phone=True) as browser:
        browser.open(args.page, READY)
        for i in range(args.first, args.first + args.count):
            digit, label = split.images[i, 0].numpy(), str(int(split.labels[i]))
            browser.evaluate("clear()")
            browser.draw("paper", strokes_of(thinned(digit > INK)))
            answer = "bytes: Array.from(shown.bytes), outputs: shown.outputs, best: get('best').textContent"
            shown = browser.evaluate(f"({{ {answer} }})")
            image = np.array(shown["bytes"], np.uint8).reshape(1, *network.input_shape)
            assert network.graph.preparation is not None
            equal += np.array_equal(np.float32(shown["outputs"]), network(prepare(image, network.graph.preparation))[0])
            whole = network(prepare(digit[None, None], network.graph.preparation))[0]
            as_is += str(int(whole.argmax())) == label
            right += shown["best"] == label
            if shown["best"] != label:
                print(f"{args.part} image {i}: {label} named {shown['best']}", flush=True)
        assert not browser.complaints, browser.complaints
    print(
        f"{right} of {args.count} drawn digits named rightly; {as_is} of the images themselves; "
        f"{equal} answers equal the run-time's to the bit"
    )


if __name__ == "__main__":
    main()
