"""Fresh pages, counted by the system, in a process of its own."""

from __future__ import annotations

import os
import platform
import subprocess
import sys

import pytest

PAGES = """
import resource, sys, torch
from lrnets.training.allocator import keep_freed_memory

kept = keep_freed_memory() if sys.argv[1] == "keep" else False
torch.set_num_threads(1)
for _ in range(20):  # malloc leaves a few gaps at first, too small by the room for alignment
    torch.ones(16_000_000)  # 64 MB, freed at once
before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
for _ in range(4):
    torch.ones(16_000_000)
print(kept, resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before)
"""


def fresh_pages(what: str, **variables: str) -> tuple[bool, int]:
    """Whether memory is kept, and how many pages four tensors of 64 MB take anew after a first one."""
    clean = {name: value for name, value in os.environ.items() if not name.startswith("MALLOC_")}
    done = subprocess.run(
        [sys.executable, "-c", PAGES, what], env=clean | variables, capture_output=True, text=True, check=True
    )
    kept, pages = done.stdout.split()
    return kept == "True", int(pages)


@pytest.mark.skipif(platform.libc_ver()[0] != "glibc", reason="of glibc")
def test_freed_memory_is_used_again():
    assert fresh_pages("leave")[1] > 4 * 64_000_000 / (2 << 20)  # even in pages of 2 MB
    kept, pages = fresh_pages("keep")
    assert kept
    assert pages < 64


def test_what_the_environment_says_is_left_alone():
    assert not fresh_pages("keep", MALLOC_ARENA_MAX="1")[0]
