"""Exported C as an object: what it needs and leaves alone, and a self-test that finds what is wrong."""

from __future__ import annotations

import os
import platform
import re
import shutil
import subprocess
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from c_programs import entry, gcc, needs_gcc, normal, runner, samples, self_test, write
from lrnets_runtime import reference
from lrnets_runtime.graph import (
    Graph,
    Reshape,
)

from lrnets.export.c_code import c_source
from lrnets.export.c_self_test import REQUANTIZED, ROUNDING


def symbols(made: Path, *flags: str) -> set[tuple[str, str]]:
    lines = subprocess.run(["nm", *flags, str(made)], capture_output=True, text=True, check=True).stdout.splitlines()
    return {(line.split()[-2], line.split()[-1]) for line in lines}


@needs_gcc
@pytest.mark.parametrize("quantized", [False, True])
def test_the_object_needs_nothing(quantized: bool, tmp_path: Path) -> None:
    graph, tensors = samples.everything(quantized=quantized)
    code = write(c_source(graph, tensors, name="net", example=normal(2, 5, 5)), tmp_path)
    made = gcc(code, "-c", "-O2", "-fno-pic")
    assert {name for _, name in symbols(made, "-u")} <= {"expf", "memcpy", "memset"}
    assert symbols(made, "-g", "--defined-only") == {("T", "net_run")}
    assert {kind for kind, _ in symbols(made, "--defined-only")} <= {"T", "t", "r"}  # no variable, all constant
    assert ("U", "printf") in symbols(gcc(code, "-c", "-O2", "-DNET_TEST"), "-u")


@needs_gcc
def test_an_arena_of_its_own(tmp_path: Path) -> None:
    graph, tensors = samples.everything(quantized=True)
    x = normal(5, 2, 5, 5)
    outputs = runner(c_source(graph, tensors, name="net"), tmp_path, "-DNET_STATIC_ARENA")(x)
    assert np.abs(outputs - reference.run(graph, tensors, x)).max() <= 2e-6


@needs_gcc
@pytest.mark.skipif(platform.machine() not in ("x86_64", "AMD64"), reason="-mfma is of x86")
def test_no_multiplication_is_fused(tmp_path: Path) -> None:
    graph, tensors = samples.everything(quantized=True)
    code = write(c_source(graph, tensors, name="net"), tmp_path)
    fused = {}
    for standard in ("c99", "gnu11"):
        made = gcc(code, "-S", "-O2", "-mfma", strict=(f"-std={standard}", "-Wall", "-Wextra", "-Werror"))
        fused[standard] = "fmadd" in made.read_text()
    assert fused == {"c99": False, "gnu11": False}
    code.write_text(code.read_text().replace("#pragma", "// "))
    assert "fmadd" in gcc(code, "-S", "-O2", "-mfma", strict=("-std=gnu11",)).read_text()  # it would be, else


@needs_gcc
def test_fast_math_is_refused(tmp_path: Path) -> None:
    code = write(c_source(Graph("x", (2,), "y", (Reshape("r", ("x",), "y", (1, 2)),)), {}, name="net"), tmp_path)
    done = subprocess.run(["gcc", "-ffast-math", "-c", str(code), "-o", os.devnull], capture_output=True, check=False)
    assert b"without -ffast-math" in done.stderr


@pytest.mark.skipif(shutil.which("g++") is None, reason="no g++")
def test_the_header_is_for_cpp_too(tmp_path: Path) -> None:
    graph, tensors = samples.everything(quantized=True)
    write(c_source(graph, tensors, name="net"), tmp_path)
    (tmp_path / "main.cpp").write_text('#include "net.h"\nstatic_assert(NET_INPUT_SIZE == 50, "");\n#include "net.h"\n')
    command = ["g++", "-Wall", "-Wextra", "-pedantic", "-Werror", "-fsyntax-only", str(tmp_path / "main.cpp")]
    subprocess.run(command, check=True)


# The self-test can fail.


@needs_gcc
@pytest.mark.parametrize("quantized", [False, True])
def test_a_wrong_result_is_found(quantized: bool, tmp_path: Path) -> None:
    graph, tensors = samples.everything(quantized=quantized)
    source = c_source(graph, tensors, name="net", example=normal(2, 5, 5))
    expected = re.compile(r"(test_expected\[3\] = \{\n +)[^,]+,")
    assert expected.search(source.code)
    for wrong in ("0.5f", "(0.0f / 0.0f)"):
        code = write(replace(source, code=expected.sub(rf"\g<1>{wrong},", source.code)), tmp_path)
        test = self_test(code, "net", "-O2")
        assert test.returncode == 1
        assert "FAILED" in test.stdout
        assert "1 of 3 outputs wrong" in test.stdout
    flipped = re.sub(r"(conv_w\[15\] = \{\n +)(\d+)", lambda m: m[1] + str((int(m[2]) + 1) % 243), source.code)
    assert flipped != source.code
    assert self_test(write(replace(source, code=flipped), tmp_path), "net", "-O2").returncode == 1


def test_how_exact_the_self_test_is() -> None:
    graph, tensors = samples.everything(quantized=True)
    x = normal(2, 5, 5)
    until_bytes = replace(graph, nodes=graph.nodes[:11], output="k")
    assert c_source(until_bytes, tensors, example=x).tolerance == 0
    for part, share in ((graph, ROUNDING), (replace(graph, quantization=entry("k")), REQUANTIZED)):
        largest = reference.run(part, tensors, x[None]).max()
        assert c_source(part, tensors, example=x).tolerance == pytest.approx(share * largest + 1e-6)
    source = c_source(graph, tensors)
    assert source.tolerance is None
    assert "_TEST" not in source.code + source.header
    with pytest.raises(ValueError, match="NaN or infinite; give another example"):
        c_source(graph, tensors, example=np.full((2, 5, 5), np.inf))


# Text.
