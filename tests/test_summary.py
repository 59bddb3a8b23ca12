"""Sizes and operations against numbers worked out by hand."""

import re
import sys
from pathlib import Path

import pytest
import torch
from torch import nn
from torch.nn.utils import prune

import lrnets
from lrnets.layers import learn_scales_, set_sharpness
from lrnets.models import cifar10_vgg, mnist_net


def rows(summary) -> dict:
    return {layer.name: layer for layer in summary.layers}


@torch.no_grad()
def with_statistics(model: nn.Module) -> nn.Module:
    """Batch norm as if trained: numbers that nothing can leave out."""
    for module in model.modules():
        if isinstance(module, nn.BatchNorm2d):
            module.running_mean.normal_()
            module.bias.normal_()
            module.weight.uniform_(0.5, 1.5)
    return model


@pytest.fixture
def ternary() -> nn.Sequential:
    torch.manual_seed(0)
    model = with_statistics(mnist_net())
    lrnets.convert_(model)
    return model


class Block(nn.Module):
    """Of a residual network, with a projection; the sum is activated, the norm before it can go nowhere."""

    def __init__(self, channels: int = 6, out: int = 9) -> None:
        super().__init__()
        self.conv1, self.bn1 = nn.Conv2d(channels, out, 3, 2, 1, bias=False), nn.BatchNorm2d(out)
        self.conv2, self.bn2 = nn.Conv2d(out, out, 3, 1, 1, bias=False), nn.BatchNorm2d(out)
        self.down, self.first = nn.Conv2d(channels, out, 1, 2), nn.BatchNorm2d(channels)
        self.fc = nn.Linear(out, 4)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = self.first(x)
        y = self.bn2(self.conv2(self.bn1(self.conv1(x)).relu()))
        return self.fc((y + self.down(x)).relu().mean((2, 3)))


@pytest.mark.parametrize("drawn", [False, True])
@pytest.mark.parametrize("size", [(1, 28, 28), (1, 1, 28, 28)])
def test_the_mnist_network_has_the_sizes_worked_out_by_hand(ternary, drawn, size):
    result = lrnets.summary(lrnets.discretize(ternary) if drawn else ternary, size)
    layers = rows(result)
    assert [layers[n].weights for n in ("conv1", "conv2", "fc1", "fc2")] == [800, 51_200, 524_288, 5_120]
    assert result.weights == 581_408
    # Five trits a byte, and float32 beside them: a scale and a bias for each channel, with batch norm in them.
    assert layers["conv1"].bytes == 160 + 2 * 4 * 32
    assert layers["conv2"].bytes == 10_240 + 2 * 4 * 64
    assert layers["fc1"].bytes == 104_858 + 4 * 512  # no batch norm: its one scale is in the header
    assert layers["fc2"].bytes == 4 * (5_120 + 10)
    assert list(layers) == ["conv1", "conv2", "fc1", "fc2"]
    assert layers["fc1"].bits == pytest.approx(1.6, abs=1e-4)
    # 32 maps of 24 x 24 from 25 inputs each; 64 of 8 x 8 from 800.
    assert layers["conv1"].additions == 32 * 24 * 24 * 25
    assert layers["conv2"].additions == 64 * 8 * 8 * 800
    assert layers["conv2"].multiplications == 64 * 8 * 8  # the scale
    assert layers["fc2"].multiplications == 5_120
    assert result.float_bytes == 4 * (581_408 + 512 + 10 + 4 * 32 + 4 * 64)
    assert result.bytes == result.header_bytes + sum(layer.bytes for layer in result.layers)
    assert result.problem is None


@pytest.mark.parametrize(
    ("build", "size", "values"),
    [
        (mnist_net, (1, 28, 28), "ternary"),
        (lambda: cifar10_vgg(width=0.1), (3, 32, 32), "binary"),
        (lambda: cifar10_vgg(width=0.1), (3, 32, 32), "ternary"),
        (Block, (6, 8, 8), "ternary"),
        (Block, (6, 8, 8), (-2, -1, 0, 1, 2)),
    ],
)
def test_the_bytes_are_those_on_disk(build, size, values, tmp_path: Path):
    torch.manual_seed(0)
    model = with_statistics(build())
    lrnets.convert_(model, values)
    net = lrnets.discretize(model)
    before = {name: tensor.clone() for name, tensor in net.state_dict().items()}
    result = lrnets.summary(net, size)
    report = lrnets.export.save_packed(net, torch.randn(1, *size), tmp_path / "net.safetensors")
    assert result.bytes == (tmp_path / "net.safetensors").stat().st_size
    assert result.header_bytes == report.header_bytes
    assert [(r.name, r.weights, r.bytes) for r in result.layers] == [
        (r.name, r.weights, r.bytes) for r in report.layers
    ]
    assert lrnets.summary(model, size).bytes == result.bytes  # before it is drawn
    assert all(torch.equal(before[name], tensor) for name, tensor in net.state_dict().items())


def test_a_model_that_is_one_layer(tmp_path: Path):
    layer = nn.Linear(20, 3)
    result = lrnets.summary(layer, (1, 20))
    lrnets.export.save_packed(layer, torch.randn(1, 20), tmp_path / "net")
    assert result.bytes == (tmp_path / "net").stat().st_size
    ((row),) = result.layers
    assert (row.name, row.weights, row.bytes, row.multiplications) == ("Linear", 60, 4 * 63, 60)


def test_a_network_that_no_file_can_hold_counts_its_numbers_and_says_why():
    model = nn.Sequential(nn.Conv2d(1, 5, 3, bias=False), nn.BatchNorm2d(5), nn.GELU())
    lrnets.convert_(model, keep=(), scale=False)
    result = lrnets.summary(model, (1, 4, 4))
    assert result.header_bytes == 0
    assert result.bytes == 9 + 4 * 4 * 5
    assert "operator aten.gelu of module '2' (GELU) is not supported" in result.problem
    without_batch = lrnets.summary(nn.Sequential(nn.Linear(6, 5), nn.GELU()), (6,))
    assert "operator aten.gelu of module '1' (GELU) is not supported" in without_batch.problem
    assert str(result).splitlines()[-1].startswith("weights and numbers alone, since it cannot be written as a packed")
    assert "header" not in str(result)


def test_without_the_runtime_the_numbers_alone_are_counted(monkeypatch):
    monkeypatch.setitem(sys.modules, "lrnets_runtime", None)
    for name in [name for name in sys.modules if name.startswith("lrnets.export")]:
        monkeypatch.delitem(sys.modules, name)
    result = lrnets.summary(nn.Sequential(nn.Linear(4, 2)), (1, 4))
    assert (result.bytes, result.header_bytes) == (40, 0)
    assert "pip install lrnets-runtime" in result.problem


def test_without_a_scale_no_multiplication_is_left_in_a_discrete_layer():
    model = mnist_net()
    lrnets.convert_(model, "binary", scale=False)
    for net in (model, lrnets.discretize(model)):
        layers = rows(lrnets.summary(net, (1, 28, 28)))
        assert layers["conv2"].multiplications == 0
        assert layers["conv2"].bytes - 4 * layers["conv2"].others == 51_200 // 8
        assert layers["conv2"].bits == 1


@pytest.mark.parametrize("levels", [(-2, -1, 0, 1, 2), tuple(range(-10, 11))])
def test_other_levels_need_more_bits_and_multiplications(levels):
    model = nn.Sequential(nn.Linear(64, 64, bias=False))
    lrnets.convert_(model, levels, keep=(), scale=False)
    for net in (model, lrnets.discretize(model)):
        (layer,) = lrnets.summary(net, (1, 64)).layers
        assert layer.bytes == 4096  # a byte each in a packed file
        assert layer.multiplications == 4096
        *_, layer = lrnets.summary(nn.Sequential(nn.GELU(), net), (1, 64)).layers  # which no packed file can hold
        assert layer.bytes == 4096  # as if one could


def test_transposed_convolutions_count_products_by_input():
    model = nn.Sequential(nn.ConvTranspose2d(4, 6, 3, stride=2, groups=2, bias=False))
    (layer,) = lrnets.summary(model, (1, 4, 5, 5)).layers
    assert layer.multiplications == 4 * 5 * 5 * 3 * 9
    lrnets.convert_(model)
    assert lrnets.summary(model, (1, 4, 5, 5)).layers[0].additions == 4 * 5 * 5 * 3 * 9


def test_shared_layers_count_their_bytes_once_and_their_operations_each_time():
    shared = nn.Linear(4, 4, bias=False)
    result = lrnets.summary(nn.Sequential(shared, nn.ReLU(), shared), (1, 4))
    assert (sum(layer.bytes for layer in result.layers), result.multiplications) == (64, 32)


def test_an_input_can_be_given_itself():
    model = nn.Sequential(nn.Embedding(10, 4), nn.Linear(4, 4, bias=False))
    result = lrnets.summary(model, torch.tensor([[1, 2, 3]]))
    assert rows(result)["1"].additions == 3 * 16


def test_the_model_is_left_as_it_was(ternary):
    state = {name: tensor.clone() for name, tensor in ternary.state_dict().items()}
    lrnets.summary(ternary, (1, 28, 28))
    assert ternary.training
    assert not any(module._forward_hooks for module in ternary.modules())
    assert all(torch.equal(state[name], tensor) for name, tensor in ternary.state_dict().items())


def test_it_prints_totals_and_the_ratio(ternary):
    lines = str(lrnets.summary(ternary, (1, 28, 28))).splitlines()
    assert lines[-3].split()[0] == "header"
    assert lines[-2].split()[:2] == ["total", "581,408"]
    assert re.fullmatch(r"14\d,\d{3} bytes; 2,329,256 in float32: 16.6 times smaller", lines[-1])


@pytest.mark.parametrize(
    ("size", "words"), [((), "positive whole"), ((0, 3), "positive whole"), ((3, 28, 28), "(3, 28, 28)")]
)
def test_an_impossible_input_is_named_and_the_model_left_as_it_was(ternary, size, words):
    with pytest.raises(ValueError, match=r".") as caught:
        lrnets.summary(ternary, size)
    assert words in str(caught.value)
    assert ternary.training
    assert not any(module._forward_hooks for module in ternary.modules())


@pytest.mark.parametrize(
    ("build", "size"),
    [
        (lambda: nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Linear(16, 4)), (8,)),
        (lambda: nn.Sequential(nn.Conv2d(3, 4, 3), nn.ReLU(), nn.Conv2d(4, 2, 3)), (3, 8, 8)),
    ],
)
def test_layers_that_take_inputs_without_a_batch_are_packed_as_well(build, size):
    """Torch's own take (features) and (channels, height, width), which a packed file does not."""
    torch.manual_seed(0)
    model = build()
    lrnets.convert_(model, keep=[])
    found = lrnets.summary(model, size)
    assert found.problem is None
    assert found == lrnets.summary(model, (1, *size))


def test_weights_that_are_computed_from_others_are_counted():
    normed = nn.Sequential(nn.utils.parametrizations.weight_norm(nn.Linear(4, 4)), nn.Linear(4, 2))
    pruned = nn.Sequential(nn.Linear(4, 4), nn.Linear(4, 2))
    prune.l1_unstructured(pruned[0], "weight", 4)
    for model in (normed, pruned):
        assert sum(layer.additions for layer in lrnets.summary(model, (1, 4)).layers) == 16 + 8


def test_what_only_training_needs_is_not_counted():
    model = nn.Sequential(nn.Linear(40, 40), nn.Unflatten(1, (40, 1)), nn.Flatten())
    lrnets.convert_(model, keep=())
    before = lrnets.summary(model, (1, 40))
    set_sharpness(model, 3.0)
    learn_scales_(model)
    after = lrnets.summary(model, (1, 40))
    assert (after.float_bytes, after.bytes) == (before.float_bytes, before.bytes)


def test_layers_without_weights_and_networks_without_numbers_are_told_of():
    assert lrnets.summary(nn.Sequential(nn.Linear(4, 0), nn.Linear(0, 3)), (1, 4)).layers
    with torch.device("meta"):
        model = nn.Sequential(nn.Linear(4, 4), nn.Linear(4, 2))
    lrnets.convert_(model)
    assert "meta device" in str(lrnets.summary(model, (1, 4)).problem)


def test_a_size_that_is_one_number_is_refused_with_a_remedy():
    with pytest.raises(ValueError, match=r"positive whole numbers, got .*784.*for example \(1, 28, 28\)"):
        lrnets.summary(nn.Linear(784, 10), 784)
