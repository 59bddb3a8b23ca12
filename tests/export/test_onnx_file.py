"""ONNX files: what onnxruntime computes from them is what the reference and the network compute."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from export_networks import (
    Lambda,
    drawn,
    with_statistics,
)
from lrnets_runtime import reference
from onnx_sessions import NETWORKS, assert_computes, built, onnx, onnxruntime, operators, random, run
from torch import Tensor, nn

import lrnets
from lrnets.export import OnnxReport, UnsupportedError, save_onnx
from lrnets.export.onnx_graph import OnnxWriter

# Networks.


@pytest.mark.parametrize("weights", ["int8", "float32", "2bit"])
@pytest.mark.parametrize("name", NETWORKS)
def test_onnxruntime_computes_what_the_network_computes(name: str, weights: str, tmp_path: Path) -> None:
    net, x = built(name)
    report = save_onnx(net, x[:1], tmp_path / "n.onnx", weights=weights)
    assert_computes(tmp_path / "n.onnx", net, x)  # another batch size too
    assert report.difference <= 1e-5 * max(1, report.largest_output)
    assert report.bytes == (tmp_path / "n.onnx").stat().st_size


@pytest.mark.parametrize("values", ["binary", "ternary", (-2.0, -1.0, 0.5, 1.0)])
@pytest.mark.parametrize("weights", ["int8", "2bit"])
def test_levels(values: object, weights: str, tmp_path: Path) -> None:
    torch.manual_seed(0)
    net = drawn(nn.Sequential(nn.Linear(40, 12), nn.BatchNorm1d(12), nn.ReLU(), nn.Linear(12, 3)), values, keep=[])
    report = save_onnx(net, random(1, 40), tmp_path / "n.onnx", weights=weights)
    assert_computes(tmp_path / "n.onnx", net, random(4, 40))
    two_bits = weights == "2bit" and isinstance(values, str)
    assert [layer.coding for layer in report.layers] == ["2bit" if two_bits else "int8"] * 2


# Nodes, one at a time.

POOLS = [
    (kind, options)
    for kind in (nn.MaxPool2d, nn.AvgPool2d)
    for options in (
        {"kernel_size": 2},
        {"kernel_size": 3, "stride": 2, "padding": 1},
        {"kernel_size": 3, "stride": 2, "ceil_mode": True},
        {"kernel_size": 3, "stride": 2, "padding": 1, "ceil_mode": True},
        {"kernel_size": (4, 3), "stride": (3, 4), "padding": (2, 1), "ceil_mode": True},
        {"kernel_size": 2, "stride": 3, "padding": 1, "ceil_mode": True},  # the last window would start in the padding
        {"kernel_size": 2, "stride": 5},  # windows do not reach the end
    )
] + [
    (nn.AvgPool2d, {"kernel_size": 3, "stride": 2, "padding": 1, "count_include_pad": False}),
    (nn.AvgPool2d, {"kernel_size": 3, "stride": 2, "padding": 1, "count_include_pad": False, "ceil_mode": True}),
]  # fmt: skip


@pytest.mark.parametrize(("kind", "options"), POOLS)
@pytest.mark.parametrize("size", [(7, 8), (8, 11)])
def test_pools(kind: type[nn.Module], options: dict[str, Any], size: tuple[int, int], tmp_path: Path) -> None:
    save_onnx(kind(**options), random(1, 2, *size), tmp_path / "n.onnx")
    assert_computes(tmp_path / "n.onnx", kind(**options), random(3, 2, *size) - 3)  # where padded zeros would win
    assert not any(a.name == "ceil_mode" for n in onnx.load(tmp_path / "n.onnx").graph.node for a in n.attribute)


@pytest.mark.parametrize("kind", [nn.AdaptiveAvgPool2d, nn.AdaptiveMaxPool2d])
@pytest.mark.parametrize(
    ("size", "pooled", "operator"),
    [((7, 5), 1, "Global"), ((7, 9), (3, 4), ""), ((6, 8), (3, 2), ""), ((3, 4), (2, 4), ""), ((6, 5), (1, 5), "")],
)
def test_adaptive_pools(kind: type[nn.Module], size: Any, pooled: Any, operator: str, tmp_path: Path) -> None:
    save_onnx(kind(pooled), random(1, 2, *size), tmp_path / "n.onnx")
    assert_computes(tmp_path / "n.onnx", kind(pooled), random(3, 2, *size))
    (found,) = operators(tmp_path / "n.onnx")
    assert found == operator + ("AveragePool" if kind is nn.AdaptiveAvgPool2d else "MaxPool")


def test_windows_of_different_sizes_are_refused(tmp_path: Path) -> None:
    net = nn.Sequential(nn.Conv2d(1, 2, 1), nn.AdaptiveAvgPool2d((2, 3)))
    with pytest.raises(UnsupportedError, match=r"layer '1': adaptive average pooling of 6x8 to 2x3 .* use a size that"):
        save_onnx(net, random(1, 1, 6, 8), tmp_path / "n.onnx")
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize(
    "options",
    [
        {},
        {"stride": 2, "padding": 1},
        {"padding": 2, "dilation": 2},
        {"groups": 2, "bias": False},
        {"groups": 4, "padding": (0, 2), "stride": (2, 1)},
    ],
)
@pytest.mark.parametrize("weights", ["int8", "float32"])
def test_convolutions(options: dict[str, Any], weights: str, tmp_path: Path) -> None:
    torch.manual_seed(0)
    net = drawn(nn.Sequential(nn.Conv2d(4, 8, 3, **options), nn.BatchNorm2d(8)), keep=[])
    save_onnx(net, random(1, 4, 9, 9), tmp_path / "n.onnx", weights=weights)
    assert_computes(tmp_path / "n.onnx", net, random(3, 4, 9, 9))
    assert operators(tmp_path / "n.onnx") == ["DequantizeLinear"] * (weights == "int8") + [
        "Conv"
    ]  # batch norm is in it


@pytest.mark.parametrize(
    ("function", "operator"),
    [
        (F.relu, "Relu"),
        (F.relu6, "Clip"),
        (F.hardtanh, "Clip"),
        (lambda x: x.clamp(min=-0.3), "Clip"),
        (lambda x: x.clamp(max=0.3), "Clip"),
        (lambda x: F.leaky_relu(x, 0.2), "LeakyRelu"),
        (lambda x: x + x.relu(), "Relu Add"),
        (lambda x: torch.cat([x, x.relu(), x], 2), "Relu Concat"),
        (lambda x: torch.cat([x, x.relu()], 1), "Relu Concat"),
        (lambda x: x.flatten(1), "Reshape"),
        (lambda x: x.view(-1, 2, 2, 3), "Reshape"),
        (lambda x: x.softmax(1), "Softmax"),
        (lambda x: x.softmax(-1), "Softmax"),
    ],
)
def test_functions(function: Callable[[Tensor], Tensor], operator: str, tmp_path: Path) -> None:
    net = Lambda(function)
    save_onnx(net, random(2, 4, 3), tmp_path / "n.onnx")
    assert_computes(tmp_path / "n.onnx", net, random(5, 4, 3))
    assert operators(tmp_path / "n.onnx") == operator.split()


def test_batch_norm_on_its_own(tmp_path: Path) -> None:
    norm = with_statistics(nn.BatchNorm2d(3))
    save_onnx(norm, random(2, 3, 4, 4), tmp_path / "n.onnx")
    assert_computes(tmp_path / "n.onnx", norm, random(5, 3, 4, 4))
    assert operators(tmp_path / "n.onnx") == ["Mul", "Add"]
    identity = nn.BatchNorm1d(3, eps=0).eval()
    for net in (identity, Lambda(lambda x, a, b: b(y := a(x)) + y.relu(), nn.Linear(3, 3), identity)):
        save_onnx(net, random(2, 3), tmp_path / "n.onnx")
        assert_computes(tmp_path / "n.onnx", net, random(5, 3))


@pytest.mark.parametrize("weights", ["int8", "float32", "2bit"])
def test_linear_over_the_last_of_several_dimensions(weights: str, tmp_path: Path) -> None:
    torch.manual_seed(0)
    net, x = drawn(nn.Sequential(nn.Linear(6, 5), nn.ReLU(), nn.Linear(5, 3)), keep=[]), random(4, 7, 6)
    save_onnx(net, x[:1], tmp_path / "n.onnx", weights=weights)
    assert_computes(tmp_path / "n.onnx", net, x)
    if weights != "float32":
        save_onnx(net, x, tmp_path / "q.onnx", weights=weights, activations="int8", calibration=x)
        assert np.abs(run(tmp_path / "q.onnx", x) - run(tmp_path / "n.onnx", x)).max() <= 0.05


@pytest.mark.parametrize("activations", ["float32", "int8"])
@pytest.mark.parametrize("weights", ["int8", "2bit"])
def test_scales_of_0_and_below(weights: str, activations: str, tmp_path: Path) -> None:
    torch.manual_seed(0)
    net = drawn(nn.Sequential(nn.Linear(8, 4), nn.BatchNorm1d(4), nn.ReLU(), nn.Linear(4, 2)), keep=[])
    with torch.no_grad():
        net[1].weight.copy_(torch.tensor([0.0, -1.0, 1.0, 1e-12]))
        net[1].bias.copy_(torch.tensor([0.5, 1.0, -1.0, 2.0]))
    x = random(16, 8)
    options = {"activations": activations, "calibration": x} if activations == "int8" else {}
    report = save_onnx(net, x, tmp_path / "n.onnx", weights=weights, **options)
    assert report.difference <= (1e-5 if activations == "float32" else 0.02) * report.largest_output
    stored = {t.name: onnx.numpy_helper.to_array(t) for t in onnx.load(tmp_path / "n.onnx").graph.initializer}
    assert all((array > 0).all() for name, array in stored.items() if name.endswith("scale"))
    in_steps_of_the_sum = activations == "int8" and weights == "int8"  # where the bias of the last would overflow int32
    assert ("Add" in operators(tmp_path / "n.onnx")) == in_steps_of_the_sum


# Two bits.


def test_two_bits_are_exact(tmp_path: Path) -> None:
    """Integers in, integers out: every weight is -1, 0 or 1, wherever it stands in its block."""
    rng = np.random.default_rng(0)
    for size in (3, 128, 130, 300):
        layer = nn.Linear(size, 6, bias=False)
        weight = rng.integers(-1, 2, (6, size))
        layer.weight.data = torch.tensor(weight, dtype=torch.float32)
        x = rng.integers(-50, 51, (9, size))
        save_onnx(layer, torch.zeros(1, size), tmp_path / "n.onnx", weights="2bit")
        assert np.array_equal(run(tmp_path / "n.onnx", torch.tensor(x, dtype=torch.float32)), x @ weight.T)
        assert operators(tmp_path / "n.onnx") == ["MatMulNBits"]


def test_accuracy_level_4_is_near(tmp_path: Path) -> None:
    net, x = built("mnist")
    exact = save_onnx(net, x, tmp_path / "0.onnx", weights="2bit")
    fast = save_onnx(net, x, tmp_path / "4.onnx", weights="2bit", accuracy_level=4)
    assert exact.difference < 1e-6 * max(1, exact.largest_output)
    assert fast.difference < 0.05 * fast.largest_output


# Sizes and the report.


def test_sizes(tmp_path: Path) -> None:
    net, x = built("mnist")
    sizes = {w: save_onnx(net, x, tmp_path / f"{w}.onnx", weights=w) for w in ("float32", "int8", "2bit")}
    count = 32 * 25 + 64 * 32 * 25 + 512 * 1024
    assert sizes["float32"].bytes > 4 * (count + 5120)
    assert sizes["int8"].bytes < count + 4 * 5120 + 10_000
    assert sizes["2bit"].bytes < count - 512 * 1024 * (1 - 2.25 / 8) + 4 * 5120 + 10_000
    rows = [(r.name, r.coding, r.weight_bytes, r.other_bytes) for r in sizes["2bit"].layers]
    assert rows == [
        ("conv1", "int8", 32 * 25, 2 * 4 * 32),
        ("conv2", "int8", 64 * 32 * 25, 2 * 4 * 64),
        ("fc1", "2bit", 512 * 1024 // 4, 4 * (512 * 1024 // 128 + 512)),
        ("fc2", "float32", 4 * 5120, 4 * 10),
    ]
    for weights, report in sizes.items():
        stored = onnx.load(tmp_path / f"{weights}.onnx").graph.initializer
        arrays = sum(onnx.numpy_helper.to_array(t).nbytes for t in stored)
        shapes = sum(onnx.numpy_helper.to_array(t).nbytes for t in stored if t.name.endswith("shape"))
        assert report.bytes - report.header_bytes == arrays - shapes
        assert f"{report.bytes:,}" in str(report)
        assert f"in onnxruntime {onnxruntime.__version__}" in str(report)


def test_tied_weights_are_stored_once(tmp_path: Path) -> None:
    torch.manual_seed(0)
    first, second = nn.Linear(16, 16), nn.Linear(16, 16)
    second.weight = first.weight
    net = nn.Sequential(first, nn.ReLU(), second)
    report = save_onnx(net, random(1, 16), tmp_path / "n.onnx", weights="float32")
    assert [(r.weights, r.weight_bytes) for r in report.layers] == [(256, 1024), (0, 0)]
    assert_computes(tmp_path / "n.onnx", net, random(3, 16))


def test_the_file_says_what_it_needs(tmp_path: Path) -> None:
    net, x = built("mnist")
    for weights, domains in (("int8", {"": 13}), ("2bit", {"": 13, "com.microsoft": 1})):
        save_onnx(net, x, tmp_path / "n.onnx", weights=weights)
        model = onnx.load(tmp_path / "n.onnx")
        assert {o.domain: o.version for o in model.opset_import} == domains
        assert (model.ir_version, model.producer_name) == (7, "lrnets")
        ends = [model.graph.input[0], model.graph.output[0]]
        assert [end.type.tensor_type.shape.dim[0].dim_param for end in ends] == ["batch", "batch"]


# Refusals.


def test_the_file_is_replaced_whole(tmp_path: Path) -> None:
    net, x = built("audio")
    path = tmp_path / "n.onnx"
    path.write_bytes(b"old")
    save_onnx(net, x, str(path))
    first = path.read_bytes()
    save_onnx(net, x[:1], path)
    assert path.read_bytes() == first
    assert list(tmp_path.iterdir()) == [path]


def test_nothing_is_left_behind_when_it_fails(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    net, x = built("audio")
    path = tmp_path / "n.onnx"
    path.write_bytes(b"old")
    with pytest.raises(UnsupportedError, match="operator aten"):
        save_onnx(nn.Sequential(net, nn.GELU()), x, path)
    with monkeypatch.context() as patched:
        execute = reference.run
        patched.setattr(reference, "run", lambda *args: execute(*args) + 0.01)
        with pytest.raises(RuntimeError, match=r"exported graph's output \[4, 3\] is 0\.01 off .*nothing was written"):
            save_onnx(net, x, path)
    with monkeypatch.context() as patched:
        constant = OnnxWriter.constant

        def damaged(self: OnnxWriter, array: Any, role: str) -> str:
            return constant(self, 1.5 * array if role == "scale" else array, role)

        patched.setattr(OnnxWriter, "constant", damaged)
        for options in ({}, {"activations": "int8", "calibration": x}):
            with pytest.raises(RuntimeError, match=r"onnxruntime .*'s output .* off .*nothing was written"):
                save_onnx(net, x, path, **options)
    with monkeypatch.context() as patched:
        patched.setattr("lrnets.export.onnx_graph.BLOCK", 1024)  # which onnxruntime does not take
        with pytest.raises(RuntimeError, match=r"onnxruntime .* cannot run the file: .*block.*nothing was written"):
            save_onnx(drawn(nn.Sequential(nn.Linear(8, 4)), keep=[]), random(1, 8), path, weights="2bit")
    assert path.read_bytes() == b"old"
    assert list(tmp_path.iterdir()) == [path]


def test_a_file_that_protobuf_cannot_write_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("lrnets.export.onnx_file.LARGEST_FILE", 1000)
    with pytest.raises(UnsupportedError, match=r"would have 1,\d\d\d bytes, ONNX allows 1,000; use smaller weights"):
        save_onnx(*built("audio"), tmp_path / "n.onnx")
    assert not list(tmp_path.iterdir())


def test_without_onnxruntime_the_report_says_so(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "onnxruntime", None)
    report = save_onnx(*built("audio"), tmp_path / "n.onnx")
    assert isinstance(report, OnnxReport)
    assert report.runtime is None
    assert np.isnan(report.difference)
    assert str(report).endswith("float32 activations; not run, since onnxruntime is not installed")
    assert (tmp_path / "n.onnx").exists()


def test_a_missing_onnx_is_named(tmp_path: Path) -> None:
    code = "import sys; sys.modules['onnx'] = None; from lrnets.export import save_onnx; save_onnx(None, None, 'n')"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False, cwd=tmp_path)
    assert "save_onnx needs onnx, which is not installed; pip install onnx" in done.stderr


def test_onnx_is_not_imported_before_it_is_needed() -> None:
    code = "import sys, lrnets.export; assert not {'onnx', 'onnxruntime'} & {*sys.modules}"
    subprocess.run([sys.executable, "-c", code], check=True)


def test_wrong_arguments_are_refused(tmp_path: Path) -> None:
    net, x = built("audio")
    path = tmp_path / "n.onnx"
    for options, problem in (
        ({"weights": "int4"}, "weights must be one of 'int8', 'float32', '2bit', got 'int4'"),
        ({"activations": None}, "activations must be 'float32' or 'int8', got None"),
        ({"weights": "2bit", "accuracy_level": 2}, "accuracy_level must be one of 0, 4, got 2"),
        ({"accuracy_level": 4}, "accuracy_level=4 with weights='int8'; it is for weights='2bit'"),
        ({"activations": "int8"}, "activations='int8' with no calibration"),
        ({"calibration": x}, "activations='float32' with calibration"),
        ({"activations": "int8", "calibration": x, "weights": "float32"}, "takes weights='int8' or '2bit'"),
    ):
        with pytest.raises(ValueError, match=problem):
            save_onnx(net, x, path, **options)
    with pytest.raises(FileNotFoundError, match=r"there is no folder .* create it first"):
        save_onnx(net, x, tmp_path / "none" / "n.onnx")
    model = nn.Sequential(nn.Linear(2, 2))
    lrnets.convert_(model, keep=[])
    with pytest.raises(UnsupportedError, match="discretize it first"):
        save_onnx(model, random(1, 2), path)
    assert not list(tmp_path.iterdir())
