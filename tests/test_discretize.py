"""Drawn networks: what they are, what they compute, and how the best is chosen."""

import copy
import gc
import math
import weakref

import numpy as np
import pytest
import torch
from torch import nn
from torch.nn.functional import relu

import lrnets
from lrnets.layers import LRLayer, learn_scales_
from lrnets.methods import METHODS
from lrnets.methods.gumbel import GumbelLinear
from lrnets.plain import filled


def stochastic(values="ternary", **arguments) -> nn.Sequential:
    torch.manual_seed(0)
    model = nn.Sequential(
        nn.Conv2d(2, 4, 3, padding=1), nn.BatchNorm2d(4), nn.ReLU(), nn.Conv2d(4, 6, 3, stride=2, groups=2, bias=False),
        nn.Flatten(), nn.Linear(6 * 9, 5),
    )  # fmt: skip
    lrnets.convert_(model, values, keep=(), **arguments)
    return model


@pytest.mark.parametrize("mode", ["sample", "mode"])
@pytest.mark.parametrize("values", ["binary", "ternary", (-4, -2, -1, 0, 1, 2, 4)])
@pytest.mark.parametrize("scale", [True, False])
def test_weights_are_exactly_levels_of_the_value_set_times_the_scale(mode, values, scale):
    model = stochastic(values, scale=scale)
    net = lrnets.discretize(model, mode)
    assert not any(isinstance(module, LRLayer) for module in net.modules())
    for index in (0, 3, 5):
        lr, plain = model[index], net[index]
        assert type(plain) is lr.plain
        levels = torch.tensor(lr.values.levels) * (lr.scale if scale else 1)
        assert torch.isin(plain.weight, levels).all()
        assert plain.weight.unique().numel() >= 2
        assert not plain.weight.requires_grad


def test_a_drawn_network_computes_what_a_hand_written_loop_does():
    model = stochastic(scale=False).eval()
    net = lrnets.discretize(model)
    x = np.random.default_rng(0).normal(size=(2, 8, 8)).astype(np.float32)
    w, b = net[0].weight.numpy(), net[0].bias.detach().numpy()
    padded = np.pad(x, ((0, 0), (1, 1), (1, 1)))
    expected = np.zeros((4, 8, 8))
    for o in range(4):
        for i in range(8):
            for j in range(8):
                for c in range(2):
                    for di in range(3):
                        for dj in range(3):  # additions and subtractions only
                            value = padded[c, i + di, j + dj]
                            expected[o, i, j] += {1.0: value, 0.0: 0.0, -1.0: -value}[float(w[o, c, di, dj])]
                expected[o, i, j] += b[o]
    actual = net[0](torch.from_numpy(x)[None])[0].detach().numpy()
    np.testing.assert_allclose(actual, expected, atol=1e-5)


def test_the_mode_network_equals_the_stochastic_one_in_eval():
    model = stochastic().eval()
    x = torch.randn(3, 2, 8, 8)
    assert torch.equal(lrnets.discretize(model, "mode")(x), model(x))


def test_draws_follow_the_distributions_and_the_generator():
    model = nn.Sequential(lrnets.LRLinear(40, 50, scale=False))
    p = model[0].values.probabilities(model[0].weight_logits).detach()
    draws = 400
    counts = torch.zeros_like(p)
    generator = torch.Generator().manual_seed(1)
    for _ in range(draws):
        weight = lrnets.discretize(model, generator=generator)[0].weight
        counts += torch.stack([weight == level for level in (-1, 0, 1)])
    # Every one of 6000 frequencies within 5.5 standard errors: a chance of about 2e-4 to fail for a right sampler.
    error = (p * (1 - p) / draws).sqrt()
    assert ((counts / draws - p).abs() < 5.5 * error + 1 / draws).all()
    first, second, third = (
        lrnets.discretize(model, generator=torch.Generator().manual_seed(seed))[0].weight for seed in (5, 5, 6)
    )
    assert torch.equal(first, second)
    assert not torch.equal(first, third)


def test_an_explicit_generator_leaves_the_global_one_alone():
    model = stochastic()
    state = torch.get_rng_state()
    lrnets.discretize(model, generator=torch.Generator().manual_seed(0))
    lrnets.discretize(model, "mode")
    assert torch.equal(torch.get_rng_state(), state)


def test_the_stochastic_network_is_untouched_and_not_referred_to():
    model = stochastic()
    before = copy.deepcopy(model.state_dict())
    net = lrnets.discretize(model)
    for parameter in net.parameters():
        parameter.data.add_(1)
    net[1].running_mean.add_(1)
    assert model.training
    assert not net.training
    assert all(torch.equal(a, b) for a, b in zip(before.values(), model.state_dict().values()))
    alive = [weakref.ref(module) for module in model.modules()] + [weakref.ref(p) for p in model.parameters()]
    del model
    gc.collect()
    assert all(reference() is None for reference in alive)


def test_drawn_networks_can_be_saved_loaded_copied_and_exported(tmp_path):
    net = lrnets.discretize(stochastic())
    x = torch.randn(2, 2, 8, 8)
    expected = net(x)
    torch.save(net.state_dict(), tmp_path / "net.pt")
    again = lrnets.discretize(stochastic(), "mode")
    again.load_state_dict(torch.load(tmp_path / "net.pt", weights_only=True))
    assert torch.equal(again(x), expected)
    assert torch.equal(copy.deepcopy(net)(x), expected)
    torch.testing.assert_close(torch.export.export(net, (x,)).module()(x), expected)


def test_tied_weights_with_scales_of_their_own_are_one_draw_and_two_weights():
    model = nn.Sequential(nn.Linear(3, 3), nn.Linear(3, 3))
    model[1].weight = model[0].weight
    lrnets.convert_(model, "ternary", keep=[])
    learn_scales_(model)
    with torch.no_grad():
        model[1].gain.fill_(-2.0)
    drawn, x = lrnets.discretize(model), torch.randn(4, 3)
    torch.testing.assert_close(drawn[1].weight, -2 * drawn[0].weight)
    torch.testing.assert_close(lrnets.discretize(model, "mode")(x), model.eval()(x))


def test_shared_modules_stay_shared_and_a_lone_layer_is_drawn_too():
    model = nn.Sequential()
    model.a = nn.Linear(4, 4)
    model.b = nn.Sequential(model.a)
    lrnets.convert_(model, keep=())
    net = lrnets.discretize(model)
    assert net.a is net.b[0]
    assert type(lrnets.discretize(lrnets.LRConv1d(2, 3, 2))) is nn.Conv1d


def test_hooks_on_a_stochastic_layer_work_on_the_drawn_one():
    model = stochastic()
    model[0].register_forward_pre_hook(lambda _, args: (args[0] * 0,))
    net = lrnets.discretize(model, "mode")
    x = torch.randn(1, 2, 8, 8)
    torch.testing.assert_close(net[0](x)[0, :, 0, 0], net[0].bias)


def test_unknown_mode_is_named():
    with pytest.raises(ValueError, match="'best'"):
        lrnets.discretize(stochastic(), "best")


def test_select_best_keeps_the_highest_score_of_really_drawn_networks():
    model = stochastic()
    seen = []

    def score(net: nn.Module) -> float:
        assert not any(isinstance(module, LRLayer) for module in net.modules())
        seen.append(net)
        return [0.3, 0.9, 0.9, float("-inf")][len(seen) - 1]

    net, scores = lrnets.select_best(model, score, draws=4)
    assert scores == [0.3, 0.9, 0.9, float("-inf")]
    assert net is seen[1]
    assert len({n[0].weight.flatten().numpy().tobytes() for n in seen}) == 4
    assert model.training


def test_select_best_is_reproducible_with_a_generator():
    model = stochastic()
    runs = [
        lrnets.select_best(model, lambda net: net[0].weight.sum(), draws=3, generator=torch.Generator().manual_seed(3))
        for _ in range(2)
    ]
    assert runs[0].scores == runs[1].scores
    assert torch.equal(runs[0].net[0].weight, runs[1].net[0].weight)


@pytest.mark.parametrize("draws", [0, -1, 1.5, True])
def test_select_best_refuses_impossible_draws(draws):
    with pytest.raises(ValueError, match="at least 1"):
        lrnets.select_best(stochastic(), lambda net: 0.0, draws=draws)


def test_select_best_refuses_a_nan_score():
    scores = iter([1.0, float("nan"), 2.0])
    with pytest.raises(ValueError, match="draw 2 of 3 is NaN"):
        lrnets.select_best(stochastic(), lambda net: next(scores), draws=3)


def test_full_backward_hooks_work_on_the_drawn_layer():
    model, calls = stochastic(), []
    model[0].register_full_backward_hook(lambda *_: calls.append(1))
    net = lrnets.discretize(model, "mode")
    net(torch.randn(1, 2, 8, 8, requires_grad=True)).sum().backward()
    assert calls == [1]


def test_a_network_without_numbers_is_drawn_too():
    with torch.device("meta"):
        model = nn.Sequential(nn.Linear(4, 4), nn.Linear(4, 4), nn.Linear(4, 2))
    lrnets.convert_(model)
    net = lrnets.discretize(model)
    assert [type(layer) for layer in net] == [nn.Linear] * 3
    assert net[0].weight.is_meta
    assert net[0].weight is not net[1].weight


@pytest.mark.parametrize("method", [name for name, method in METHODS.items() if method.home])
def test_a_layer_without_numbers_is_named_whatever_its_method(method):
    model = nn.Sequential(nn.Linear(4, 4), nn.ReLU(), nn.Linear(4, 3))
    lrnets.convert_(model, method=method)
    before = torch.get_rng_state()
    carrier = next(p for name, p in model[0].named_parameters() if p.dim() == 2)
    with torch.no_grad():
        carrier[0, :3] = math.nan
        carrier[1, 0] = math.inf  # decided, which is allowed
    for mode in ("sample", "mode"):
        with pytest.raises(ValueError, match=r"layer '0': 3 of \d+ .* are NaN.* earlier checkpoint.* learning rate"):
            lrnets.discretize(model, mode)
    assert torch.equal(torch.get_rng_state(), before)


class Rectified(lrnets.LRLinear):
    """A layer with an activation of its own."""

    def forward(self, input):
        return relu(super().forward(input))


class RectifiedGumbel(GumbelLinear):
    """One of another method."""

    def forward(self, input):
        return relu(super().forward(input))


class RectifiedPlain(nn.Linear):
    def forward(self, input):
        return relu(super().forward(input))


class Answered(Rectified):
    """It says what it becomes."""

    def to_plain(self, levels, bias):
        return filled(RectifiedPlain, self, self.scaled(levels), bias)


def test_a_layer_that_computes_something_of_its_own_is_not_drawn_as_torchs():
    for kind in (Rectified, RectifiedGumbel):
        with pytest.raises(ValueError, match=rf"layer '0': {kind.__name__} has a forward of its own.*to_plain"):
            lrnets.discretize(nn.Sequential(kind(3, 2)))
    model, x = nn.Sequential(Answered(3, 2)).eval(), torch.randn(5, 3)
    torch.testing.assert_close(lrnets.discretize(model, "mode")(x), relu(x @ model[0].weight.T + model[0].bias))


class Own(LRLayer):
    """A layer of another kind, which names what it stands for."""

    plain = nn.Linear

    def __init__(self, *sizes):
        super().__init__(nn.Linear(*sizes, device="meta"), "ternary", True, None, None)

    def forward(self, input):
        return self._compute(input)


def test_a_layer_of_a_new_kind_answers_for_itself():
    model, x = nn.Sequential(Own(4, 3)).eval(), torch.randn(2, 4)
    assert torch.equal(lrnets.discretize(model, "mode")(x), model(x))


def test_what_a_forward_pass_has_left_behind_is_copied_as_a_number():
    class Remembering(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layer = lrnets.LRLinear(4, 3)
            self.register_buffer("last", None)

        def forward(self, x):
            y = self.layer(x)
            self.aux, self.last = y.mean(), y
            return y

    model = Remembering()
    model(torch.ones(2, 4))
    net = lrnets.discretize(model)
    assert (net.aux.requires_grad, net.last.requires_grad) == (False, False)
    assert net.aux.item() == model.aux.item()
    assert torch.equal(net.last, model.last)
    net.aux.add_(1)
    assert net.aux.item() != model.aux.item()
    assert model.aux.grad_fn is not None
    assert lrnets.select_best(model, lambda net: net.aux, draws=2).net.aux.item() == model.aux.item()


def test_arguments_of_other_types_are_named():
    with pytest.raises(TypeError, match=r"discretize takes a torch.nn.Module, got 3 \(int\)"):
        lrnets.discretize(3)
    with pytest.raises(TypeError, match=r"generator must be a torch.Generator or None, got 3 \(int\)"):
        lrnets.discretize(stochastic(), generator=3)
    with pytest.raises(TypeError, match=r"select_best takes a torch.nn.Module, got None \(NoneType\)"):
        lrnets.select_best(None, float, draws=2)
    for score, shown in ((None, r"None \(NoneType\)"), ("good", r"'good' \(str\)")):
        with pytest.raises(TypeError, match=rf"score\(net\) must return a number, .*got {shown}"):
            lrnets.select_best(stochastic(), lambda net, score=score: score, draws=2)
