"""Traced and folded graphs compute what the networks compute; what cannot be traced is refused by name."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from export_networks import (
    BasicBlock,
    Branches,
    Lambda,
    PreActivation,
    ResNet,
    assert_same,
    audio_net,
    drawn,
    mobile_net,
    with_statistics,
)  # fmt: skip
from lrnets_runtime.graph import Conv2d, Linear
from torch import Tensor, nn

import lrnets
from lrnets.export.builder import UnsupportedError
from lrnets.export.fold import fold
from lrnets.export.trace import Traced, trace
from lrnets.models import cifar10_vgg, mnist_net


def random(*shape: int) -> Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(5))


def ops(traced: Traced) -> Counter[str]:
    return Counter(node.op for node in traced.graph.nodes)


NETWORKS: dict[str, tuple[Callable[[], nn.Module], tuple[int, ...], dict[str, int]]] = {
    "mnist": (mnist_net, (1, 28, 28), {"conv2d": 2, "pool2d": 2, "reshape": 1, "linear": 2}),
    "vgg": (lambda: cifar10_vgg(width=1 / 8), (3, 32, 32), {"conv2d": 6, "pool2d": 3, "reshape": 1, "linear": 2}),
    "resnet": (
        ResNet, (3, 16, 16),
        {"conv2d": 10, "pool2d": 1, "add": 4, "adaptive_pool2d": 1, "reshape": 1, "linear": 1},
    ),
    "preactivation": (
        PreActivation, (3, 8, 8), {"conv2d": 3, "affine": 1, "add": 1, "adaptive_pool2d": 1, "reshape": 1, "linear": 1}
    ),
    "mobile": (mobile_net, (3, 8, 8), {"conv2d": 4, "adaptive_pool2d": 1, "reshape": 1, "linear": 1}),
    "branches": (
        Branches, (3, 8, 8),
        {"conv2d": 3, "affine": 1, "add": 1, "adaptive_pool2d": 1, "pool2d": 1, "concat": 1, "reshape": 1, "linear": 1,
         "softmax": 1},
    ),
    "audio": (audio_net, (2, 20), {"reshape": 2, "conv2d": 2, "pool2d": 2, "adaptive_pool2d": 1, "linear": 1}),
}  # fmt: skip


@pytest.mark.parametrize("values", ["binary", "ternary"])
@pytest.mark.parametrize("name", NETWORKS)
def test_graphs_compute_what_networks_compute(name: str, values: str) -> None:
    build, shape, nodes = NETWORKS[name]
    torch.manual_seed(0)
    net, x = drawn(build(), values, scale=values == "ternary"), random(3, *shape)
    traced = trace(net, x)
    assert_same(traced, net, x)
    folded = fold(traced)
    assert_same(folded, net, x)
    assert ops(folded) == nodes
    codings = [node.weight.coding for node in folded.graph.nodes if isinstance(node, (Conv2d, Linear))]
    assert Counter(codings) == {values: len(codings) - 1, "float32": 1}
    assert {tensor.dtype.name for tensor in folded.tensors.values()} == {"uint8", "float32"}


def test_names_are_those_of_layers() -> None:
    torch.manual_seed(0)
    folded = fold(trace(drawn(ResNet()), random(1, 3, 16, 16)))
    names = [node.name for node in folded.graph.nodes]
    assert names[:5] == ["stem.0", "maxpool", "layer1.0.conv1", "layer1.0.conv2", "layer1.0.add"]
    assert "layer2.0.downsample.0" in names
    assert names[-1] == "fc"
    assert "layer1.0.conv1.weight" in folded.tensors


def test_settings_and_shapes_of_layers() -> None:
    settings = [
        nn.Conv2d(4, 6, 3, stride=(2, 1), padding=(1, 0), bias=True),
        nn.Conv2d(6, 6, (3, 1), padding="same", groups=2, dilation=(2, 1), bias=False),
        nn.MaxPool2d((3, 2), stride=(1, 2), padding=(1, 0), ceil_mode=True),
        nn.Conv2d(6, 4, 2, padding="valid"),
        nn.AvgPool2d(2, stride=1, padding=1),
        nn.AdaptiveAvgPool2d((3, 2)),
        nn.Flatten(),
        nn.Linear(24, 8),
        nn.BatchNorm1d(8, affine=False),
        nn.Hardtanh(-0.5, 0.75),
    ]
    torch.manual_seed(0)
    net, x = with_statistics(nn.Sequential(*settings)), random(2, 4, 12, 11)
    folded = fold(trace(net, x))
    assert_same(folded, net, x)
    assert "affine" not in ops(folded)


CALLS: dict[str, tuple[nn.Module, tuple[int, ...]]] = {
    "mean keepdim": (Lambda(lambda x: x.mean((-1, -2), keepdim=True)), (3, 4, 5)),
    "plus a number": (Lambda(lambda x: 2 + x + 0.5), (4,)),
    "minus, both ways": (Lambda(lambda x: 3 - (x - 0.25)), (3, 4)),
    "with alpha": (Lambda(lambda x: torch.sub(torch.add(x, 2, alpha=3), 5, alpha=-2)), (4,)),
    "alpha of the value": (Lambda(lambda x: torch.sub(torch.ones(2, 1), x, alpha=3)), (2, 3)),
    "rsub": (Lambda(lambda x: torch.rsub(x, 5, alpha=2)), (4,)),
    "input normalised inside": (
        Lambda(lambda x: (x - torch.tensor([0.5, 0.4, 0.3]).view(3, 1, 1)) / torch.tensor([0.2, 0.3]).mean()),
        (3, 4, 5),
    ),
    "times a scale a channel": (Lambda(lambda x: torch.tensor([1.0, -2.0]).view(1, -1, 1, 1) * x * 3), (2, 4, 5)),
    "features times": (Lambda(lambda x: x * torch.arange(4.0) / 3), (4,)),
    "mean of channels": (Lambda(lambda x: x.mean(1)), (2, 8, 8)),
    "product of two values": (Lambda(lambda x: x * x.relu()), (4,)),
    "mean of a length": (Lambda(lambda x: x.mean(2)), (3, 4)),
    "matmul": (Lambda(lambda x, fc: torch.matmul(x, fc.weight), nn.Linear(4, 4)), (4,)),
    "mm": (Lambda(lambda x, fc: torch.mm(x, fc.weight.t()), nn.Linear(4, 3)), (4,)),
    "addmm": (Lambda(lambda x, fc: torch.addmm(fc.bias, x, fc.weight.t()), nn.Linear(4, 3)), (4,)),
    "linear over the last of several": (nn.Sequential(nn.Linear(4, 3), nn.BatchNorm1d(5)), (5, 4)),
    "clamps": (Lambda(lambda x: x.clamp(min=-1).clamp(max=1).clamp_min(0).clamp_max(0.5)), (7,)),
    "clamp of nothing": (Lambda(lambda x: x.clamp(-np.inf, np.inf).relu()), (7,)),
    "copies": (Lambda(lambda x: x.contiguous().clone().detach().to(x.dtype).relu()), (7,)),
    "in place on the input": (nn.ReLU(inplace=True), (7,)),
    "reshapes": (Lambda(lambda x: x.reshape(-1, 12).unflatten(1, (3, 4)).flatten(1).relu()), (3, 4)),
    "squeezes": (Lambda(lambda x: x.unsqueeze(1).relu().squeeze(1).relu()), (3, 4)),
    "weight norm": (nn.utils.parametrizations.weight_norm(nn.Linear(4, 3)), (4,)),
    "dropouts": (nn.Sequential(nn.Dropout2d(), nn.Linear(4, 3), nn.AlphaDropout(), nn.Identity()), (3, 4, 4)),
    "a value and itself": (Lambda(lambda x: x + x), (7,)),
    "a layer called twice": (
        Lambda(lambda x, conv, norm: norm(conv(x)).relu() + conv(x), nn.Conv2d(2, 2, 1), nn.BatchNorm2d(2)), (2, 3, 3)
    ),
    "no_grad within": (Lambda(lambda x, fc: torch.no_grad()(fc)(x), nn.Linear(4, 3)), (4,)),
    "activation after activation": (nn.Sequential(nn.Linear(4, 3), nn.LeakyReLU(), nn.Hardtanh()), (4,)),
    "batch norm after activation": (nn.Sequential(nn.Linear(4, 3), nn.ReLU(), nn.BatchNorm1d(3)), (4,)),
    "batch norm after batch norm": (nn.Sequential(nn.BatchNorm2d(3), nn.BatchNorm2d(3), nn.ReLU()), (3, 4, 4)),
    "batch norm of flattened maps": (nn.Sequential(nn.Conv2d(2, 3, 1), nn.Flatten(), nn.BatchNorm1d(12)), (2, 2, 2)),
    "softmax of channels": (nn.Softmax(1), (3, 4, 4)),
    "concat of columns": (Lambda(lambda x: torch.cat([x, x.relu()], -1)), (3, 4, 4)),
}  # fmt: skip


@pytest.mark.parametrize("name", CALLS)
def test_calls(name: str) -> None:
    net, shape = CALLS[name]
    net, x = with_statistics(net), random(3, *shape)
    before = x.clone()
    traced = trace(net, x)
    assert torch.equal(x, before)
    assert_same(traced, net, x.clone())
    assert_same(fold(traced), net, x.clone())


def test_what_nothing_can_take_in_stays() -> None:
    """A layer that is read twice keeps its output; so does one whose output is not per channel."""
    net = with_statistics(nn.Sequential(nn.Linear(4, 3), nn.BatchNorm1d(5)))
    assert ops(fold(trace(net, random(1, 5, 4)))) == {"linear": 1, "affine": 1}
    net = with_statistics(nn.Sequential(nn.Conv2d(2, 3, 1), nn.Flatten(), nn.BatchNorm1d(12)))
    assert ops(fold(trace(net, random(1, 2, 2, 2)))) == {"conv2d": 1, "reshape": 1, "affine": 1}
    double = Lambda(lambda x, c, b: b(y := c(x)) + y, nn.Conv2d(2, 2, 1), nn.BatchNorm2d(2))
    assert ops(fold(trace(with_statistics(double), random(1, 2, 3, 3)))) == {"conv2d": 1, "affine": 1, "add": 1}


def test_folding_by_hand() -> None:
    """scale = gamma s / sqrt(var + eps) and bias = beta + gamma (b - mean) / sqrt(var + eps), rounded once."""
    conv, norm = nn.Conv2d(2, 3, 1), nn.BatchNorm2d(3, eps=1e-3)
    with torch.no_grad():
        conv.weight.copy_(0.3 * torch.tensor([[1.0, -1], [0, 1], [-1, -1]]).reshape(3, 2, 1, 1))
    net = with_statistics(nn.Sequential(conv, norm, nn.ReLU()))
    folded = fold(trace(net, random(1, 2, 4, 4)))
    (node,) = folded.graph.nodes
    assert isinstance(node, Conv2d)
    assert (node.weight.coding, node.activation.kind, node.activation.low) == ("ternary", "clamp", 0.0)
    factor = norm.weight.double() / (norm.running_var.double() + 1e-3).sqrt()
    scale = factor * torch.tensor(0.3).double()
    bias = norm.bias.double() + factor * (conv.bias.double() - norm.running_mean.double())
    np.testing.assert_array_equal(folded.tensors["0.scale"], scale.float().detach().numpy())
    np.testing.assert_array_equal(folded.tensors["0.bias"], bias.float().detach().numpy())


def test_a_scale_of_1_and_a_bias_of_0_are_left_out() -> None:
    torch.manual_seed(0)
    net = nn.Sequential(nn.Linear(8, 4, bias=False), nn.Linear(4, 2))
    nn.init.zeros_(net[1].bias)
    folded = fold(trace(drawn(net, scale=False), random(1, 8)))
    assert [(node.scale, node.bias) for node in folded.graph.nodes] == [(None, None), (None, None)]
    assert set(folded.tensors) == {"0.weight", "1.weight"}


def test_equal_scales_are_one_number() -> None:
    """To the bit, as float32 has it; a scale that differs in one channel stays a tensor."""
    net = nn.Linear(3, 4, bias=False)
    with torch.no_grad():
        net.weight.copy_(0.1 * torch.tensor([[1.0, -1, 1], [1, 1, 1], [-1, 1, 1], [-1, -1, 1]]))
    (node,) = fold(trace(net, random(1, 3))).graph.nodes
    assert isinstance(node, Linear)
    assert node.scale == 0.1
    assert np.float32(node.scale) == net.weight.abs().max().item()
    with torch.no_grad():
        net.weight[2] *= 2
    folded = fold(trace(net, random(1, 3)))
    np.testing.assert_array_equal(folded.tensors[folded.graph.nodes[0].scale], np.float32([0.1, 0.1, 0.2, 0.1]))


def test_values_are_called_as_the_node_that_makes_them() -> None:
    torch.manual_seed(0)
    graph, _ = fold(trace(drawn(ResNet()), random(1, 3, 16, 16)))
    assert all(node.output == node.name for node in graph.nodes)


def test_passes_leave_their_argument_alone() -> None:
    torch.manual_seed(0)
    traced = trace(drawn(ResNet()), random(1, 3, 16, 16))
    graph, tensors = traced.graph, {name: tensor.copy() for name, tensor in traced.tensors.items()}
    fold(traced)
    assert traced.graph == graph
    assert set(traced.tensors) == set(tensors)
    assert all(np.array_equal(traced.tensors[name], tensor) for name, tensor in tensors.items())


def test_shared_layers_and_tied_weights_are_stored_once() -> None:
    torch.manual_seed(0)
    first, second = nn.Linear(4, 4), nn.Linear(4, 4)
    second.weight = first.weight
    net = nn.Sequential(first, nn.ReLU(), second, nn.ReLU(), first)
    folded = fold(trace(net, random(2, 4)))
    assert_same(folded, net, random(2, 4))
    assert [node.weight.tensor for node in folded.graph.nodes] == ["0.weight"] * 3
    assert len({node.name for node in folded.graph.nodes}) == 3


def test_channels_last_networks_are_the_same() -> None:
    torch.manual_seed(0)
    net, x = drawn(ResNet()), random(2, 3, 16, 16)
    plain = fold(trace(net, x))
    other = fold(trace(net.to(memory_format=torch.channels_last), x.contiguous(memory_format=torch.channels_last)))
    assert other.graph == plain.graph
    assert all(np.array_equal(other.tensors[name], tensor) for name, tensor in plain.tensors.items())


def test_networks_are_traced_in_eval_mode_and_left_as_they_were() -> None:
    torch.manual_seed(0)
    net, x = drawn(mnist_net()), random(2, 1, 28, 28)
    net.train()
    net.norm1.eval()
    state = {name: tensor.clone() for name, tensor in net.state_dict().items()}
    assert_same(fold(trace(net, x)), net, x)
    assert [name for name, module in net.named_modules() if not module.training] == ["norm1"]
    assert all(torch.equal(state[name], tensor) for name, tensor in net.state_dict().items())


@pytest.mark.parametrize("dtype", [torch.float64, torch.bfloat16])
def test_other_number_formats(dtype: torch.dtype) -> None:
    torch.manual_seed(0)
    net, x = drawn(BasicBlock(3, 4, 2)).to(dtype), random(2, 3, 8, 8)
    assert_same(fold(trace(net, x.to(dtype))), net, x)


def test_integer_levels_are_int8() -> None:
    torch.manual_seed(0)
    net, x = drawn(mobile_net(), (-2, -1, 0, 1, 2)), random(2, 3, 8, 8)
    folded = fold(trace(net, x))
    assert_same(folded, net, x)
    assert [node.weight.coding for node in folded.graph.nodes if isinstance(node, Conv2d)] == ["int8"] * 4


class Buffered(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("calls", torch.zeros(()))

    def forward(self, x: Tensor) -> Tensor:
        self.calls += 1
        return x.relu()


class TwoInputs(nn.Module):
    def forward(self, x: Tensor, mask: Tensor) -> Tensor:
        return x + mask


def act_of_layer() -> nn.Module:
    encoder = nn.Module()
    encoder.layer = nn.Sequential(nn.Linear(4, 4), nn.GELU())
    encoder.forward = lambda x: encoder.layer(x)
    return nn.Sequential(encoder)


ODD = nn.Sequential(nn.Conv2d(2, 2, 2, padding="same"))
REFUSED: dict[str, tuple[nn.Module, tuple[int, ...], str]] = {
    "gelu": (act_of_layer(), (4,), r"^operator aten.gelu of module '0.layer.1' \(GELU\) is not supported; use ReLU"),
    "unknown": (Lambda(torch.sin), (4,), r"aten.sin of the network itself \(Lambda\) .*knows convolution"),
    "log_softmax": (nn.Sequential(nn.LogSoftmax(-1)), (4,), r"aten.log_softmax of module '0' .*leave it off"),
    "transposed": (nn.Sequential(nn.ConvTranspose2d(2, 2, 2)), (2, 4, 4), r"conv_transpose2d .* \(ConvTranspose2d\)"),
    "same, even": (ODD, (2, 4, 4), r"aten.conv2d .* padding='same' and kernel 2x2, .* odd kernel"),
    "padding mode": (nn.Conv2d(2, 2, 3, padding=1, padding_mode="reflect"), (2, 4, 4), r"aten.pad .*\(Conv2d\)"),
    "wide padding": (nn.Conv2d(2, 2, 1, padding=1), (2, 4, 4), r"does not allow it: .*padding 1 in height"),
    "pool dilation": (nn.MaxPool2d(2, dilation=2), (2, 8, 8), r"aten.max_pool2d .* with dilation \[2, 2\]"),
    "divisor": (nn.AvgPool2d(2, divisor_override=3), (2, 8, 8), r"aten.avg_pool2d .* with divisor_override=3"),
    "mean of rows": (Lambda(lambda x: x.mean(3)), (2, 8, 8), r"aten.mean .* over dimensions \[3\]"),
    "mean over the batch": (Lambda(lambda x: x.mean(0)), (2, 8, 8), r"aten.mean .* to shape \(2, 8, 8\).*must stay"),
    "add a picture": (Lambda(lambda x: x + torch.ones(3, 3)), (2, 3, 3), r"aten.add .* a constant of shape \(3, 3\)"),
    "constant of the last dimension": (Lambda(lambda x: x * torch.ones(3)), (2, 3), r"aten.mul .* shape \(3,\)"),
    "constant that grows": (Lambda(lambda x: x + torch.ones(1, 2, 1, 3)), (2, 4, 1), r"aten.add .* \(1, 2, 1, 3\)"),
    "difference of two values": (Lambda(lambda x: x - x.relu()), (4,), r"aten.sub .* of two values"),
    "divided by": (Lambda(lambda x: 1 / (x + 2)), (4,), r"aten.(reciprocal|div)"),
    "rounded division": (Lambda(lambda x: torch.div(x, 2, rounding_mode="floor")), (4,), r"aten.div .*rounding_mode"),
    "add with broadcast": (Lambda(lambda x: x + x[:, :1]), (4,), r"aten.(slice|add)"),
    "add alpha": (Lambda(lambda x: torch.add(x, x.relu(), alpha=2)), (4,), r"aten.add .* alpha 2"),
    "cat of batches": (Lambda(lambda x: torch.cat([x, x], 0)), (4,), r"aten.cat .* the batch must stay"),
    "softmax of the batch": (nn.Softmax(0), (4,), r"aten.softmax .* along the batch"),
    "reshape of the batch": (Lambda(lambda x: x.reshape(-1, 2)), (4,), r"aten.(reshape|view) .* the batch must stay"),
    "weights from the input": (Lambda(lambda x: x @ x.t()), (4,), r"operator aten.(t|transpose|matmul)"),
    "permute": (Lambda(lambda x: x.permute(0, 2, 1)), (3, 4), r"aten.permute"),
    "number format": (Lambda(lambda x: x.half()), (4,), r"aten.(to|_to_copy) .* from torch.float32 to torch.float16"),
    "dropout at work": (Lambda(lambda x: F.dropout(x)), (4,), r"aten.native_dropout .*training=self.training"),
    "batch statistics": (nn.BatchNorm1d(4, track_running_stats=False), (4,), r"batch_norm.*track_running_stats=True"),
    "several outputs": (Lambda(lambda x: (x.relu(), x)), (4,), r"has 2 outputs; one is supported"),
    "several inputs": (TwoInputs(), (4,), r"takes 2 inputs \(x, mask\); one is supported"),
    "fixed batch": (Lambda(lambda x: x.view(2, 4)), (4,), r"torch.export cannot trace .*one batch size"),
    "data dependent": (Lambda(lambda x: x if x.sum() > 0 else -x), (4,), r"torch.export cannot trace the network: "),
    "state": (Buffered(), (4,), r"changes its buffer 'calls'"),
    "nothing": (nn.Identity(), (4,), r"nothing to export"),
    "five dimensions": (nn.ReLU(), (2, 3, 4, 5), r"input of shape \(2, 2, 3, 4, 5\) .*use one of \(batch, features\)"),
    "no dimension": (nn.ReLU(), (), r"input of shape \(2,\) is not supported"),
    "clamp with tensors": (Lambda(lambda x: torch.clamp(x, torch.zeros(4), None)), (4,), r"with a tensor as bound"),
    "clamp the wrong way": (Lambda(lambda x: x.clamp(1, 0)), (4,), r"bounds 1 above 0"),
}  # fmt: skip


@pytest.mark.parametrize("name", REFUSED)
def test_refusals(name: str) -> None:
    net, shape, message = REFUSED[name]
    with pytest.raises(UnsupportedError, match=message):
        trace(net, random(2, *shape))


def test_random_weights_are_refused() -> None:
    model = mnist_net()
    lrnets.convert_(model)
    with pytest.raises(UnsupportedError, match=r"layer 'conv1' \(LRConv2d\) has random weights; discretize it first"):
        trace(model, random(1, 1, 28, 28))


def test_wrong_arguments_are_refused() -> None:
    with pytest.raises(TypeError, match=r"takes a torch.nn.Module, got"):
        trace("net", random(1, 4))
    with pytest.raises(UnsupportedError, match="one input, got 2"):
        trace(nn.ReLU(), (random(1, 4), random(1, 4)))
    with pytest.raises(TypeError, match="one tensor of floats"):
        trace(nn.ReLU(), torch.zeros(1, 4, dtype=torch.bool))
    with pytest.raises(UnsupportedError, match=r"aten.relu of the network .* of torch.int64 .*floats alone"):
        trace(nn.ReLU(), torch.zeros(1, 4, dtype=torch.int64))
    with pytest.raises(UnsupportedError, match=r"shape \(0, 4\)"):
        trace(nn.ReLU(), torch.zeros(0, 4))
    net = nn.Linear(4, 4)
    with torch.no_grad():
        net.weight[1, 2] = float("nan")
    with pytest.raises(UnsupportedError, match="weight: 1 of 16 numbers are NaN or infinite"):
        trace(net, random(1, 4))


def test_a_scale_too_large_for_float32_is_refused() -> None:
    net = nn.Sequential(nn.Linear(4, 4), nn.BatchNorm1d(4, eps=1e-90)).eval().double()
    with torch.no_grad():
        net[1].running_var.fill_(1e-90)
    with pytest.raises(ValueError, match=r"0\.scale: .* too large for float32; .*update_bn"):
        fold(trace(net, random(1, 4).double()))
