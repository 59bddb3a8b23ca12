"""Layers against torch's own: signatures, evaluation, what training learns from, what is refused."""

from __future__ import annotations

import inspect
import math
import warnings
from pathlib import Path

import pytest
import torch
import torch.nn.functional as F
from layer_examples import EXAMPLES, FIVE, every_kind, every_value_set, example, loss_gradients

from lrnets.layers import LAYERS, LRConv2d, LRLinear
from lrnets.weights import TERNARY

# ---- torch's signatures and settings --------------------------------------------------------------------------------


@every_kind
def test_signatures_are_torchs_plus_keywords(kind):
    def shape_of(function) -> list[tuple]:
        return [(p.name, p.kind, p.default) for p in inspect.signature(function).parameters.values()]

    own, ours = shape_of(kind.plain), shape_of(kind)
    assert ours[: len(own)] == own
    assert [(name, how) for name, how, _ in ours[len(own) :]] == [
        ("values", inspect.Parameter.KEYWORD_ONLY),
        ("scale", inspect.Parameter.KEYWORD_ONLY),
    ]


@every_kind
def test_settings_read_as_on_torchs_layer(kind):
    layer, _ = example(kind)
    own = kind.plain(*EXAMPLES[kind][0])
    assert {name: getattr(layer, name) for name in own.__constants__} == {
        name: getattr(own, name) for name in own.__constants__
    }
    assert layer.weight.shape == own.weight.shape == layer.weight_shape
    assert own.extra_repr().split(", ")[0] in repr(layer).replace("in_channels=", "").replace("out_channels=", "")


@every_kind
def test_repr_names_values_and_scale(kind):
    assert "values=ternary, scale=True" in repr(example(kind)[0])
    assert "values=(-2, -1, 0, 1, 2), scale=False" in repr(example(kind, values=FIVE, scale=False)[0])


@pytest.mark.parametrize(
    ("arguments", "error"),
    [
        ({"in_channels": 3, "out_channels": 4, "kernel_size": 3, "groups": 2}, ValueError),
        ({"in_channels": 2, "out_channels": 4, "kernel_size": 3, "padding": "same", "stride": 2}, ValueError),
        ({"in_channels": 2, "out_channels": 4, "kernel_size": 3, "padding": "most"}, ValueError),
        ({"in_channels": 2, "out_channels": 4, "kernel_size": 3, "padding_mode": "mirror"}, ValueError),
        ({"in_channels": 2, "out_channels": 4, "kernel_size": 3, "values": "quaternary"}, ValueError),
        ({"in_channels": 2, "out_channels": 4, "kernel_size": 3, "values": 3}, TypeError),
    ],
)
def test_impossible_arguments_are_refused_at_once(arguments, error):
    with pytest.raises(error):
        LRConv2d(**arguments)


@every_kind
@pytest.mark.parametrize("training", [True, False])
def test_inputs_of_the_wrong_dimensions_are_refused(kind, training):
    layer, x = example(kind)
    layer.train(training)
    wrong = [x[..., 1:]] if kind is LRLinear else [x[None, None], x[0, 0], x[:, 1:]]
    for inputs in wrong:
        with pytest.raises((RuntimeError, ValueError)):
            layer(inputs)


# ---- eval -----------------------------------------------------------------------------------------------------------


@every_kind
@every_value_set
def test_eval_equals_torchs_layer_with_the_discrete_weights(kind, values):
    layer, x = example(kind, values=values)
    own = kind.plain(*EXAMPLES[kind][0], dtype=torch.float64)
    own.load_state_dict({"weight": layer.weight, "bias": layer.bias})
    assert torch.equal(layer.eval()(x), own(x))
    assert set((layer.weight / layer.scale).round(decimals=9).unique().tolist()) <= set(layer.values.levels)


@every_kind
def test_eval_is_deterministic_and_draws_nothing(kind):
    """New weights on every evaluation forward are a known mistake."""
    layer, x = example(kind)
    layer.eval().generator = torch.Generator().manual_seed(0)
    states = torch.get_rng_state(), layer.generator.get_state()
    outputs = [layer(x) for _ in range(3)]
    assert torch.equal(outputs[0], outputs[1])
    assert torch.equal(outputs[0], outputs[2])
    assert torch.equal(torch.get_rng_state(), states[0])
    assert torch.equal(layer.generator.get_state(), states[1])
    layer.train()
    assert not torch.equal(layer(x), layer(x))


def test_eval_computes_with_the_likeliest_weights_and_not_with_their_mean():
    """p(-1, 0, +1) = (0.1, 0.5, 0.4): the mean is 0.3, which cannot be deployed; the likeliest weight is 0.

    p(+1 | not 0) = 0.8 = sigmoid(log 4). A single weight more decided for +1 says the rest of the sum is not lost.
    """
    layer = LRLinear(4, 1, bias=False, dtype=torch.float64, scale=False)
    with torch.no_grad():
        layer.weight_logits[0].copy_(torch.tensor([[0.0, 0.0, 0.0, -9.0]]))
        layer.weight_logits[1].copy_(torch.full((1, 4), math.log(4)))
    x = torch.tensor([[1.0, 10.0, 100.0, 1000.0]], dtype=torch.float64)
    assert layer.weight.tolist() == [[0, 0, 0, 1]]
    assert layer.eval()(x).item() == 1000
    mean = TERNARY.mean(layer.weight_logits)
    assert (mean @ x[0]).item() == pytest.approx(0.3 * 111 + 0.6 * 1000, rel=1e-3)


@every_kind
@every_value_set
def test_a_weight_whose_logits_are_no_numbers_is_none(kind, values):
    layer, x = example(kind, values=values)
    before = layer.eval()(x)
    with torch.no_grad():
        layer.weight_logits[-1].flatten()[0] = math.nan
    weight = layer.weight.detach().flatten()
    assert weight.isnan().tolist() == [True] + [False] * (weight.numel() - 1)
    wrong = layer(x).isnan()
    assert wrong.any()
    if kind is not LRLinear:  # where the kernel's first place meets padding or nothing, the weight has no say
        return
    assert torch.equal(wrong[:, 1:], torch.zeros_like(wrong[:, 1:]))
    assert torch.equal(layer(x)[:, 1:], before[:, 1:])


def test_infinite_logits_are_decided_ones():
    layer = LRLinear(2, 1, values="binary", scale=False)
    with torch.no_grad():
        layer.logits.copy_(torch.tensor([[math.inf, -math.inf]]))
    assert layer.eval().weight.tolist() == [[1, -1]]


@every_kind
def test_eval_passes_gradients_to_input_and_bias_but_not_to_logits(kind):
    layer, x = example(kind)
    x.requires_grad_()
    layer.eval()(x).sum().backward()
    assert x.grad.abs().sum() > 0
    assert layer.bias.grad.abs().sum() > 0
    assert layer.logits.grad is None


# ---- what training learns from --------------------------------------------------------------------------------------


@every_kind
@every_value_set
def test_training_moves_every_parameter(kind, values):
    layer, x = example(kind, values=values)
    gradients = loss_gradients(layer, layer(x))
    assert set(gradients) == {"logits", "bias"}
    for name, gradient in gradients.items():
        assert torch.isfinite(gradient).all()
        assert (gradient != 0).double().mean() > 0.9, name


def test_a_few_steps_of_training_find_a_ternary_map():
    """Logits learn by gradient what weights made the data: every sign and zero of a 4 x 8 matrix."""
    torch.manual_seed(0)
    true = torch.randint(-1, 2, (4, 8)).float()
    x = torch.randn(512, 8)
    layer = LRLinear(8, 4, bias=False, scale=False)
    optimizer = torch.optim.Adam(layer.parameters(), lr=0.2)
    for _ in range(300):
        optimizer.zero_grad()
        F.mse_loss(layer(x), x @ true.T).backward()
        optimizer.step()
    assert torch.equal(layer.weight, true)


# ---- what is refused ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("training", [True, False])
@pytest.mark.parametrize("dtype", [torch.int64, torch.uint8, torch.bool])
@pytest.mark.parametrize(
    ("kind", "changes"),
    [
        *((kind, {}) for kind in LAYERS),
        (LRConv2d, {"padding": "same"}),
        (LRConv2d, {"padding": 1, "padding_mode": "reflect"}),
        (LRConv2d, {"padding": 1, "padding_mode": "circular"}),
    ],
)
def test_integer_input_is_refused_with_its_dtype_and_a_remedy(kind, changes, dtype, training):
    layer, x = example(kind, **changes)
    with pytest.raises(TypeError) as error:
        layer.train(training)(x.to(dtype))
    assert str(dtype) in str(error.value)
    assert "x.float()" in str(error.value)


@every_kind
@pytest.mark.parametrize("training", [True, False])
def test_an_input_of_another_dtype_is_refused_as_torch_does_unless_autocast_is_on(kind, training):
    layer, x = example(kind, dtype=torch.float32)
    layer.train(training)
    own = kind.plain(*EXAMPLES[kind][0])
    for other in (torch.float64, torch.bfloat16):
        with pytest.raises(RuntimeError):
            own(x.to(other))
        with pytest.raises(RuntimeError) as error:
            layer(x.to(other))
        if training:
            assert all(word in str(error.value) for word in (str(other), "torch.float32", ".to("))
    with torch.autocast("cpu", dtype=torch.bfloat16):
        assert layer(x.bfloat16()).dtype == torch.bfloat16


# ---- what is warned of ----------------------------------------------------------------------------------------------


def test_a_weight_read_where_it_could_be_meant_to_learn_is_warned_of_at_that_line():
    layer = LRLinear(3, 2)
    with pytest.warns(UserWarning, match=r"LRLinear.weight, .*no gradient for the logits") as caught:
        assert not layer.weight.requires_grad
    assert Path(caught[0].filename).name == Path(__file__).name
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        layer(torch.ones(1, 3))
        with torch.no_grad():
            assert layer.weight.shape == (2, 3)
        layer.eval()
        assert layer.weight.shape == (2, 3)
        layer.train().logits.requires_grad_(False)
        assert layer.weight.shape == (2, 3)
