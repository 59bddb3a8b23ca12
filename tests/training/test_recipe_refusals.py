"""What an impossible recipe is answered with: a line for people, not the parser's types."""

import pytest

from lrnets.training import load_recipe
from lrnets.training.recipe import Recipe
from lrnets.training.recipe_refusals import in_short


@pytest.mark.parametrize(
    ("setting", "answer"),
    [
        ("discrete_stage.epochs=-3", "epochs must be at least 0, got -3"),
        ("discrete_stage.milestones=5", "discrete_stage.milestones must be a list, got 5"),
        ("discrete_stage.milestones=[a]", "discrete_stage.milestones must be a whole number, got a"),
        ("discrete_stage.scale=fit", "discrete_stage.scale must be true or false or fitted, got fit"),
        ("discrete_stage.logit_lr=fast", "discrete_stage.logit_lr must be a number, got fast"),
        ("discrete_stage.sharpen={start: 2}", "sharpen.start must be from 0 to below 1, got 2.0"),
        ("discrete_stage.sharpen.start=x", "discrete_stage.sharpen.start must be a number, got x"),
        ("discrete_stage=3", "discrete_stage must be a group of settings, got 3"),
        ("float_stage.schedule=cosine", "float_stage.schedule must be step or one-cycle, got cosine"),
        ("weights=quaternary", "weights must be float or binary or ternary or a list, got quaternary"),
        ("seed=1.5", "seed must be a whole number, got 1.5"),
        ("discrete_stage.sharpen.begin=0", "there is no setting discrete_stage.sharpen.begin; there are start, factor, "
         "shape, first"),
        ("float_stage.foo=1", "there is no setting float_stage.foo; there are epochs, lr, schedule, milestones, "
         "weight_decay, label_smoothing"),
    ],
)  # fmt: skip
def test_one_line_names_setting_limit_and_value(setting, answer):
    with pytest.raises(ValueError, match=r".") as caught:
        load_recipe("mnist-ternary", [setting])
    assert str(caught.value) == f"recipe 'mnist-ternary': {answer}"


@pytest.mark.parametrize(("setting", "known"), [("nonsense=3", "batch_size"), ("discrete_stage.lrr=3", "logit_lr")])
def test_settings_that_are_none_are_answered_with_those_there_are(setting, known):
    with pytest.raises(ValueError, match=r"there is no setting .*; there are ") as caught:
        load_recipe("mnist-ternary", [setting])
    assert f", {known}," in str(caught.value)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    "name",
    [
        "name", "seed", "data_options", "float_stage", "float_stage.schedule", "discrete_stage.start",
        "discrete_stage.lr", "discrete_stage.sharpen.shape",
    ],
)  # fmt: skip
def test_a_value_that_was_forgotten_is_asked_for(name):
    """Without a schedule a stage would train on one cycle, and without a start from random weights."""
    with pytest.raises(ValueError, match=rf"^recipe 'mnist-ternary': {name} has no value; give it one, or leave it"):
        load_recipe("mnist-ternary", ["discrete_stage.sharpen={factor: 2}", f"{name}="])


def test_settings_that_may_be_without_value_are_so():
    recipe = load_recipe("mnist-ternary", ["discrete_stage.sharpen=", "discrete_stage.logit_lr=null", "method=null"])
    assert recipe.discrete_stage.sharpen is recipe.discrete_stage.logit_lr is None
    assert recipe.method == "lr"


def test_other_messages_stay_as_they_are():
    for message in ("weights: float has no discrete_stage; leave it out", "two\n  lines of something else"):
        assert in_short(message, Recipe) == message
