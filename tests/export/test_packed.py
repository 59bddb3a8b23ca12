"""Packed files: what is in them is what the report says and what the network computes."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import lrnets_runtime
import numpy as np
import pytest
import torch
from export_networks import Branches, Lambda, PreActivation, ResNet, drawn
from lrnets_runtime import PackedFileError, file, reference
from lrnets_runtime.graph import Affine, Graph
from torch import Tensor, nn

import lrnets
from lrnets.export import PackedReport, Preparation, UnsupportedError, save_packed
from lrnets.export.fold import fold
from lrnets.export.packed import packed_layers
from lrnets.export.trace import trace
from lrnets.models import mnist_net


def random(*shape: int, seed: int = 5) -> Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed))


@pytest.fixture
def net() -> nn.Module:
    torch.manual_seed(0)
    return drawn(mnist_net())


def total_of_tensors(path: Path) -> int:
    return sum(tensor.nbytes for tensor in file.read(path)[1].values())


def check_sizes(report: PackedReport) -> None:
    assert report.bytes == report.path.stat().st_size
    assert report.header_bytes == report.bytes - total_of_tensors(report.path)
    assert f"{report.bytes:,}" in str(report)


@pytest.mark.parametrize("values", ["binary", "ternary"])
def test_the_runtime_computes_what_the_network_computes(values: str, tmp_path: Path) -> None:
    torch.manual_seed(0)
    net, x = drawn(mnist_net(), values, scale=False), random(4, 1, 28, 28)
    report = save_packed(net, x[:1], tmp_path / "net.lrnets")
    outputs = lrnets_runtime.load(tmp_path / "net.lrnets")(x.numpy())
    with torch.no_grad():
        expected = net.double()(x.double()).numpy()
    assert np.abs(outputs - expected).max() <= 1e-5 * np.abs(expected).max()
    assert report.difference <= 1e-5 * report.largest_output
    check_sizes(report)


def test_the_report_by_hand(net: nn.Module, tmp_path: Path) -> None:
    report = save_packed(net, random(1, 1, 28, 28), tmp_path / "net.lrnets")
    rows = [(r.name, r.shape, r.coding, r.weight_bytes, r.other_bytes) for r in report.layers]
    assert rows == [
        ("conv1", (32, 1, 5, 5), "ternary", 160, 2 * 4 * 32),
        ("conv2", (64, 32, 5, 5), "ternary", 10240, 2 * 4 * 64),
        ("fc1", (512, 1024), "ternary", 104858, 4 * 512),  # without batch norm: one scale, which is in the graph
        ("fc2", (10, 512), "float32", 20480, 4 * 10),
    ]
    assert report.weights == 32 * 25 + 64 * 32 * 25 + 512 * 1024 + 5120
    assert [round(r.bits, 3) for r in report.layers] == [1.6, 1.6, 1.6, 32]
    check_sizes(report)
    text = str(report)
    assert "header" in text
    assert "float32 activations" in text


@pytest.mark.parametrize(("build", "shape"), [(ResNet, (3, 16, 16)), (PreActivation, (3, 8, 8)), (Branches, (3, 8, 8))])
@pytest.mark.parametrize("weights", ["float32", "int8"])
def test_sizes_of_other_networks(build: type[nn.Module], shape: tuple[int, ...], weights: str, tmp_path: Path) -> None:
    torch.manual_seed(0)
    report = save_packed(drawn(build()), random(2, *shape), tmp_path / "n", float_weights=weights)
    check_sizes(report)
    assert report.layers[-1].coding == weights
    assert report.difference <= (1e-5 if weights == "float32" else 0.02) * report.largest_output


def test_tied_weights_count_once(tmp_path: Path) -> None:
    first, second = nn.Linear(4, 4), nn.Linear(4, 4)
    second.weight = first.weight
    report = save_packed(nn.Sequential(first, nn.ReLU(), second), random(1, 4), tmp_path / "n", float_weights="int8")
    assert [(r.weights, r.weight_bytes) for r in report.layers] == [(16, 16), (0, 0)]
    check_sizes(report)


def test_vectors_that_layers_share_count_once() -> None:
    """Our tracer gives each layer its own; a file from elsewhere may not."""
    affine = [Affine(f"a{i}", (f"v{i}",), f"v{i + 1}", "s", ("b", "s")[i]) for i in range(2)]
    tensors = {"s": np.ones(3, np.float32), "b": np.zeros(3, np.float32)}
    rows = packed_layers(Graph("v0", (3,), "v2", tuple(affine)), tensors)
    assert [row.bytes for row in rows] == [24, 0]


def test_int8_activations(net: nn.Module, tmp_path: Path) -> None:
    x, batches = random(16, 1, 28, 28), [random(32, 1, 28, 28, seed=seed) for seed in (1, 2)]
    report = save_packed(net, x, tmp_path / "net", activations="int8", calibration=batches)
    check_sizes(report)
    assert report.layers[-1].coding == "int8"
    graph, _ = file.read(tmp_path / "net")
    assert graph.quantization is not None
    assert graph.output not in graph.quantization
    outputs = lrnets_runtime.load(tmp_path / "net")(x.numpy())
    expected = net(x).detach().numpy()
    assert np.mean(outputs.argmax(1) == expected.argmax(1)) >= 0.85
    assert report.difference == pytest.approx(np.abs(outputs - expected).max(), rel=1e-4)
    floats = save_packed(net, x, tmp_path / "f", activations="int8", calibration=batches, float_weights="float32")
    assert floats.layers[-1].coding == "float32"


def test_what_the_file_tells_of_itself(net: nn.Module, tmp_path: Path) -> None:
    x, told = random(1, 1, 28, 28), {"preparation": Preparation("each"), "classes": list("abcdefghij")}
    plain, described = save_packed(net, x, tmp_path / "plain"), save_packed(net, x, tmp_path / "net", **told)
    graph, _ = file.read(tmp_path / "net")
    assert (graph.preparation, graph.classes) == (Preparation("each"), tuple("abcdefghij"))
    assert described.header_bytes > plain.header_bytes
    check_sizes(described)
    with pytest.raises(PackedFileError, match=r"classes: 2 names for an output of shape \[10\]"):
        save_packed(net, x, tmp_path / "new", classes=["a", "b"])
    with pytest.raises(PackedFileError, match="preparation: mean: has 3 entries; must be a list of 1"):
        save_packed(net, x, tmp_path / "new", preparation=Preparation("fixed", (0.1, 0.2, 0.3)))
    assert not (tmp_path / "new").exists()


@pytest.mark.parametrize(("values", "most"), [("binary", 1.02), ("ternary", 1.65)])
@pytest.mark.parametrize(("inside", "outside"), [(8192, 1024), (4096, 4096)])
def test_bits_of_a_discrete_weight_with_all_that_is_in_the_file(
    inside: int, outside: int, values: str, most: float, tmp_path: Path
) -> None:
    """The linear layers of benchmarks/runtime.py: header, scales and biases included."""
    levels = torch.tensor([-0.1, 0.1] if values == "binary" else [-0.1, 0.0, 0.1])
    layer = nn.Linear(inside, outside)
    chosen = torch.randint(len(levels), (outside, inside), generator=torch.Generator().manual_seed(0))
    layer.weight.data = levels[chosen]
    graph, tensors = fold(trace(nn.Sequential(layer), random(1, inside)))
    file.write(tmp_path / "net", graph, tensors)
    assert 8 * (tmp_path / "net").stat().st_size / (inside * outside) <= most


def test_the_network_and_the_example_are_left_alone(net: nn.Module, tmp_path: Path) -> None:
    net.train()
    whole, x = nn.Sequential(nn.ReLU(inplace=True), net), random(2, 1, 28, 28)
    before = x.clone()
    report = save_packed(whole, x, tmp_path / "n")
    assert torch.equal(x, before)
    assert all(module.training for module in whole.modules())
    assert report.difference <= 1e-5 * report.largest_output


def test_one_output_in_a_dictionary(tmp_path: Path) -> None:
    report = save_packed(Lambda(lambda x: {"out": x.relu()}), random(2, 3), tmp_path / "n")
    assert report.difference == 0


def test_the_file_is_replaced_whole(net: nn.Module, tmp_path: Path) -> None:
    path = tmp_path / "net"
    path.write_bytes(b"old")
    save_packed(net, random(1, 1, 28, 28), str(path))
    first = path.read_bytes()
    save_packed(net, random(3, 1, 28, 28), path)
    assert path.read_bytes() == first
    assert list(tmp_path.iterdir()) == [path]


def test_nothing_is_left_behind_when_it_fails(net: nn.Module, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    x = random(1, 1, 28, 28)
    path = tmp_path / "net"
    path.write_bytes(b"old")
    with pytest.raises(UnsupportedError, match="operator aten"):
        save_packed(nn.Sequential(net, nn.GELU()), x, path)

    run, read = reference.run, file.read
    monkeypatch.setattr(reference, "run", lambda *args: run(*args) + 0.01)
    with pytest.raises(RuntimeError, match=r"is 0\.01 off the network's \[1, 10\] .*nothing was written"):
        save_packed(net, x, path)
    monkeypatch.setattr(reference, "run", run)

    def damaged(path: Path) -> object:
        graph, tensors = read(path)
        return graph, tensors | {"conv1.scale": 2 * tensors["conv1.scale"]}

    monkeypatch.setattr(file, "read", damaged)
    with pytest.raises(RuntimeError, match="read back computes something else"):
        save_packed(net, x, path)
    monkeypatch.setattr(file, "read", read)
    assert path.read_bytes() == b"old"
    assert list(tmp_path.iterdir()) == [path]


def test_a_network_that_is_infinite_is_refused(tmp_path: Path) -> None:
    net = nn.Linear(2, 2)
    nn.init.constant_(net.weight, 3e38)
    with pytest.raises(RuntimeError, match="nan off"):
        save_packed(net, torch.full((1, 2), 100.0), tmp_path / "n")
    with pytest.raises(ValueError, match="the example input holds numbers that are NaN or infinite"):
        save_packed(net, torch.full((1, 2), float("nan")), tmp_path / "n")
    assert not list(tmp_path.iterdir())


def test_a_missing_runtime_is_named() -> None:
    code = "import sys; sys.modules['lrnets_runtime'] = None; import lrnets; lrnets.export"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert "lrnets_runtime, which is not installed; pip install lrnets-runtime" in done.stderr


def test_wrong_arguments_are_refused(net: nn.Module, tmp_path: Path) -> None:
    x, path = random(1, 1, 28, 28), tmp_path / "net"
    with pytest.raises(ValueError, match="float_weights must be 'float32' or 'int8', got 'int4'"):
        save_packed(net, x, path, float_weights="int4")
    with pytest.raises(ValueError, match="activations must be 'float32' or 'int8', got None"):
        save_packed(net, x, path, activations=None)
    with pytest.raises(ValueError, match="activations='int8' with no calibration"):
        save_packed(net, x, path, activations="int8")
    with pytest.raises(ValueError, match="activations='float32' with calibration"):
        save_packed(net, x, path, calibration=[x])
    with pytest.raises(FileNotFoundError, match=r"there is no folder .* create it first"):
        save_packed(net, x, tmp_path / "none" / "net")
    with pytest.raises(IsADirectoryError, match="is a folder; name a file to write"):
        save_packed(net, x, tmp_path)
    with pytest.raises(TypeError, match=r"classes must be a list of names, got '0123456789' \(str\)"):
        save_packed(net, x, path, classes="0123456789")
    model = mnist_net()
    lrnets.convert_(model)
    with pytest.raises(UnsupportedError, match="discretize it first"):
        save_packed(model, x, path)
    assert not list(tmp_path.iterdir())
