"""The state of layers through all that torch does to modules: files, copies, types, layouts, devices."""

from __future__ import annotations

import copy
import pickle

import pytest
import torch
import torch.nn.functional as F
from layer_examples import REORDERED, every_kind, every_value_set, example, loss_gradients, seeded
from torch import Tensor

from lrnets.functional import VARIANCE_FLOOR
from lrnets.layers import LRConv2d, LRLinear


@every_kind
def test_everything_a_layer_computes_with_is_registered(kind):
    """Logits or constants kept outside parameters and buffers are a known mistake: they miss .to() and state_dict()."""
    layer, x = example(kind)
    assert [name for name, _ in layer.named_parameters()] == ["logits", "bias"]
    assert [name for name, _ in layer.named_buffers()] == ["scale"]
    assert not [name for name, value in vars(layer).items() if isinstance(value, Tensor)]
    assert set(layer.state_dict()) == {"logits", "bias", "scale"}
    moved = layer.to("meta")
    assert moved.weight.is_meta
    assert moved.eval()(x.to("meta")).is_meta


@every_kind
def test_layers_without_scale_or_bias_have_neither_in_their_state(kind):
    layer, x = example(kind, bias=False, scale=False)
    assert set(layer.state_dict()) == {"logits"}
    assert layer.scale is None
    assert layer.bias is None
    assert layer(x).shape == layer.eval()(x).shape


@every_kind
@every_value_set
def test_state_dict_round_trip(kind, values, tmp_path):
    layer, x = example(kind, values=values)
    other, _ = example(kind, values=values, seed=5)
    with torch.no_grad():
        layer.scale.fill_(0.123)
    assert not torch.equal(seeded(other, x), seeded(layer, x))
    torch.save(layer.state_dict(), tmp_path / "state.pt")
    other.load_state_dict(torch.load(tmp_path / "state.pt", weights_only=True))
    assert torch.equal(seeded(other, x), seeded(layer, x))
    assert torch.equal(other.eval()(x), layer.eval()(x))


def test_state_of_another_value_set_is_refused():
    with pytest.raises(RuntimeError, match="size mismatch for logits"):
        example(LRConv2d, values="ternary")[0].load_state_dict(example(LRConv2d, values="binary")[0].state_dict())


@every_kind
@pytest.mark.parametrize("duplicate", [copy.deepcopy, lambda layer: pickle.loads(pickle.dumps(layer))])
def test_copies_are_equal_and_independent(kind, duplicate):
    layer, x = example(kind)
    expected = seeded(layer, x), layer.eval()(x)
    twin = duplicate(layer.train())
    assert torch.equal(seeded(twin, x), expected[0])
    assert torch.equal(twin.eval()(x), expected[1])
    with torch.no_grad():
        for tensor in twin.state_dict().values():
            tensor.add_(1.0)
    assert not torch.equal(twin(x), expected[1])
    assert torch.equal(layer.eval()(x), expected[1])


def test_a_layer_with_a_generator_can_be_copied():
    layer, x = example(LRLinear)
    layer.generator = torch.Generator().manual_seed(0)
    assert torch.equal(copy.deepcopy(layer)(x), layer(x))


@every_kind
@every_value_set
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
def test_to_dtype_takes_everything_along(kind, values, dtype):
    layer, x = example(kind, values=values)
    expected = layer.eval()(x)
    layer.to(dtype)
    assert {tensor.dtype for tensor in layer.state_dict().values()} == {dtype}
    x = x.to(dtype)
    eps = torch.finfo(dtype).eps
    # Weight (level times scale), input, bias and sum are rounded once each; sums of at most 36 terms, here below 8.
    torch.testing.assert_close(layer(x).double(), expected, rtol=4 * eps, atol=8 * 4 * eps)
    z = layer.train()(x)
    assert z.dtype == dtype
    assert all(torch.isfinite(gradient).all() for gradient in loss_gradients(layer, z).values())


@every_value_set
def test_to_channels_last(values):
    layer, _ = example(LRConv2d, values=values)
    torch.manual_seed(2)
    x = torch.randn(2, 2, 5, 6, dtype=torch.float64)
    expected = layer.eval()(x)
    mean, deviation = sample_by_torch(layer, x)
    last = copy.deepcopy(layer).to(memory_format=torch.channels_last)
    assert last.logits.is_contiguous(memory_format=torch.channels_last)
    torch.testing.assert_close(last.eval()(x.to(memory_format=torch.channels_last)), expected, **REORDERED)
    z = seeded(last.train(), x.to(memory_format=torch.channels_last))
    # The noise is filled in the order of memory, whatever that is.
    torch.manual_seed(1)
    stored = torch.randn(z.permute(0, 2, 3, 1).shape, dtype=z.dtype)
    eps = stored.permute(0, 3, 1, 2) if z.is_contiguous(memory_format=torch.channels_last) else stored.view(z.shape)
    torch.testing.assert_close(z, mean + deviation * eps, **REORDERED)
    assert last.weight_logits.shape == layer.weight_logits.shape
    assert torch.equal(last.weight_logits, layer.weight_logits)


def sample_by_torch(layer: LRConv2d, x: Tensor) -> tuple[Tensor, Tensor]:
    """m and v of a convolution without padding or stride, by torch's own."""
    mean, variance = layer.values.moments(layer.weight_logits)
    m = F.conv2d(x, mean * layer.scale, layer.bias)
    return m, (F.conv2d(x**2, variance * layer.scale**2) + VARIANCE_FLOOR).sqrt()
