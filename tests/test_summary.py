"""Sizes and operations against numbers worked out by hand."""

import pytest
import torch
from torch import nn

import lrnets
from lrnets.models import mnist_net


def rows(summary) -> dict:
    return {layer.name: layer for layer in summary.layers}


@pytest.fixture
def ternary() -> nn.Sequential:
    torch.manual_seed(0)
    model = mnist_net()
    lrnets.convert_(model)
    return model


@pytest.mark.parametrize("drawn", [False, True])
@pytest.mark.parametrize("size", [(1, 28, 28), (1, 1, 28, 28)])
def test_the_mnist_network_has_the_sizes_worked_out_by_hand(ternary, drawn, size):
    result = lrnets.summary(lrnets.discretize(ternary) if drawn else ternary, size)
    layers = rows(result)
    assert [layers[n].weights for n in ("conv1", "conv2", "fc1", "fc2")] == [800, 51_200, 524_288, 5_120]
    assert result.weights == 581_408
    # Five trits a byte, and a float32 scale and biases beside them.
    assert layers["conv1"].bytes == 160 + 4
    assert layers["conv2"].bytes == 10_240 + 4
    assert layers["fc1"].bytes == 104_858 + 4 * 513
    assert layers["fc2"].bytes == 4 * (5_120 + 10)
    assert layers["norm1"].bytes == 4 * 4 * 32
    assert layers["fc1"].bits == pytest.approx(1.6, abs=1e-4)
    # 32 maps of 24 x 24 from 25 inputs each; 64 of 8 x 8 from 800.
    assert layers["conv1"].additions == 32 * 24 * 24 * 25
    assert layers["conv2"].additions == 64 * 8 * 8 * 800
    assert layers["conv2"].multiplications == 64 * 8 * 8  # the scale
    assert layers["fc2"].multiplications == 5_120
    assert result.float_bytes == 4 * (581_408 + 512 + 10 + 4 * 32 + 4 * 64)
    assert result.bytes == sum(layer.bytes for layer in result.layers)


def test_without_a_scale_no_multiplication_is_left_in_a_discrete_layer():
    model = mnist_net()
    lrnets.convert_(model, "binary", scale=False)
    for net in (model, lrnets.discretize(model)):
        layers = rows(lrnets.summary(net, (1, 28, 28)))
        assert layers["conv2"].multiplications == 0
        assert layers["conv2"].bytes == 51_200 // 8
        assert layers["conv2"].bits == 1


def test_other_levels_need_more_bits_and_multiplications():
    model = nn.Sequential(nn.Linear(64, 64, bias=False))
    lrnets.convert_(model, (-2, -1, 0, 1, 2), keep=(), scale=False)
    for net in (model, lrnets.discretize(model)):
        (layer,) = lrnets.summary(net, (64,)).layers
        assert layer.bytes == -(-4096 // 3)  # three of five levels a byte: 125 <= 256
        assert layer.multiplications == 4096


def test_transposed_convolutions_count_products_by_input():
    model = nn.Sequential(nn.ConvTranspose2d(4, 6, 3, stride=2, groups=2, bias=False))
    (layer,) = lrnets.summary(model, (1, 4, 5, 5)).layers
    assert layer.multiplications == 4 * 5 * 5 * 3 * 9
    lrnets.convert_(model)
    assert lrnets.summary(model, (1, 4, 5, 5)).layers[0].additions == 4 * 5 * 5 * 3 * 9


def test_shared_layers_count_their_bytes_once_and_their_operations_each_time():
    shared = nn.Linear(4, 4, bias=False)
    result = lrnets.summary(nn.Sequential(shared, nn.ReLU(), shared), (1, 4))
    assert (result.bytes, result.multiplications) == (64, 32)


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
    assert lines[-2].split()[:2] == ["total", "581,408"]
    assert lines[-1] == "139,374 bytes; 2,329,256 in float32: 16.7 times smaller"


@pytest.mark.parametrize(
    ("size", "words"), [((), "positive whole"), ((0, 3), "positive whole"), ((3, 28, 28), "(3, 28, 28)")]
)
def test_an_impossible_input_is_named_and_the_model_left_as_it_was(ternary, size, words):
    with pytest.raises(ValueError, match=r".") as caught:
        lrnets.summary(ternary, size)
    assert words in str(caught.value)
    assert ternary.training
    assert not any(module._forward_hooks for module in ternary.modules())
