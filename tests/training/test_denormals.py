"""Denormal numbers, in a process of its own whose threads are still to be started."""

import subprocess
import sys

import pytest
import torch

from lrnets.training.denormals import flushed_denormals

HALVES = """
import sys, torch
from lrnets.training.denormals import flushed_denormals

torch.set_num_threads(2)

def halves():
    return ((torch.full((4_000_000,), 1.5e-38)) / 2).count_nonzero().item()  # enough for both threads

if sys.argv[1] == "leave":
    print(halves())
else:
    with flushed_denormals():
        print(halves())
"""


def halves_left(what: str) -> int:
    done = subprocess.run([sys.executable, "-c", HALVES, what], capture_output=True, text=True, check=True)
    return int(done.stdout)


def test_denormals_are_zero_in_all_threads():
    if not torch.set_flush_denormal(False):
        pytest.skip("not on this CPU")
    assert halves_left("leave") == 4_000_000
    assert halves_left("flush") == 0


def test_what_held_before_holds_after():
    denormal = torch.tensor(1.5e-38)
    with flushed_denormals(), flushed_denormals():
        pass
    assert (denormal / 2).item() > 0
    with pytest.raises(KeyError), flushed_denormals():
        raise KeyError
    assert (denormal / 2).item() > 0
