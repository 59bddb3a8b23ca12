"""The character example, in its tiny setting."""

import subprocess
import sys
from pathlib import Path

import pytest

pytest.importorskip("rich")
SCRIPT = Path(__file__).parents[1] / "examples" / "characters.py"


def run(*arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run([sys.executable, SCRIPT, *arguments], capture_output=True, text=True, timeout=300)


def test_it_prints_a_row_for_each_network():
    done = run("--tiny", "--seeds", "2")
    assert done.returncode == 0, done.stderr
    rows = [line.split() for line in done.stdout.splitlines() if " ± " in line and "." in line]
    assert len(rows) == 7
    for row in rows:
        bits = float(row[row.index("±") - 1])
        assert 1 < bits < 8  # 103 equally likely characters have 6.7 bits
    sizes = {row[0]: int(row[-1].replace(",", "")) for row in rows}
    assert sizes["LR-net"] == sizes["BitNet"] < sizes["float"]


def test_impossible_sizes_are_named():
    done = run("--width", "30", "--heads", "4")
    assert done.returncode == 2
    assert "--width must be a multiple of --heads, got 30 and 4" in done.stderr
