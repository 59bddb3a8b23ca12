"""C export: compiled with all warnings as errors, it computes what the reference computes and stays in its memory."""

from __future__ import annotations

import ctypes
import importlib.util
import os
import platform
import re
import shutil
import subprocess
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from export_networks import Branches, audio_net, drawn
from lrnets_runtime import file, reference
from lrnets_runtime.graph import (
    Activate,
    Activation,
    AdaptivePool2d,
    Add,
    Affine,
    Concat,
    Conv2d,
    Graph,
    Linear,
    Node,
    Pool2d,
    Reshape,
    Softmax,
    Weight,
)
from lrnets_runtime.shapes import infer_shapes
from torch import nn

from lrnets.export import CReport, c_code, save_c, save_packed
from lrnets.export.c_code import REQUANTIZED, ROUNDING, CSource, c_source
from lrnets.export.c_plan import Call, needed, plan_arena, pooled_convolutions
from lrnets.export.c_text import comment, identifier, number, select
from lrnets.models import mnist_net

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


# Every node, one by one.


def entry(*names: str, step: float = 0.03, zero: int = 100) -> dict[str, tuple[float, int]]:
    return dict.fromkeys(names, (step, zero))


def weighted(
    kind: type[Conv2d | Linear], coding: str, shape: tuple[int, ...], vectors: bool = True, **settings: Any
) -> tuple[Node, dict[str, np.ndarray]]:
    rng = np.random.default_rng(3)
    tensors = {"w": samples.random_weights(rng, coding, shape)[0]}
    if vectors:
        tensors |= {"s": rng.uniform(-0.3, 0.3, shape[0]).astype(np.float32), "b": normal(shape[0])}
    node = kind(
        "layer", ("x",), "y", Weight("w", coding, shape), *(("s", "b") if vectors else (None, None)), **settings
    )
    return node, tensors


LEAKY, CLAMP = Activation("leaky", slope=-0.3), Activation("clamp", low=-0.7, high=0.9)
NODES: dict[str, tuple[tuple[int, ...], tuple[Node, dict[str, np.ndarray]]]] = {
    "conv": ((6, 7, 9), weighted(Conv2d, "ternary", (4, 3, 3, 2), stride=(2, 1), padding=(1, 0), groups=2)),
    "holes": ((2, 5, 4), weighted(Conv2d, "binary", (3, 2, 2, 3), padding=(3, 4), dilation=(5, 3), activation=LEAKY)),
    "depthwise": ((5, 6, 6), weighted(Conv2d, "int8", (5, 1, 3, 3), False, groups=5, padding=(2, 2))),
    "float": ((3, 5, 5), weighted(Conv2d, "float32", (2, 3, 2, 2), activation=CLAMP)),
    "linear": ((13,), weighted(Linear, "ternary", (7, 13), activation=Activation("clamp", low=0.0))),
    "rows": ((2, 3, 11), weighted(Linear, "binary", (4, 11))),
    "float rows": ((3, 5), weighted(Linear, "float32", (4, 5), False)),
    "max": ((2, 7, 6), (Pool2d("p", ("x",), "y", "max", (3, 2), (2, 3), (1, 1), ceil_mode=True), {})),
    "mean": ((2, 7, 6), (Pool2d("p", ("x",), "y", "average", (3, 4), (2, 3), (1, 2), ceil_mode=True), {})),
    "mean inside": ((1, 5, 5), (Pool2d("p", ("x",), "y", "average", (3, 3), (2, 2), (1, 1), count_padding=False), {})),
    "adaptive": ((2, 7, 6), (AdaptivePool2d("p", ("x",), "y", "average", (3, 2)), {})),
    "adaptive max": ((2, 5, 9), (AdaptivePool2d("p", ("x",), "y", "max", (2, 11)), {})),
    "affine": ((3, 2, 2), (Affine("a", ("x",), "y", "s", "b", CLAMP), {"s": normal(3), "b": normal(3, seed=2)})),
    "scale": ((3, 4), (Affine("a", ("x",), "y", "s", None), {"s": normal(3)})),
    "add": ((3, 4), (Add("a", ("x", "x"), "y", LEAKY), {})),
    "concat": ((2, 3, 2), (Concat("c", ("x", "x", "x"), "y", 1), {})),
    "reshape": ((2, 3, 2), (Reshape("r", ("x",), "y", (3, 4)), {})),
    "softmax": ((2, 5, 3), (Softmax("s", ("x",), "y", 1), {})),
    "activate": ((), (Activate("a", ("x",), "y", Activation("clamp", high=0.1)), {})),
}  # fmt: skip


@needs_gcc
@pytest.mark.parametrize("quantized", [False, True])
@pytest.mark.parametrize("case", NODES)
def test_each_node(case: str, quantized: bool, tmp_path: Path) -> None:
    shape, (node, tensors) = NODES[case]
    passes = isinstance(node, Reshape) or getattr(node, "kind", "") == "max"  # these pass bytes on as they are
    entries = entry("x") | (entry("y") if passes else entry("y", step=0.05, zero=120))
    graph = Graph("x", shape, "y", (node,), entries if quantized else None)
    x = normal(8, *shape)
    source = c_source(graph, tensors, name="net", example=x[0])
    outputs, expected = runner(source, tmp_path)(x), reference.run(graph, tensors, x).reshape(8, -1)
    exact = not isinstance(node, Softmax) and getattr(node, "weight", Weight("", "binary", ())).coding != "float32"
    if quantized and exact:
        assert np.array_equal(outputs, expected)
        assert source.tolerance == 0
    else:
        assert np.abs(outputs - expected).max() <= (0.05 if quantized else 1e-5 * max(1, np.abs(expected).max()))


@needs_gcc
@pytest.mark.parametrize("quantized", [False, True])
def test_one_scale_and_bias_for_all_channels(quantized: bool, tmp_path: Path) -> None:
    conv, tensors = weighted(Conv2d, "ternary", (4, 2, 3, 3))
    affine = Affine("a", ("y",), "z", 0.7, -0.1, CLAMP)
    nodes = (replace(conv, scale=0.3, bias=0.2), affine)
    graph = Graph("x", (2, 6, 6), "z", nodes, entry("x", "y", "z") if quantized else None)
    x, tensors = normal(8, 2, 6, 6), {"w": tensors["w"]}
    source = c_source(graph, tensors, name="net", example=x[0])
    outputs, expected = runner(source, tmp_path)(x), reference.run(graph, tensors, x).reshape(8, -1)
    assert np.array_equal(outputs, expected) if quantized else np.abs(outputs - expected).max() <= 1e-5
    assert source.layers[-2].other_bytes == 4 * 4  # the bias; the scale is part of the factor


POOLS: dict[str, Node] = {
    "side by side": Pool2d("p", ("y",), "z", "max", (2, 2), (2, 2)),
    "over each other": Pool2d("p", ("y",), "z", "max", (3, 3), (2, 1), (1, 1), ceil_mode=True),
    "with gaps": Pool2d("p", ("y",), "z", "max", (1, 2), (3, 3)),
    "mean": Pool2d("p", ("y",), "z", "average", (4, 3), (3, 2), (2, 1), ceil_mode=True),
    "adaptive": AdaptivePool2d("p", ("y",), "z", "max", (3, 2)),
    "mean of all": AdaptivePool2d("p", ("y",), "z", "average", (1, 1)),
}  # fmt: skip


@needs_gcc
@pytest.mark.parametrize("quantized", [False, True])
@pytest.mark.parametrize("case", POOLS)
def test_a_convolution_takes_its_pool_in(
    case: str, quantized: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Equal to the reference, and in float32 to the same layers one after the other; the map is not in the arena."""
    pool = POOLS[case]
    conv, tensors = weighted(Conv2d, "ternary", (6, 2, 3, 2), padding=(1, 1), groups=2, activation=CLAMP)
    entries = entry("x", "y") | (entry("z") if pool.kind == "max" else entry("z", step=0.02, zero=90))
    graph = Graph("x", (4, 8, 7), "z", (conv, pool), entries if quantized else None)
    x = normal(8, 4, 8, 7)
    source = c_source(graph, tensors, name="net", example=x[0])
    outputs = runner(source, tmp_path)(x)
    assert "run_conv_pool(" in source.code
    assert "run_pool(" not in source.code
    expected = reference.run(graph, tensors, x).reshape(8, -1)
    if quantized:
        assert np.array_equal(outputs, expected)
    assert np.abs(outputs - expected).max() <= 1e-5
    (tmp_path / "apart").mkdir()
    monkeypatch.setattr(c_code, "pooled_convolutions", lambda *_: {})
    apart = c_source(graph, tensors, name="net", example=x[0])
    assert "run_pool(" in apart.code
    assert np.array_equal(runner(apart, tmp_path / "apart")(x), outputs)
    rows = max(end - first for first, end, _ in reference.pool_windows(pool, (8, 8))[0])
    inside = 4 * 8 * 7 + -(-expected[0].size // 4) * 4 if quantized else 0  # else the caller has input and output
    assert source.arena_bytes == inside + rows * 8 * (1 if quantized else 4) + 2 * 3 * 2  # and the decoded weights
    checked = self_test(tmp_path / "net.c", "net", "-O1", "-fsanitize=address,undefined", "-fno-sanitize-recover=all")
    assert checked.stdout.startswith("net: OK")


def test_pools_that_are_not_taken_in() -> None:
    """One whose input others read too, or that is the output, and one that gives more than it takes."""
    conv, tensors = weighted(Conv2d, "ternary", (3, 2, 2, 2))
    pool = POOLS["side by side"]
    shapes = {"x": (2, 7, 7)}
    wide = Pool2d("p", ("y",), "z", "max", (3, 3), (1, 1), (1, 1))
    for nodes, output, taken in [
        ((conv, pool), "z", True),
        ((conv, pool), "y", False),
        ((conv, pool, Softmax("s", ("y",), "w", 0)), "w", False),
        ((conv, wide), "z", False),
    ]:
        graph = needed(Graph("x", shapes["x"], output, nodes))
        assert ("y" in pooled_convolutions(graph, infer_shapes(graph))) == taken
    flat = Reshape("r", ("y",), "u", (108,)), Reshape("t", ("z",), "v", (27,))
    graph = Graph("x", shapes["x"], "a", (conv, pool, *flat, Concat("c", ("u", "v"), "a", 0)))
    assert "run_conv_pool" not in c_source(graph, tensors).code


@needs_gcc
def test_rounding_and_what_is_no_number(tmp_path: Path) -> None:
    special = [0.25, 0.75, 1.25, -0.25, -0.75, 1e30, -1e30, np.inf, -np.inf, np.nan, 125.9, -1.76, 2.0**-149, -0.0]
    x = np.array([special], np.float32)
    for zero in (0, 3, 255):
        graph = Graph(
            "x", (14,), "y", (Activate("a", ("x",), "y", Activation()),), entry("x", "y", step=0.5, zero=zero)
        )
        (tmp_path / str(zero)).mkdir()
        outputs = runner(c_source(graph, {}, name="net"), tmp_path / str(zero))(x)
        assert np.array_equal(outputs, reference.run(graph, {}, x))
    nodes = (
        Pool2d("p", ("x",), "a", "max", (1, 2), (1, 2)),
        Activate("c", ("a",), "y", Activation("clamp", -1.0, 1.0)),
    )
    graph = Graph("x", (1, 1, 14), "y", nodes)
    x = x.reshape(1, 1, 1, 14)
    outputs = runner(c_source(graph, {}, name="net"), tmp_path)(x)
    assert np.array_equal(outputs, reference.run(graph, {}, x).reshape(1, -1), equal_nan=True)


@needs_gcc
def test_odd_graphs(tmp_path: Path) -> None:
    relu, leaky = Activation("clamp", low=0.0), Activation("leaky", slope=0.5)
    twice, used = Activate("a", ("x",), "y", relu), Activate("b", ("y",), "z", leaky)
    odd = {
        "nothing after the output counts": Graph("x", (4,), "y", (twice, used, Softmax("s", ("z",), "unused", 0))),
        "the output is the input": Graph("x", (4,), "y", (Reshape("r", ("x",), "y", (2, 2)), used)),
        "the output is read again": Graph("x", (4,), "z", (twice, used, Add("c", ("y", "z"), "w", relu))),
        "a reshape of the output": Graph("x", (4,), "w", (twice, Reshape("r", ("y",), "w", (4, 1)))),
        "half in bytes": Graph("x", (4,), "z", (twice, used), entry("y")),
        "the other half": Graph("x", (4,), "z", (twice, used), entry("x", "z")),
    }
    for i, graph in enumerate(odd.values()):
        folder = tmp_path / str(i)
        folder.mkdir()
        x = normal(4, *graph.input_shape)
        outputs = runner(c_source(graph, {}, name="net", example=x[0]), folder)(x)
        assert np.array_equal(outputs, reference.run(graph, {}, x).reshape(4, -1)), graph


# Whole networks.


@needs_gcc
@pytest.mark.parametrize("quantized", [False, True])
def test_everything_at_once(quantized: bool, tmp_path: Path) -> None:
    graph, tensors = samples.everything(quantized=quantized)
    x = normal(200, 2, 5, 5)
    source = c_source(graph, tensors, name="net", example=x[0])
    assert np.abs(runner(source, tmp_path)(x) - reference.run(graph, tensors, x)).max() <= 2e-6
    code = tmp_path / "net.c"
    for flags in (("-O2",), ("-Os", "-Wconversion", "-Wshadow", "-Wdouble-promotion", "-Wcast-qual")):
        assert self_test(code, "net", *flags).stdout.startswith("net: OK")
    checked = self_test(code, "net", "-O1", "-g", "-fsanitize=address,undefined", "-fno-sanitize-recover=all")
    assert (checked.returncode, checked.stderr) == (0, "")
    assert checked.stdout.startswith("net: OK")


@needs_gcc
def test_bytes_are_the_reference_bit_by_bit(tmp_path: Path) -> None:
    """All that is before the first sum of floats in samples.everything."""
    graph, tensors = samples.everything(quantized=True)
    place = next(i for i, node in enumerate(graph.nodes) if node.output == "k")
    graph = replace(graph, nodes=graph.nodes[: place + 1], output="k")
    x = 3 * normal(300, 2, 5, 5)
    source = c_source(graph, tensors, name="net", example=x[0])
    assert source.tolerance == 0
    assert np.array_equal(runner(source, tmp_path)(x), reference.run(graph, tensors, x))


@pytest.fixture(scope="module", params=["binary", "ternary"])
def mnist(request: pytest.FixtureRequest) -> tuple[str, nn.Module]:
    torch.manual_seed(0)
    return request.param, drawn(mnist_net(), request.param)


def digits(count: int, seed: int = 5) -> torch.Tensor:
    return torch.randn(count, 1, 28, 28, generator=torch.Generator().manual_seed(seed))


@needs_gcc
@pytest.mark.parametrize("activations", ["float32", "int8"])
def test_mnist(mnist: tuple[str, nn.Module], activations: str, tmp_path: Path) -> None:
    coding, net = mnist
    batches = {"calibration": [digits(16, seed=1)]} if activations == "int8" else {}
    x = digits(4)
    report = save_c(net, x, tmp_path / "digits", activations=activations, **batches)
    packed = save_packed(net, x, tmp_path / "net.lrnets", activations=activations, **batches)
    assert [path.name for path in sorted(tmp_path.glob("digits*"))] == ["digits.c", "digits.h"]
    assert report.flash_bytes == sum(layer.bytes for layer in packed.layers)
    assert report.difference == packed.difference
    # While conv2 runs: what pool1 gave, what pool2 gives, two rows of a channel, and the decoded weights of that.
    numbers = 32 * 12 * 12 + 64 * 4 * 4 + 2 * 8
    assert report.source.arena_bytes == numbers * (1 if activations == "int8" else 4) + 32 * 5 * 5
    assert report.ram_bytes == report.source.arena_bytes + 4 * 784 + 4 * 10
    assert report.source.tolerance is not None
    assert (report.source.tolerance == 0) == (activations == "int8")
    test = self_test(tmp_path / "digits.c", "digits", "-O2")
    assert (test.returncode, test.stdout[:10]) == (0, "digits: OK")

    by_packed = reference.run(*file.read(tmp_path / "net.lrnets"), x.numpy())
    outputs = runner(report.source, tmp_path, "-O2", name="digits")(x.numpy())
    assert np.abs(outputs - by_packed).max() <= report.source.tolerance / 10
    check_report(report, coding)
    check_cortex_m(tmp_path / "digits.c", report)


def check_report(report: CReport, coding: str) -> None:
    text = str(report)
    assert f"flash: {report.flash_bytes:,} bytes" in text
    assert f"arena {report.source.arena_bytes:,}" in text
    row = next(line for line in text.splitlines() if line.startswith("fc1"))
    assert row.split()[:6] == [
        "fc1",
        "linear",
        "512",
        coding,
        f"{512 * 1024 // 8 if coding == 'binary' else 104858:,}",
        "2,048",  # biases; the one scale is part of the factor
    ]


def check_cortex_m(code: Path, report: CReport) -> None:
    """Constants, and not more than 4 KB of code; nothing in memory that is not the caller's."""
    if shutil.which("arm-none-eabi-gcc") is None:
        return
    made = gcc(code, "-mcpu=cortex-m4", "-mthumb", "-c", "-Os", compiler="arm-none-eabi-gcc")
    sizes = subprocess.run(["arm-none-eabi-size", str(made)], capture_output=True, text=True, check=True).stdout
    text, data, bss = map(int, sizes.splitlines()[1].split()[:3])
    assert report.flash_bytes < text < report.flash_bytes + 4096
    assert (data, bss) == (0, 0)


@pytest.mark.skipif(shutil.which("arm-none-eabi-gcc") is None, reason="no arm-none-eabi-gcc")
@pytest.mark.parametrize("quantized", [False, True])
def test_everything_compiles_for_a_cortex_m(quantized: bool, tmp_path: Path) -> None:
    graph, tensors = samples.everything(quantized=quantized)
    code = write(c_source(graph, tensors, name="net"), tmp_path)
    for cpu in ("cortex-m0", "cortex-m4"):
        gcc(code, f"-mcpu={cpu}", "-mthumb", "-c", "-Os", compiler="arm-none-eabi-gcc")


@needs_gcc
@pytest.mark.parametrize(("build", "shape"), [(Branches, (3, 8, 8)), (audio_net, (2, 20))])
def test_other_networks(build: Callable[[], nn.Module], shape: tuple[int, ...], tmp_path: Path) -> None:
    torch.manual_seed(0)
    x = torch.from_numpy(normal(2, *shape))
    net = drawn(build())
    for weights in ("float32", "int8"):
        report = save_c(
            net, x, tmp_path / "a.c", activations="int8", calibration=[x], float_weights=weights, name="other"
        )
        test = self_test(report.path, "other", "-O1")
        assert (test.returncode, test.stdout[:9]) == (0, "other: OK")


# What the object holds.


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

NASTY = [
    "features.0-conv",
    "int",
    "*/ int x; /*",
    '"\\',
    "??/",
    "é",
    "if",
    "a" * 190,
    "int",
    "//",
    "_",
    "run_conv",
]


@needs_gcc
def test_no_name_breaks_the_source(tmp_path: Path) -> None:
    nodes, tensors, value = [], {}, "x"
    for i, name in enumerate(NASTY):
        tensors[name + " w"] = samples.random_weights(np.random.default_rng(i), "ternary", (3, 3))[0]
        tensors[name] = normal(3)
        weight = Weight(name + " w", "ternary", (3, 3))
        nodes.append(Linear(name, (value,), f"{i} {name}"[:200], weight, name, name))
        value = nodes[-1].output
    graph = Graph("x", (3,), value, tuple(nodes))
    x = normal(4, 3)
    source = c_source(graph, tensors, name="net", example=x[0])
    assert source.code.isascii()
    outputs, expected = runner(source, tmp_path)(x), reference.run(graph, tensors, x)
    assert np.abs(outputs - expected).max() <= 1e-5 * np.abs(expected).max()
    assert self_test(tmp_path / "net.c", "net").returncode == 0
    assert comment("*/ ??/ \\\n // é") == "__ ___ __ __ _"
    assert identifier("layer", 3, "*/") == "layer3"


@pytest.mark.parametrize("name", ["", "1x", "a-b", "a b", "_x", "é", "x" * 51, "a\n", 'a"'])
def test_names_that_are_no_identifiers_are_refused(name: str, tmp_path: Path) -> None:
    graph, tensors = samples.everything(quantized=False)
    with pytest.raises(ValueError, match="cannot begin the names of C functions; use a letter"):
        c_source(graph, tensors, name=name)
    with pytest.raises(ValueError, match="cannot begin the names of C functions; use a letter"):
        save_c(nn.Linear(2, 2), torch.ones(1, 2), tmp_path / "a", name=name)
    assert not list(tmp_path.iterdir())


def test_the_same_network_gives_the_same_text() -> None:
    graph, tensors = samples.everything(quantized=True)
    shuffled = {name: tensors[name] for name in reversed(tensors)}
    assert c_source(graph, tensors).code == c_source(graph, shuffled).code


def test_numbers_are_exact() -> None:
    x = np.random.default_rng(0).integers(0, 2**32, 2000, dtype=np.uint32).view(np.float32)
    for value in [*x[np.isfinite(x)], np.float32(0.1), np.float32(-0.0), np.float32(2**24), np.float32(1e-45)]:
        text = number(value)
        assert text.endswith("f")
        back = float.fromhex(text[:-1]) if "x" in text else float(text[:-1])
        assert np.float32(back).tobytes() == value.tobytes()
    assert number(0) == "0.0f"
    assert number(0.75) == "0x1.8p-1f"


def test_sections_of_a_template() -> None:
    template = "a\n#if HAS_X || HAS_Y\nb\n#ifdef C\nc\n#else\nd\n#endif\n#if HAS_Z\ne\n#else\nf\n#endif\n#endif\ng\n"
    assert select(template, set()) == "a\ng\n"
    assert select(template, {"HAS_Y"}) == "a\nb\n#ifdef C\nc\n#else\nd\n#endif\nf\ng\n"
    assert select(template, {"HAS_X", "HAS_Z"}) == "a\nb\n#ifdef C\nc\n#else\nd\n#endif\ne\ng\n"


def test_the_arena_by_hand() -> None:
    """a (10 bytes) -> b (20) -> c (9) -> d (4), with room for 3 bytes at the second."""
    rooms = {"b": 0, "c": 3, "d": 0}
    calls = [Call("f", "", {}, (source,), made, room) for source, (made, room) in zip("abc", rooms.items())]
    arena = plan_arena(calls, {"a": 10, "b": 20, "c": 9, "d": 4})
    assert arena.values == {"b": 0, "a": 20, "c": 20, "d": 0}
    assert arena.rooms == {1: 32}
    assert arena.bytes == 36


def test_sizes_that_c_cannot_count_to_are_refused() -> None:
    side = 2**15 + 1
    pool = AdaptivePool2d("wide", ("x",), "y", "max", (1, 2**17 - 1))
    with pytest.raises(ValueError, match=r"layer 'wide' \(adaptive_pool2d\) counts to 42\d+, C export to 2147483647"):
        c_source(Graph("x", (1, 1, side), "y", (pool,)), {})
    pool = Pool2d("deep", ("x",), "y", "average", (2**17, 2**17), (1, 1), (2**16, 2**16))
    graph = Graph("x", (1, 1, 1), "y", (pool,))
    assert infer_shapes(graph)["y"] == (1, 2, 2)
    with pytest.raises(ValueError, match="layer 'deep'"):
        c_source(graph, {})


# Files.


def test_file_names(tmp_path: Path) -> None:
    net, x = nn.Linear(2, 2), torch.ones(1, 2)
    names = {"net.c": "net", "my-net.v2": "my_net_v2", "2nd": "net_2nd", "int.h": "int", "__": "net"}
    for given, name in names.items():
        report = save_c(net, x, tmp_path / given)
        base = given.removesuffix(".c").removesuffix(".h")
        assert (report.path, report.name) == (tmp_path / f"{base}.c", name)
        assert f'#include "{base}.h"\n' in report.path.read_text()
        assert f"void {name}_run(" in report.path.with_name(f"{base}.h").read_text()
    for wrong in ('a"b', ".c", "a b", "é"):
        with pytest.raises(ValueError, match="no file name for #include"):
            save_c(net, x, tmp_path / wrong)
    with pytest.raises(FileNotFoundError, match="create it first"):
        save_c(net, x, tmp_path / "none" / "net")
    with pytest.raises(ValueError, match="activations='int8' with no calibration"):
        save_c(net, x, tmp_path / "a", activations="int8")
    assert len(list(tmp_path.iterdir())) == 2 * len(names)


def test_both_files_or_none(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    net, x = nn.Linear(2, 2), torch.ones(1, 2)
    save_c(net, x, tmp_path / "net")
    before = {path.name: path.read_bytes() for path in tmp_path.iterdir()}
    real = os.replace

    def fails(source: Path, target: Path) -> None:
        if target.suffix == ".c":
            raise OSError("disk full")
        real(source, target)

    monkeypatch.setattr(os, "replace", fails)
    other = nn.Sequential(nn.Linear(2, 3), nn.ReLU())
    with pytest.raises(OSError, match="disk full"):
        save_c(other, x, tmp_path / "net")
    assert {path.name: path.read_bytes() for path in tmp_path.iterdir()} == before
    with pytest.raises(OSError, match="disk full"):
        save_c(other, x, tmp_path / "new")
    assert {path.name for path in tmp_path.iterdir()} == set(before)
