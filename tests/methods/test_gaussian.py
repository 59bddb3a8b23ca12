"""Gaussian layers against hand-written loops, and the KL divergence against numerical integration."""

import copy
import math

import numpy as np
import pytest
import references
import torch
from torch import nn

from lrnets.methods import gaussian
from lrnets.methods.fast_dropout import FastDropoutLinear
from lrnets.methods.gaussian import GaussianConv2d, GaussianLinear, kl_log_uniform, sample_gaussian
from lrnets.methods.harness import extra_loss


def seeded(seed: int = 0) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def with_random_alpha(layer: nn.Module) -> nn.Module:
    with torch.no_grad():
        layer.alpha_logit.normal_()
    return layer


def moments_of(layer: nn.Module) -> tuple[np.ndarray, np.ndarray]:
    """Mean and variance of each weight, by hand from what the layer has learnt."""
    theta = layer.weight.detach().double().numpy()
    return theta, theta**2 / (1 + np.exp(-layer.alpha_logit.detach().double().numpy()))


def test_a_linear_layer_samples_a_gaussian_of_the_equations_moments():
    layer = with_random_alpha(GaussianLinear(5, 3, dtype=torch.float64))
    x, layer.generator = torch.randn(4, 5, dtype=torch.float64), seeded(1)
    eps = torch.randn(4, 3, dtype=torch.float64, generator=seeded(1)).numpy()
    mean, variance = moments_of(layer)
    bias = layer.bias.detach().numpy()
    expected = references.preactivation(references.linear, x.numpy(), mean, variance, bias, eps, 1e-8)
    np.testing.assert_allclose(layer(x).detach().numpy(), expected, rtol=1e-10)


@pytest.mark.parametrize("padding_mode", ["zeros", "reflect"])
def test_a_convolution_samples_a_gaussian_of_the_equations_moments(padding_mode):
    settings = {"stride": (2, 1), "dilation": (1, 2), "groups": 2, "padding_mode": padding_mode}
    layer = with_random_alpha(GaussianConv2d(4, 2, (3, 2), padding=(1, 2), dtype=torch.float64, **settings))
    x, layer.generator = torch.randn(2, 4, 6, 5, dtype=torch.float64), seeded(2)
    found = layer(x)
    eps = torch.randn(found.shape, dtype=torch.float64, generator=seeded(2)).numpy()

    def convolve(x, weight):
        return references.convolution(x, weight, padding=[(1, 1), (2, 2)], **settings)

    mean, variance = moments_of(layer)
    bias = layer.bias.detach().numpy()[:, None, None]
    expected = references.preactivation(convolve, x.numpy(), mean, variance, bias, eps, 1e-8)
    np.testing.assert_allclose(found.detach().numpy(), expected, rtol=1e-10)


def test_the_sample_has_the_distribution_of_really_drawn_weights():
    """Gaussian weights have Gaussian sums, exactly: mean and deviation of 40,000 sums of drawn weights."""
    layer = with_random_alpha(GaussianLinear(6, 1, bias=False))
    x, n = torch.randn(1, 6), 40_000
    theta, variance = (torch.tensor(moment) for moment in moments_of(layer))
    drawn = (theta + variance.sqrt() * torch.randn(n, 6, generator=seeded(3))) @ x[0].double()
    layer.generator = seeded(4)
    sampled = layer(x.expand(n, 6)).detach()[:, 0].double()
    deviation = drawn.std().item()
    # Standard errors of a mean, deviation / sqrt(n), and of a deviation, deviation / sqrt(2 n); two of each differ.
    assert sampled.mean().item() == pytest.approx(drawn.mean().item(), abs=5 * deviation * math.sqrt(2 / n))
    assert sampled.std().item() == pytest.approx(deviation, rel=5 / math.sqrt(n))


def test_gradients_for_input_mean_alpha_and_bias():
    layer = with_random_alpha(GaussianLinear(3, 2, dtype=torch.float64))
    x = torch.randn(2, 3, dtype=torch.float64, requires_grad=True)

    def sample(x, weight, alpha_logit, bias):
        layer.generator = seeded(0)
        return torch.func.functional_call(layer, {"weight": weight, "alpha_logit": alpha_logit, "bias": bias}, (x,))

    assert torch.autograd.gradcheck(sample, (x, layer.weight, layer.alpha_logit, layer.bias))


def test_noise_of_ones_own_replaces_what_is_drawn():
    m, v2, eps = torch.randn(3), torch.tensor([4.0, 0.0, 9.0]), torch.tensor([0.5, 1.0, -1.0])
    torch.testing.assert_close(
        sample_gaussian(m, v2, noise=eps, variance_floor=0.0), m + torch.tensor([1.0, 0.0, -3.0])
    )


def exact_kl(alpha: float) -> float:
    """-1/2 ln alpha + E ln |1 + sqrt(alpha) z|, z ~ N(0, 1), by the midpoint rule: the pole is a mere logarithm."""
    edges = np.linspace(-12, 12, 1_000_001)
    z = (edges[1:] + edges[:-1]) / 2
    density = np.exp(-0.5 * z**2) / math.sqrt(2 * math.pi)
    mean_log = float((density * np.log(np.abs(1 + math.sqrt(alpha) * z))).sum() * (edges[1] - edges[0]))
    return -0.5 * math.log(alpha) + mean_log


def test_the_numerical_integral_is_right_where_the_expectation_is_known():
    # Large alpha: E ln |sqrt(alpha) z| = 1/2 ln alpha - (gamma + ln 2) / 2, so the KL tends to -(gamma + ln 2) / 2.
    assert exact_kl(1e8) == pytest.approx(-(0.5772156649 + math.log(2)) / 2, abs=1e-4)


def test_the_cubic_is_the_kl_divergence_up_to_a_constant():
    alphas = [0.05, 0.1, 0.2, 0.3, 0.5, 0.7, 0.9, 1.0]
    found = kl_log_uniform(torch.tensor(alphas, dtype=torch.float64)).tolist()
    off = [approximate - exact_kl(alpha) for alpha, approximate in zip(alphas, found)]
    assert max(off) - min(off) < 0.0125  # the KL itself falls by 1.3 over this range
    assert all(-0.040 < o < -0.026 for o in off)
    small = kl_log_uniform(torch.tensor([1e-4, 1e-3], dtype=torch.float64)).tolist()
    assert small == pytest.approx([exact_kl(1e-4), exact_kl(1e-3)], abs=1e-3)


def test_the_penalty_is_the_sum_over_weights_by_examples_and_counts_tied_layers_once():
    one = with_random_alpha(GaussianLinear(3, 2))
    two = GaussianConv2d(1, 2, 2, alpha=0.3)
    tied = GaussianLinear(3, 2)
    tied.weight, tied.alpha_logit = one.weight, one.alpha_logit
    model = nn.Sequential(one, two, tied)
    one.kl = 0.5
    total = 0.0
    for layer, weight in ((one, 0.5), (two, 1.0)):
        for rho in layer.alpha_logit.detach().double().flatten().tolist():
            a = references.sigmoid(rho)
            total += weight * -(0.5 * math.log(a) + 1.16145124 * a - 1.50204118 * a**2 + 0.58629921 * a**3)
    assert extra_loss(model, torch.tensor(7.0), 50).item() == pytest.approx(total / 50, rel=1e-5)
    assert one.extra_loss(torch.tensor(7.0), 50).item() + two.extra_loss(torch.tensor(0.0), 50).item() == pytest.approx(
        total / 50, rel=1e-5
    )
    assert extra_loss(nn.Linear(2, 2), torch.tensor(7.0), 1).item() == 0


def test_the_penalty_pushes_alpha_up():
    layer = GaussianLinear(3, 2)
    extra_loss(layer, torch.tensor(7.0), 1).backward()
    assert (layer.alpha_logit.grad < 0).all()
    assert layer.weight.grad is None or not layer.weight.grad.any()  # it depends on alpha alone


@pytest.mark.parametrize("kind", gaussian.LAYERS)
def test_every_kind_of_layer_starts_from_a_float_layer_and_ends_as_one(kind):
    dimensions = 0 if kind is GaussianLinear else int(kind.__name__[-2])
    plain = (kind.plain(2, 3) if not dimensions else kind.plain(2, 3, 2, padding=1)).eval()
    before = copy.deepcopy(plain.state_dict())
    twin = kind.from_plain(plain, None, alpha=0.3, kl=0.1)
    assert twin.bias is plain.bias
    assert not twin.training
    torch.testing.assert_close(twin.alpha, torch.full_like(plain.weight, 0.3))
    x = torch.randn(2, 2, *[3] * dimensions)
    assert torch.equal(twin(x), plain(x))
    twin.train()
    assert twin(x).shape == plain(x).shape
    assert not torch.equal(twin(x), twin(x))
    with torch.no_grad():
        twin.weight.add_(1.0)
    assert all(torch.equal(plain.state_dict()[name], tensor) for name, tensor in before.items())
    net = twin.to_plain(twin.choose("sample"), twin.bias)
    assert type(net) is kind.plain
    assert torch.equal(net(x), twin.eval()(x))
    assert not twin.random


def test_autocast_keeps_the_variance_in_float32():
    layer = GaussianLinear(4, 2)
    x = torch.full((1, 4), 1e30)  # its square is beyond float32: the noise is infinite there, and only there
    with torch.autocast("cpu", dtype=torch.bfloat16):
        assert layer(torch.ones(1, 4)).dtype == torch.bfloat16
        assert torch.isinf(layer(x)).any()


@pytest.mark.parametrize("kind", [GaussianLinear, FastDropoutLinear])
def test_a_compiled_layer_learns_as_an_eager_one_does(kind):
    torch._dynamo.reset()
    torch.manual_seed(0)
    layer, x = kind(5, 3), torch.randn(4, 5, requires_grad=True)
    results = []
    for computes in (layer, torch.compile(layer, backend="aot_eager", fullgraph=True)):
        torch.manual_seed(1)
        z = computes(x)
        wanted = [parameter for name, parameter in layer.named_parameters() if name != "bias"]
        results.append([z, *torch.autograd.grad(z.square().sum(), [x, *wanted])])
    for eager, compiled in zip(*results):
        torch.testing.assert_close(compiled, eager)


def test_what_cannot_be_is_refused():
    with pytest.raises(ValueError, match="alpha must be above 0 and below 1, got 1"):
        GaussianLinear(2, 2, alpha=1.5)
    with pytest.raises(ValueError, match="kl must be a finite number"):
        GaussianLinear(2, 2, kl=-1.0)
    with pytest.raises(ValueError, match="continuous weights"):
        GaussianLinear.from_plain(nn.Linear(2, 2), "ternary")
    with pytest.raises(ValueError, match="examples must be"):
        extra_loss(GaussianLinear(2, 2), torch.tensor(7.0), 0)
