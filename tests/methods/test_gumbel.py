"""Relaxed weights against hand-written formulas, their distribution, and the layers that use them."""

import copy
import math

import numpy as np
import pytest
import references
import torch
from torch import nn

import lrnets
from lrnets.layers import set_sharpness
from lrnets.methods import gumbel
from lrnets.methods.gumbel import GumbelConv2d, GumbelLinear, gumbel_like, relaxed_weights, set_temperature
from lrnets.weights import BINARY, TERNARY, Levels

SETS = {"binary": BINARY, "ternary": TERNARY, "levels": Levels((-2, -1, 0, 3))}


def seeded(seed: int = 0) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


@pytest.mark.parametrize("kind", SETS)
@pytest.mark.parametrize("temperature", [0.1, 1.0])
def test_relaxed_weights_are_the_softmax_of_the_equation(kind, temperature):
    values = SETS[kind]
    logits = torch.randn(values.logits_per_weight, 4, dtype=torch.float64)
    noise = torch.randn(len(values.levels), 4, dtype=torch.float64)
    found = relaxed_weights(logits, values, temperature, noise=noise)
    for j in range(4):
        p = references.level_probabilities(kind, logits[:, j].tolist())
        scores = [(math.log(pk) + g) / temperature for pk, g in zip(p, noise[:, j].tolist())]
        shares = [math.exp(s - max(scores)) for s in scores]
        expected = sum(level * share for level, share in zip(values.levels, shares)) / sum(shares)
        assert found[j].item() == pytest.approx(expected, rel=1e-10, abs=1e-12)


def test_a_binary_weight_is_a_tanh_of_logistic_noise():
    logits, noise = torch.randn(1, 9, dtype=torch.float64), torch.randn(2, 9, dtype=torch.float64)
    expected = np.tanh((logits[0] + noise[1] - noise[0]).numpy() / (2 * 0.3))
    np.testing.assert_allclose(relaxed_weights(logits, BINARY, 0.3, noise=noise).numpy(), expected, rtol=1e-10)


@pytest.mark.parametrize("kind", SETS)
def test_gradients_for_the_logits(kind):
    values = SETS[kind]
    logits = torch.randn(values.logits_per_weight, 3, dtype=torch.float64, requires_grad=True)
    noise = torch.randn(len(values.levels), 3, dtype=torch.float64)
    assert torch.autograd.gradcheck(lambda t: relaxed_weights(t, values, 0.7, noise=noise), (logits,))


def test_the_noise_has_the_mean_and_variance_of_gumbels_distribution():
    noise = gumbel_like(torch.empty(100_000, dtype=torch.float64), seeded())
    # Standard errors: sqrt(pi^2 / 6 / n) of the mean; kurtosis 5.4 gives sqrt(4.4 / n) of the variance, relatively.
    assert noise.mean().item() == pytest.approx(0.5772156649, abs=5 * math.sqrt(math.pi**2 / 6 / 1e5))
    assert noise.var().item() == pytest.approx(math.pi**2 / 6, rel=5 * math.sqrt(4.4 / 1e5))


@pytest.mark.parametrize("kind", SETS)
def test_without_temperature_left_it_is_a_draw(kind):
    values, n = SETS[kind], 20_000
    logits = torch.tensor([0.8, -0.3, 0.4, -1.0][: values.logits_per_weight])
    w = relaxed_weights(logits.unsqueeze(1).expand(-1, n), values, 1e-4, generator=seeded())
    for level, p in zip(values.levels, references.level_probabilities(kind, logits.tolist())):
        share = ((w - level).abs() < 0.01).float().mean().item()
        # 0.01: weights whose two best scores lie within a few temperatures of each other are between levels.
        assert share == pytest.approx(p, abs=5 * math.sqrt(p * (1 - p) / n) + 0.01)


def test_certain_weights_have_finite_gradients():
    layer = GumbelLinear(3, 2)
    with torch.no_grad():
        layer.logits.copy_(torch.where(layer.logits > 0, 400.0, -400.0))
    layer(torch.ones(1, 3)).sum().backward()
    assert torch.isfinite(layer.logits.grad).all()


def test_a_linear_layer_in_training_uses_one_relaxed_sample_for_the_batch():
    layer = GumbelLinear(5, 3, values="ternary")
    set_temperature(layer, 0.4)
    set_sharpness(layer, 2.0)
    layer.scale.fill_(0.25)
    x, layer.generator = torch.randn(4, 5), seeded(3)
    found = layer(x)
    logits = 2.0 * layer.logits.detach().view(2, 3, 5)
    w = relaxed_weights(logits, TERNARY, 0.4, generator=seeded(3))
    expected = references.linear(x.double().numpy(), 0.25 * w.double().numpy()) + layer.bias.detach().double().numpy()
    np.testing.assert_allclose(found.detach().numpy(), expected, rtol=1e-5, atol=1e-6)


def test_a_convolution_in_training_uses_its_settings():
    layer = GumbelConv2d(4, 6, 3, stride=2, padding=1, groups=2, values="binary", padding_mode="circular")
    x, layer.generator = torch.randn(2, 4, 7, 6), seeded(1)
    found = layer(x)
    w = relaxed_weights(layer.weight_logits.detach(), BINARY, 0.1, generator=seeded(1)) * layer.scale
    expected = references.convolution(
        x.double().numpy(), w.double().numpy(), stride=(2, 2), padding=[(1, 1), (1, 1)], dilation=(1, 1), groups=2,
        padding_mode="circular",
    )  # fmt: skip
    expected += layer.bias.detach().double().numpy()[:, None, None]
    np.testing.assert_allclose(found.detach().numpy(), expected, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("kind", gumbel.LAYERS)
def test_every_kind_of_layer_starts_as_its_lr_layer_and_evaluates_the_most_probable_weights(kind):
    dimensions = 0 if kind is GumbelLinear else int(kind.__name__[-2])
    plain = kind.plain(3, 3) if not dimensions else kind.plain(3, 3, 2)
    twin = kind.from_plain(plain, "ternary", True, 0.05, 0.95, tau=0.3)
    lr = getattr(lrnets, kind.__name__.replace("Gumbel", "LR")).from_plain(plain, "ternary", True)
    assert torch.equal(twin.logits, lr.logits)
    assert twin.temperature == 0.3
    x = torch.randn(2, 3, *[4] * dimensions)
    assert twin(x).shape == plain(x).shape
    assert not torch.equal(twin(x), twin(x))
    assert torch.equal(twin.eval()(x), lr.eval()(x))


def test_discretisation_penalties_entropy_and_summary_are_those_of_the_lr_network():
    torch.manual_seed(0)
    ours = nn.Sequential(nn.Conv2d(1, 4, 3), nn.ReLU(), nn.Flatten(), nn.Linear(16, 3))
    theirs = copy.deepcopy(ours)
    ours[0], ours[3] = (
        GumbelConv2d.from_plain(ours[0], "ternary", True),
        GumbelLinear.from_plain(ours[3], "ternary", True),
    )
    lrnets.convert_(theirs, keep=())
    for model in (ours, theirs):
        set_sharpness(model, 1.5)
    x = torch.randn(5, 1, 4, 4)
    for mode in ("mode", "sample"):
        nets = [lrnets.discretize(model, mode, generator=seeded(2)) for model in (ours, theirs)]
        assert type(nets[0][0]) is nn.Conv2d
        assert torch.equal(nets[0](x), nets[1](x))
    settings = {"probability_decay": 1e-3, "beta": 1e-2}
    assert torch.equal(lrnets.penalty(ours, **settings), lrnets.penalty(theirs, **settings))
    assert lrnets.entropy(ours) == lrnets.entropy(theirs)
    assert lrnets.summary(ours, (1, 4, 4)).bytes == lrnets.summary(theirs, (1, 4, 4)).bytes
    assert list(ours.state_dict()) == list(theirs.state_dict())


def test_the_temperature_is_annealed_by_equal_factors():
    plain = nn.Linear(3, 2)
    layer = GumbelLinear.from_plain(plain, "binary", True, tau=1.0, tau_end=0.01)
    layer.anneal(0.0)
    assert layer.temperature == 1.0
    layer.anneal(0.5)
    assert layer.temperature == pytest.approx(0.1)
    layer.anneal(1.0)
    assert layer.temperature == pytest.approx(0.01)
    steady = GumbelLinear.from_plain(plain, "binary", True)
    steady.anneal(0.5)
    assert steady.temperature == 0.1


def test_a_temperature_is_set_in_all_gumbel_layers_and_no_others():
    model = nn.Sequential(GumbelLinear(2, 2), nn.Sequential(lrnets.LRLinear(2, 2), GumbelLinear(2, 2)))
    set_temperature(model, 0.5)
    assert [layer.temperature for layer in gumbel.gumbel_layers(model)] == [0.5, 0.5]
    assert GumbelLinear(2, 2).temperature == 0.1


@pytest.mark.parametrize("wrong", [0, -1.0, math.inf, math.nan])
def test_impossible_temperatures_are_refused(wrong):
    with pytest.raises(ValueError, match="temperature must be a finite number above 0"):
        set_temperature(GumbelLinear(2, 2), wrong)
    with pytest.raises(ValueError, match="temperature"):
        GumbelLinear.from_plain(nn.Linear(2, 2), "binary", True, tau_end=wrong)


def test_autocast_computes_in_the_lower_precision_and_learns():
    model = nn.Sequential(GumbelConv2d(1, 2, 3), nn.Flatten(), GumbelLinear(8, 2))
    with torch.autocast("cpu", dtype=torch.bfloat16):
        z = model(torch.randn(3, 1, 4, 4))
    assert z.dtype == torch.bfloat16
    z.float().sum().backward()
    assert model[0].logits.grad.dtype == torch.float32
    assert model[0].logits.grad.abs().sum() > 0


def test_integers_are_refused():
    with pytest.raises(TypeError, match=r"x\.float\(\)"):
        GumbelLinear(2, 2)(torch.ones(1, 2, dtype=torch.int64))
