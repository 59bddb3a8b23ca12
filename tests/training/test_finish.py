"""The choice at the end of a run, on two pixels: which of them is bright is the class."""

from __future__ import annotations

import torch

from lrnets.data import Data, Split
from lrnets.data.augment import Transforms, scale
from lrnets.layers import LRLinear
from lrnets.training.finish import finish_random
from lrnets.training.recipe import recipe_from
from lrnets.training.run_folder import RunFolder
from lrnets.training.stored import load_into

CERTAIN = 9.0  # a logit
RIGHT = torch.eye(2) * 2 - 1  # weights that name every image


def bright_pixels(count: int) -> Split:
    labels = torch.arange(count) % 2
    images = torch.nn.functional.one_hot(labels, 2).mul(255).to(torch.uint8)
    return Split(images.reshape(count, 1, 1, 2), labels)


def finish(folder, zero_logit: float, draws: int) -> tuple[dict, torch.Tensor]:
    """Results, and the stored weights, of a layer whose weights are 0 with odds of `zero_logit`, and else right."""
    model = torch.nn.Sequential(torch.nn.Flatten(), LRLinear(2, 2, bias=False))
    with torch.no_grad():
        logits = model[1].logits
        logits.copy_(torch.stack([torch.full((2, 2), zero_logit), RIGHT * CERTAIN]).view_as(logits))
    recipe = recipe_from({
        "name": "two-pixels", "about": "a test", "data": "mnist", "network": "mnist_net", "weights": "ternary",
        "float_stage": {"epochs": 0}, "discrete_stage": {"epochs": 1}, "draws": draws,
    })  # fmt: skip
    data = Data("pixels", ("left", "right"), bright_pixels(8), bright_pixels(8), lambda: bright_pixels(10))
    plain = torch.nn.Sequential(torch.nn.Flatten(), torch.nn.Linear(2, 2, bias=False))
    run = RunFolder(folder)
    folder.mkdir()
    results = finish_random(recipe, run, plain, model, data, Transforms(scale, scale))
    load_into(plain, run, "drawn", recipe)
    return results, plain[1].weight.detach()


def test_the_most_probable_network_is_stored_when_no_draw_is_better(tmp_path):
    results, weight = finish(tmp_path / "run", -CERTAIN, draws=3)  # draws are as good
    assert results["valid_error_of_draws"] == [0, 0, 0]
    assert results["chosen"] == "mode"
    assert results["valid_error"]["mode"] == results["valid_error"]["chosen"] == 0
    torch.testing.assert_close(weight.sign(), RIGHT)  # the layer has a scale


def test_a_better_draw_is_stored_and_named(tmp_path):
    results, weight = finish(tmp_path / "run", 0.02, draws=12)  # 0 is the likeliest by a hair, and knows nothing
    draws = results["valid_error_of_draws"]
    assert results["valid_error"]["mode"] == 50
    assert 0 in draws
    assert results["valid_error"]["chosen"] == results["test_error"]["chosen"] == 0
    assert results["chosen"] == f"draw {draws.index(0) + 1}"
    assert (weight @ torch.eye(2)).argmax(0).tolist() == [0, 1]
