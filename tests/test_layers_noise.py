"""The noise of layers in training, and how sharpening decides their weights."""

from __future__ import annotations

import copy
import math

import pytest
import torch
from layer_examples import REORDERED, assert_same, every_kind, every_value_set, example, loss_gradients, seeded
from torch import nn
from torch.utils.checkpoint import checkpoint

from lrnets.convert import convert_
from lrnets.discretize import discretize
from lrnets.layers import (
    LRConv2d,
    LRLinear,
    bake_sharpness_,
    learn_scales_,
    lr_layers,
    set_generator,
    set_natural,
    set_sharpness,
)
from lrnets.methods.expectation_backprop import ExpectationLinear
from lrnets.methods.gumbel import GumbelLinear
from lrnets.methods.harness import extra_loss
from lrnets.weights import Binary, ValueSet

# ---- noise ----------------------------------------------------------------------------------------------------------


@every_kind
def test_training_noise_follows_torchs_seed_or_the_layers_generator(kind):
    layer, x = example(kind)
    assert torch.equal(seeded(layer, x), seeded(layer, x))
    assert not torch.equal(layer(x), layer(x))
    layer.generator = torch.Generator().manual_seed(4)
    state = torch.get_rng_state()
    first = layer(x)
    assert torch.equal(torch.get_rng_state(), state)
    layer.generator.manual_seed(4)
    torch.manual_seed(77)
    assert torch.equal(layer(x), first)


def test_set_generator_reaches_every_layer_and_none_takes_it_back():
    shared = LRLinear(3, 3)
    model = nn.Sequential(nn.Conv1d(1, 1, 1), nn.Sequential(LRLinear(2, 3), nn.ReLU(), shared), shared)
    assert [name for name, _ in lr_layers(model)] == ["1.0", "1.2"]
    generator = torch.Generator()
    set_generator(model, generator)
    assert all(layer.generator is generator for _, layer in lr_layers(model))
    set_generator(model, None)
    x = torch.randn(4, 2)
    assert torch.equal(seeded(model[1:], x), seeded(model[1:], x))


every_method_that_draws = pytest.mark.parametrize(
    ("method", "values", "options"),
    [
        ("lr", "ternary", {}),
        ("gumbel", "ternary", {}),
        ("logderivative", "ternary", {}),
        ("gaussian", "float", {}),
        ("fastdropout", "float", {}),
        ("binaryconnect", "binary", {"stochastic": True}),
    ],
)


@every_method_that_draws
def test_set_generator_reaches_every_method_that_draws(method, values, options):
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(6, 5), nn.ReLU(), nn.Linear(5, 3))
    convert_(model, values, method=method, keep=(), **options)
    generator, x = torch.Generator().manual_seed(1), torch.randn(4, 6)
    set_generator(model, generator)
    state = torch.get_rng_state()
    first = model(x)
    assert torch.equal(torch.get_rng_state(), state)  # nothing was taken from torch's own
    assert not torch.equal(model(x), first)
    generator.manual_seed(1)
    assert torch.equal(model(x), first)


@every_method_that_draws
@pytest.mark.parametrize("reentrant", [False, True])
def test_checkpointing_repeats_the_noise_or_refuses(method, values, options, reentrant):
    """Torch sets its own generator back before it computes a pass again, and no other."""
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(6, 5), nn.ReLU(), nn.Linear(5, 3))
    convert_(model, values, method=method, keep=(), **options)
    x, found = torch.randn(4, 6, requires_grad=True), []
    for again in (False, True):
        model.zero_grad()
        torch.manual_seed(1)
        for layer in model:
            layer.baseline = None  # the log-derivative estimator's, of former losses
        z = checkpoint(model, x, use_reentrant=reentrant) if again else model(x)
        loss = z.square().mean()
        (loss + extra_loss(model, loss, 10)).backward()
        found.append({name: p.grad for name, p in model.named_parameters() if p.grad is not None})
        assert not any(getattr(layer, "pending", []) for layer in model)  # nothing is left for the next loss
    if method != "logderivative" or not reentrant:  # of reentrant passes torch keeps no gradient but the output's
        assert_same(found[1], found[0])
    set_generator(model, torch.Generator())
    with pytest.raises(RuntimeError, match=r"activation checkpointing .*generator to None"):
        checkpoint(model, x, use_reentrant=reentrant).sum().backward()


def test_a_layer_has_its_own_variance_floor():
    layer, x = example(LRLinear)
    layer.variance_floor = 4.0
    z = seeded(layer, torch.zeros_like(x))
    torch.manual_seed(1)
    torch.testing.assert_close(z, layer.bias + 2 * torch.randn(z.shape, dtype=z.dtype), **REORDERED)


# ---- sharpness ------------------------------------------------------------------------------------------------------


@every_kind
@every_value_set
def test_a_sharpened_layer_is_one_with_its_logits_multiplied(kind, values):
    layer, x = example(kind, values=values)
    sharp, multiplied = copy.deepcopy(layer), copy.deepcopy(layer)
    set_sharpness(nn.Sequential(sharp), 3.0)
    with torch.no_grad():
        multiplied.logits.mul_(3.0)
    assert torch.equal(sharp.logits, layer.logits)
    gradients, expected = (loss_gradients(one, seeded(one, x)) for one in (sharp, multiplied))
    expected["logits"] *= 3  # d(3 theta) / d theta
    assert_same(gradients, expected, **REORDERED)
    for look in (lambda one: seeded(one.train(), x), lambda one: one.eval()(x), lambda one: one.weight_logits):
        torch.testing.assert_close(look(sharp), look(multiplied), **REORDERED)


def test_gradients_of_a_sharpened_layer_pass_gradcheck():
    layer, x = example(LRConv2d, values="ternary")
    set_sharpness(layer, 2.5)

    def sample(x, logits, bias):
        torch.manual_seed(0)
        return torch.func.functional_call(layer, {"logits": logits, "bias": bias}, x)

    leaves = (tensor.detach().clone().requires_grad_() for tensor in (x[:1, :, :3, :4], layer.logits, layer.bias))
    assert torch.autograd.gradcheck(sample, tuple(leaves), atol=1e-6)


def test_sharpening_makes_distributions_more_decided_and_none_impossible():
    layer, _ = example(LRLinear)
    entropies = []
    for factor in (0.5, 1.0, 2.0, 8.0):
        set_sharpness(layer, factor)
        entropies.append(layer.values.entropy(layer.weight_logits).mean().item())
    assert entropies == sorted(entropies, reverse=True)
    assert entropies[0] < math.log2(3)
    assert entropies[-1] > 0


def test_baking_keeps_every_distribution_and_multiplies_tied_logits_once():
    torch.manual_seed(0)
    first, second = LRLinear(5, 5, dtype=torch.float64), LRLinear(5, 5, dtype=torch.float64)
    second.logits = first.logits
    model, x = nn.Sequential(first, nn.Tanh(), second), torch.randn(3, 5, dtype=torch.float64)
    set_sharpness(model, 4.0)
    before = first.logits.detach().clone()
    expected = seeded(model, x), model.eval()(x)
    bake_sharpness_(model)
    assert torch.equal(first.logits, 4 * before)
    assert second.logits is first.logits
    assert first.sharpness is None
    assert second.sharpness is None
    torch.testing.assert_close(seeded(model.train(), x), expected[0], **REORDERED)
    torch.testing.assert_close(model.eval()(x), expected[1], **REORDERED)


@pytest.mark.parametrize("factor", [0, -1.0, math.inf, math.nan])
def test_impossible_sharpness_is_refused(factor):
    layer, _ = example(LRLinear)
    with pytest.raises(ValueError, match=rf"finite number above 0, got {factor}; 1 leaves"):
        set_sharpness(layer, factor)
    assert layer.sharpness is None


def test_a_sharpened_layers_state_computes_the_same_when_loaded():
    """p(0) = 0.475 is the likeliest of three at a = -0.1, b = 0.2, but not with both logits ten times as large.

    A constant that computes but is not in the state is a known mistake: what was validated is not what is loaded.
    """
    layer, other = (LRLinear(1, 1, bias=False, dtype=torch.float64, scale=False).eval() for _ in range(2))
    with torch.no_grad():
        layer.logits.copy_(torch.tensor([[-0.1], [0.2]]))
    set_sharpness(layer, 10.0)
    assert layer.weight.item() == 1
    other.load_state_dict(layer.state_dict())
    assert other.weight.item() == 1


@pytest.mark.parametrize("values", ["binary", "ternary"])
def test_a_scale_that_learns_multiplies_samples_and_weights_and_is_saved(values):
    torch.manual_seed(0)
    model = nn.Sequential(LRLinear(6, 4, values=values), LRConv2d(1, 2, 1, values=values, scale=False))
    before = model[0].weight
    learn_scales_(model)
    learn_scales_(model)  # once is enough
    assert model[1].gain is None  # has no scale to learn
    assert "gain" in dict(model[0].named_parameters())
    with torch.no_grad():
        model[0].gain.fill_(1.5)
    torch.testing.assert_close(model[0].weight, 1.5 * before)
    x = torch.randn(3, 6)
    torch.manual_seed(1)
    sampled = model[0](x) - model[0].bias
    model[0].gain.data.fill_(1.0)
    torch.manual_seed(1)
    torch.testing.assert_close(sampled, 1.5 * (model[0](x) - model[0].bias), rtol=1e-4, atol=1e-5)
    sampled.sum().backward()
    torch.testing.assert_close(model[0].gain.grad, (sampled / 1.5).sum().detach(), rtol=1e-4, atol=1e-4)

    model[0].gain.data.fill_(0.7)
    plain = nn.Sequential(LRLinear(6, 4, values=values), LRConv2d(1, 2, 1, values=values, scale=False))
    untouched = plain.state_dict()
    plain.load_state_dict(model.state_dict())
    assert plain[0].gain.item() == pytest.approx(0.7)
    assert torch.equal(plain[0].weight, model[0].weight)
    plain.load_state_dict(untouched)
    assert plain[0].gain is None
    drawn = discretize(model[:1], "mode")[0]
    assert torch.equal(drawn.weight, model[0].weight)


def test_a_state_dict_without_a_layer_leaves_its_sharpness_and_gain_alone():
    layer = LRLinear(3, 2)
    learn_scales_(layer)
    set_sharpness(layer, 2.0)
    gain = layer.gain
    layer.load_state_dict({}, strict=False)
    assert layer.sharpness is not None
    assert layer.gain is gain


# ---- natural gradients ----------------------------------------------------------------------------------------------


class Plain(Binary):
    """A value set of somebody else's, with what is needed and no more."""

    natural_gradient = ValueSet.natural_gradient


@pytest.mark.parametrize(
    ("make", "words"),
    [
        (lambda: GumbelLinear(3, 2), "0 is a GumbelLinear, whose method has gradients of its own"),
        (lambda: ExpectationLinear(3, 2), "0 is a ExpectationLinear"),
        (lambda: LRLinear(3, 2, values=Plain()), "0 has .* knows no natural gradient"),
    ],
)
def test_natural_gradients_are_refused_where_there_are_none(make, words):
    model = nn.Sequential(make(), LRLinear(2, 2))
    with pytest.raises(ValueError, match=words):
        set_natural(model)
    assert not model[1].natural  # all or none
    set_natural(model, False)


def test_the_printed_layer_says_how_it_learns():
    layer = LRLinear(3, 2)
    assert repr(layer).endswith("scale=True)")
    set_natural(layer)
    learn_scales_(layer)
    assert repr(layer).endswith("scale=learnt, natural)")
