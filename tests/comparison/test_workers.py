"""What becomes of processes: Ctrl-C ends them all, and no run is trained twice at a time."""

import os
import signal
import sys
import threading
import time
from pathlib import Path

import pytest
from fabricated import small_file

from lrnets.comparison.rows import load_comparison
from lrnets.comparison.runs import runs_of
from lrnets.comparison.workers import train_all, wanting

SLEEPER = """
import os, sys, time
from pathlib import Path
Path(__file__).with_name("pid").write_text(str(os.getpid()))
time.sleep(20)
Path(__file__).with_name("ended").touch()
"""


@pytest.fixture
def can_be_interrupted():
    """Shells have their background jobs, perhaps the whole test run, ignore Ctrl-C, and Python leaves it at that."""
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, before)


def float_run(folder: Path):
    comparison = load_comparison(small_file(folder), "quick")
    return runs_of(comparison, comparison.named(["float"]), 1, folder / "out")[0]


@pytest.mark.usefixtures("can_be_interrupted")
def test_an_interrupt_ends_the_processes_and_starts_no_more(tmp_path):
    (tmp_path / "sleeper.py").write_text(SLEEPER)

    def interrupt():
        deadline = time.monotonic() + 60
        while not (tmp_path / "pid").exists() and time.monotonic() < deadline:
            time.sleep(0.05)
        os.kill(os.getpid(), signal.SIGINT)

    threading.Thread(target=interrupt, daemon=True).start()
    said: list[str] = []
    with pytest.raises(KeyboardInterrupt):
        train_all(
            wanting([float_run(tmp_path)]), workers=1, launcher=[sys.executable, str(tmp_path / "sleeper.py")],
            say=said.append,
        )  # fmt: skip
    assert len(said) == 1  # that it starts, and nothing of an end
    assert not (tmp_path / "ended").exists()  # it was ended, and not waited for
    with pytest.raises(ProcessLookupError):
        os.kill(int((tmp_path / "pid").read_text()), 0)


def test_a_run_that_another_process_trains_is_left_to_it(tmp_path):
    fcntl = pytest.importorskip("fcntl")
    run = float_run(tmp_path)
    run.log_file.parent.mkdir(parents=True)
    with run.log_file.open("ab") as log:
        fcntl.flock(log, fcntl.LOCK_EX)
        problems = train_all([run], launcher=["/nowhere"], say=lambda text: None)
    assert problems == {run: "another process is training it"}


def test_a_process_that_leaves_no_results_is_named(tmp_path):
    run, said = float_run(tmp_path), []
    problems = train_all([run], launcher=[sys.executable, "-c", "pass"], say=said.append)
    assert problems == {run: f"ended without results; see {run.log_file}"}
    assert "ended without results" in said[-1]


def test_workers_must_be_some(tmp_path):
    with pytest.raises(ValueError, match="workers must be at least 1, got 0"):
        train_all([float_run(tmp_path)], workers=0)
