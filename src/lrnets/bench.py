"""How long a packed file takes with each set of kernels that this CPU has. Needs lrnets_runtime; torch for rivals only.

All take turns, so that a slow moment of the machine hits all; a time is the median of the rounds. benchmarks/runtime.py
measures in the same way.
"""

from __future__ import annotations

import statistics
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
from lrnets_runtime import file, load, native
from lrnets_runtime.network import default_threads
from numpy.typing import NDArray

from lrnets.tables import table

Call = Callable[[NDArray[np.float32]], Any]
ROUNDS = 15
# An engine's turn, in seconds. Threads of onnxruntime wait busily for 50 ms after a call, and would be in the way of
# the next engine; after the silence caches are cold and clocks low.
SILENCE, WARM, TIMED = 0.06, 0.02, 0.02
PATIENCE = 2.0  # seconds before progress is told


@dataclass(frozen=True)
class Engine:
    """Something that runs the network on so many threads."""

    name: str
    threads: int
    call: Call
    file_bytes: int
    memory_bytes: int | None  # of weights, scales and biases as they are held; None where nobody knows


@dataclass(frozen=True)
class Timing:
    """What an engine takes for a batch."""

    engine: str
    threads: int
    batch: int
    microseconds: float  # an image, median
    file_bytes: int
    memory_bytes: int | None

    @property
    def images_a_second(self) -> float:
        return 1e6 / self.microseconds

    def to_json(self) -> dict[str, Any]:
        return {**vars(self), "images_a_second": self.images_a_second}


def bench(
    path: Path,
    *,
    kernels: Sequence[str] = (),
    threads: Sequence[int] = (),
    batches: Sequence[int] = (1, 32),
    against: Sequence[str] = (),
    rounds: int = ROUNDS,
) -> list[Timing]:
    """Times of the file's network on random inputs, with the activations that the file has.

    `kernels` are all that this CPU has unless named, without NumPy's "reference"; `threads` 1 and as many as there are
    cores. `against` may have "onnxruntime", which is given the same network as ONNX.
    """
    there = native.kernels()
    chosen = tuple(kernels) or tuple(there[:-1]) or ("reference",)
    counts = tuple(threads) or tuple(sorted({1, default_threads()}))
    for what, numbers in (("threads", counts), ("batches", batches), ("rounds", [rounds])):
        if min(numbers, default=0) < 1:
            raise ValueError(f"{what}: {', '.join(map(str, numbers))}; give whole numbers from 1")
    for what, names, known in (("kernels", chosen, there), ("against", against, list(RIVALS))):
        if unknown := set(names) - set(known):
            raise ValueError(f"{what}: {', '.join(sorted(unknown))}; there is {', '.join(known)} here")
    timings: list[Timing] = []
    with _progress() as tell, tempfile.TemporaryDirectory() as folder:
        graph, _ = file.read(path)
        engines = [_ours(path, name, count) for name in chosen for count in counts]
        for rival in against:
            tell(f"writing the network for {rival}")
            engines += RIVALS[rival](path, Path(folder), counts)
        for batch in batches:
            x = np.random.default_rng(0).normal(size=(batch, *graph.input_shape)).astype(np.float32)
            tell_round = partial(_tell_round, tell, batch, rounds)
            seconds = interleaved([partial(engine.call, x) for engine in engines], rounds, tell_round)
            for e, own in zip(engines, seconds):
                median = 1e6 * statistics.median(own) / batch
                timings.append(Timing(e.name, e.threads, batch, median, e.file_bytes, e.memory_bytes))
    return sorted(timings, key=lambda timing: (timing.threads, timing.batch))


def interleaved(
    calls: Sequence[Callable[[], Any]], rounds: int, tell: Callable[[int], None] = lambda number: None
) -> list[list[float]]:
    """Seconds of each call in each round. A turn: silence, calls to get warm, then calls that count."""
    for call in calls:
        call()  # the first time takes longer: memory, threads
    seconds: list[list[float]] = [[] for _ in calls]
    for number in range(rounds):
        tell(number)
        for call, own in zip(calls, seconds):
            time.sleep(SILENCE)
            repeat(call, WARM)
            own.append(repeat(call, TIMED))
    return seconds


def repeat(call: Callable[[], Any], at_least: float) -> float:
    """Seconds of a call, which is repeated until `at_least` seconds are over."""
    count, start = 0, time.perf_counter()
    while (passed := time.perf_counter() - start) < at_least or not count:
        call()
        count += 1
    return passed / count


def timings_table(timings: Sequence[Timing]) -> str:
    """A timing a row."""
    header = ("kernels", "threads", "batch", "µs an image", "images a second", "file bytes", "memory bytes")
    rows = [
        (
            t.engine, t.threads, t.batch, f"{t.microseconds:,.1f}", f"{t.images_a_second:,.0f}", f"{t.file_bytes:,}",
            "" if t.memory_bytes is None else f"{t.memory_bytes:,}",
        )
        for t in timings
    ]  # fmt: skip
    return table(header, rows, right=range(1, 7))


def _ours(path: Path, kernels: str, threads: int) -> Engine:
    """The run-time; a network that these kernels cannot run is run by the reference, and named so."""
    network = load(path, threads=threads, kernels=kernels)
    return Engine(network.kernels, threads, network, path.stat().st_size, network.bytes_in_memory)


def _onnxruntime(path: Path, folder: Path, threads: Sequence[int]) -> list[Engine]:
    """The same network in onnxruntime, with the weights that make it fastest: float32 where activations are."""
    try:
        import onnxruntime
    except ModuleNotFoundError as error:
        raise RuntimeError("onnxruntime is not installed; pip install onnx onnxruntime, or leave it out") from error
    from lrnets.export.from_packed import from_packed
    from lrnets.export.onnx_file import write_onnx

    prepared = from_packed(path)
    weights = prepared.activations
    report = write_onnx(prepared, folder / "network.onnx", weights=weights)

    def engine(count: int) -> Engine:
        options = onnxruntime.SessionOptions()
        options.intra_op_num_threads, options.inter_op_num_threads, options.log_severity_level = count, 1, 3
        session = onnxruntime.InferenceSession(str(report.path), options, providers=["CPUExecutionProvider"])
        name = session.get_inputs()[0].name
        return Engine("onnxruntime", count, lambda x: session.run(None, {name: x}), report.bytes, None)

    return [engine(count) for count in threads]


RIVALS = {"onnxruntime": _onnxruntime}


def _tell_round(tell: Callable[[str], None], batch: int, rounds: int, number: int) -> None:
    tell(f"batch {batch}: round {number + 1} of {rounds}")


@contextmanager
def _progress() -> Iterator[Callable[[str], None]]:
    """A line on stderr, if that is a terminal, which tells where we are once it has taken a while; wiped at the end."""
    start, longest = time.perf_counter(), 0

    def tell(text: str) -> None:
        nonlocal longest
        if (passed := time.perf_counter() - start) >= PATIENCE and sys.stderr.isatty():
            line = f"{text}, {passed:.0f} s"
            longest = max(longest, len(line))
            print(f"\r{line:{longest}}", end="", file=sys.stderr, flush=True)

    try:
        yield tell
    finally:
        if longest:
            print(f"\r{'':{longest}}\r", end="", file=sys.stderr, flush=True)
