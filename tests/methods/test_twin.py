"""Twins of any method: which layers they are, what ties them, which parameters carry their weights."""

import pytest
import torch
from torch import nn

import lrnets
from lrnets.methods.harness import after_step, anneal, extra_loss
from lrnets.methods.twin import Twin, is_random, tied_key, twins


class Noted(Twin, nn.Linear):
    """A twin that writes down what the harness asks of it."""

    plain = nn.Linear
    carriers = ("weight",)

    def __init__(self, *args, **kwargs) -> None:
        super().__init__(*args, **kwargs)
        self.calls = []

    def anneal(self, progress):
        self.calls.append(progress)

    def extra_loss(self, loss, examples):
        self.calls.append((loss.requires_grad, examples))
        return self.weight.sum() / examples

    def after_step(self):
        self.calls.append("after")


def test_tied_layers_have_one_key_and_others_have_their_own():
    for method in ("lr", "twn", "binaryconnect", "gaussian"):
        copies = nn.Sequential(*(nn.Linear(4, 4) for _ in range(3)))
        copies[1].weight = copies[0].weight
        lrnets.convert_(copies, method=method, keep=())
        keys = [tied_key(layer) for _, layer in twins(copies)]
        assert keys[0] == keys[1] != keys[2], method


def test_randomness_is_that_of_any_layer():
    model = nn.Sequential(nn.Linear(4, 4), nn.Linear(4, 4))
    assert not is_random(model)
    lrnets.convert_(model, method="twn", only="0")
    assert not is_random(model)
    lrnets.convert_(model, method="binaryconnect", stochastic=True, keep=())
    assert is_random(model)


def test_the_harness_reaches_each_layer_once_and_tied_ones_together():
    model = nn.Sequential(Noted(3, 3), Noted(3, 3), Noted(3, 3), nn.Linear(3, 3))
    model[1].weight = model[0].weight
    anneal(model, 0.25)
    loss = model(torch.ones(1, 3)).sum()
    added = extra_loss(model, loss, 10)
    after_step(model)
    assert model[0].calls == model[2].calls == [0.25, (False, 10), "after"]
    assert model[1].calls == []
    assert added.item() == pytest.approx((model[0].weight.sum() + model[2].weight.sum()).item() / 10, rel=1e-6)
    added.backward()
    assert torch.allclose(model[2].weight.grad, torch.full((3, 3), 0.1))


@pytest.mark.parametrize(
    ("method", "groups"),
    [
        ("lr", {"logits": ["0.logits"], "weights": ["1.weight"], "rest": ["0.bias", "1.bias"]}),
        (
            "twn",
            {"latents": ["0.parametrizations.weight.original"], "weights": ["1.weight"], "rest": ["0.bias", "1.bias"]},
        ),
        (
            "bnn",
            {"logits": ["0.parametrizations.weight.original"], "weights": ["1.weight"], "rest": ["0.bias", "1.bias"]},
        ),
        ("fastdropout", {"weights": ["0.weight", "1.weight"], "rest": ["0.bias", "1.bias"]}),
        ("gaussian", {"weights": ["1.weight"], "rest": ["0.weight", "0.bias", "0.alpha_logit", "1.bias"]}),
    ],
)
def test_what_carries_weights_has_its_own_rate_and_decay_where_the_method_has_it(method, groups):
    model = nn.Sequential(nn.Linear(4, 4), nn.Linear(4, 2))
    lrnets.convert_(model, method=method)
    names = {id(parameter): name for name, parameter in model.named_parameters()}
    found = lrnets.param_groups(model, lr=1.0, logit_lr=2.0, weight_decay=3.0)
    assert {g["name"]: sorted(names[id(p)] for p in g["params"]) for g in found} == {
        name: sorted(members) for name, members in groups.items()
    }
    for group in found:
        assert group["lr"] == (2.0 if group["name"] in ("logits", "latents") else 1.0)
        assert group["weight_decay"] == (3.0 if group["name"] in ("latents", "weights") else 0.0)
