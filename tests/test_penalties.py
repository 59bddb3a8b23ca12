"""Regularisers against hand-computed sums, and who is decayed."""

import math

import pytest
import torch
from torch import nn

import lrnets
from lrnets.layers import set_natural


def net(values="binary") -> nn.Sequential:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Conv2d(1, 2, 3), nn.BatchNorm2d(2), nn.Flatten(), nn.Linear(8, 3), nn.Linear(3, 2))
    lrnets.convert_(model, values)
    return model


def all_logits(model: nn.Module) -> list[float]:
    return [x for name, p in model.named_parameters() if name.endswith("logits") for x in p.double().flatten().tolist()]


def test_probability_decay_is_half_the_sum_of_squared_logits():
    model = net("ternary")
    expected = 3e-4 * 0.5 * sum(x * x for x in all_logits(model))
    assert lrnets.penalty(model, probability_decay=3e-4).item() == pytest.approx(expected, rel=1e-5)


def test_beta_is_the_sum_of_p_times_one_minus_p_in_the_binary_case():
    model = net("binary")
    p = [1 / (1 + math.exp(-x)) for x in all_logits(model)]
    assert lrnets.penalty(model, beta=2e-3).item() == pytest.approx(2e-3 * sum(q * (1 - q) for q in p), rel=1e-5)


def test_beta_for_three_levels_is_half_the_summed_impurity():
    model = net("ternary")
    total = 0.0
    for layer in (model[0], model[3]):
        for a, b in layer.weight_logits.double().flatten(1).T.tolist():
            zero, plus = 1 / (1 + math.exp(-a)), 1 / (1 + math.exp(-b))
            total += 0.5 * sum(p * (1 - p) for p in (zero, (1 - zero) * plus, (1 - zero) * (1 - plus)))
    assert lrnets.penalty(model, beta=1.0).item() == pytest.approx(total, rel=1e-5)


def test_beta_pushes_probabilities_away_from_one_half_and_decay_towards_it():
    for name, outward in (("beta", True), ("probability_decay", False)):
        model = nn.Sequential(lrnets.LRLinear(4, 4, values="binary"))
        with torch.no_grad():
            model[0].logits.copy_(torch.where(model[0].logits > 0, 0.4, -0.4))
        before = model[0].logits.detach().clone()
        lrnets.penalty(model, **{name: 1.0}).backward()
        after = before - 0.01 * model[0].logits.grad
        assert (after.abs() > before.abs()).all() if outward else (after.abs() < before.abs()).all(), name


def test_penalties_add_up_and_are_zero_without_stochastic_layers():
    model = net()
    both = lrnets.penalty(model, probability_decay=0.1, beta=0.2)
    torch.testing.assert_close(both, lrnets.penalty(model, probability_decay=0.1) + lrnets.penalty(model, beta=0.2))
    assert lrnets.penalty(nn.Linear(2, 2), probability_decay=1.0).item() == 0
    assert lrnets.penalty(model).item() == 0


@pytest.mark.parametrize("arguments", [{"beta": -1e-6}, {"probability_decay": float("nan")}, {"beta": float("inf")}])
def test_a_negative_or_infinite_weight_of_a_penalty_is_refused(arguments):
    with pytest.raises(ValueError, match=next(iter(arguments))):
        lrnets.penalty(net(), **arguments)


def test_a_penalty_is_refused_beside_natural_gradients():
    model = nn.Sequential(lrnets.LRLinear(2, 2))
    set_natural(model)
    assert lrnets.penalty(model) == 0
    with pytest.raises(ValueError, match=r"natural gradients .*logit_decay"):
        lrnets.penalty(model, beta=1e-6)


def test_parameter_groups_cover_all_parameters_once_and_never_decay_logits():
    model = net()
    groups = lrnets.param_groups(model, lr=1e-3, weight_decay=1e-4, logit_lr=1e-2)
    names = {id(p): name for name, p in model.named_parameters()}
    by_group = {group["name"]: {names[id(p)] for p in group["params"]} for group in groups}
    assert by_group == {
        "logits": {"0.logits", "3.logits"},
        "weights": {"4.weight"},
        "rest": {"0.bias", "1.weight", "1.bias", "3.bias", "4.bias"},
    }
    settings = {group["name"]: (group["lr"], group["weight_decay"]) for group in groups}
    assert settings == {"logits": (1e-2, 0.0), "weights": (1e-3, 1e-4), "rest": (1e-3, 0.0)}
    optimizer = torch.optim.Adam(groups)
    before = model[0].logits.detach().clone()
    for p in model.parameters():
        p.grad = torch.zeros_like(p)
    weight = model[4].weight.detach().clone()
    optimizer.step()
    assert torch.equal(model[0].logits, before)
    assert not torch.equal(model[4].weight, weight)


@pytest.mark.parametrize("fused", [False, True])
def test_logit_decay_takes_logits_towards_zero_beside_the_gradient(fused):
    model = net()
    before = {name: p.detach().clone() for name, p in model.named_parameters()}
    optimizer = torch.optim.Adam(
        lrnets.param_groups(model, lr=1e-3, logit_lr=0.2, logit_decay=0.1, weight_decay=1e-4), fused=fused
    )
    for p in model.parameters():
        p.grad = torch.zeros_like(p)
    optimizer.step()
    for name, p in model.named_parameters():
        if "logits" in name:
            torch.testing.assert_close(p, before[name] * (1 - 0.2 * 0.1))
        elif name != "4.weight":  # which Adam takes a whole step towards 0, as ever
            assert torch.equal(p, before[name]), name


@pytest.mark.parametrize("decay", [-0.1, float("nan"), float("inf")])
def test_a_logit_decay_that_is_none_is_refused(decay):
    with pytest.raises(ValueError, match="logit_decay must be a finite number of at least 0, got"):
        lrnets.param_groups(net(), lr=0.1, logit_decay=decay)


@pytest.mark.parametrize("name", ["lr", "logit_lr", "weight_decay", "logit_decay"])
@pytest.mark.parametrize(
    ("value", "error"),
    [(-0.1, ValueError), (float("nan"), ValueError), (float("inf"), ValueError), ("0.1", TypeError), (True, TypeError)],
)
def test_every_rate_of_a_group_is_checked(name, value, error):
    with pytest.raises(error, match=f"^{name} must be a .*number.*, got '?{value}"):
        lrnets.param_groups(net(), **{"lr": 0.1, name: value})


def test_a_learning_rate_may_be_a_tensor_and_a_weight_of_a_penalty_no_text():
    rate = torch.tensor(0.1)
    assert lrnets.param_groups(net(), lr=rate)[0]["lr"] is rate
    with pytest.raises(TypeError, match=r"beta must be a number, got 'a' \(str\)"):
        lrnets.penalty(net(), beta="a")


def test_parameter_groups_without_own_rate_frozen_parameters_or_empty_groups():
    model = net()
    model[0].logits.requires_grad_(False)
    model[3].logits.requires_grad_(False)
    groups = lrnets.param_groups(model, lr=0.5)
    assert [group["name"] for group in groups] == ["weights", "rest"]
    assert lrnets.param_groups(net(), lr=0.5)[0]["lr"] == 0.5


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
@pytest.mark.parametrize("weights", [{"probability_decay": 1e-3}, {"beta": 1e-3}], ids=["decay", "beta"])
def test_sums_over_a_layer_in_half_precision_are_those_of_float32(dtype, weights):
    """The square of a logit, up to 9, times 2 x 512 x 512 is beyond float16's 65,504."""
    model = nn.Sequential(lrnets.LRLinear(512, 512)).to(dtype)
    total = lrnets.penalty(model, **weights)
    assert total.dtype == torch.float32
    torch.testing.assert_close(total, lrnets.penalty(model.float(), **weights))
