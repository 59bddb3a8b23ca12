"""The estimator against enumeration of all weights, its baseline against hand arithmetic, and what it refuses."""

import itertools
import math

import numpy as np
import pytest
import references
import torch
import torch.nn.functional as F
from torch import nn

import lrnets
from lrnets.methods import log_derivative
from lrnets.methods.log_derivative import LogDerivativeConv2d, LogDerivativeLinear, log_likelihood, surrogate_loss
from lrnets.weights import BINARY, TERNARY, Levels

SETS = {"binary": BINARY, "ternary": TERNARY, "levels": Levels((-2, -1, 0, 3))}
X = torch.tensor([[0.5, -1.0, 2.0], [1.5, 0.3, -0.7]], dtype=torch.float64)
Y = torch.tensor([1.0, -2.0], dtype=torch.float64)


def loss_of(z: torch.Tensor) -> torch.Tensor:
    return F.softplus(z[:, 0] - Y).mean()


def log_p_gradient(kind: str, levels, logits, w) -> np.ndarray:
    """grad ln p(w) of one weight, by hand: (1[w = k] - p_k) for a softmax, the chain of two sigmoids for ternary."""
    p = references.level_probabilities(kind, logits)
    hit = [float(level == w) for level in levels]
    if kind == "binary":
        return np.array([hit[1] - p[1]])
    if kind == "ternary":
        positive = p[2] / (p[0] + p[2])
        return np.array([hit[1] - p[1], (1 - hit[1]) * (hit[2] - positive)])
    return np.array(hit) - np.array(p)


@pytest.mark.parametrize("kind", SETS)
def test_log_likelihood_is_the_sum_of_the_drawn_levels_log_probabilities(kind):
    values = SETS[kind]
    logits = torch.randn(values.logits_per_weight, 2, 3, dtype=torch.float64)
    w = values.draw(logits)
    expected = 0.0
    for i, j in itertools.product(range(2), range(3)):
        p = references.level_probabilities(kind, logits[:, i, j].tolist())
        expected += math.log(p[values.levels.index(w[i, j].item())])
    assert log_likelihood(logits, values, w).item() == pytest.approx(expected, rel=1e-12)


@pytest.mark.parametrize("kind", SETS)
@pytest.mark.parametrize("baseline", [0.0, 0.8])
def test_the_expected_gradient_over_all_weights_is_the_gradient_of_the_expected_loss(kind, baseline):
    """sum_W P(W) g(W), g as `surrogate_loss` has it, against central differences of sum_W P(W) L(W)."""
    values = SETS[kind]
    torch.manual_seed(0)
    layer = LogDerivativeLinear(3, 1, bias=False, values=values, dtype=torch.float64)

    def enumerated(logits: np.ndarray):
        for w in itertools.product(values.levels, repeat=3):
            ps = [references.level_probabilities(kind, logits[:, j].tolist()) for j in range(3)]
            probability = math.prod(p[values.levels.index(level)] for p, level in zip(ps, w))
            z = (X.numpy() @ np.array(w)) * float(layer.scale)
            yield w, probability, np.log1p(np.exp(z - Y.numpy())).mean()

    start = layer.weight_logits.detach()[:, 0].numpy().copy()
    expected = np.zeros_like(start)
    for index in np.ndindex(*start.shape):
        moved = [start.copy(), start.copy()]
        moved[0][index] += 1e-6
        moved[1][index] -= 1e-6
        above, below = (math.fsum(p * loss for _, p, loss in enumerated(logits)) for logits in moved)
        expected[index] = (above - below) / 2e-6
    total = np.zeros_like(expected)
    for w, probability, loss in enumerated(start):
        layer.logits.grad = None
        layer.pending = [torch.tensor([w], dtype=torch.float64)]
        surrogate_loss(layer, torch.tensor(loss), baseline=baseline).backward()
        total += probability * layer.logits.grad.view(values.logits_per_weight, 3).numpy()
    np.testing.assert_allclose(total, expected, rtol=1e-6, atol=1e-9)


@pytest.mark.parametrize("kind", SETS)
def test_one_pass_gives_loss_minus_baseline_times_the_score_and_other_parameters_their_own_gradient(kind):
    values = SETS[kind]
    torch.manual_seed(1)
    model = nn.Sequential(LogDerivativeLinear(3, 2, values=values), nn.Tanh(), nn.Linear(2, 1)).double()
    x = X.clone().requires_grad_()
    loss = loss_of(model(x))
    (w,) = model[0].pending
    total = surrogate_loss(model, loss, baseline=0.3)
    assert total.item() == loss.item()
    total.backward()
    # Without the hook: a network of the drawn weights.
    drawn = nn.Sequential(
        model[0].to_plain(w, nn.Parameter(model[0].bias.detach().clone())), nn.Tanh(), nn.Linear(2, 1)
    )
    drawn[2].load_state_dict(model[2].state_dict())
    y = X.clone().requires_grad_()
    plain_loss = loss_of(drawn.double()(y))
    plain_loss.backward()
    assert plain_loss.item() == loss.item()
    torch.testing.assert_close(x.grad, y.grad)
    torch.testing.assert_close(model[0].bias.grad, drawn[0].bias.grad)
    torch.testing.assert_close(model[2].weight.grad, drawn[2].weight.grad)
    logits = model[0].weight_logits.detach()
    grad = model[0].logits.grad.view_as(logits)
    for i, j in itertools.product(range(2), range(3)):
        score = log_p_gradient(kind, values.levels, logits[:, i, j].tolist(), w[i, j].item())
        np.testing.assert_allclose(grad[:, i, j].numpy(), (loss.item() - 0.3) * score, rtol=1e-9, atol=1e-12)


def test_the_baseline_is_the_running_mean_of_former_losses_only():
    layer = LogDerivativeLinear.from_plain(nn.Linear(3, 1), "binary", True, decay=0.75)
    baseline = None
    for loss in (4.0, 2.0, 8.0, 1.0):
        layer.logits.grad = None
        layer(torch.ones(1, 3))
        (w,) = layer.pending
        surrogate_loss(layer, torch.tensor(loss)).backward()
        score = (w[0] == 1).float() - torch.sigmoid(layer.logits.detach()[0])
        torch.testing.assert_close(layer.logits.grad[0], (loss - (baseline or 0.0)) * score)
        baseline = loss if baseline is None else 0.75 * baseline + 0.25 * loss
        assert layer.baseline.item() == pytest.approx(baseline)
    assert baseline == pytest.approx(0.75 * (0.75 * (0.75 * 4 + 0.25 * 2) + 0.25 * 8) + 0.25)


def test_the_baseline_is_saved_and_loaded():
    one, other = LogDerivativeLinear(3, 1), LogDerivativeLinear(3, 1)
    assert "baseline" not in one.state_dict()
    one(torch.ones(1, 3))
    surrogate_loss(one, torch.tensor(2.5))
    other.load_state_dict(one.state_dict())
    assert other.baseline.item() == 2.5
    other.load_state_dict(LogDerivativeLinear(3, 1).state_dict())
    assert other.baseline is None


def test_weights_are_drawn_anew_in_each_training_pass_from_the_layers_generator():
    layer = LogDerivativeLinear(4, 3, bias=False, values="ternary", scale=False)
    layer.generator = torch.Generator().manual_seed(5)
    found = [layer(torch.eye(4)) for _ in range(2)]
    again = torch.Generator().manual_seed(5)
    expected = [TERNARY.draw(layer.weight_logits, generator=again) for _ in range(2)]
    for z, w in zip(found, expected):
        assert torch.equal(z.T, w)
        assert set(w.unique().tolist()) <= {-1.0, 0.0, 1.0}
    assert not torch.equal(*expected)


def test_a_layer_that_is_used_twice_counts_both_draws():
    layer = LogDerivativeLinear(2, 2, values="binary")
    layer(layer(torch.ones(1, 2)))
    first, second = layer.pending
    surrogate_loss(layer, torch.tensor(1.0)).backward()
    p = torch.sigmoid(layer.logits.detach())
    torch.testing.assert_close(layer.logits.grad, (first == 1).float() + (second == 1).float() - 2 * p)
    assert layer.pending == []


@pytest.mark.parametrize("kind", log_derivative.LAYERS)
def test_every_kind_of_layer_starts_as_its_lr_layer_and_evaluates_the_most_probable_weights(kind):
    dimensions = 0 if kind is LogDerivativeLinear else int(kind.__name__[-2])
    plain = kind.plain(3, 3) if not dimensions else kind.plain(3, 3, 2)
    twin = kind.from_plain(plain, "ternary", True, 0.05, 0.95, decay=0.5)
    lr = getattr(lrnets, kind.__name__.replace("LogDerivative", "LR")).from_plain(plain, "ternary", True)
    x = torch.randn(2, 3, *[4] * dimensions)
    z = twin(x)
    # The drawn layer, by torch itself.
    torch.testing.assert_close(z, twin.to_plain(twin.pending[0], twin.bias)(x))
    assert torch.equal(twin.eval()(x), lr.eval()(x))
    assert torch.equal(lrnets.discretize(nn.Sequential(twin), "mode")(x), lr(x))


def test_nothing_is_remembered_without_gradients_or_in_eval_mode():
    layer = LogDerivativeLinear(2, 2)
    with torch.no_grad():
        layer(torch.ones(1, 2))
    layer.eval()(torch.ones(1, 2))
    layer.train().logits.requires_grad_(False)
    layer(torch.ones(1, 2))
    assert layer.pending == []


def test_a_loss_without_a_pass_a_loss_that_is_no_scalar_and_passes_without_loss_are_refused():
    layer = LogDerivativeLinear(2, 2)
    with pytest.raises(RuntimeError, match="train mode"):
        surrogate_loss(layer, torch.tensor(1.0))
    with pytest.raises(ValueError, match=r"scalar, got shape \(2,\)"):
        surrogate_loss(layer, torch.ones(2))
    for _ in range(log_derivative.MOST_PENDING):
        layer(torch.ones(1, 2))
    with pytest.raises(RuntimeError, match="64 training passes"):
        layer(torch.ones(1, 2))
    with pytest.raises(ValueError, match="decay must be at least 0 and below 1, got 1"):
        LogDerivativeLinear.from_plain(nn.Linear(2, 2), "binary", True, decay=1)


def test_a_tiny_problem_is_learnt():
    """One weight decides: the loss is 0 with w = +1 and 1 with w = -1, so p(+1) must go up."""
    layer = LogDerivativeLinear(1, 1, bias=False, values="binary", scale=False)
    nn.init.zeros_(layer.logits)
    layer.generator = torch.Generator().manual_seed(0)
    for _ in range(200):
        layer.logits.grad = None
        surrogate_loss(layer, (1 - layer(torch.ones(1, 1)).squeeze()) / 2).backward()
        with torch.no_grad():
            layer.logits -= 0.2 * layer.logits.grad
    assert torch.sigmoid(layer.logits).item() > 0.9


def test_convolutions_work_under_autocast():
    layer = LogDerivativeConv2d(1, 2, 3)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        loss = layer(torch.randn(2, 1, 4, 4)).float().square().mean()
    surrogate_loss(layer, loss).backward()
    assert layer.logits.grad.abs().sum() > 0
    assert layer.bias.grad.dtype == torch.float32
