"""Entropy, decidedness and the Gaussian fit, against exact distributions."""

import itertools
import math

import numpy as np
import pytest
import torch
from torch import nn

import lrnets
from lrnets.diagnostics import RandomnessWarning, disagreement, gaussian_fit, undecided


def layer_with(probabilities: list[list[float]], scale: float | None = None) -> lrnets.LRLinear:
    """One output; weight j has probabilities[j] of -1, 0, +1."""
    layer = lrnets.LRLinear(
        len(probabilities), 1, bias=False, values=lrnets.Levels((-1, 0, 1)), scale=scale is not None
    )
    with torch.no_grad():
        layer.weight_logits[:, 0].copy_(torch.tensor(probabilities).T.log())
        if scale is not None:
            layer.scale.fill_(scale)
    return layer


def test_entropy_and_undecided_share_of_hand_made_distributions():
    model = nn.Sequential(layer_with([[0.25, 0.5, 0.25], [1 / 3, 1 / 3, 1 / 3], [0.02, 0.95, 0.03]]))
    exact = [1.5, math.log2(3), -sum(p * math.log2(p) for p in (0.02, 0.95, 0.03))]
    assert lrnets.entropy(model)["0"] == pytest.approx(np.mean(exact), rel=1e-5)
    assert undecided(model)["0"] == pytest.approx(2 / 3)
    assert undecided(model, decided=0.96)["0"] == 1


def test_the_distance_is_that_of_the_exact_distribution_function():
    probabilities = [[0.2, 0.5, 0.3], [0.1, 0.2, 0.7], [0.3, 0.4, 0.3]]
    h = [1.0, -2.0, 0.5]
    scale = 0.3
    # All 27 weight vectors: the exact distribution of the pre-activation, and its Gaussian.
    z, p = [], []
    for w in itertools.product(range(3), repeat=3):
        z.append(scale * sum((k - 1) * x for k, x in zip(w, h)))
        p.append(math.prod(probabilities[j][k] for j, k in enumerate(w)))
    z, p = np.array(z), np.array(p)
    mean, deviation = (z * p).sum(), math.sqrt((z * z * p).sum() - (z * p).sum() ** 2)
    cdf = lambda x: 0.5 * (1 + math.erf((x - mean) / deviation / math.sqrt(2)))  # noqa: E731
    exact = max(max(abs(p[z < at + 1e-9].sum() - cdf(at)), abs(p[z < at - 1e-9].sum() - cdf(at))) for at in z)
    layer, x = layer_with(probabilities, scale), torch.tensor([h])
    fit = gaussian_fit(layer, x, neuron=(0, 0), draws=100_000, generator=torch.Generator().manual_seed(0))
    assert fit.mean == pytest.approx(mean, rel=1e-5)
    assert fit.deviation == pytest.approx(deviation, rel=1e-5)
    # Kolmogorov: P(sup |F_n - F| > 2.3 / sqrt(n)) < 2 exp(-2 * 2.3^2) = 5e-5.
    assert abs(fit.distance - exact) < 2.3 / math.sqrt(100_000)
    assert exact > 0.05
    assert sum(fit.drawn) == pytest.approx(1)
    assert sum(fit.gaussian) == pytest.approx(1, abs=1e-3)
    assert len(fit.edges) == 51
    assert fit.sampling_error == pytest.approx(0.8687 / math.sqrt(100_000))


def test_many_inputs_fit_a_gaussian_and_few_decided_ones_do_not():
    many, few = layer_with([[0.3, 0.4, 0.3]] * 1000), layer_with([[0.005, 0.99, 0.005]] * 9)
    generator = torch.Generator().manual_seed(0)
    good = gaussian_fit(many, torch.randn(1, 1000, generator=generator), draws=20_000, generator=generator)
    bad = gaussian_fit(few, torch.ones(1, 9), draws=20_000, generator=generator)
    assert good.distance < 0.02
    assert bad.distance > 0.3
    assert (good.inputs, bad.inputs) == (1000, 9)


@pytest.mark.parametrize(
    ("layer", "x", "neuron", "patch"),
    [
        (
            lambda: lrnets.LRConv2d(2, 3, 3, padding=1),
            (1, 2, 5, 5),
            (0, 1, 2, 3),
            (slice(None), slice(1, 4), slice(2, 5)),
        ),
        (lambda: lrnets.LRConv1d(2, 3, 3, stride=2), (1, 2, 9), (0, 2, 3), (slice(None), slice(6, 9))),
    ],
)
def test_a_convolutions_neuron_sees_its_patch(layer, x, neuron, patch):
    torch.manual_seed(0)
    layer, x = layer(), torch.rand(x) + 0.1
    fit = gaussian_fit(layer, x, neuron=neuron, draws=10)
    mean, variance = (t[neuron[1]].double() for t in layer.values.moments(layer.weight_logits.detach()))
    h = x[0][patch].double()
    scale = layer.scale.item()
    assert fit.mean == pytest.approx(scale * (mean * h).sum().item(), rel=1e-5)
    assert fit.deviation == pytest.approx(scale * math.sqrt((variance * h * h).sum().item()), rel=1e-5)


def test_diagnose_reports_each_layer_and_leaves_the_model_as_it_was():
    torch.manual_seed(0)
    model = nn.Sequential(nn.Conv2d(3, 8, 3), nn.BatchNorm2d(8), nn.ReLU(), nn.Flatten(), nn.Linear(8 * 16, 4))
    lrnets.convert_(model, keep=())
    before = model[1].running_mean.clone()
    result = lrnets.diagnose(model, torch.randn(4, 3, 6, 6), neurons=3, draws=500)
    assert [row.name for row in result.layers] == ["0", "4"]
    assert result.layers[0].fit.inputs == 27
    assert model.training
    assert torch.equal(model[1].running_mean, before)
    assert not any(module._forward_pre_hooks for module in model.modules())
    assert str(result).splitlines()[0].startswith("layer")
    assert lrnets.diagnose(model).layers[0].fit is None


def test_a_layer_without_randomness_is_warned_of_and_has_no_distance():
    model = nn.Sequential(lrnets.LRLinear(4, 4))
    with torch.no_grad():
        model[0].logits.fill_(200.0)
    with pytest.warns(RandomnessWarning, match=r"layer '0'.*probability_decay"):
        result = lrnets.diagnose(model, torch.ones(1, 4))
    assert math.isnan(result.layers[0].fit.distance)
    assert result.layers[0].fit.deviation == 0
    assert "nan" in str(result)


def test_an_all_but_decided_neuron_is_half_a_step_from_its_gaussian():
    # All mass but 1e-20 at one value: its distribution function jumps from 0 to 1 where the Gaussian's is at 1/2. In
    # float32 the rounding of the sum, 1e-8, would be more than the deviation, 1e-10.
    generator = torch.Generator().manual_seed(0)
    x, levels = torch.rand(1, 40, generator=generator), torch.randint(3, (40,), generator=generator)
    layer = layer_with([[1.0 if k == level else 1e-20 for k in range(3)] for level in levels.tolist()], 0.123)
    fit = gaussian_fit(layer, x, neuron=(0, 0), draws=2000)
    assert 0 < fit.deviation < 1e-9
    assert fit.distance == pytest.approx(0.5, abs=0.01)


def test_impossible_draws_are_refused():
    with pytest.raises(ValueError, match="at least 1, got 0"):
        gaussian_fit(lrnets.LRLinear(2, 2), torch.ones(1, 2), draws=0)


def test_disagreement_is_the_chance_that_two_draws_differ():
    probabilities = [[0.25, 0.5, 0.25], [0.0, 1.0, 0.0], [0.02, 0.95, 0.03]]
    model = nn.Sequential(layer_with(probabilities))
    differ = [
        sum(p[a] * p[b] for a, b in itertools.product(range(3), repeat=2) if a != b) for p in probabilities
    ]  # fmt: skip
    assert disagreement(model)["0"] == pytest.approx(np.mean(differ), rel=1e-5)


class ByName(nn.Module):
    """Gives its layers their input by name."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = lrnets.LRConvTranspose2d(2, 3, 2), lrnets.LRLinear(3, 2)

    def forward(self, x):
        return self.second(input=self.first(input=x).mean((2, 3)))


def test_layers_may_get_their_input_by_name():
    model, x = ByName(), torch.randn(2, 2, 4, 4)
    found = lrnets.diagnostics.layer_inputs(model, x)
    assert torch.equal(found["first"], x)
    assert found["second"].shape == (2, 3)
    layers = {layer.name: layer for layer in lrnets.summary(model, x).layers}
    assert layers["first"].additions == 2 * 2 * 4 * 4 * 3 * 2 * 2  # inputs times the outputs that each reaches


def test_entropy_of_half_precision_logits_is_that_of_the_same_numbers_in_float32():
    model = nn.Sequential(lrnets.LRLinear(64, 64)).bfloat16()
    half = lrnets.entropy(model), disagreement(model), undecided(model)
    model.float()
    assert half == (lrnets.entropy(model), disagreement(model), undecided(model))
