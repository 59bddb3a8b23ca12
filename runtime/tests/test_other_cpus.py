"""Kernels for CPUs that this one is not: NEON under qemu, AVX-512 in SIMDe's plain C; skipped without these tools."""

import ctypes
import os
import shutil
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from samples import everything, signs
from test_native import CONVS, float_bound, layer, seeded
from test_signs import SHAPES, layer_on_signs, some_inputs

from lrnets_runtime import native, reference
from lrnets_runtime.plan import make_plan, place_images, value_of

HERE = Path(__file__).parent
NATIVE = HERE.parent / "native"
COMMON = ("network", "prepare", "signs", "report", "pool", "plain")  # sources for every CPU
ARM = ("aarch64-linux-gnu-gcc", "qemu-aarch64")
FLAGS = ["-std=c11", "-O2", "-Wall", "-Wextra", "-Werror", "-ffp-contract=off", "-Wno-psabi", f"-I{NATIVE}"]


def compile_(compiler, output, sources, *flags):
    command = [compiler, *FLAGS, *flags, *map(str, sources), "-o", str(output), "-lm", "-lpthread"]
    subprocess.run(command, check=True, capture_output=True, text=True, timeout=300)
    return output


@pytest.fixture(scope="module")
def arm_program(tmp_path_factory):
    if any(shutil.which(tool) is None for tool in ARM):
        pytest.skip(f"needs {' and '.join(ARM)}")
    sources = [NATIVE / f"{name}.c" for name in (*COMMON, "neon")]
    return compile_(ARM[0], tmp_path_factory.mktemp("arm") / "run_case", [*sources, HERE / "run_case.c"], "-static")


def write_case(path, graph, tensors, x, y_count):
    """A plan as the C program reads it: structs as they are, addresses as places in the file."""
    plan = make_plan(graph, tensors)
    arena = place_images(plan.images, plan.output, len(plan.steps))

    values = [value_of(image) for image in plan.images]
    arrays = {array.ctypes.data: array for array in [*plan.kept, x]}
    place = 8 * 8 + sum(map(ctypes.sizeof, values)) + sum(map(ctypes.sizeof, plan.steps))
    places, blobs = {}, []
    for address, array in arrays.items():
        place = -(-place // 64) * 64
        places[address] = place
        blobs.append((place, array.tobytes()))
        place += array.nbytes
    for step in plan.steps:
        for name in ("weights", "scale", "bias", "windows"):
            setattr(step, name, places.get(getattr(step, name)))
    header = np.array(
        [len(values), len(plan.steps), plan.input, plan.output, arena, len(x), places[x.ctypes.data], y_count], np.int64
    )
    content = bytearray(header.tobytes() + b"".join(bytes(part) for part in [*values, *plan.steps]))
    for start, blob in blobs:
        content.extend(bytes(start - len(content)))
        content.extend(blob)
    path.write_bytes(content)


def run_on_arm(program, folder, graph, tensors, x):
    expected = reference.run(graph, tensors, x)
    write_case(folder / "case", graph, tensors, x, expected.size)
    found = {}
    for kernels in ("neon", "plain"):
        command = [ARM[1], str(program), str(folder / "case"), str(folder / "out"), kernels]
        subprocess.run(command, check=True, timeout=120)
        found[kernels] = np.fromfile(folder / "out", np.float32).reshape(expected.shape)
    return expected, found


@pytest.mark.parametrize("coding", ["binary", "ternary", "int8"])
@pytest.mark.parametrize("quantized", [False, True], ids=["floats", "bytes"])
@pytest.mark.parametrize(("shape", "settings"), CONVS[1:14])
def test_convolutions_on_arm(arm_program, tmp_path, coding, shape, settings, quantized):
    rng = seeded("arm", coding, shape)
    graph, tensors = layer(rng, coding, shape, quantized=quantized, **settings)
    x = rng.normal(size=(2, *graph.input_shape)).astype(np.float32)
    expected, found = run_on_arm(arm_program, tmp_path, graph, tensors, x)
    for result in found.values():
        if quantized:
            np.testing.assert_array_equal(result, expected)
        else:
            np.testing.assert_allclose(result, expected, rtol=0, atol=float_bound(graph, tensors, x))


@pytest.mark.parametrize("quantized", [False, True], ids=["floats", "bytes"])
def test_a_network_of_everything_on_arm(arm_program, tmp_path, quantized):
    graph, tensors = everything(quantized=quantized)
    x = seeded("everything").normal(size=(3, *graph.input_shape)).astype(np.float32)
    expected, found = run_on_arm(arm_program, tmp_path, graph, tensors, x)
    for result in found.values():
        np.testing.assert_allclose(result, expected, rtol=2e-5, atol=1e-6)


def test_a_network_of_signs_on_arm(arm_program, tmp_path):
    graph, tensors = signs()
    x = seeded("signs").normal(size=(3, *graph.input_shape)).astype(np.float32)
    expected, found = run_on_arm(arm_program, tmp_path, graph, tensors, x)
    for result in found.values():
        np.testing.assert_array_equal(result, expected)


@pytest.mark.parametrize(("shape", "size", "settings"), SHAPES[:9])
def test_convolutions_of_signs_on_arm(arm_program, tmp_path, shape, size, settings):
    rng = seeded("arm signs", shape)
    graph, tensors, _ = layer_on_signs(rng, shape, size, **settings)
    x = some_inputs(rng, (2, *graph.input_shape))
    expected, found = run_on_arm(arm_program, tmp_path, graph, tensors, x)
    for result in found.values():
        np.testing.assert_array_equal(result, expected)


def test_all_of_the_native_tests_with_simulated_avx512(tmp_path):
    if not Path("/usr/include/simde").is_dir() or shutil.which("gcc") is None:
        pytest.skip("needs gcc and SIMDe (Debian: libsimde-dev)")
    objects = []
    for name in (*COMMON, "avx2", "avx512"):
        flags = {"avx2": ["-mavx2", "-mfma"], "avx512": ["-DLRNETS_SIMULATE"]}.get(name, [])
        objects.append(compile_("gcc", tmp_path / f"{name}.o", [NATIVE / f"{name}.c"], "-fPIC", "-c", *flags))
    library = compile_("gcc", tmp_path / "simulated.so", objects, "-shared")
    environment = {**os.environ, "LRNETS_LIBRARY": str(library)}
    environment.pop(native.VARIABLE, None)
    tests = [str(HERE / name) for name in ("test_native.py", "test_signs.py")]
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:xdist", "-k", "avx512", *tests]
    outcome = subprocess.run(command, capture_output=True, text=True, env=environment, timeout=600, cwd=HERE.parent)
    assert outcome.returncode == 0, outcome.stdout[-3000:]
    assert " passed" in outcome.stdout
