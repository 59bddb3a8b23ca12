"""Exported C, compiled and run: for the tests of it."""

from __future__ import annotations

import ctypes
import importlib.util
import shutil
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from lrnets.export.c_code import CSource

STRICT = ("-std=c99", "-Wall", "-Wextra", "-pedantic", "-Werror")
needs_gcc = pytest.mark.skipif(shutil.which("gcc") is None, reason="no gcc")


def _samples() -> Any:
    """The run-time's own test networks."""
    path = Path(__file__).parents[2] / "runtime" / "tests" / "samples.py"
    spec = importlib.util.spec_from_file_location("runtime_samples", path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


samples = _samples()


def normal(*shape: int, seed: int = 1) -> np.ndarray:
    return np.random.default_rng(seed).normal(size=shape).astype(np.float32)


def write(source: CSource, folder: Path, name: str = "net") -> Path:
    (folder / f"{name}.h").write_text(source.header)
    (folder / f"{name}.c").write_text(source.code)
    return folder / f"{name}.c"


def gcc(code: Path, *flags: str, compiler: str = "gcc", strict: tuple[str, ...] = STRICT) -> Path:
    """What the compiler makes of the source, without a warning."""
    made = code.with_suffix(".out")
    command = [compiler, *strict, *flags, str(code), "-o", str(made), *([] if "-c" in flags else ["-lm"])]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr[:4000]
    assert not done.stderr
    return made


def self_test(code: Path, name: str, *flags: str) -> subprocess.CompletedProcess[str]:
    program = gcc(code, f"-D{name.upper()}_TEST", *flags)
    return subprocess.run([str(program)], capture_output=True, text=True, check=False)


def runner(source: CSource, folder: Path, *flags: str, name: str = "net") -> Callable[[np.ndarray], np.ndarray]:
    """The network as a function of a batch; checks that it writes to nothing but its output and its arena."""
    library = ctypes.CDLL(str(gcc(write(source, folder, name), "-O1", "-shared", "-fPIC", *flags)))
    run = library[f"{name}_run"]
    run.argtypes, run.restype = [ctypes.c_void_p] * 3, None
    own_arena = any("STATIC_ARENA" in flag for flag in flags)

    def call(batch: np.ndarray) -> np.ndarray:
        outputs = []
        for x in batch:
            given, output = np.array(x), np.full(source.output_bytes // 4 + 16, np.float32(-77.5))
            arena = np.full(source.arena_bytes + 64, 0xFF, np.uint8)  # NaN, where it is read as floats
            run(given.ctypes.data, output.ctypes.data, None if own_arena else arena.ctypes.data)
            assert (arena[source.arena_bytes :] == 0xFF).all()
            assert (output[-16:] == -77.5).all()
            assert np.array_equal(given, x, equal_nan=True)
            outputs.append(output[:-16])
        return np.stack(outputs)

    return call


def entry(*names: str, step: float = 0.03, zero: int = 100) -> dict[str, tuple[float, int]]:
    return dict.fromkeys(names, (step, zero))
