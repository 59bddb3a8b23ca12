"""Exported C computes what the reference computes, compiled with all warnings as errors, and stays in its memory."""

from __future__ import annotations

import shutil
import subprocess
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from c_programs import entry, gcc, needs_gcc, normal, runner, samples, self_test, write
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
from lrnets.export.c_code import c_source
from lrnets.export.c_plan import needed, pooled_convolutions
from lrnets.models import mnist_net


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
