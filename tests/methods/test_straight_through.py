"""The mechanism of straight-through methods: what conversion keeps, what trains, what it ends in."""

import copy

import numpy as np
import pytest
import torch
from straight import AS_THEY_ARE, PLAIN_ACTIVATIONS, STRAIGHT, some_weights, twin_of
from torch import nn
from torch.nn import functional as F

import lrnets
from lrnets.methods import METHODS
from lrnets.methods.harness import after_step
from lrnets.methods.straight_through import StraightThrough, straight_through
from lrnets.methods.twin import twins


def small_net() -> nn.Sequential:
    torch.manual_seed(0)
    return nn.Sequential(
        nn.Conv2d(3, 8, 3, padding=1, padding_mode="reflect"), nn.BatchNorm2d(8), nn.ReLU(),
        nn.Conv2d(8, 8, 3, stride=2, dilation=2, groups=2, bias=False), nn.Flatten(), nn.Linear(32, 16), nn.ReLU(),
        nn.Linear(16, 4),
    )  # fmt: skip


def test_the_function_gives_the_quantised_numbers_exactly_and_both_gradients():
    latent = torch.tensor([0.1, 1e30, -1e-30, 3.3], dtype=torch.float32, requires_grad=True)
    scale = torch.tensor(0.3, requires_grad=True)
    codes, slope = torch.tensor([1.0, 0.0, -1.0, 1.0]), torch.tensor([2.0, 3.0, 4.0, 5.0])
    upstream = torch.tensor([1.0, -1.0, 0.5, 2.0])
    y = straight_through(latent, scale * codes, slope)
    assert torch.equal(y, scale * codes)
    (y * upstream).sum().backward()
    assert latent.grad.tolist() == [2.0, -3.0, 2.0, 10.0]
    assert scale.grad.item() == 1.0 - 0.5 + 2.0


@pytest.mark.parametrize("method", STRAIGHT)
def test_conversion_keeps_bias_settings_mode_format_and_frozenness(method):
    model = small_net().double().eval().to(memory_format=torch.channels_last)
    model[0].weight.requires_grad_(False)
    bias, float_weight = model[0].bias, model[3].weight
    report = lrnets.convert_(model, method=method)
    assert report.converted == ["0", "3", "5"]
    assert model[0].bias is bias
    assert model[3].bias is None
    assert (model[3].stride, model[3].dilation, model[3].groups) == ((2, 2), (2, 2), 2)
    assert model[0].padding_mode == "reflect"
    assert not model[0].latent.requires_grad
    assert model[3].latent.requires_grad
    assert model[3].latent.dtype == torch.float64
    assert model[3].latent.is_contiguous(memory_format=torch.channels_last)
    assert not any(module.training for module in model.modules())
    assert (model[3].latent is float_weight) == (method in AS_THEY_ARE)


@pytest.mark.parametrize("method", STRAIGHT)
def test_conversion_draws_no_numbers_and_leaves_the_float_layers_as_they_were(method):
    model = small_net()
    layers, before = [model[0], model[5]], copy.deepcopy([model[0], model[5]])
    state = torch.get_rng_state()
    lrnets.convert_(model, method=method, **({"stochastic": True} if method == "binaryconnect" else {}))
    assert torch.equal(state, torch.get_rng_state())
    for layer, old in zip(layers, before):
        assert type(layer) is type(old)
        assert torch.equal(layer.weight, old.weight)


@pytest.mark.parametrize("method", STRAIGHT)
@pytest.mark.parametrize(
    ("layer", "shape"),
    [
        (lambda: nn.Linear(6, 5), (4, 6)),
        (lambda: nn.Conv1d(4, 6, 3, groups=2), (4, 4, 7)),
        (lambda: nn.Conv2d(2, 5, 3, padding=1), (4, 2, 6, 6)),
        (lambda: nn.Conv3d(2, 5, 2, bias=False), (4, 2, 4, 4, 4)),
    ],
)
def test_the_discrete_network_is_the_training_network_in_eval(method, layer, shape):
    torch.manual_seed(0)
    model = nn.Sequential()
    model.before, model.layer = nn.BatchNorm1d(shape[1]) if len(shape) == 2 else nn.Identity(), layer()
    lrnets.convert_(model, method=method, keep=())
    x = torch.randn(shape)
    net = lrnets.discretize(model, "mode")
    assert not any(isinstance(module, StraightThrough) for module in net.modules())
    assert isinstance(net.layer, model.layer.plain)
    assert not net.layer.weight.requires_grad
    assert torch.equal(model.eval()(x), net(x))
    sizes = net.layer.weight.abs().flatten(1)
    if method != "ttq":  # 0 or one size for each filter: what packed files can hold
        assert ((sizes == 0) | (sizes == sizes.amax(1, keepdim=True))).all()
    else:
        assert net.layer.weight.unique().numel() == 3


@pytest.mark.parametrize("method", STRAIGHT)
def test_training_lowers_the_loss_of_the_discrete_network(method):
    torch.manual_seed(0)
    teacher = nn.Sequential(nn.Linear(10, 24), nn.BatchNorm1d(24), nn.ReLU(), nn.Linear(24, 24), nn.Linear(24, 3))
    x = torch.randn(256, 10)
    y = (x[:, :3] + x[:, 3:6]).argmax(1)
    lrnets.convert_(teacher, method=method)
    optimizer = torch.optim.Adam(lrnets.param_groups(teacher, lr=0.01))
    losses = []
    for _ in range(60):
        loss = F.cross_entropy(teacher(x), y)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        after_step(teacher)
        losses.append(loss.item())
    net = lrnets.update_bn(lrnets.discretize(teacher, "mode"), [x])
    assert F.cross_entropy(net(x), y) < 0.6 * losses[0]


@pytest.mark.parametrize("method", PLAIN_ACTIVATIONS)
def test_shared_and_tied_layers_stay_so(method):
    model = nn.Sequential(nn.Linear(6, 6), nn.Linear(6, 6), nn.Linear(6, 2))
    model[1].weight = model[0].weight
    model.append(model[0])
    lrnets.convert_(model, method=method, keep="2")
    assert model[3] is model[0]
    assert model[0].latent is model[1].latent
    assert len(list(twins(model))) == 2
    net = lrnets.discretize(model, "mode")
    assert net[0].weight is net[1].weight
    assert net[3] is net[0]


def test_states_are_saved_loaded_and_copied():
    torch.manual_seed(1)
    x = torch.randn(2, 3, 8, 8)
    for method in STRAIGHT:
        model, other = small_net(), small_net()
        lrnets.convert_(model, method=method)
        lrnets.convert_(other, method=method)
        with torch.no_grad():
            for parameter in model.parameters():
                parameter.add_(0.1 * torch.randn_like(parameter))
        expected = model.eval()(x)
        assert not torch.equal(other.eval()(x), expected)
        other.load_state_dict(model.state_dict())
        assert torch.equal(other(x), expected)
        assert torch.equal(copy.deepcopy(model)(x), expected)


def test_a_layer_can_be_made_by_itself():
    for layer in (nn.Linear(4, 3).eval(), nn.Linear(4, 3)):
        (maker,) = [maker for maker in METHODS["twn"].layers() if maker.plain is nn.Linear]
        twin = maker.from_plain(layer, None)
        assert [module.training for module in twin.modules()] == [layer.training] * len(list(twin.modules()))
        assert len(twin.weight.unique()) == 3


def test_hooks_go_along_to_the_twin_and_to_the_discrete_layer():
    model = small_net()
    calls = []
    model[0].register_forward_hook(lambda *_: calls.append("forward"))
    lrnets.convert_(model, method="twn")
    model(torch.randn(2, 3, 8, 8))
    lrnets.discretize(model, "mode")(torch.randn(2, 3, 8, 8))
    assert calls == ["forward", "forward"]


def test_weight_decay_is_for_methods_that_have_it():
    for method, name in (("twn", "latents"), ("bwn", "latents"), ("binaryconnect", "logits"), ("bnn", "logits")):
        twin = twin_of(some_weights(4, 4), method)
        (group,) = [
            g for g in lrnets.param_groups(twin, lr=1e-3, logit_lr=2e-3, weight_decay=1e-4) if g["name"] == name
        ]
        assert [id(p) for p in group["params"]] == [id(twin.latent)]
        assert (group["lr"], group["weight_decay"]) == (2e-3, 1e-4 if name == "latents" else 0.0)


def test_the_best_of_the_one_network_is_scored_once():
    model = nn.Sequential(twin_of(some_weights(4, 4), "twn"))
    chosen, scores = lrnets.select_best(model, lambda net: 0.5, draws=7)
    assert scores == [0.5]
    assert type(chosen[0]) is nn.Linear


def test_functional_calls_see_the_quantised_weights():
    twin = twin_of(some_weights(4, 6), "bwn")
    x = torch.randn(3, 6, dtype=torch.float64)
    other = {"parametrizations.weight.original": torch.tensor(some_weights(4, 6, seed=5))}
    w = some_weights(4, 6, seed=5)
    expected = x.numpy() @ (np.where(w >= 0, 1, -1) * np.abs(w).mean(1, keepdims=True)).T + twin.bias.detach().numpy()
    found = torch.func.functional_call(twin, other, (x,))
    np.testing.assert_allclose(found.detach().numpy(), expected)
