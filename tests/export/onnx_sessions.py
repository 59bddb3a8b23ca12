"""ONNX files and what onnxruntime makes of them: for the tests of both."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from export_networks import (
    Branches,
    PreActivation,
    ResNet,
    audio_net,
    drawn,
    mobile_net,
)
from lrnets_runtime.graph import Graph
from torch import Tensor, nn

from lrnets.export.calibrate import calibrate
from lrnets.export.fold import fold, quantize_weights
from lrnets.export.trace import Traced, trace
from lrnets.models import mnist_net

onnx = pytest.importorskip("onnx")
onnxruntime = pytest.importorskip("onnxruntime")

NETWORKS: dict[str, tuple[Callable[[], nn.Module], tuple[int, ...]]] = {
    "mnist": (mnist_net, (1, 28, 28)),
    "resnet": (ResNet, (3, 16, 16)),
    "pre-activation": (PreActivation, (3, 8, 8)),
    "branches": (Branches, (3, 8, 8)),
    "mobile": (mobile_net, (3, 8, 8)),
    "audio": (audio_net, (2, 20)),
}


def random(*shape: int, seed: int = 5) -> Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed))


def built(name: str, values: object = "ternary") -> tuple[nn.Module, Tensor]:
    torch.manual_seed(0)
    build, shape = NETWORKS[name]
    return drawn(build(), values), random(4, *shape)


def session(model: Path | bytes, optimised: Path | None = None) -> Any:
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads, options.log_severity_level = 1, 3
    if optimised is not None:
        options.optimized_model_filepath = str(optimised)
    return onnxruntime.InferenceSession(
        model if isinstance(model, bytes) else str(model), options, providers=["CPUExecutionProvider"]
    )


def run(path: Path, x: Tensor) -> np.ndarray:
    return session(path).run(None, {"input": x.numpy()})[0]


def assert_computes(path: Path, net: nn.Module, x: Tensor) -> None:
    """onnxruntime's output is that of the network in float64, up to float32's rounding."""
    with torch.no_grad():
        expected = net.double()(x.double()).numpy()
    net.float()
    outputs = run(path, x)
    assert outputs.shape == expected.shape
    assert np.abs(outputs - expected).max() <= 1e-5 * max(1, np.abs(expected).max())


def operators(path: Path, optimised: Path | None = None) -> list[str]:
    """Kinds of nodes in the file, or those that onnxruntime makes of them."""
    if optimised is not None:
        session(path, optimised)
    return [node.op_type for node in onnx.load(optimised or path).graph.node]


def on_bytes(net: nn.Module, x: Tensor, calibration: Tensor) -> Traced:
    """The graph that activations="int8" writes."""
    traced = quantize_weights(fold(trace(net, x)))
    steps = calibrate(*traced, [calibration])
    return Traced(
        Graph(*(getattr(traced.graph, f) for f in ("input", "input_shape", "output", "nodes")), steps), traced[1]
    )
