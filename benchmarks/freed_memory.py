"""A training step with freed memory given back to the system, glibc's own way, and kept, as `lrnets train` does.

Each time comes from a process of its own, and the two take turns; steps are those of benchmarks/train_step.py
(forward, backward, Adam), times are medians. Keep the machine quiet meanwhile.

    python benchmarks/freed_memory.py [--networks mnist] [--rounds 4] [--threads 1]
"""

from __future__ import annotations

import argparse
import json
import resource
import statistics
import subprocess
import sys
import time

import torch
from train_step import NETWORKS, build

from lrnets.tables import table
from lrnets.training.allocator import keep_freed_memory

STEPS = 10
WAYS = ("given back", "kept")


def steps(network: str, way: str, threads: int) -> None:
    """Print the time of a step in ms and the process's peak memory in MB, of float32 and lrnets."""
    torch.set_num_threads(threads)
    if way == "kept" and not keep_freed_memory():
        raise SystemExit("memory cannot be kept here: no glibc, or MALLOC_* variables are set")
    found = {}
    for variant in ("float32", "lrnets"):
        step, times = build(network, variant, "channels_last"), []
        for _ in range(STEPS + 2):
            start = time.perf_counter()
            step()
            times.append(time.perf_counter() - start)
        peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1e3
        found[variant] = (statistics.median(times[2:]) * 1e3, peak)
    print(json.dumps(found))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--networks", nargs="+", default=["mnist"], choices=list(NETWORKS))
    parser.add_argument("--rounds", type=int, default=4, help="processes of each kind (default %(default)s)")
    parser.add_argument("--threads", type=int, default=1, help="(default %(default)s)")
    parser.add_argument("--way", choices=WAYS, help=argparse.SUPPRESS)  # a process that measures
    args = parser.parse_args()
    if args.way:
        steps(args.networks[0], args.way, args.threads)
        return
    rows = []
    for network in args.networks:
        found: dict[str, list[dict[str, list[float]]]] = {way: [] for way in WAYS}
        for _ in range(args.rounds):
            for way in WAYS:
                command = [
                    sys.executable,
                    __file__,
                    "--networks",
                    network,
                    "--way",
                    way,
                    "--threads",
                    str(args.threads),
                ]
                found[way].append(json.loads(subprocess.run(command, check=True, capture_output=True).stdout))
        for variant in ("float32", "lrnets"):
            times, peaks = (
                [statistics.median(one[variant][i] for one in found[way]) for way in WAYS] for i in (0, 1)
            )  # fmt: skip
            ratio = f"{times[0] / times[1]:.2f} x"
            rows.append((network, variant, *(f"{t:.0f}" for t in times), ratio, *(f"{p:.0f}" for p in peaks)))
    header = ("network", "step", *(f"ms, {way}" for way in WAYS), "faster", *(f"peak MB, {way}" for way in WAYS))
    print(table(header, rows, right=tuple(range(2, 7))))


if __name__ == "__main__":
    main()
