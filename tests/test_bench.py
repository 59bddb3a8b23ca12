"""Timings of a packed file: what is timed is asserted, never how fast it is."""

import io
import json
import os
import sys

import numpy as np
import pytest
from lrnets_runtime import file, native
from lrnets_runtime.graph import Graph, Linear, Weight

from lrnets import bench as module
from lrnets.bench import Timing, bench, interleaved, timings_table
from lrnets.cli import main


@pytest.fixture
def path(tmp_path):
    layer = Linear("fc", ("input",), "fc", Weight("fc.weight", "binary", (16, 8)))
    path = tmp_path / "net.safetensors"
    file.write(path, Graph("input", (8,), "fc", (layer,)), {"fc.weight": np.arange(16, dtype=np.uint8)})
    return path


@pytest.fixture(autouse=True)
def hasty(monkeypatch):
    for name in ("SILENCE", "WARM", "TIMED"):
        monkeypatch.setattr(module, name, 0.0)


def test_every_kernel_of_this_cpu_is_timed_on_every_setting(path):
    timings = bench(path, threads=[1, 2], batches=[1, 3], rounds=2)
    kernels = native.kernels()[:-1] or ["reference"]
    assert [(t.threads, t.batch, t.engine) for t in timings] == [
        (threads, batch, name) for threads in (1, 2) for batch in (1, 3) for name in kernels
    ]
    for timing in timings:
        assert timing.microseconds > 0
        assert timing.file_bytes == path.stat().st_size
        assert timing.memory_bytes >= 16


@pytest.mark.parametrize("kernels", native.kernels())
def test_kernels_are_those_asked_for_whatever_the_environment_says(path, monkeypatch, kernels):
    for before in ("reference", None):
        if before is None:
            monkeypatch.delenv(native.VARIABLE)
        else:
            monkeypatch.setenv(native.VARIABLE, before)
        (timing,) = bench(path, kernels=[kernels], threads=[1], batches=[1], rounds=1)
        assert timing.engine == kernels
        assert os.environ.get(native.VARIABLE) == before


def test_a_time_is_the_median_for_one_image(path, monkeypatch):
    monkeypatch.setattr(module, "interleaved", lambda calls, *rest: [[9.0, 0.5, 0.2]] * len(calls))
    timing = bench(path, batches=[10], threads=[1])[0]
    assert timing.microseconds == pytest.approx(50_000)
    assert timing.images_a_second == pytest.approx(20)


def test_all_take_turns():
    order = []
    calls = [lambda name=name: order.append(name) for name in "ab"]
    rounds = []
    seconds = interleaved(calls, 3, rounds.append)
    assert "".join(order) == "ab" + "aabb" * 3  # once before all, and in each turn once to get warm
    assert rounds == [0, 1, 2]
    assert [len(own) for own in seconds] == [3, 3]


def test_short_calls_are_repeated(monkeypatch):
    monkeypatch.setattr(module, "TIMED", 0.01)
    count = 0

    def call():
        nonlocal count
        count += 1

    ((seconds,),) = interleaved([call], 1)
    assert count > 3
    assert seconds < 0.01


def test_onnxruntime_takes_its_turn(path):
    pytest.importorskip("onnx")
    pytest.importorskip("onnxruntime")
    timings = bench(path, threads=[1], batches=[2], against=["onnxruntime"], rounds=1)
    assert timings[-1].engine == "onnxruntime"
    assert timings[-1].memory_bytes is None
    assert timings[-1].file_bytes > 4 * 8 * 16


def test_a_missing_rival_is_named(path, monkeypatch, capsys):
    monkeypatch.setitem(sys.modules, "onnxruntime", None)
    assert main(["bench", str(path), "--batches", "1", "--against", "onnxruntime"]) == 1
    assert "onnxruntime is not installed; pip install onnx onnxruntime" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["--threads", "1", "0"], "threads: 1, 0; give whole numbers from 1"),
        (["--batches", "-1"], "batches: -1; give whole numbers from 1"),
        (["--kernels", "sse2"], "kernels: sse2; there is "),
    ],
)
def test_impossible_settings_are_refused(path, arguments, words, capsys):
    assert main(["bench", str(path), *arguments]) == 1
    assert f"lrnets bench: {words}" in capsys.readouterr().err


def test_the_command_prints_a_table_or_json(path, capsys):
    choices = ["--threads", "1", "--batches", "1", "--kernels", "reference"]
    assert main(["bench", str(path), *choices]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[0].split()[:3] == ["kernels", "threads", "batch"]
    assert lines[2].split()[:3] == ["reference", "1", "1"]
    assert main(["bench", str(path), *choices, "--json"]) == 0
    (found,) = json.loads(capsys.readouterr().out)
    assert found["engine"] == "reference"
    assert found["images_a_second"] == pytest.approx(1e6 / found["microseconds"])
    assert main(["bench", str(path.parent / "gone")]) == 1


def test_the_table():
    lines = timings_table(
        [Timing("avx2", 2, 32, 1234.56, 142_602, 181_856), Timing("onnxruntime", 2, 32, 0.5, 1000, None)]
    ).splitlines()
    assert lines[2].split() == ["avx2", "2", "32", "1,234.6", "810", "142,602", "181,856"]
    assert lines[3].split() == ["onnxruntime", "2", "32", "0.5", "2,000,000", "1,000"]


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


@pytest.mark.parametrize(
    ("stream", "patience", "told"), [(Terminal, 0, True), (Terminal, 9, False), (io.StringIO, 0, False)]
)
def test_progress_is_told_on_a_terminal_once_it_takes_a_while(path, monkeypatch, stream, patience, told):
    monkeypatch.setattr(module, "PATIENCE", patience)
    monkeypatch.setattr(sys, "stderr", stream())
    bench(path, kernels=["reference"], threads=[1], batches=[4], rounds=2)
    text = sys.stderr.getvalue()
    assert ("\rbatch 4: round 2 of 2, 0 s" in text) == told
    assert bool(text) == told
    assert text.endswith(" \r") == told  # wiped
