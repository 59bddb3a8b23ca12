"""The list of methods: what it promises holds for each of them."""

import subprocess
import sys
from pathlib import Path

import pytest
import torch
from torch import nn
from torch.nn import functional as F

import lrnets
from lrnets.layers import LRLayer
from lrnets.methods import METHODS, method_named
from lrnets.methods.harness import after_step, anneal, extra_loss
from lrnets.methods.twin import Twin, is_random, twins
from lrnets.models import mnist_net

NAMES = [
    "lr", "float", "binaryconnect", "bnn", "bwn", "xnor", "twn", "ttq", "gumbel", "logderivative", "gaussian", "ebp",
    "fastdropout", "bitnet",
]  # fmt: skip
TRAINED = [name for name in NAMES if name != "float"]


def small_net() -> nn.Sequential:
    torch.manual_seed(0)
    return nn.Sequential(
        nn.Conv2d(1, 4, 3), nn.BatchNorm2d(4), nn.ReLU(), nn.MaxPool2d(2), nn.Flatten(), nn.Linear(36, 8), nn.ReLU(),
        nn.Linear(8, 3),
    )  # fmt: skip


def test_the_list_is_complete_and_costs_no_import_of_torch():
    assert sorted(METHODS) == sorted(NAMES)
    code = "import sys, lrnets.methods as m; assert len(m.METHODS) == 14; assert 'torch' not in sys.modules"
    subprocess.run([sys.executable, "-c", code], check=True)


@pytest.mark.parametrize("name", TRAINED)
def test_a_method_converts_trains_and_ends_in_the_network_it_evaluates(name):
    method, model = METHODS[name], small_net()
    report = lrnets.convert_(model, method=name)
    assert report.converted == ["0", "5"]
    assert "classifier" in report.kept["7"]
    assert {row.values for row in report.rows if not row.reason} == {method.default_weights}
    assert all(isinstance(layer, LRLayer) == method.logits for _, layer in twins(model))
    x, y = torch.randn(16, 1, 8, 8), torch.randint(3, (16,))
    optimizer = torch.optim.Adam(lrnets.param_groups(model, lr=0.01))
    before = {key: parameter.detach().clone() for key, parameter in model.named_parameters()}
    for step in range(2):
        anneal(model, step / 2)
        loss = F.cross_entropy(model(x), y)
        loss = loss + extra_loss(model, loss, 1000)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        after_step(model)
    changed = [key for key, parameter in model.named_parameters() if not torch.equal(parameter, before[key])]
    assert any(key.startswith("0.") for key in changed)
    assert any(key.startswith("5.") for key in changed)
    net = lrnets.discretize(model, "mode")
    assert not any(isinstance(module, (LRLayer, Twin)) for module in net.modules())
    assert torch.equal(net(x), model.eval()(x))
    for index in (0, 5):
        levels = net[index].weight.detach().abs().flatten(1)
        if method.default_weights != "float" and name != "ttq":
            assert ((levels == 0) | (levels == levels.amax(1, keepdim=True))).all()
    draws = [lrnets.discretize(model, generator=torch.Generator().manual_seed(seed))[5].weight for seed in (0, 1)]
    assert torch.equal(*draws) != is_random(model)


@pytest.mark.parametrize("name", TRAINED)
def test_rules_and_options_are_those_of_convert_for_every_method(name):
    assert lrnets.convert_(small_net(), method=name, only="0").converted == ["0"]
    with pytest.raises(ValueError, match="matches no layer; the layers are 0, 5, 7"):
        lrnets.convert_(small_net(), method=name, keep="conv9")
    model = small_net()
    with pytest.raises(TypeError, match=rf"method {name} has no option 'colour'; it has "):
        lrnets.convert_(model, method=name, colour="red")
    with torch.no_grad():
        model[5].weight[0, 0] = float("nan")
    if METHODS[name].default_weights != "float":
        with pytest.raises(ValueError, match="layer '5': 1 of 288 weights are NaN"):
            lrnets.convert_(model, method=name)
    lrnets.convert_(small_net(), METHODS[name].default_weights, method=name, **METHODS[name].options)


@pytest.mark.parametrize("name", TRAINED)
def test_converting_again_converts_what_is_left(name):
    model = small_net()
    lrnets.convert_(model, method=name, only="0")
    assert lrnets.convert_(model, "binary").converted == ["5"]
    with pytest.raises(ValueError, match="already"):
        lrnets.convert_(model, method=name, keep=("7",))


@pytest.mark.parametrize("name", ["bnn", "ebp"])
def test_what_takes_an_activations_place_takes_its_mode_and_hooks(name):
    model = small_net().eval()
    calls = []
    model[2].register_forward_hook(lambda *_: calls.append(1))
    lrnets.convert_(model, method=name)
    assert type(model[2]) is not nn.ReLU
    assert not any(module.training for module in model.modules())
    model(torch.randn(1, 1, 8, 8))
    assert calls == [1]


def test_float_converts_nothing_and_says_so():
    model = mnist_net()
    kinds = [type(module) for module in model.modules()]
    report = lrnets.convert_(model, method="float")
    assert report.converted == []
    assert set(report.kept.values()) == {"method float"}
    assert [type(module) for module in model.modules()] == kinds


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ({"method": "binaryconect"}, ["unknown method 'binaryconect'", *NAMES]),
        ({"method": "binaryconnect", "values": "ternary"}, ["no ternary weights, only binary", "lr, twn, ttq"]),
        ({"method": "twn", "values": "binary"}, ["no binary weights, only ternary", "binaryconnect, bnn, bwn, xnor"]),
        ({"method": "ttq", "values": (-2, 0, 2)}, ["no (-2, 0, 2) weights", "lr, gumbel, logderivative"]),
        ({"method": "lr", "values": "float"}, ["no float weights", "float, gaussian, fastdropout"]),
        ({"method": "gaussian", "values": "binary"}, ["only float"]),
    ],
)
def test_what_a_method_cannot_do_is_refused_with_what_can(arguments, words):
    model = small_net()
    with pytest.raises(ValueError, match="method") as caught:
        lrnets.convert_(model, **arguments)
    assert all(word in str(caught.value) for word in words), str(caught.value)
    assert type(model[0]) is nn.Conv2d


def test_layers_of_a_kind_without_a_twin_are_reported():
    model = nn.Sequential(nn.ConvTranspose2d(2, 2, 2), nn.Conv2d(2, 2, 2))
    report = lrnets.convert_(model, method="twn")
    assert report.converted == ["1"]
    assert "ConvTranspose2d has no twn twin" in report.kept["0.weight"]


def test_the_page_about_the_methods_lists_each_with_its_options():
    page = Path(__file__).parents[2].joinpath("docs/methods.md").read_text()
    rows = {line.split("|")[1].strip(" `"): line.split("|") for line in page.splitlines() if line.startswith("| `")}
    assert sorted(rows) == sorted(NAMES)
    for name, (_, _, weights, activations, _, options, *_) in rows.items():
        method = METHODS[name]
        assert [w.strip().replace("any levels", "levels") for w in weights.split(",")] == list(method.weights)
        assert (activations.strip() or "unchanged") == method.activations
        assert [o.strip(" `") for o in options.split(",") if o.strip()] == list(method.options)


def test_every_entry_tells_what_it_is():
    for name in NAMES:
        method = method_named(name)
        assert len(method.about) > 10
        assert (method.home is None) == (name == "float")
        for layer in method.layers():
            assert issubclass(layer.plain, nn.Module)


def test_hooks_of_the_harness_check_what_they_are_given():
    with pytest.raises(ValueError, match="from 0 to 1"):
        anneal(small_net(), 1.5)
    with pytest.raises(ValueError, match="must be a scalar"):
        extra_loss(small_net(), torch.ones(3), 10)
    assert extra_loss(small_net(), torch.tensor(2.0), 10).item() == 0
