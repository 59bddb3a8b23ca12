"""The backward pass of a layer's variance with denormal numbers, and with these taken as 0, as `lrnets train` does.

Logits are drawn from a normal distribution and sharpened as they are in the last epochs of sharpened training. The two
ways take turns; times are medians. Keep the machine quiet meanwhile.

    python benchmarks/denormals.py [--sharpness 10 33 60 100] [--rounds 7]
"""

from __future__ import annotations

import argparse
import contextlib
import statistics
import time

import torch

from lrnets import Ternary
from lrnets.tables import table
from lrnets.training.denormals import flushed_denormals

CHANNELS, IMAGES, SIDE = 512, 16, 4


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--sharpness", nargs="+", type=float, default=[10, 33, 60, 100])
    parser.add_argument("--rounds", type=int, default=7, help="(default %(default)s)")
    args = parser.parse_args()
    torch.set_num_threads(1)  # one that flushing is known to reach
    torch.manual_seed(0)
    layout = torch.channels_last
    logits = torch.randn(2, CHANNELS, CHANNELS, 3, 3)
    squares = torch.rand(IMAGES, CHANNELS, SIDE, SIDE).contiguous(memory_format=layout)
    grad = torch.randn(IMAGES, CHANNELS, SIDE, SIDE).contiguous(memory_format=layout)
    rows = []
    for sharpness in args.sharpness:
        _, variance = Ternary().moments(logits * sharpness)
        variance = variance.contiguous(memory_format=layout)
        denormal = (variance > 0) & (variance < torch.finfo(variance.dtype).tiny)
        times: dict[str, list[float]] = {"kept": [], "taken as 0": []}
        for _ in range(args.rounds):
            for way, taken in times.items():
                with contextlib.nullcontext() if way == "kept" else flushed_denormals():
                    start = time.perf_counter()
                    torch.ops.aten.convolution_backward(
                        grad, squares, variance, None, (1, 1), (1, 1), (1, 1), False, (0, 0), 1, [True, True, False]
                    )
                    taken.append((time.perf_counter() - start) * 1e3)
        kept, flushed = (statistics.median(taken) for taken in times.values())
        share = f"{denormal.float().mean().item():.2%}"
        rows.append([f"{sharpness:g}", share, f"{kept:.1f}", f"{flushed:.1f}", f"{kept / flushed:.2f}"])
    print(table(["sharpness", "denormal", "kept, ms", "taken as 0, ms", "ratio"], rows, right=range(5)))


if __name__ == "__main__":
    main()
