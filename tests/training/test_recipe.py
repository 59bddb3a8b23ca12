"""Recipes: those that come with the library, and every way to get one wrong."""

import pytest
import yaml

from lrnets.training import load_recipe, recipe_names
from lrnets.training.recipe import Sharpen, recipe_from
from lrnets.training.recipe_difference import settings_difference


def test_every_recipe_loads_and_survives_being_written():
    kinds = [f"{data}-{weights}" for data in ("mnist", "cifar10") for weights in ("float", "binary", "ternary")]
    quick = [f"{kind}-quick" for kind in kinds]
    assert {*kinds, *quick, "mnist-binary-sharp", "mnist-ternary-sharp"} <= set(recipe_names())
    for name in recipe_names():
        recipe = load_recipe(name)
        assert recipe.name == name
        assert recipe_from(yaml.safe_load(recipe.to_yaml())) == recipe


@pytest.mark.parametrize(("data", "epochs", "milestone"), [("mnist", 190, 100), ("cifar10", 290, 170)])
def test_the_papers_numbers_stand_in_the_papers_recipes(data, epochs, milestone):
    ternary, binary = load_recipe(f"{data}-ternary"), load_recipe(f"{data}-binary")
    reference = load_recipe(f"{data}-float").float_stage
    assert (reference.epochs, reference.lr, reference.milestones) == (epochs, 0.01, (milestone,))
    for recipe in (ternary, binary):
        stage = recipe.discrete_stage
        assert (recipe.batch_size, recipe.dropout, recipe.width) == (256, 0.5, 1)
        assert (stage.scale, stage.sharpen, stage.keep_first) == (False, None, False)
        assert (stage.epochs, stage.lr, stage.milestones, stage.weight_decay) == (epochs, 0.01, (milestone,), 1e-4)
        assert (stage.p_min, stage.p_max, stage.logit_lr) == (0.05, 0.95, None)
    assert (ternary.discrete_stage.probability_decay, ternary.discrete_stage.beta) == (1e-11, 0)
    assert (binary.discrete_stage.probability_decay, binary.discrete_stage.beta) == (0, 1e-6)


def test_settings_and_own_files(tmp_path):
    recipe = load_recipe("mnist-ternary-quick", ["discrete_stage.epochs=2", "seed=3", "weights=[-2, 0, 2]"])
    assert (recipe.discrete_stage.epochs, recipe.seed, recipe.weights) == (2, 3, (-2.0, 0.0, 2.0))
    own = tmp_path / "mine.yaml"
    own.write_text(recipe.to_yaml().replace("name: mnist-ternary-quick\n", ""))
    assert load_recipe(own).name == "mine"


@pytest.mark.parametrize(
    ("setting", "words"),
    [
        ("discrete_stage.epoch=2", ["epoch"]),
        ("colour=red", ["colour"]),
        ("weights=quaternary", ["weights", "quaternary"]),
        ("float_stage.lr=fast", ["float_stage.lr", "fast"]),
        ("float_stage.lr=0", ["lr must be above 0, got 0"]),
        ("float_stage.lr=.inf", ["lr must be above 0 and finite, got inf"]),
        ("discrete_stage.logit_decay=.inf", ["logit_decay must be at least 0 and finite, got inf"]),
        ("discrete_stage.sharpen.factor=.inf", ["sharpen.factor must be at least sharpen.first, 1 and finite"]),
        ("float_stage.milestones=[3]", ["milestones belong to the step schedule"]),
        ("discrete_stage.epochs=2.5", ["epochs", "2.5"]),
        ("discrete_stage.sharpen.factor=0.5", ["sharpen.factor must be at least sharpen.first, 1, got 0.5"]),
        ("discrete_stage.sharpen.first=0", ["sharpen.first must be above 0, got 0"]),
        ("discrete_stage={epochs: 1, learn_scale: true}", ["learn_scale needs a scale", "set scale: true as well"]),
        ("discrete_stage.logit_decay=-1", ["logit_decay must be at least 0, got -1"]),
        ("discrete_stage.logit_limit=0", ["logit_limit must be above 0, got 0"]),
        ("discrete_stage.logit_limit=.inf", ["logit_limit must be above 0 and finite, got inf"]),
        ("discrete_stage.natural=true", ["those of probability_decay and beta cannot be added", "use logit_decay"]),
        ("discrete_stage.p_min=0.99", ["0 < p_min < p_max < 1"]),
        ("discrete_stage=null", ["needs a discrete_stage"]),
        ("weights=float", ["has no discrete_stage"]),
        ("method=binaryconect", ["unknown method 'binaryconect'", "binaryconnect"]),
        ("method=bwn", ["method bwn has no ternary weights, only binary", "twn"]),
        ("method=float", ["method float has no ternary weights"]),
        ("method=twn", ["discrete_stage.sharpen is for methods with logits (lr, gumbel", "leave it out for twn"]),
        ("method_options.colour=red", ["method_options", "method lr has no option 'colour'", "p_min=0.05"]),
        ("method_options.scale=true", ["write discrete_stage.scale"]),
        ("batch_size=0", ["batch_size must be at least 1, got 0"]),
        ("seed=-1", ["seed must be from 0"]),
        ("seed.x=1", ["seed"]),
        ("nonsense", ["KEY=VALUE"]),
    ],
)
def test_what_is_wrong_is_named(setting, words):
    with pytest.raises(ValueError, match=r".") as caught:
        load_recipe("mnist-ternary-quick", [setting])
    assert all(word in str(caught.value) for word in words), str(caught.value)


def test_unknown_recipes_and_files_that_are_none_are_refused(tmp_path):
    with pytest.raises(ValueError, match=r"no recipe 'mnist-septenary'.*mnist-ternary"):
        load_recipe("mnist-septenary")
    for content, words in (("- a\n- b\n", "mapping"), ("a: [", "not YAML")):
        (tmp_path / "bad.yaml").write_text(content)
        with pytest.raises(ValueError, match=words):
            load_recipe(tmp_path / "bad.yaml")


def test_a_recipe_names_its_method_and_options():
    assert load_recipe("mnist-ternary-quick").method == "lr"
    assert load_recipe("mnist-float-quick").method == "float"
    plain = ["discrete_stage.sharpen=null", "discrete_stage.probability_decay=0"]
    recipe = load_recipe("mnist-ternary-quick", [*plain, "method=twn", "method_options.per=filter"])
    assert (recipe.method, recipe.method_options) == ("twn", {"per": "filter"})
    assert recipe_from(yaml.safe_load(recipe.to_yaml())) == recipe
    with pytest.raises(
        ValueError, match=r"discrete_stage\.logit_limit is for methods with logits .*leave it out for twn"
    ):
        load_recipe("mnist-ternary-quick", [*plain, "method=twn", "discrete_stage.logit_limit=4.6"])
    gaussian = load_recipe("mnist-ternary-quick", [*plain, "weights=float", "method=gaussian"])
    assert gaussian.discrete_stage is not None
    with pytest.raises(ValueError, match="by method: gaussian needs a discrete_stage"):
        load_recipe("mnist-float-quick", ["method=gaussian"])


def test_natural_gradients_are_for_lr_nets():
    natural = ["discrete_stage.probability_decay=0", "discrete_stage.natural=true", "discrete_stage.logit_decay=0.1"]
    stage = load_recipe("mnist-ternary-quick", natural).discrete_stage
    assert (stage.natural, stage.logit_decay) == (True, 0.1)
    with pytest.raises(ValueError, match=r"discrete_stage\.natural is for method lr; leave it out for gumbel"):
        load_recipe("mnist-ternary-quick", [*natural, "method=gumbel"])


def test_a_scale_can_be_fitted_where_there_are_logits():
    stage = "discrete_stage={epochs: 1, scale: fitted}"
    assert load_recipe("mnist-ternary-quick", [stage]).discrete_stage.scale == "fitted"
    with pytest.raises(ValueError, match="scale: fitted is for methods with logits; use true for twn"):
        load_recipe("mnist-ternary-quick", [stage, "method=twn"])


def test_sharpening_can_begin_above_one():
    assert [Sharpen(start=0, first=2, factor=10).at(p) for p in (0, 0.5, 1)] == [2, 6, 10]
    exponential = Sharpen(start=0.5, first=2, factor=32, shape="exponential")
    assert [exponential.at(p) for p in (0, 0.5, 0.75, 1)] == pytest.approx([2, 2, 8, 32])


def test_sharpening_can_grow_by_the_same_ratio_in_each_step():
    sharpen = Sharpen(start=0.5, factor=100, shape="exponential")
    assert [sharpen.at(p) for p in (0, 0.5, 0.75, 1)] == pytest.approx([1, 1, 10, 100])


def test_sharpening_grows_linearly_from_its_start():
    sharpen = Sharpen(start=0.4, factor=10)
    assert [sharpen.at(p) for p in (0, 0.4)] == [1, 1]
    assert sharpen.at(0.7) == pytest.approx(5.5)
    assert sharpen.at(1) == pytest.approx(10)


def test_the_papers_numbers_stand_in_the_recipes_for_imagenet():
    ternary, binary = load_recipe("imagenet-ternary"), load_recipe("imagenet-binary")
    in_float = load_recipe("imagenet-float")
    for recipe in (ternary, binary, in_float):
        assert (recipe.batch_size, recipe.dropout, recipe.width, recipe.classes) == (256, 0, 1, 1000)
        assert (recipe.valid_size, recipe.data_options) == (10_000, {})  # of the training images; 224 of 256 pixels
    for recipe, epochs, milestones in ((ternary, 55, (30, 44)), (binary, 65, (50, 60))):
        stage = recipe.discrete_stage
        assert (stage.scale, stage.sharpen, stage.start, stage.natural) == (False, None, "pretrained", False)
        assert (stage.p_min, stage.p_max, stage.logit_lr, stage.logit_decay) == (0.05, 0.95, None, 0)
        assert stage.schedule == "step"
        assert (stage.epochs, stage.lr, stage.milestones, stage.weight_decay) == (epochs, 0.01, milestones, 1e-5)
        assert stage.keep_first is (recipe is binary)
    assert (ternary.discrete_stage.probability_decay, ternary.discrete_stage.beta) == (1e-12, 0)
    assert (binary.discrete_stage.probability_decay, binary.discrete_stage.beta) == (0, 0)
    assert (ternary.discrete_stage.logit_limit, binary.discrete_stage.logit_limit) == (None, 4.6)
    stage = in_float.float_stage  # the paper says nothing of it: the ternary schedule
    assert (stage.epochs, stage.lr, stage.schedule, stage.milestones) == (55, 0.01, "step", (30, 44))
    assert (stage.weight_decay, stage.label_smoothing) == (1e-5, 0)


def test_words_and_how_many_images_may_be_damaged_are_no_difference():
    old = load_recipe("imagenette-float")
    assert settings_difference(old, load_recipe("imagenette-float", ["data_options.damaged_share=0.1", "cost=x"])) == ""
    other = load_recipe("imagenette-float", ["data_options.size=32"])
    assert settings_difference(old, other) == "data_options.size: 64 there, 32 asked for"


@pytest.mark.parametrize("kind", ["mnist", "cifar10", "imagenet"])
@pytest.mark.parametrize("weights", ["ternary", "binary"])
def test_the_papers_recipes_have_the_variance_floor_of_the_authors_code(kind, weights):
    assert load_recipe(f"{kind}-{weights}").discrete_stage.variance_floor == 1e-3


@pytest.mark.parametrize("setting", ["float_stage.lr=[0.1", "about=a: b: c"])
def test_a_setting_that_is_no_yaml_is_named(setting):
    with pytest.raises(ValueError, match="is no value"):
        load_recipe("mnist-ternary-quick", [setting])
