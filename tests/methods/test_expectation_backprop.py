"""Expectation backpropagation against its published equations in plain loops, and against exact posteriors."""

import copy
import itertools
import math

import numpy as np
import pytest
import references
import torch
from torch import nn

import lrnets
from lrnets import functional
from lrnets.methods import expectation_backprop
from lrnets.methods.expectation_backprop import (
    ExpectationConv2d,
    ExpectationLinear,
    ProbabilisticSign,
    fold,
    log_evidence,
    standardized_preactivation,
)

# ---- the publication, in Python floats ------------------------------------------------------------------------------


def normal_density_at_zero(mean: float, variance: float) -> float:
    return math.exp(-(mean**2) / (2 * variance)) / math.sqrt(2 * math.pi * variance)


def normal_cdf(x: float) -> float:
    return 0.5 * (1 + math.erf(x / math.sqrt(2)))


def published_step(layers: list[np.ndarray], x: list[float], y: list[float]) -> list[np.ndarray]:
    """Algorithm 1 of Soudry, Hubara and Meir for one example: h after the step, 1 / sqrt(K_l) factors and all."""
    means, mus, variances = [list(x)], [], []
    for number, h in enumerate(layers):
        outputs, fan_in = h.shape
        mu, variance = [0.0] * outputs, [0.0] * outputs
        for i in range(outputs):
            for j in range(fan_in):
                w, v = math.tanh(h[i, j]), means[-1][j]
                square = v * v if number == 0 else 1.0  # <v^2>
                mu[i] += w * v / math.sqrt(fan_in)
                variance[i] += (square - w * w * v * v) / fan_in
        mus.append(mu)
        variances.append(variance)
        means.append([2 * normal_cdf(m / math.sqrt(s)) - 1 for m, s in zip(mu, variance)])
    delta = [
        t * normal_density_at_zero(m, s) / normal_cdf(t * m / math.sqrt(s))
        for t, m, s in zip(y, mus[-1], variances[-1])
    ]
    new = []
    for number in reversed(range(len(layers))):
        h = layers[number]
        outputs, fan_in = h.shape
        changed = h.copy()
        below = [0.0] * fan_in
        for i in range(outputs):
            for j in range(fan_in):
                changed[i, j] += delta[i] * means[number][j] / math.sqrt(fan_in)
                below[j] += math.tanh(h[i, j]) * delta[i]
        new.append(changed)
        if number:
            delta = [
                2 / math.sqrt(fan_in) * normal_density_at_zero(mus[number - 1][j], variances[number - 1][j]) * below[j]
                for j in range(fan_in)
            ]
    return new[::-1]


def network(sizes: list[int], seed: int = 0, spread: float = 0.6, **settings) -> nn.Sequential:
    """Expectation layers with signs between them; h is drawn from N(0, spread^2)."""
    torch.manual_seed(seed)
    modules: list[nn.Module] = []
    for number, (fan_in, out) in enumerate(itertools.pairwise(sizes)):
        modules += [ProbabilisticSign()] if number else []
        layer = ExpectationLinear(fan_in, out, binary_input=number > 0, dtype=torch.float64, **settings)
        layer.variance_floor = 0.0
        nn.init.normal_(layer.logits, std=2 * spread)  # a = 2 h
        modules.append(layer)
    return nn.Sequential(*modules)


def h_of(model: nn.Sequential) -> list[np.ndarray]:
    return [m.logits.detach().numpy().copy() / 2 for m in model if isinstance(m, ExpectationLinear)]


@pytest.mark.parametrize("scale", [True, False])
def test_sgd_of_rate_one_on_the_log_evidence_is_the_published_update(scale):
    model = network([5, 4, 3, 2], bias=False, scale=scale)
    x = torch.randn(1, 5, dtype=torch.float64)
    y = torch.tensor([[1.0, -1.0]], dtype=torch.float64)
    before = h_of(model)
    optimizer = torch.optim.SGD(model.parameters(), lr=1.0)
    (-log_evidence(model(x), y)).backward()
    optimizer.step()
    for found, expected, old in zip(h_of(model), published_step(before, x[0].tolist(), y[0].tolist()), before):
        np.testing.assert_allclose(found, expected, rtol=1e-9, atol=1e-12)
        assert np.abs(expected - old).max() > 1e-3


def test_a_batch_sums_the_updates_of_its_examples():
    model = network([4, 3, 1], bias=False)
    x, y = torch.randn(3, 4, dtype=torch.float64), torch.tensor([[1.0], [-1.0], [1.0]], dtype=torch.float64)
    before = h_of(model)
    (-log_evidence(model(x), y)).backward()
    for number, layer in enumerate(m for m in model if isinstance(m, ExpectationLinear)):
        expected = sum(published_step(before, x[n].tolist(), y[n].tolist())[number] - before[number] for n in range(3))
        np.testing.assert_allclose(-layer.logits.grad.numpy() / 2, expected, rtol=1e-9, atol=1e-12)


def test_moments_are_those_over_all_weights_and_signs():
    """mu and sigma^2 of sum_j W_j v_j, every one of the 2^6 outcomes of three weights and three signs."""
    layer = ExpectationLinear(3, 1, bias=False, binary_input=True, scale=False, dtype=torch.float64)
    layer.variance_floor = 0.0
    v = [0.3, -0.8, 0.1]
    p = [[0.5 * (1 - m), 0.5 * (1 + m)] for m in np.tanh(layer.logits.detach().numpy()[0] / 2).tolist() + v]
    mean = variance = 0.0
    outcomes = []
    for signs in itertools.product((0, 1), repeat=6):
        probability = math.prod(pj[s] for pj, s in zip(p, signs))
        w, s = np.array(signs[:3]) * 2 - 1, np.array(signs[3:]) * 2 - 1
        outcomes.append((probability, float(w @ s)))
    mean = math.fsum(q * u for q, u in outcomes)
    variance = math.fsum(q * (u - mean) ** 2 for q, u in outcomes)
    found = layer(torch.tensor([v], dtype=torch.float64))
    assert found.item() == pytest.approx(mean / math.sqrt(variance), rel=1e-10)


def exact_update(layers: list[np.ndarray], x: np.ndarray, y: float) -> list[np.ndarray]:
    """What Bayes' rule adds to each weight's h: 1/2 ln P(y | W_ij = 1) / P(y | W_ij = -1), over all networks."""
    shapes = [h.shape for h in layers]
    flat = np.concatenate([h.ravel() for h in layers])
    plus = 1 / (1 + np.exp(-2 * flat))
    by_sign = np.zeros((2, flat.size))  # P(y, W_k = -1), P(y, W_k = +1)
    for signs in itertools.product((0, 1), repeat=flat.size):
        signs = np.array(signs)
        v, start = x, 0
        for out, fan_in in shapes:
            w = signs[start : start + out * fan_in].reshape(out, fan_in) * 2 - 1
            v, start = np.where(w @ v >= 0, 1.0, -1.0), start + out * fan_in
        if v[0] == y:
            by_sign[signs, np.arange(flat.size)] += np.prod(np.where(signs, plus, 1 - plus))
    change = 0.5 * np.log(by_sign[1] / plus / (by_sign[0] / (1 - plus)))
    return np.split(change, np.cumsum([out * fan_in for out, fan_in in shapes])[:-1])


@pytest.mark.parametrize(("sizes", "agreement"), [([9, 1], 0.95), ([3, 3, 1], 0.85)])
def test_the_update_points_where_the_exact_posterior_lies(sizes, agreement):
    for seed in range(4):
        model = network(sizes, seed, spread=0.4, bias=False)
        x = torch.randn(1, sizes[0], dtype=torch.float64)
        y = torch.tensor([[1.0 if seed % 2 else -1.0]], dtype=torch.float64)
        (-log_evidence(model(x), y)).backward()
        found = np.concatenate([-m.logits.grad.numpy().ravel() / 2 for m in model if isinstance(m, ExpectationLinear)])
        exact = np.concatenate(exact_update(h_of(model), x[0].numpy(), y.item()))
        cosine = found @ exact / np.linalg.norm(found) / np.linalg.norm(exact)
        assert cosine > agreement, (seed, cosine)
        clear = np.abs(exact) > 0.2 * np.abs(exact).max()
        assert (np.sign(found) == np.sign(exact))[clear].all(), seed


def test_online_updates_find_the_teachers_weights():
    """Binary perceptron: 15 weights, 120 examples, one pass, no learning rate."""
    model = network([15, 1], spread=0.05, bias=False)
    generator = torch.Generator().manual_seed(0)
    teacher = torch.where(torch.rand(15, generator=generator, dtype=torch.float64) < 0.5, 1.0, -1.0).double()
    optimizer = torch.optim.SGD(model.parameters(), lr=1.0)
    for _ in range(120):
        x = torch.randn(1, 15, generator=generator, dtype=torch.float64)
        y = torch.where(x @ teacher >= 0, 1.0, -1.0).double().unsqueeze(0)
        optimizer.zero_grad()
        (-log_evidence(model(x), y)).backward()
        optimizer.step()
    assert torch.equal(lrnets.discretize(model, "mode")[0].weight[0].sign(), teacher)


@pytest.mark.parametrize("binary_input", [True, False])
@pytest.mark.parametrize("groups", [1, 2])
def test_a_convolution_has_the_moments_of_the_same_equations_at_each_place(binary_input, groups):
    layer = ExpectationConv2d(
        4, 2, 3, stride=2, padding=1, groups=groups, binary_input=binary_input, dtype=torch.float64
    )
    x = torch.rand(2, 4, 5, 5, dtype=torch.float64) * 2 - 1
    w, scale = np.tanh(layer.logits.detach().numpy() / 2), float(layer.scale)
    settings = {"stride": (2, 2), "padding": [(1, 1), (1, 1)], "dilation": (1, 1), "groups": groups}
    bias = layer.bias.detach().numpy()[:, None, None]
    mu = scale * references.convolution(x.numpy(), w, **settings) + bias
    # sum of <v^2> - <W>^2 <v>^2 over what lies inside the picture, and 1 for the bias, as in the authors' code.
    squares = np.ones(x.shape) if binary_input else x.numpy() ** 2
    variance = references.convolution(squares, np.ones_like(w), **settings)
    variance = variance - references.convolution(x.numpy() ** 2, w**2, **settings) + 1
    np.testing.assert_allclose(layer(x).detach().numpy(), mu / np.sqrt(scale**2 * variance + 1e-8), rtol=1e-9)


@pytest.mark.parametrize("size", [3, 4])
def test_zeros_around_an_even_kernel_are_no_unknown_signs_either(size):
    layer = ExpectationConv2d(2, 3, size, padding="same", bias=False, binary_input=True, dtype=torch.float64)
    x = torch.rand(2, 2, 5, 6, dtype=torch.float64) * 2 - 1
    w, scale = np.tanh(layer.logits.detach().numpy() / 2), float(layer.scale)
    around = ((size - 1) // 2, size // 2)
    settings = {"stride": (1, 1), "padding": [around, around], "dilation": (1, 1), "groups": 1}
    mu = scale * references.convolution(x.numpy(), w, **settings)
    variance = references.convolution(np.ones(x.shape), np.ones_like(w), **settings)
    variance = variance - references.convolution(x.numpy() ** 2, w**2, **settings)
    np.testing.assert_allclose(layer(x).detach().numpy(), mu / np.sqrt(scale**2 * variance + 1e-8), rtol=1e-9)


def test_a_convolutions_update_sums_over_places():
    """A convolution of one place is a linear layer; of two, the sum of both places' updates."""
    torch.manual_seed(0)
    conv = ExpectationConv2d(1, 2, (2, 3), bias=False, dtype=torch.float64)
    dense = ExpectationLinear(6, 2, bias=False, dtype=torch.float64)
    with torch.no_grad():
        dense.logits.copy_(conv.logits.flatten(1))
        dense.scale.copy_(conv.scale)
    x = torch.randn(1, 1, 2, 4, dtype=torch.float64)
    log_evidence(conv(x), torch.ones(1, 2, 1, 2, dtype=torch.float64)).backward()
    places = torch.stack([x[0, 0, :, :3].flatten(), x[0, 0, :, 1:].flatten()])
    log_evidence(dense(places), torch.ones(2, 2, dtype=torch.float64)).backward()
    torch.testing.assert_close(conv.logits.grad.flatten(1), dense.logits.grad)


def test_the_variance_carries_no_gradient():
    x = torch.randn(2, 3, dtype=torch.float64, requires_grad=True)
    logits = torch.randn(2, 3, dtype=torch.float64, requires_grad=True)
    u = standardized_preactivation(x, logits, None, functional.Dense(), binary_input=False)
    u.sum().backward()
    w = np.tanh(logits.detach().numpy() / 2)
    sigma = np.sqrt((x.detach().numpy() ** 2) @ (1 - w**2).T + 1e-8)  # (batch, out)
    np.testing.assert_allclose(x.grad.numpy(), (1 / sigma) @ w, rtol=1e-9)
    np.testing.assert_allclose(logits.grad.numpy(), 2 * (1 / sigma).T @ x.detach().numpy(), rtol=1e-9)


def test_signs_are_expected_in_training_and_certain_in_evaluation():
    activation, u = ProbabilisticSign(), torch.tensor([-1.3, 0.0, 0.4], dtype=torch.float64)
    assert activation(u).tolist() == pytest.approx([2 * normal_cdf(x) - 1 for x in u.tolist()])
    assert activation.eval()(u).tolist() == [-1.0, 1.0, 1.0]


def test_evaluation_and_the_discrete_network_compute_with_the_most_probable_weights():
    model = network([4, 3, 2]).eval()
    x = torch.randn(5, 4, dtype=torch.float64)
    first, last = model[0], model[2]

    def layer_by_hand(layer, v):
        weight = np.where(layer.logits.detach().numpy() >= 0, 1.0, -1.0) * float(layer.scale)
        return references.linear(v, weight) + layer.bias.detach().numpy()

    expected = layer_by_hand(last, np.where(layer_by_hand(first, x.numpy()) >= 0, 1.0, -1.0))
    np.testing.assert_allclose(model(x).detach().numpy(), expected)
    net = lrnets.discretize(model, "mode")
    assert type(net[0]) is nn.Linear
    np.testing.assert_allclose(net(x).detach().numpy(), expected)


@pytest.mark.parametrize("affine", [True, False])
def test_a_folded_batch_norm_leaves_the_sign_as_it_was(affine):
    torch.manual_seed(0)
    conv, norm = nn.Conv2d(2, 6, 3, bias=False), nn.BatchNorm2d(6, affine=affine).eval()
    norm.running_mean.normal_()
    norm.running_var.uniform_(0.5, 2.0)
    if affine:
        nn.init.normal_(norm.weight)
        nn.init.normal_(norm.bias)
        norm.weight.data[0] = 0.0
        assert (norm.weight < 0).any()
    x, before = torch.randn(8, 2, 5, 5), conv.weight.detach().clone()
    folded = fold(conv, norm)
    assert torch.equal(norm(conv(x)) >= 0, folded(x) >= 0)
    assert torch.equal(conv.weight, before)
    twin = ExpectationConv2d.from_plain(conv, "binary", True, 0.05, 0.95, binary_input=True, norm=norm)
    assert twin.binary_input
    assert torch.equal(twin.bias, folded.bias)
    with pytest.raises(ValueError, match="running statistics"):
        fold(conv, nn.BatchNorm2d(6, track_running_stats=False))


@pytest.mark.parametrize("normed", [False, True])
def test_without_a_scale_thresholds_are_in_units_of_the_weights(normed):
    """The scale multiplies sums and thresholds alike, so mu / sigma does not depend on it."""
    torch.manual_seed(0)
    linear, norm = nn.Linear(6, 5, dtype=torch.float64), nn.BatchNorm1d(5, dtype=torch.float64)
    with torch.no_grad():
        for tensor in (norm.running_mean, norm.weight, norm.bias):
            tensor.normal_()
    given, x = (norm if normed else None), torch.randn(4, 6, dtype=torch.float64)
    before = linear.bias.clone()
    with_scale, without = (ExpectationLinear.from_plain(linear, "binary", scale, norm=given) for scale in (True, False))
    for twin in (with_scale, without):
        twin.variance_floor = 0.0
    torch.testing.assert_close(without(x), with_scale(x))
    assert torch.equal(linear.bias, before)


@pytest.mark.parametrize("kind", expectation_backprop.LAYERS)
def test_every_kind_of_layer_starts_from_a_float_layer(kind):
    dimensions = 0 if kind is ExpectationLinear else int(kind.__name__[-2])
    plain = kind.plain(2, 3) if not dimensions else kind.plain(2, 3, 2)
    twin = kind.from_plain(plain)
    lr = getattr(lrnets, kind.__name__.replace("Expectation", "LR")).from_plain(plain, "binary", True)
    assert torch.equal(twin.logits, lr.logits)
    assert twin.bias is plain.bias
    x = torch.randn(2, 2, *[3] * dimensions)
    assert twin(x).shape == plain(x).shape
    assert torch.equal(twin(x), twin(x))  # nothing is sampled
    assert torch.equal(twin.eval()(x), lr.eval()(x))


def test_half_precision_and_autocast_keep_the_variance():
    layer = ExpectationLinear(300, 2, binary_input=True, bias=False)
    x = torch.rand(3, 300)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        torch.testing.assert_close(layer(x), layer(x.float()))
    exact = layer(x.bfloat16().float())
    torch.testing.assert_close(layer(x.bfloat16()).float(), exact, rtol=0.01, atol=0.01)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
@pytest.mark.parametrize("kind", [ExpectationLinear, ExpectationConv2d])
def test_layers_in_half_precision_train_as_those_of_float32_that_round_to_them(kind, dtype):
    sizes, shape = ((40, 3), (5, 40)) if kind is ExpectationLinear else ((4, 3, 2), (5, 4, 3, 3))
    torch.manual_seed(0)
    layer, x = kind(*sizes).to(dtype), torch.randn(shape).to(dtype)
    wide = copy.deepcopy(layer).float()
    u, exact = layer(x), wide(x.float())
    assert u.dtype == dtype
    rounding = {"rtol": 4 * torch.finfo(dtype).eps, "atol": 4 * torch.finfo(dtype).eps}
    torch.testing.assert_close(u.float(), exact, **rounding)
    y = torch.ones_like(u)
    for one, z in ((layer, u), (wide, exact)):
        (-log_evidence(z, y.to(z.dtype))).backward()
        assert one.logits.grad.dtype == one.logits.dtype
    for name, parameter in wide.named_parameters():
        given = layer.get_parameter(name).grad.float()
        assert (given - parameter.grad).norm() < 8 * torch.finfo(dtype).eps * parameter.grad.norm(), name


def test_other_weights_and_other_targets_are_refused():
    with pytest.raises(ValueError, match="binary weights, got values=ternary"):
        ExpectationLinear(2, 2, values="ternary")
    with pytest.raises(ValueError, match="one_hot"):
        log_evidence(torch.zeros(2, 1), torch.tensor([[0.0], [1.0]]))
    with pytest.raises(ValueError, match=r"shape \(2, 1\), got shape \(2,\)"):
        log_evidence(torch.zeros(2, 1), torch.ones(2))
