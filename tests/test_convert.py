"""Conversion of any module tree: what is chosen, what stays tied, what is left alone and why."""

import copy

import pytest
import torch
from torch import nn
from torch.nn.utils import parametrizations, prune

import lrnets
from lrnets.layers import LRLayer, lr_layers


def small_net() -> nn.Sequential:
    torch.manual_seed(0)
    return nn.Sequential(
        nn.Conv2d(3, 8, 3, padding=1), nn.BatchNorm2d(8), nn.ReLU(), nn.Conv2d(8, 8, 3, groups=2), nn.Flatten(),
        nn.Linear(8 * 36, 16), nn.ReLU(), nn.Linear(16, 4),
    )  # fmt: skip


def kinds(model: nn.Module) -> list[str]:
    return [type(module).__name__ for module in model.modules()]


def assert_untouched(model: nn.Module, before: nn.Module) -> None:
    assert kinds(model) == kinds(before)
    torch.testing.assert_close(model.state_dict(), before.state_dict(), rtol=0, atol=0, equal_nan=True)


def test_by_default_all_but_the_last_linear_layer_is_converted():
    model = small_net()
    report = lrnets.convert_(model)
    assert report.converted == ["0", "3", "5"]
    assert list(report.kept) == ["7"]
    assert "classifier" in report.kept["7"]
    assert isinstance(model[7], nn.Linear)
    assert [type(model[i]) for i in (0, 3, 5)] == [lrnets.LRConv2d, lrnets.LRConv2d, lrnets.LRLinear]


@pytest.mark.parametrize(
    ("arguments", "converted"),
    [
        ({"keep": ()}, ["0", "3", "5", "7"]),
        ({"keep": "0"}, ["3", "5", "7"]),
        ({"keep": ["0", "7"]}, ["3", "5"]),
        ({"keep": "[05]"}, ["3", "7"]),
        ({"keep": lambda name, module: isinstance(module, nn.Conv2d)}, ["5", "7"]),
        ({"keep_first": True}, ["3", "5"]),
        ({"only": "3"}, ["3"]),
        ({"only": ["[37]"]}, ["3", "7"]),
        ({"only": lambda name, module: isinstance(module, nn.Linear)}, ["5", "7"]),
        ({"only": "[37]", "keep": "7"}, ["3"]),
    ],
)
def test_rules_choose_layers_by_name_glob_or_predicate(arguments, converted):
    model = small_net()
    assert lrnets.convert_(model, **arguments).converted == converted
    assert [name for name, _ in lr_layers(model)] == converted


def test_a_name_covers_all_layers_below_it():
    model = nn.Sequential()
    model.body, model.head = nn.Sequential(nn.Linear(4, 4), nn.Sequential(nn.Linear(4, 4))), nn.Linear(4, 2)
    assert lrnets.convert_(model, keep="body").converted == ["head"]


def test_expected_output_of_the_converted_network_is_that_of_the_float_one_where_nothing_is_clipped():
    # Standardised weights within +-0.23 keep their mean exactly (eq. 8 is not clipped there); one large pair of
    # opposite weights sets the deviation and meets inputs of zero.
    torch.manual_seed(1)
    layer = nn.Linear(50, 3)
    weight = torch.rand(3, 50) * 0.4 - 0.2
    weight[:, :2] = torch.tensor([7.0, -7.0])
    weight = weight / weight.std(correction=0)
    assert weight[:, 2:].abs().max() < 0.23
    layer.weight.data = 0.037 * weight
    x = torch.randn(5, 50)
    x[:, :2] = 0
    expected = layer(x)
    model = nn.Sequential(layer)
    lrnets.convert_(model, keep=())
    lr = model[0]
    mean = lr.scale * lr.values.mean(lr.weight_logits)
    torch.testing.assert_close(nn.functional.linear(x, mean, lr.bias), expected, rtol=1e-4, atol=1e-5)
    draws = torch.stack([model(x) for _ in range(4000)])
    error = draws.std(0) / 4000**0.5
    assert ((draws.mean(0) - expected).abs() < 5 * error).all()  # five standard errors: 1e-5 of failing by chance


def test_scale_is_the_deviation_of_the_whole_layer_and_can_be_switched_off():
    model, off = small_net(), small_net()
    deviation = model[3].weight.detach().numpy().std()
    lrnets.convert_(model)
    assert model[3].scale.item() == pytest.approx(float(deviation), rel=1e-6)
    lrnets.convert_(off, scale=False)
    assert off[3].scale is None
    assert set(off[3].weight.unique().tolist()) == {-1.0, 0.0, 1.0}
    torch.testing.assert_close(off[3].logits, model[3].logits)


def test_bias_settings_mode_device_dtype_and_frozenness_are_kept():
    model = small_net().double().eval()
    model[0].weight.requires_grad_(False)
    bias = model[0].bias
    lrnets.convert_(model, "binary")
    assert model[0].bias is bias
    assert model[0].logits.dtype == torch.float64
    assert not model[0].logits.requires_grad
    assert model[3].logits.requires_grad
    assert not model[0].training
    assert (model[3].groups, model[0].padding) == (2, (1, 1))


def test_conversion_draws_nothing_from_the_global_generator():
    model = small_net()
    state = torch.get_rng_state()
    lrnets.convert_(model)
    assert torch.equal(state, torch.get_rng_state())


def test_channels_last_weights_stay_channels_last():
    model = small_net().to(memory_format=torch.channels_last)
    lrnets.convert_(model)
    assert model[0].logits.is_contiguous(memory_format=torch.channels_last)


def test_a_shared_module_is_converted_once_and_stays_shared():
    model = nn.Sequential()
    model.a = nn.Linear(6, 6)
    model.b = nn.Sequential(nn.ReLU(), model.a)
    model.c = nn.Linear(6, 2)
    report = lrnets.convert_(model)
    assert report.converted == ["a"]
    assert model.a is model.b[1]
    assert isinstance(model.a, lrnets.LRLinear)


@pytest.mark.parametrize("name", ["a", "b.1", "b", "*.1"])
@pytest.mark.parametrize("as_function", [True, False])
def test_a_rule_may_name_a_shared_module_by_any_of_its_names(name, as_function):
    def shared() -> nn.Sequential:
        model = nn.Sequential()
        model.a = nn.Linear(6, 6)
        model.b = nn.Sequential(nn.ReLU(), model.a)
        model.c = nn.Linear(6, 2)
        return model

    seen = []

    def rule(alias, module):
        seen.append(alias)
        return alias in (name, {"b": "b.1", "*.1": "b.1"}.get(name))

    chosen = rule if as_function else name
    assert lrnets.convert_(shared(), keep=chosen).converted == ["c"]
    assert lrnets.convert_(shared(), only=chosen).converted == ["a"]
    assert seen == (["a", "b.1", "c"] * 2 if as_function else [])


def test_tied_weights_stay_tied_and_are_drawn_once():
    model = nn.Sequential(nn.Linear(6, 6), nn.Linear(6, 6), nn.Linear(6, 2))
    model[1].weight = model[0].weight
    lrnets.convert_(model)
    assert model[0].logits is model[1].logits
    net = lrnets.discretize(model)
    assert net[0].weight is net[1].weight
    assert lrnets.penalty(model, probability_decay=2.0).item() == pytest.approx(
        float((model[0].logits.detach().double() ** 2).sum()), rel=1e-5
    )


def test_a_weight_tied_to_what_stays_in_float_is_left_alone():
    model = nn.Module()
    model.embedding, model.head, model.body = nn.Embedding(10, 4), nn.Linear(4, 10, bias=False), nn.Linear(4, 4)
    model.head.weight = model.embedding.weight
    report = lrnets.convert_(model, keep=())
    assert report.converted == ["body"]
    assert "tied to 'embedding'" in report.kept["head"]
    assert model.head.weight is model.embedding.weight


class OwnForward(nn.Linear):
    def forward(self, x):
        return super().forward(x) + 1


class Gained(nn.Linear):
    """A factor that a hook, say, multiplies with."""

    def __init__(self, *sizes):
        super().__init__(*sizes)
        self.gain = nn.Parameter(torch.ones(sizes[1]))


def with_part(layer: nn.Module, name: str, part: nn.Module | torch.Tensor) -> nn.Module:
    layer.register_buffer(name, part) if isinstance(part, torch.Tensor) else layer.add_module(name, part)
    return layer


def pruned(layer: nn.Module) -> nn.Module:
    prune.l1_unstructured(layer, "weight", 0.5)
    return layer


@pytest.mark.parametrize(
    ("odd", "reason"),
    [
        (lambda: nn.LazyLinear(4), "lazy"),
        (lambda: parametrizations.weight_norm(nn.Linear(4, 4)), "parametrised"),
        (lambda: pruned(nn.Linear(4, 4)), "computed from other parameters"),
        (lambda: OwnForward(4, 4), "own way"),
        (lambda: Gained(4, 4), "Gained has gain of its own; tell convert_ what it computes with lrnets.register_layer"),
        (lambda: with_part(nn.Conv2d(2, 2, 1), "mask", torch.ones(2)), "Conv2d has mask of its own"),
        (lambda: with_part(nn.Linear(4, 4), "after", nn.ReLU()), "Linear has after of its own"),
        (lambda: nn.Bilinear(4, 4, 4), "Bilinear has no discrete twin"),
        (lambda: nn.ConvTranspose1d(4, 4, 2), "ConvTranspose1d has no discrete twin"),
        (lambda: nn.MultiheadAttention(4, 2), "MultiheadAttention"),
        (lambda: nn.LSTM(4, 4), "LSTM has no discrete twin"),
    ],
)
def test_what_cannot_be_converted_is_left_alone_with_the_reason(odd, reason):
    model = nn.Sequential()
    model.odd, model.good = odd(), nn.Linear(4, 4)
    before = kinds(model.odd)
    report = lrnets.convert_(model, keep=())
    assert report.converted == ["good"]
    assert kinds(model.odd) == before
    reasons = [why for name, why in report.kept.items() if name.startswith("odd")]
    assert reasons
    assert all(reason in why for why in reasons)


def test_torch_transformer_layers_run_converted_in_train_and_eval():
    torch.manual_seed(0)
    model = nn.TransformerEncoder(nn.TransformerEncoderLayer(8, 2, 16, batch_first=True), 2)
    report = lrnets.convert_(model, keep=())
    assert report.converted == ["layers.0.linear1", "layers.0.linear2", "layers.1.linear1", "layers.1.linear2"]
    assert {"layers.0.self_attn.in_proj_weight", "layers.0.self_attn.out_proj.weight"} <= set(report.kept)
    x = torch.randn(3, 5, 8)
    assert model(x).isfinite().all()
    net = lrnets.discretize(model, "mode")
    with torch.no_grad():  # torch's fast path reads linear1.weight itself
        torch.testing.assert_close(model.eval()(x), net(x))


def test_hooks_go_along():
    model = small_net()
    calls = []
    model[0].register_forward_hook(lambda *_: calls.append("forward"))
    model[0].register_forward_pre_hook(lambda *_: calls.append("before"))
    model[0].register_full_backward_hook(lambda *_: calls.append("backward"))
    lrnets.convert_(model)
    model(torch.randn(1, 3, 8, 8, requires_grad=True)).sum().backward()
    assert calls == ["before", "forward", "backward"]


def test_report_prints_a_table_with_every_weight():
    text = str(lrnets.convert_(small_net(), (-2, -1, 0, 1, 2)))
    assert text.splitlines()[0].split()[:4] == ["layer", "kind", "weights", "values"]
    assert "8x3x3x3" in text
    assert "(-2, -1, 0, 1, 2)" in text
    assert "classifier" in text


def test_converting_twice_converts_what_is_left_with_other_values():
    model = small_net()
    lrnets.convert_(model, "binary", only="0")
    report = lrnets.convert_(model, "ternary")
    assert report.converted == ["3", "5"]
    assert [str(layer.values) for _, layer in lr_layers(model)] == ["binary", "ternary", "ternary"]


def test_meta_models_convert():
    with torch.device("meta"):
        model = nn.Sequential(nn.Linear(4, 4), nn.Linear(4, 2))
    lrnets.convert_(model)
    assert model[0].logits.is_meta
    model.to_empty(device="cpu")
    model[0].reset_parameters()
    assert model[0](torch.ones(1, 4)).isfinite().all()


def with_weight(value: float) -> nn.Sequential:
    model = small_net()
    model[3].weight.data.fill_(0.5)
    model[3].weight.data[0, 0, 0, 0] = value
    return model


@pytest.mark.parametrize(
    ("model", "arguments", "error", "words"),
    [
        (small_net, {"values": "quaternary"}, ValueError, ["quaternary", "'binary', 'ternary'"]),
        (small_net, {"values": (1.0,)}, ValueError, ["two or more"]),
        (small_net, {"values": 3}, TypeError, ["3 (int)"]),
        (small_net, {"values": torch.tensor([-1, 0, 1])}, TypeError, ["a tuple of levels, got"]),
        (small_net, {"keep": 3}, TypeError, ["3 (int)", "f(name, module)"]),
        (small_net, {"keep": "nonsense"}, ValueError, ["keep='nonsense'", "0, 3, 5, 7"]),
        (small_net, {"keep": ["0", "bn*"]}, ValueError, ["keep='bn*'"]),
        (small_net, {"only": "nonsense"}, ValueError, ["only='nonsense'"]),
        (small_net, {"keep": [3]}, TypeError, ["3 (int)", "f(name, module)"]),
        (small_net, {"keep": "*"}, ValueError, ["every layer stays in float", "keep=()"]),
        (small_net, {"p_min": 0.6, "p_max": 0.4}, ValueError, ["0.6", "0.4"]),
        (small_net, {"p_min": 0.0}, ValueError, ["0 < p_min"]),
        (lambda: with_weight(float("nan")), {}, ValueError, ["layer '3'", "1 of 288 weights are NaN", "float network"]),
        (lambda: with_weight(float("inf")), {}, ValueError, ["layer '3'", "infinite"]),
        (lambda: with_weight(0.5), {}, ValueError, ["layer '3'", "0.5", "deviation is 0", "keep it in float"]),
        (nn.Sequential, {}, ValueError, ["no linear or convolution layers"]),
        (lambda: nn.Sequential(nn.Linear(2, 2)), {}, ValueError, ["classifier", "keep=()"]),
        (lambda: nn.Linear(2, 2), {}, ValueError, ["nn.Sequential"]),
    ],
)
def test_bad_input_is_named_and_leaves_the_model_as_it_was(model, arguments, error, words):
    model = model()
    before = copy.deepcopy(model)
    with pytest.raises(error) as caught:
        lrnets.convert_(model, **arguments)
    assert all(word in str(caught.value) for word in words), str(caught.value)
    assert_untouched(model, before)
    assert not any(isinstance(module, LRLayer) for module in model.modules())


def test_not_a_module_and_twice_the_same_are_refused():
    with pytest.raises(TypeError, match="dict"):
        lrnets.convert_({})
    model = small_net()
    lrnets.convert_(model, keep=())
    with pytest.raises(ValueError, match="already"):
        lrnets.convert_(model, keep=())


class OnOff(lrnets.ValueSet):
    """0 or 1: a value set from outside the library; p(1) = sigmoid(a)."""

    levels = (0.0, 1.0)
    logits_per_weight = 1
    name = "on or off"

    def probabilities(self, logits):
        return torch.cat([torch.sigmoid(-logits), torch.sigmoid(logits)])

    def moments(self, logits):
        p = torch.sigmoid(logits[0])
        return p, p * (1 - p)

    def moments_backward(self, logits, grad_mean, grad_variance):
        mean, variance = self.moments(logits)
        return (variance * (grad_mean + (1 - 2 * mean) * grad_variance)).unsqueeze(0)

    def start(self, weight, p_min=0.05, p_max=0.95):
        return torch.logit(weight.clamp(p_min, p_max)).unsqueeze(0)


def test_an_own_value_set_is_converted_to_and_named_by_methods_that_lack_it():
    model = small_net()
    assert {row.values for row in lrnets.convert_(model, OnOff()).rows} == {"on or off", "float"}
    weight = lrnets.discretize(model)[5].weight
    assert weight.unique().tolist() == [0, model[5].scale.item()]
    with pytest.raises(ValueError, match=r"method twn has no \(0, 1\) weights, only ternary"):
        lrnets.convert_(small_net(), OnOff(), method="twn")
