"""Networks of all methods as packed files that the run-time computes with."""

import lrnets_runtime
import numpy as np
import pytest
import torch
from torch import nn

import lrnets
import lrnets.export

CODINGS = {
    "binaryconnect": "binary", "bwn": "binary", "twn": "ternary", "bitnet": "ternary", "gumbel": "ternary",
    "logderivative": "ternary", "gaussian": "float32", "fastdropout": "float32",
    "ttq": "levels", "bnn": "binary", "xnor": "binary", "ebp": "binary",
}  # fmt: skip


@pytest.mark.parametrize("method", CODINGS)
def test_the_file_computes_what_the_network_does_and_is_as_large_as_the_summary_says(tmp_path, method):
    torch.manual_seed(0)
    model = nn.Sequential(
        nn.Conv2d(1, 8, 3, bias=False), nn.BatchNorm2d(8), nn.ReLU(), nn.MaxPool2d(2), nn.Flatten(), nn.Linear(72, 20),
        nn.ReLU(), nn.Linear(20, 3),
    )  # fmt: skip
    lrnets.convert_(model, method=method)
    net = lrnets.discretize(model, "mode")
    x = torch.randn(5, 1, 8, 8)
    lrnets.update_bn(net, [x])
    report = lrnets.export.save_packed(net, x, tmp_path / "net.safetensors")
    own = [layer for layer in report.layers if layer.name in ("0", "5", "7")]  # XNOR-Net has some for K besides
    assert [layer.coding for layer in own] == [CODINGS[method], CODINGS[method], "float32"]
    outputs = lrnets_runtime.load(tmp_path / "net.safetensors")(x.numpy())
    expected = net(x).detach().numpy()
    np.testing.assert_allclose(outputs, expected, atol=1e-5 * np.abs(expected).max())
    summary = lrnets.summary(net, (1, 8, 8))
    assert (summary.bytes, summary.problem) == (report.bytes, None)


def test_the_summary_of_the_training_network_is_that_of_the_discrete_one():
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(30, 20), nn.ReLU(), nn.Linear(20, 3))
    lrnets.convert_(model, method="bwn")
    row = lrnets.summary(model, (30,)).layers[0]
    # 600 signs in 75 bytes; a scale and a bias for each of 20 outputs; each scale is a multiplication.
    assert (row.values, row.weights, row.others, row.bytes, row.multiplications) == ("binary", 600, 40, 75 + 160, 20)
    assert str(lrnets.summary(model, (30,))) == str(lrnets.summary(lrnets.discretize(model, "mode"), (30,)))
