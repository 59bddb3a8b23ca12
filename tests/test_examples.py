"""The scripts with cells run as they stand, on little data."""

import runpy
import tempfile
from pathlib import Path

import pytest

EXAMPLES = Path(__file__).parents[1] / "examples"


@pytest.fixture
def run(tmp_path, monkeypatch, capsys):
    """Run a script in an empty folder, in this process: importing torch anew would take most of the time."""
    monkeypatch.setenv("LRNETS_TINY", "1")
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    monkeypatch.chdir(tmp_path)

    def run_script(name: str) -> tuple[dict, str]:
        return runpy.run_path(str(EXAMPLES / name), run_name="__main__"), capsys.readouterr().out

    return run_script


def test_ternary_mnist_goes_from_data_to_a_packed_file(run, tmp_path):
    names, printed = run("ternary_mnist.py")
    size = (tmp_path / "runs/ternary-mnist-tiny/network.packed.safetensors").stat().st_size
    weights = 160 + 10_240 + 104_858 + 4 * 5_120  # five ternary ones a byte; the classifier's in float32
    assert weights < size < weights + 7_000  # scales, biases and the header
    assert "test error, chosen: " in printed
    assert "by the run-time from the file" in printed
    kernel = printed.split("ensemble")[1].splitlines()[1:6]
    assert all(set(row) <= set("#.- ") and len(row) == 4 * 5 + 3 * 3 for row in kernel)
    images = names["TRANSFORMS"]["mnist"].evaluation(names["images"])
    assert names["net"](images).argmax(1).tolist() == names["answers"].tolist()


def test_convert_your_own_ends_with_files_that_answer_as_the_network_does(run):
    names, printed = run("convert_your_own.py")
    assert "block.depthwise  Conv2d  32x1x3x3   float    kept" in printed
    assert "bytes, 100.0% of the answers are the network's" in printed
    files = {path.name for path in names["out"].iterdir()}
    assert files == {"digits.safetensors", "digits8.safetensors", "digits.c", "digits.h"}
