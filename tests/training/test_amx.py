"""AMX that is named and does not work: simulated, and as it is on the machine of the test."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from lrnets.training import amx

DIES = "#!/bin/sh\nkill -ILL $$\n"
LIVES = "#!/bin/sh\nexit 0\n"
FAILS = "#!/bin/sh\nexit 1\n"

PRODUCT_AFTER = """
import torch
from lrnets.training.amx import avoid_broken_amx

avoid_broken_amx()
x = torch.ones(512, 512, dtype=torch.bfloat16)
print((x @ x)[0, 0].item())
"""


@pytest.fixture
def python_that(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """A stand-in for the interpreter that tries a product, on a CPU that names AMX."""

    def pretend(script: str) -> None:
        program = tmp_path / "python"
        program.write_text(script)
        program.chmod(0o755)
        monkeypatch.setattr(sys, "executable", str(program))

    monkeypatch.setattr(amx, "names_amx", lambda: True)
    monkeypatch.setenv(amx.LIMIT, "")  # to be put back as it was
    monkeypatch.delenv(amx.LIMIT)
    return pretend


@pytest.mark.skipif(os.name != "posix", reason="a shell's script")
def test_onednn_is_limited_only_where_a_product_is_an_illegal_instruction(python_that):
    for script in (LIVES, FAILS):
        python_that(script)
        assert not amx.avoid_broken_amx()
        assert amx.LIMIT not in os.environ
    python_that(DIES)
    assert amx.avoid_broken_amx()
    assert os.environ[amx.LIMIT] == amx.BELOW_AMX


def test_what_the_environment_says_and_cpus_without_amx_are_left_alone(python_that, monkeypatch):
    python_that(DIES)
    monkeypatch.setattr(amx, "names_amx", lambda: False)
    assert not amx.avoid_broken_amx()
    monkeypatch.setattr(amx, "names_amx", lambda: True)
    monkeypatch.setenv(amx.LIMIT, "AVX2")
    assert not amx.avoid_broken_amx()
    assert os.environ[amx.LIMIT] == "AVX2"


def test_amx_is_read_from_the_flags_of_linux(tmp_path):
    cpu_info = tmp_path / "cpuinfo"
    assert not amx.names_amx(cpu_info)
    cpu_info.write_text("flags\t\t: fpu avx512f amx_bf16 amx_tile amx_int8\n")
    assert amx.names_amx(cpu_info)
    cpu_info.write_text("flags\t\t: fpu avx512f\n")
    assert not amx.names_amx(cpu_info)


def test_a_product_in_bfloat16_lives_on_this_machine():
    clean = {name: value for name, value in os.environ.items() if name != amx.LIMIT}
    done = subprocess.run([sys.executable, "-c", PRODUCT_AFTER], env=clean, capture_output=True, text=True)
    assert (done.returncode, done.stdout.strip()) == (0, "512.0")
