"""Where layers start from: at random, on the meta device, or from a float layer and back."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from layer_examples import EXAMPLES, REORDERED, assert_same, every_kind, every_value_set, example, seeded
from torch import nn

from lrnets.layers import LAYERS, LRConv1d, LRConv2d, LRConv3d, LRConvTranspose2d, LRLayer, LRLinear
from lrnets.weights import as_value_set


@every_kind
@every_value_set
def test_meta_device_then_reset_gives_a_layer_built_in_place(kind, values):
    """As fully sharded training builds its models: shapes first, memory and numbers afterwards."""
    arguments, shape = EXAMPLES[kind]
    with torch.device("meta"):
        late = kind(*arguments, values=values)
    assert all(tensor.is_meta for tensor in late.state_dict().values())
    late = late.to_empty(device="cpu")
    for tensor in late.state_dict().values():
        tensor.fill_(float("nan"))
    torch.manual_seed(0)
    late.reset_parameters()
    torch.manual_seed(0)
    assert_same(late.state_dict(), kind(*arguments, values=values).state_dict(), rtol=0, atol=0)
    assert torch.isfinite(late(torch.randn(shape))).all()
    assert nn.utils.skip_init(kind, *arguments, values=values).logits.shape == late.logits.shape


@every_kind
def test_the_training_pass_infers_shapes_on_the_meta_device(kind):
    layer, x = example(kind)
    shape = layer(x).shape
    z = layer.to("meta")(x.to("meta"))
    assert z.is_meta
    assert z.shape == shape


@pytest.mark.parametrize(
    ("kind", "arguments"),
    [
        (LRLinear, (100, 120)),
        (LRConv1d, (20, 50, 5)),
        (LRConv2d, (20, 50, (3, 5))),
        (LRConv3d, (10, 20, 3)),
        (LRConvTranspose2d, (40, 20, 3)),
    ],
)
@every_value_set
def test_a_random_start_has_the_spread_of_torchs_own(kind, arguments, values):
    torch.manual_seed(0)
    layer, own = kind(*arguments, values=values), kind.plain(*arguments)
    # The deviation of n uniform numbers has relative standard error sqrt(kurtosis - 1) / (2 sqrt(n)), kurtosis 9/5.
    limit = 5 * math.sqrt(0.8) / (2 * math.sqrt(own.weight.numel()))
    assert layer.scale.item() == pytest.approx(own.weight.std().item(), rel=limit)
    # n uniform numbers in [-b, b] reach within b (1 - 15 / n) of the end but for a chance of e^-15 at each side.
    bound, n = own.weight.abs().max().item(), own.bias.numel()
    assert bound * (1 - 15 / n) < layer.bias.abs().max().item() <= bound * 1.001
    # The logits are a start from N(0, 1): half of the means below 0, within 5 standard errors.
    means = layer.values.mean(layer.weight_logits)
    assert abs((means < 0).double().mean().item() - 0.5) < 5 * 0.5 / math.sqrt(means.numel())


def float_layer(kind: type[LRLayer], **changes) -> nn.Module:
    torch.manual_seed(3)
    return kind.plain(*EXAMPLES[kind][0], dtype=torch.float64, **changes)


@every_kind
@every_value_set
def test_a_start_from_a_float_layer_keeps_its_mean_weights(kind, values):
    """Divided by the deviation, w starts a distribution of mean w where nothing is clipped; scaled, it is back.

    |w| <= 0.2368 deviations is what clips nothing for all three value sets (see test_weights_start).
    """
    own = float_layer(kind)
    layer = kind.from_plain(own, values, True)
    deviation = own.weight.detach().numpy().std()
    assert layer.scale.item() == pytest.approx(float(deviation), rel=1e-12)
    mean = layer.values.mean(layer.weight_logits) * layer.scale
    kept = own.weight.abs() < 0.2368 * float(deviation)
    assert kept.any()
    torch.testing.assert_close(mean[kept], own.weight[kept], **REORDERED)
    assert (mean.sign() == own.weight.sign()).all()


@every_kind
@every_value_set
def test_without_scale_nothing_is_multiplied_by_the_deviation(kind, values):
    """A known mistake: "without normalisation" that still divides by (or multiplies with) the deviation."""
    own = float_layer(kind, bias=False)
    layer, scaled = kind.from_plain(own, values, False), kind.from_plain(own, values, True)
    assert layer.scale is None
    torch.testing.assert_close(layer.logits, scaled.logits, rtol=0, atol=0)
    assert set(layer.weight.unique().tolist()) <= set(as_value_set(values).levels)
    x = torch.randn(EXAMPLES[kind][1], dtype=torch.float64)
    deviation = own.weight.detach().numpy().std()
    torch.testing.assert_close(layer.eval()(x) * deviation, scaled.eval()(x), **REORDERED)
    for one in (layer, scaled):
        one.train().variance_floor = 0.0
    torch.testing.assert_close(seeded(layer, x) * deviation, seeded(scaled, x), **REORDERED)


@every_kind
@every_value_set
def test_a_fitted_scale_is_the_least_squares_one(kind, values):
    own = float_layer(kind)
    layer, by_deviation = kind.from_plain(own, values, "fitted"), kind.from_plain(own, values, True)
    torch.testing.assert_close(layer.logits, by_deviation.logits, rtol=0, atol=0)
    mean = layer.values.mean(layer.weight_logits)
    column, target = (tensor.detach().numpy().reshape(-1) for tensor in (mean, own.weight))
    expected = np.linalg.lstsq(column[:, None], target, rcond=None)[0]
    assert layer.scale.item() == pytest.approx(expected.item(), rel=1e-10)
    errors = [(own.weight - mean * one.scale).square().sum().item() for one in (layer, by_deviation)]
    assert errors[0] <= errors[1] + 1e-12  # equal where nothing is clipped


def test_a_scale_is_not_fitted_to_weights_that_are_all_0_in_the_mean():
    """p_min = 0.8 of five levels is a share of 5/4 0.8 = 1 for the uniform distribution: nothing is left to fit."""
    own = nn.Linear(6, 5)
    assert LRLinear.from_plain(own, (-2, -1, 0, 1, 2), True, 0.8, 0.9).scale > 0
    with pytest.raises(ValueError, match=r"p_min=0.8 and p_max=0.9 the mean of all 30 weights is 0.* scale=True"):
        LRLinear.from_plain(own, (-2, -1, 0, 1, 2), "fitted", 0.8, 0.9)


def test_a_scale_that_is_none_is_refused():
    own = nn.Linear(2, 1)
    with pytest.raises(ValueError, match=r"scale must be True, False or 'fitted', got 'best' \(str\)"):
        LRLinear.from_plain(own, "ternary", "best")


@every_kind
def test_the_size_of_float_weights_is_in_the_scale_alone(kind):
    own = float_layer(kind)
    layer = kind.from_plain(own, "ternary", True)
    with torch.no_grad():
        own.weight.mul_(1000)
    large = kind.from_plain(own, "ternary", True)
    torch.testing.assert_close(large.logits, layer.logits, **REORDERED)
    torch.testing.assert_close(large.scale, 1000 * layer.scale, rtol=1e-12, atol=0)


def test_a_start_takes_the_limits_it_is_given():
    """Weights far out are clipped to p_min or p_max: -3 .. 3 deviations in four weights."""
    own = nn.Linear(4, 1, dtype=torch.float64)
    own.weight = nn.Parameter(torch.tensor([[-50.0, -1.0, 1.0, 50.0]], dtype=torch.float64))
    layer = LRLinear.from_plain(own, "binary", True, 0.2, 0.7)
    p = torch.sigmoid(layer.weight_logits).flatten()
    assert p[0].item() == pytest.approx(0.2)
    assert p[-1].item() == pytest.approx(0.7)


SETTINGS = {
    "same": (nn.Conv2d, {"kernel_size": (2, 3), "padding": "same", "dilation": (1, 2)}),
    "reflect": (nn.Conv2d, {"kernel_size": 3, "padding": (2, 1), "padding_mode": "reflect", "stride": (1, 2)}),
    "circular": (nn.Conv1d, {"kernel_size": 3, "padding": 2, "padding_mode": "circular"}),
    "3d": (nn.Conv3d, {"kernel_size": (1, 2, 2), "padding": (0, 1, 1), "bias": False}),
    "groups": (nn.Conv2d, {"kernel_size": 3, "groups": 2}),
    "transposed": (nn.ConvTranspose2d, {"kernel_size": 3, "stride": (3, 2), "output_padding": (1, 0), "groups": 2}),
}


@pytest.mark.parametrize("which", SETTINGS)
def test_to_a_stochastic_layer_and_back_keeps_settings_bias_and_result(which):
    kind, arguments = SETTINGS[which]
    own = kind(4, 6, **arguments).eval()
    twin = next(k for k in LAYERS if k.plain is kind)
    layer = twin.from_plain(own, "ternary", True)
    assert layer.bias is own.bias
    assert not layer.training
    back = layer.to_plain(layer.values.mode(layer.weight_logits), layer.bias)
    assert type(back) is kind
    assert repr(back) == repr(own)
    assert not back.weight.requires_grad
    x = torch.randn(2, 4, *[7] * (own.weight.dim() - 2))
    assert torch.equal(back(x), layer(x))
    assert layer.train()(x).shape == own(x).shape


def test_a_start_neither_changes_nor_moves_the_float_layer():
    own = nn.Conv2d(3, 4, 3).half().to(memory_format=torch.channels_last).requires_grad_(False)
    before = own.weight.clone()
    layer = LRConv2d.from_plain(own, "ternary", True)
    assert torch.equal(own.weight, before)
    assert layer.logits.dtype == layer.scale.dtype == torch.float16
    assert layer.logits.is_contiguous(memory_format=torch.channels_last)
    assert not layer.logits.requires_grad
    assert "weight" not in layer.state_dict()
