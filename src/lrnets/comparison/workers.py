"""Training what is missing: each run is `lrnets train` in a process of its own, several at a time."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, field
from threading import Event, Lock
from typing import IO

from lrnets.comparison.runs import Run, chosen, state_of
from lrnets.cores import cores
from lrnets.data.progress import Report, progress_bars
from lrnets.training.run_folder import RunFolder
from lrnets.words import counted

try:
    import fcntl
except ImportError:  # Windows: two tables at once in one folder go unnoticed there
    fcntl = None  # type: ignore[assignment]

LAUNCHER = (sys.executable, "-m", "lrnets.cli")
GLANCE = 1.0  # seconds between two looks at a process
INTERRUPTED = (130, -2)  # exit codes after Ctrl-C, which reaches the children of a terminal's command as well

Say = Callable[[str], None]


def wanting(runs: Sequence[Run]) -> list[Run]:
    """The runs to train, float starts first; a start only if a run has no copy of it yet."""
    todo = [run for run in runs if state_of(run)[0] in ("missing", "interrupted")]
    starts = [run.start for run in todo if run.start and not run.folder.weights_file("float").exists()]
    unfinished = [start for start in dict.fromkeys(starts) if state_of(start)[0] in ("missing", "interrupted")]
    return [*unfinished, *todo]


def train_all(
    todo: Sequence[Run], *, workers: int = 2, data_dir: str | None = None, launcher: Sequence[str] = LAUNCHER,
    say: Say = print,
) -> dict[Run, str]:  # fmt: skip
    """Train these runs, `workers` at a time; returns what went wrong, by run; the others go on."""
    if workers < 1:
        raise ValueError(f"workers must be at least 1, got {workers}")
    for run in todo:
        if state_of(run)[0] == "missing":
            RunFolder(run.recipe_file.parent).write_text(run.recipe_file.name, run.row.recipe.to_yaml())
    problems: dict[Run, str] = {}
    with progress_bars() as report, ThreadPoolExecutor(workers) as pool:
        office = _Office(tuple(todo), launcher, data_dir, max(1, cores() // workers), say, report)
        futures: dict[Run, Future[str]] = {}
        try:
            for run in todo:  # starts come first, so nothing waits for what is behind it in the queue
                futures[run] = pool.submit(office.train, run, futures.get(run.start) if run.start else None)
            problems = {run: problem for run in todo if (problem := futures[run].result())}
        except BaseException:
            office.stop.set()
            pool.shutdown(cancel_futures=True)
            raise
    return problems


@dataclass
class _Office:
    """What the threads that look after processes have in common."""

    todo: tuple[Run, ...]
    launcher: Sequence[str]
    data_dir: str | None
    threads: int
    say: Say
    report: Report
    stop: Event = field(default_factory=Event)
    lock: Lock = field(default_factory=Lock)
    ended: int = 0
    started: float = field(default_factory=time.monotonic)

    def __post_init__(self) -> None:
        self.total = sum(run.row.epochs for run in self.todo)
        self.at_first = self._epochs()

    def train(self, run: Run, after: Future[str] | None) -> str:
        """One run from start or checkpoint to end; what went wrong, or nothing."""
        if after is not None and after.result():
            problem = f"not trained, since its float start failed: {after.result()}"
        elif run.start and not run.folder.weights_file("float").exists() and state_of(run.start)[0] != "finished":
            problem = f"not trained: {run.start} is {' with '.join(filter(None, state_of(run.start)))}"
        else:
            problem = self._train(run)
        with self.lock:
            self.ended += 1
            if not self.stop.is_set():
                how = problem or f"done, validation error {_validation_error(run):.2f} %"
                self.say(f"{run}: {how} ({self.ended} of {counted(len(self.todo), 'run')}{self._left()})")
        return problem

    def _train(self, run: Run) -> str:
        with _log(run) as log:
            if log is None:
                return "another process is training it"
            state, _ = state_of(run)
            if state == "finished":  # by another process, while this one was busy
                return ""
            resume = state == "interrupted"
            self.say(f"{run}: {'goes on' if resume else 'starts'}; log in {run.log_file}")
            environment = os.environ | {"OMP_NUM_THREADS": str(self.threads), "PYTHONUNBUFFERED": "1"}
            process = subprocess.Popen(
                [*self.launcher, *_arguments(run, resume, self.data_dir)],
                stdin=subprocess.DEVNULL, stdout=log, stderr=subprocess.STDOUT, env=environment,
            )  # fmt: skip
            code = self._wait(process)
            if code == 0:
                return "" if state_of(run)[0] == "finished" else f"ended without results; see {run.log_file}"
            return "interrupted" if code in INTERRUPTED or self.stop.is_set() else _failure(run, code)

    def _wait(self, process: subprocess.Popen[bytes]) -> int:
        while True:
            try:
                return process.wait(GLANCE)
            except subprocess.TimeoutExpired:
                if self.stop.is_set():
                    process.terminate()  # run folders outlive that
                self.report("epochs of all runs", self._epochs(), self.total)

    def _epochs(self) -> int:
        return sum(run.epochs_done() for run in self.todo)

    def _left(self) -> str:
        done = self._epochs()
        if done == self.at_first or done >= self.total:
            return ""
        seconds = (time.monotonic() - self.started) / (done - self.at_first) * (self.total - done)
        return f", about {max(1, round(seconds / 60))} min left"


def _arguments(run: Run, resume: bool, data_dir: str | None) -> list[str]:
    # A run that goes on does so with the recipe in its folder, whatever words have changed since.
    recipe = run.folder.recipe_file if resume else run.recipe_file
    arguments = ["train", str(recipe), f"--seed={run.seed}", f"--out={run.folder.path}"]
    if run.start and not run.folder.weights_file("float").exists():
        arguments.append(f"--init={run.start.folder.weights_file('float')}")
    return arguments + (["--resume"] if resume else []) + ([f"--data-dir={data_dir}"] if data_dir else [])


@contextmanager
def _log(run: Run) -> Iterator[IO[bytes] | None]:
    """The run's log, locked; None if it is locked already. The child has it too, and so the lock, until it ends."""
    run.log_file.parent.mkdir(parents=True, exist_ok=True)
    with run.log_file.open("ab") as log:
        if fcntl is not None:
            try:
                fcntl.flock(log, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                yield None
                return
        yield log


def _failure(run: Run, code: int) -> str:
    lines = run.log_file.read_text(errors="replace").strip().splitlines()
    return f"failed with code {code}, {lines[-1].strip() if lines else 'saying nothing'}; see {run.log_file}"


def _validation_error(run: Run) -> float:
    return chosen(run.folder.read_json("results.json")["valid_error"])
