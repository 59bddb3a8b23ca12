"""Networks of binary activations and of weights with two levels, in every kind of file."""

from __future__ import annotations

import ctypes
import shutil
import subprocess
from collections.abc import Callable
from pathlib import Path

import lrnets_runtime
import numpy as np
import pytest
import torch
from export_networks import Lambda, assert_same, with_statistics
from lrnets_runtime import file, native
from lrnets_runtime.graph import Activate, Activation
from torch import Tensor, nn

import lrnets
from lrnets.export import UnsupportedError, save_c, save_onnx, save_packed
from lrnets.export.coding import recognise
from lrnets.export.fold import fold
from lrnets.export.trace import trace
from lrnets.methods.activations import SignConv2d, SignLinear
from lrnets.methods.xnor import XnorConv2d, XnorLinear

METHODS: dict[str, dict[str, object]] = {
    "bnn": {},
    "xnor": {},
    "xnor without K": {"input_scale": False},
    "ebp": {},
    "ttq": {},
}


def image_net() -> nn.Module:
    return nn.Sequential(
        nn.Conv2d(1, 8, 3, bias=False), nn.BatchNorm2d(8), nn.ReLU(), nn.MaxPool2d(2),
        nn.Conv2d(8, 6, 3, padding=1, stride=2), nn.BatchNorm2d(6), nn.ReLU(),
        nn.Conv2d(6, 8, 3, padding=2, dilation=2, groups=2), nn.BatchNorm2d(8), nn.ReLU(), nn.Flatten(),
        nn.Linear(72, 20), nn.ReLU(), nn.Linear(20, 3),
    )  # fmt: skip


def audio_net() -> nn.Module:
    return nn.Sequential(
        nn.Conv1d(2, 6, 5, padding=2), nn.BatchNorm1d(6), nn.ReLU(), nn.MaxPool1d(2), nn.Conv1d(6, 8, 3, padding=1),
        nn.BatchNorm1d(8), nn.ReLU(), nn.Conv1d(8, 4, 3, groups=2), nn.ReLU(), nn.Flatten(), nn.Linear(32, 3),
    )  # fmt: skip


NETWORKS: dict[str, tuple[Callable[[], nn.Module], tuple[int, ...]]] = {
    "images": (image_net, (1, 12, 12)),
    "sounds": (audio_net, (2, 20)),
}


def built(method: str, network: str = "images") -> tuple[nn.Module, Tensor]:
    torch.manual_seed(0)
    build, shape = NETWORKS[network]
    model = build()
    lrnets.convert_(model, method=method.split()[0], **METHODS[method])
    return with_statistics(lrnets.discretize(model, "mode")), torch.randn(5, *shape)


def exactly(net: nn.Module, x: Tensor) -> np.ndarray:
    with torch.no_grad():
        y = net.double()(x.double()).numpy()
    net.float()
    return y


def assert_close(outputs: np.ndarray, expected: np.ndarray) -> None:
    assert outputs.shape == expected.shape
    assert np.abs(outputs - expected).max() <= 1e-5 * max(1, np.abs(expected).max())


@pytest.mark.parametrize("network", NETWORKS)
@pytest.mark.parametrize("method", METHODS)
def test_packed_files_compute_what_the_network_does(tmp_path: Path, method: str, network: str) -> None:
    net, x = built(method, network)
    report = save_packed(net, x, tmp_path / "net")
    for kernels in native.kernels():
        assert_close(lrnets_runtime.load(tmp_path / "net", kernels=kernels)(x.numpy()), exactly(net, x))
    graph, _ = file.read(tmp_path / "net")
    assert file.lowest_version(graph) == 3
    summary = lrnets.summary(net, x[:1])
    assert (summary.bytes, summary.problem) == (report.bytes, None)


@pytest.mark.parametrize("method", METHODS)
def test_bytes_between_layers_are_for_what_no_sign_is_taken_of(tmp_path: Path, method: str) -> None:
    net, x = built(method)
    save_packed(net, x, tmp_path / "net", activations="int8", calibration=[x])
    network = lrnets_runtime.load(tmp_path / "net")
    graph = network.graph
    assert graph.quantization
    for node in graph.nodes:
        if getattr(node, "activation", Activation()).kind == "sign":
            assert node.output not in graph.quantization
            assert not isinstance(node, Activate) or node.inputs[0] not in graph.quantization
    outputs = network(x.numpy())
    np.testing.assert_allclose(
        outputs, lrnets_runtime.load(tmp_path / "net", kernels="reference")(x.numpy()), atol=1e-4
    )
    if method in ("bnn", "ttq"):  # the first layer's input alone is rounded before a sign: a few of them turn
        assert np.abs(outputs - exactly(net, x)).max() < 0.3 * np.abs(exactly(net, x)).max()


@pytest.mark.parametrize("activations", ["float32", "int8"])
@pytest.mark.parametrize("method", METHODS)
@pytest.mark.skipif(shutil.which("gcc") is None, reason="no gcc")
def test_c_computes_what_the_reference_does(tmp_path: Path, method: str, activations: str) -> None:
    net, x = built(method)
    settings = {"activations": activations, **({"calibration": [x]} if activations == "int8" else {})}
    save_packed(net, x, tmp_path / "net", **settings)
    report = save_c(net, x, tmp_path / "small", **settings)
    library, flags = tmp_path / "small.so", ["-std=c99", "-Wall", "-Wextra", "-pedantic", "-Werror", "-O1"]
    command = ["gcc", *flags, "-shared", "-fPIC", str(report.path), "-o", str(library), "-lm"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (0, "")
    expected = lrnets_runtime.load(tmp_path / "net", kernels="reference")(x.numpy())
    arena, y = np.zeros(report.source.arena_bytes, np.uint8), np.zeros(3, np.float32)
    for image, wanted in zip(x.numpy(), expected):
        ctypes.CDLL(str(library)).small_run(*(ctypes.c_void_p(a.ctypes.data) for a in (image, y, arena)))
        np.testing.assert_allclose(y, wanted, atol=1e-4 * np.abs(expected).max())


@pytest.mark.parametrize("method", METHODS)
def test_onnx_computes_what_the_network_does(tmp_path: Path, method: str) -> None:
    pytest.importorskip("onnx")
    onnxruntime = pytest.importorskip("onnxruntime")
    net, x = built(method)
    report = save_onnx(net, x[:1], tmp_path / "net.onnx")
    session = onnxruntime.InferenceSession(str(report.path), providers=["CPUExecutionProvider"])
    assert_close(session.run(None, {"input": x.numpy()})[0], exactly(net, x))


# What layers become.


def kinds(net: nn.Module, x: Tensor) -> list[str]:
    return [node.op for node in fold(trace(net, x)).graph.nodes]


def test_a_sign_joins_the_layer_before_it() -> None:
    net = nn.Sequential(
        nn.Conv2d(2, 4, 3), nn.BatchNorm2d(4), SignConv2d(4, 3, 1), nn.Flatten(), SignLinear(27, 5)
    ).eval()
    traced = fold(trace(net, torch.randn(2, 2, 5, 5)))
    assert [node.op for node in traced.graph.nodes] == ["conv2d", "conv2d", "reshape", "linear"]
    assert [node.activation.kind for node in traced.graph.nodes[:2]] == ["sign", "sign"]
    assert traced.graph.nodes[0].scale is None  # only the threshold is left of batch norm
    assert_same(traced, net, torch.randn(2, 2, 5, 5))


def test_xnor_layers_become_small_operations() -> None:
    images = torch.randn(2, 4, 6, 6)
    traced = fold(trace(XnorConv2d(4, 3, 3, padding=1, stride=2), images))
    assert [node.op for node in traced.graph.nodes] == [
        "activate", "conv2d", "activate", "conv2d", "conv2d", "multiply", "affine",
    ]  # fmt: skip
    for net, x in [
        (XnorConv2d(4, 3, 3, padding=2, dilation=2, stride=2), images),
        (XnorConv2d(4, 6, (3, 2), groups=2, bias=False), images),
        (XnorLinear(7, 5), torch.randn(2, 7)),
        (nn.Sequential(XnorLinear(7, 5, bias=False), nn.ReLU()), torch.randn(2, 7)),
    ]:
        assert_same(fold(trace(net, x)), net, x)


def test_thresholds_are_exact_where_sums_are_whole() -> None:
    """A batch norm whose mean is one of the sums: its sign is +1, with whatever scale it had."""
    torch.manual_seed(1)
    net = nn.Sequential(SignLinear(6, 40, bias=False), nn.BatchNorm1d(40), SignLinear(40, 2)).eval()
    with torch.no_grad():
        net[0].weight.copy_(net[0].weight.sign())
        net[1].running_mean.copy_(2.0 * torch.randint(-2, 3, (40,)))
        net[1].running_var.uniform_(0.1, 5)
        net[1].weight.uniform_(-2, 2)
    x = torch.randn(50, 6)
    with torch.no_grad():
        sums = torch.where(x >= 0, 1.0, -1.0) @ net[0].weight.T
    assert (sums == net[1].running_mean).any()
    graph, tensors = fold(trace(net, x))
    hidden = lrnets_runtime.reference.run(
        lrnets_runtime.graph.Graph(graph.input, graph.input_shape, graph.nodes[1].output, graph.nodes[:2]),
        tensors,
        x.numpy(),
    )
    up = torch.where(net[1].weight > 0, sums >= net[1].running_mean, sums <= net[1].running_mean)
    assert np.array_equal(hidden > 0, up.numpy())


def test_a_batch_norm_that_decayed_away_leaves_its_bias_to_the_sign() -> None:
    """Its threshold, bias over weight, would be beyond float32."""
    net = nn.Sequential(nn.Linear(6, 4), nn.BatchNorm1d(4), SignLinear(4, 2)).eval()
    with torch.no_grad():
        net[1].weight.copy_(torch.tensor([1e-41, -1e-30, 0, 1]))
        net[1].bias.copy_(torch.tensor([-0.5, 0.5, -0.25, 0.125]))
    traced = fold(trace(net, torch.randn(2, 6)))
    assert_same(traced, net, torch.randn(20, 6))
    thresholds = traced.tensors[str(traced.graph.nodes[0].bias)]
    assert thresholds[[0, 2]].tolist() == [-0.5, -0.25]  # as they were; the others are of sums without a scale


@pytest.mark.parametrize(
    "function",
    [
        lambda x: torch.where(x >= torch.tensor(0.0), torch.tensor(1.0), torch.tensor(-1.0)),
        lambda x: torch.where(x >= 0, torch.ones(4, 6), -torch.ones(3, 1, 1)),
    ],
)
def test_signs_may_be_made_of_tensors(function: Callable[[Tensor], Tensor]) -> None:
    x = torch.randn(2, 3, 4, 6)
    net = Lambda(lambda x, conv: conv(function(x)), nn.Conv2d(3, 2, 1))
    assert kinds(net, x) == ["activate", "conv2d"]
    with torch.no_grad():
        assert_close(lrnets_runtime.reference.run(*fold(trace(net, x)), x.numpy()), net(x).numpy())


def test_constants_for_each_channel_are_affine() -> None:
    shift, x = torch.randn(3, 1, 1), torch.randn(2, 3, 4, 4)
    net = Lambda(lambda x, conv: (conv(x) + shift) * 0.5 * shift + 1, nn.Conv2d(3, 3, 1))
    assert kinds(net, x) == ["conv2d"]
    assert_same(fold(trace(net, x)), net, x)
    net = Lambda(lambda x, conv: shift + conv(x).abs(), nn.Conv2d(3, 3, 1))
    assert kinds(net, x) == ["conv2d", "affine"]
    assert_same(fold(trace(net, x)), net, x)


def test_products_and_means() -> None:
    x = torch.randn(2, 3, 4, 6)
    for function, nodes in [
        (lambda x: x * x.mean((2, 3), keepdim=True), ["adaptive_pool2d", "multiply"]),
        (lambda x: x * x.mean((2, 3))[:, :, None, None], ["adaptive_pool2d", "multiply"]),
        (lambda x: x.mean(1, keepdim=True) * x, ["conv2d", "multiply"]),
        (lambda x: x.mean(1), ["conv2d", "reshape"]),
        (lambda x: x.mean(2), ["reshape", "conv2d", "reshape"]),
        (lambda x: x.repeat_interleave(2, 1), ["conv2d"]),
    ]:
        net = Lambda(function)
        assert kinds(net, x) == nodes
        assert_same(fold(trace(net, x)), net, x)


@pytest.mark.parametrize(
    ("function", "message"),
    [
        (lambda x: torch.sign(x), r"aten.sign .* use torch.where\(x >= 0, 1.0, -1.0\)"),
        (lambda x: torch.where(x >= 0, 1.0, 0.0), "aten.where .* comparisons only as"),
        (lambda x: torch.where(x >= 0.5, 1.0, -1.0), "aten.ge .* anything but 0"),
        (lambda x: torch.where(x >= 0, x, 2 * x), "aten.where .* comparisons only as"),
        (lambda x: torch.where(x >= 0, torch.ones(6), torch.arange(6.0)), "aten.where .* comparisons only as"),
        (lambda x: torch.where(x >= 0, torch.ones(3, 1, 1, 1, 1), -1.0), "aten.where"),
        (lambda x: torch.where(x >= torch.arange(6.0), 1.0, -1.0), "aten.ge .* anything but 0"),
        (lambda x: x * x.mean((0,)), "aten.mean"),
        (lambda x: x[:, 1:], r"aten.slice .* from shape \(3, 4, 6\) to \(2, 4, 6\)"),
        (lambda x: x[:1], "aten.slice .* the batch must stay the first dimension"),
        (lambda x: x + torch.arange(6.0), "constant of shape .6,.*one for each channel"),
        (lambda x: x.repeat_interleave(2, 2), "aten.repeat_interleave|aten"),
    ],
)
def test_what_is_not_supported_is_said(function: Callable[[Tensor], Tensor], message: str) -> None:
    with pytest.raises(UnsupportedError, match=message):
        trace(Lambda(function), torch.randn(2, 3, 4, 6))


def test_two_levels_and_0_are_recognised() -> None:
    weight = torch.tensor([-0.7, 0.0, 0.312345])[torch.randint(3, (4, 9), generator=torch.Generator().manual_seed(0))]
    coded = recognise(weight)
    assert (coded.coding, coded.scale) == ("levels", None)
    assert coded.levels == (float(np.float32(-0.7)), float(np.float32(0.312345)))
    assert np.array_equal(coded.numbers, weight.sign().numpy())
    assert recognise(weight.abs()).coding == "float32"  # two sizes of one sign
    assert recognise(weight[:1, :3]).coding == "float32"  # too few to be discrete
