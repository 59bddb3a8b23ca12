"""Time and memory of one training step: float32, a plain autograd LR layer, and lrnets, for the paper's networks.

Steps are interleaved in one process, so that a slow moment of the machine hits all three; times are medians. Peak
memory comes from a process of its own for each: how far its resident memory rises above what it was after import.
Keep the machine quiet meanwhile.

    python benchmarks/train_step.py [--networks mnist vgg] [--formats channels_last] [--steps 20] [--compiled]
"""

from __future__ import annotations

import argparse
import json
import statistics
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import torch
import torch.nn.functional as F
from torch import Tensor, nn

import lrnets
from lrnets.layers import LRLayer
from lrnets.models import cifar10_vgg, mnist_net
from lrnets.plain import settings_of
from lrnets.tables import table

NETWORKS: dict[str, tuple[Callable[[], nn.Module], tuple[int, ...]]] = {
    "mnist": (mnist_net, (256, 1, 28, 28)),
    "vgg": (cifar10_vgg, (32, 3, 32, 32)),
}
VARIANTS = ["float32", "plain autograd", "lrnets"]
COMPILED = "lrnets, torch.compile"
AIMS = {"mnist": 1.9, "vgg": 2.15}
MEMORY_AIM = 1.6


class PlainAutograd(nn.Module):
    """The local reparameterisation as one would write it down first: all left to autograd, torch's `randn_like`."""

    def __init__(self, layer: LRLayer) -> None:
        super().__init__()
        self.logits = layer.logits
        self.bias = layer.bias
        self.scale = layer.scale
        self.shape = layer.weight_shape
        self.plain = layer.plain(**settings_of(layer.plain, layer), bias=False, device="meta")

    def forward(self, x: Tensor) -> Tensor:
        assert self.scale is not None
        a, b = self.logits.unflatten(0, (2, self.shape[0])).unbind(0)
        zero, positive = torch.sigmoid(a), torch.sigmoid(b)
        plus, minus = (1 - zero) * positive, (1 - zero) * (1 - positive)
        mean = self.scale * (plus - minus)
        variance = self.scale**2 * (plus * (1 - plus) + minus * (1 - minus) + 2 * plus * minus)
        m, v2 = self._apply_weight(x, mean, self.bias), self._apply_weight(x.square(), variance, None)
        v = torch.sqrt(v2 + 1e-8)
        return m + v * torch.randn_like(v)

    def _apply_weight(self, x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
        if isinstance(self.plain, nn.Linear):
            return F.linear(x, weight, bias)
        return self.plain._conv_forward(x, weight, bias)  # type: ignore[operator]


def build(network: str, variant: str, memory_format: str) -> Callable[[], None]:
    """One training step of a network: forward, loss, backward, Adam."""
    make, shape = NETWORKS[network]
    torch.manual_seed(0)
    model = make()
    if variant != "float32":
        lrnets.convert_(model)
    if variant == "plain autograd":
        for name, child in list(model.named_children()):
            if isinstance(child, LRLayer):
                setattr(model, name, PlainAutograd(child))
    x, y = torch.rand(shape), torch.randint(10, shape[:1])
    layout = getattr(torch, f"{memory_format}_format" if memory_format == "contiguous" else memory_format)
    model, x = model.to(memory_format=layout), x.to(memory_format=layout)  # type: ignore[call-overload]
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-3, fused=True)
    compute = torch.compile(model) if variant == COMPILED else model

    def step() -> None:
        optimizer.zero_grad()
        F.cross_entropy(compute(x), y).backward()
        optimizer.step()

    return step


def measure_times(network: str, memory_format: str, steps: int) -> dict[str, list[float]]:
    """Milliseconds of each step, the variants taking turns; two rounds of warming up are not counted."""
    runs = {variant: build(network, variant, memory_format) for variant in VARIANTS}
    times: dict[str, list[float]] = {variant: [] for variant in VARIANTS}
    for round_ in range(steps + 2):
        print(f"\r{network}, {memory_format}: round {round_ + 1} of {steps + 2} ", end="", file=sys.stderr, flush=True)
        for variant, step in runs.items():
            start = time.perf_counter()
            step()
            if round_ >= 2:
                times[variant].append(1000 * (time.perf_counter() - start))
    print("\r" + " " * 60 + "\r", end="", file=sys.stderr)
    return times


def measure_memory(network: str, variant: str, memory_format: str, threads: int) -> float:
    """Peak megabytes of three steps, in a process of its own."""
    command = [sys.executable, __file__, "--memory", network, variant, memory_format, "--threads", str(threads)]
    return float(subprocess.run(command, check=True, capture_output=True, text=True).stdout)


def peak_memory_here(network: str, variant: str, memory_format: str) -> float:
    before = resident_megabytes("VmRSS")
    step = build(network, variant, memory_format)
    for _ in range(3):
        step()
    return resident_megabytes("VmHWM") - before


def resident_megabytes(field: str) -> float:
    """Resident memory of this process now (VmRSS) or at its highest (VmHWM); Linux only."""
    for line in Path("/proc/self/status").read_text().splitlines():
        if line.startswith(field):
            return int(line.split()[1]) / 1024
    raise RuntimeError(f"no {field} in /proc/self/status")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--networks", nargs="+", choices=NETWORKS, default=list(NETWORKS))
    parser.add_argument(
        "--formats", nargs="+", choices=["channels_last", "contiguous"], default=["channels_last", "contiguous"]
    )
    parser.add_argument("--steps", type=int, default=20, help="rounds to take the median of (default %(default)s)")
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--compiled", action="store_true", help="lrnets under torch.compile, too; needs a C++ compiler")
    parser.add_argument("--json", help="write all figures to this file too")
    parser.add_argument("--memory", nargs=3, metavar=("NETWORK", "VARIANT", "FORMAT"), help=argparse.SUPPRESS)
    args = parser.parse_args()
    torch.set_num_threads(args.threads)
    if args.memory:
        print(peak_memory_here(*args.memory))
        return
    if args.compiled:
        VARIANTS.append(COMPILED)
    rows, figures = [], []
    for network in args.networks:
        for memory_format in args.formats:
            times = measure_times(network, memory_format, args.steps)
            memory = {variant: measure_memory(network, variant, memory_format, args.threads) for variant in VARIANTS}
            medians = {variant: statistics.median(values) for variant, values in times.items()}
            # A ratio of neighbours in time, then the median: slow moments cancel.
            ratios = {v: statistics.median(a / b for a, b in zip(times[v], times["float32"])) for v in VARIANTS}
            for variant in VARIANTS:
                share = memory[variant] / memory["float32"]
                figures.append(
                    {"network": network, "format": memory_format, "variant": variant, "threads": args.threads,
                     "ms": medians[variant], "ratio": ratios[variant], "megabytes": memory[variant],
                     "memory_ratio": share, "torch": torch.__version__}
                )  # fmt: skip
                rows.append(
                    (network, memory_format, variant, f"{medians[variant]:.1f}", f"{ratios[variant]:.2f}",
                     f"{memory[variant]:.0f}", f"{share:.2f}", _verdict(network, variant, ratios[variant], share))
                )  # fmt: skip
    header = ("network", "format", "step", "ms", "x float32", "MB", "x float32", f"aims: time, memory {MEMORY_AIM}")
    print(table(header, rows, right=range(3, 7)))
    if args.json:
        with open(args.json, "w") as file:
            json.dump(figures, file, indent=1)


def _verdict(network: str, variant: str, ratio: float, memory_ratio: float) -> str:
    if variant != "lrnets":
        return ""
    time_, memory = (
        "met" if value <= aim else "missed" for value, aim in ((ratio, AIMS[network]), (memory_ratio, MEMORY_AIM))
    )
    return f"{AIMS[network]}: {time_}, {memory}"


if __name__ == "__main__":
    main()
