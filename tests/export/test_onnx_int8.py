"""ONNX files with int8 activations: bytes within a step of the reference's, computed on integers."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch
from export_networks import (
    BasicBlock,
    Lambda,
    drawn,
)
from lrnets_runtime import file, reference
from lrnets_runtime.graph import Add, Concat, Graph
from lrnets_runtime.shapes import infer_shapes
from onnx_sessions import NETWORKS, built, on_bytes, onnx, operators, random, run, session
from torch import nn

from lrnets.export import save_onnx, save_packed
from lrnets.export.onnx_graph import OnnxWriter


@pytest.mark.parametrize("name", NETWORKS)
def test_every_byte_is_within_a_step(name: str) -> None:
    """Each node by the reference, from the bytes onnxruntime gave its inputs."""
    net, x = built(name)
    graph, tensors = on_bytes(net, x, random(16, *x.shape[1:], seed=1))
    assert graph.quantization is not None
    shapes, entries = infer_shapes(graph), graph.quantization
    model = OnnxWriter(onnx, graph, tensors, "int8", 0).model()
    for node in graph.nodes:
        if node.output != graph.output:
            model.graph.output.append(onnx.helper.make_tensor_value_info(node.output, onnx.TensorProto.FLOAT, None))
    ort = session(model.SerializeToString())
    values = dict(zip((o.name for o in ort.get_outputs()), ort.run(None, {graph.input: x.numpy()})))
    values[graph.input] = reference.Value(reference.quantize(x.numpy(), entries["input"]), entries["input"]).real
    differing = 0
    for node in graph.nodes:
        inputs = [values[name] for name in node.inputs]
        if isinstance(node, Add):
            expected = reference.activate(inputs[0] + inputs[1], node.activation)
        elif isinstance(node, Concat):
            expected = np.concatenate(inputs, node.axis + 1)
        else:
            known = {name: entries[name] for name in (*node.inputs, node.output) if name in entries}
            one = Graph(node.inputs[0], shapes[node.inputs[0]], node.output, (node,), known)
            expected = reference.run(one, tensors, inputs[0])
        made = values[node.output]
        if node.output in entries:
            q, wanted = (reference.quantize(v, entries[node.output]).astype(int) for v in (made, expected))
            assert np.abs(q - wanted).max() <= 1, node.name
            differing = max(differing, np.mean(q != wanted))
        else:
            assert np.abs(made - expected).max() <= 0.01 * np.abs(expected).max() + 1e-5, node.name
    assert differing < 0.25  # small sums, in steps of which biases are rounded, have the most


@pytest.mark.parametrize("weights", ["int8", pytest.param("2bit", marks=pytest.mark.thorough)])
@pytest.mark.parametrize("name", NETWORKS)
def test_int8_activations(name: str, weights: str, tmp_path: Path) -> None:
    net, x = built(name)
    batches = random(16, *x.shape[1:], seed=1)
    report = save_onnx(net, x, tmp_path / "n.onnx", weights=weights, activations="int8", calibration=[batches])
    outputs, expected = run(tmp_path / "n.onnx", x), reference.run(*on_bytes(net, x, batches), x.numpy())
    assert np.abs(outputs - expected).max() <= 0.02 * np.abs(expected).max()
    assert report.difference <= 0.1 * report.largest_output
    assert report.activations == "int8"
    assert "float32" not in {layer.coding for layer in report.layers}
    assert run(tmp_path / "n.onnx", x[:1]).shape == (1, *outputs.shape[1:])


@pytest.mark.parametrize("name", ["mnist", "resnet", "mobile", "audio"])
def test_onnxruntime_computes_on_integers(name: str, tmp_path: Path) -> None:
    net, x = built(name)
    save_onnx(net, x, tmp_path / "n.onnx", activations="int8", calibration=x)
    made = operators(tmp_path / "n.onnx", tmp_path / "optimised.onnx")
    convolutions = sum(isinstance(m, (nn.Conv1d, nn.Conv2d)) for m in net.modules())
    assert made.count("QLinearConv") == convolutions
    assert made.count("QGemm") == sum(isinstance(m, nn.Linear) for m in net.modules())
    assert made.count("QLinearAdd") == sum(isinstance(m, BasicBlock) for m in net.modules())
    assert not {"Conv", "FusedConv", "Gemm", "Relu", "Clip", "MatMul"} & {*made}


def test_clamps_of_bytes(tmp_path: Path) -> None:
    """A clamp on bytes is a clamp, and leaves the convolution to integers."""
    torch.manual_seed(0)
    net = drawn(nn.Sequential(nn.Conv2d(2, 4, 3), nn.Hardtanh(-0.2, 0.1), nn.Flatten(), nn.Linear(16, 3)))
    x = random(16, 2, 4, 4)
    save_onnx(net, x, tmp_path / "n.onnx", activations="int8", calibration=x)
    graph, tensors = on_bytes(net, x, x)
    assert np.abs(run(tmp_path / "n.onnx", x) - reference.run(graph, tensors, x.numpy())).max() <= 0.01
    assert "QLinearConv" in operators(tmp_path / "n.onnx", tmp_path / "optimised.onnx")


@pytest.mark.parametrize("kind", ["conv", "linear"])
def test_large_weights_do_not_overflow(kind: str, tmp_path: Path) -> None:
    """The worst case of sums of pairs in 16 bits: all bytes 255, all weights 127."""
    net = nn.Sequential(nn.Conv2d(16, 4, 1) if kind == "conv" else nn.Linear(16, 4), nn.ReLU())
    net.append(nn.AdaptiveAvgPool2d(1) if kind == "conv" else nn.Linear(4, 2))
    with torch.no_grad():
        net[0].weight.copy_(torch.linspace(0.99, 1, 64).reshape(net[0].weight.shape))
    x = torch.ones(2, 16, 3, 3) if kind == "conv" else torch.ones(2, 16)
    report = save_onnx(net, x, tmp_path / "n.onnx", activations="int8", calibration=x)
    assert report.difference <= 0.02 * report.largest_output
    stored = {t.name: t.data_type for t in onnx.load(tmp_path / "n.onnx").graph.initializer}
    assert onnx.TensorProto.UINT8 in {kind for name, kind in stored.items() if name.endswith("weight")}


@pytest.mark.parametrize("pool", [1, 2])
def test_signs_of_sums_of_bytes_are_those_of_the_packed_file(tmp_path: Path, pool: int) -> None:
    """Half a step of a bias in whole steps would turn about one in a thousand."""
    layers = nn.Conv2d(3, 16, 3, padding=1), nn.BatchNorm2d(16), nn.MaxPool2d(pool)
    net = drawn(nn.Sequential(*layers, Lambda(lambda x: torch.where(x >= 0, 1.0, -1.0))), "binary")
    x = random(32, 3, 16, 16)
    save_packed(net, x[:2], tmp_path / "net.safetensors", activations="int8", calibration=[x])
    save_onnx(net, x[:2], tmp_path / "net.onnx", activations="int8", calibration=[x])
    expected = reference.run(*file.read(tmp_path / "net.safetensors"), x.numpy())
    assert np.array_equal(run(tmp_path / "net.onnx", x), expected)
