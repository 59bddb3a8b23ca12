"""The settings: every row of ours, what is merged over what, what is fair, what is printed in the paper."""

import copy
import json
from dataclasses import asdict
from pathlib import Path

import pytest
from fabricated import SMALL, small_file

from lrnets.comparison.rows import load_comparison, merged
from lrnets.methods import METHODS

# Table 1 of the paper: MNIST, CIFAR-10.
TABLE_1 = {
    "binaryconnect": ("1.29±0.08", "9.9"), "bnn": ("1.4", "10.15"), "bwn": ("0.95", "9.82"),
    "lr-binary": ("0.53", "6.82"), "twn": ("0.65", "7.44"), "lr-ternary": ("0.50", "6.74"), "float": ("0.52", "6.63"),
}  # fmt: skip


@pytest.mark.parametrize("budget", ["quick", "paper"])
@pytest.mark.parametrize(("name", "column"), [("mnist", 0), ("cifar10", 1)])
def test_the_papers_figures_stand_beside_its_rows(name, column, budget):
    comparison = load_comparison(name, budget)
    printed = {row.name: row.printed for row in comparison.rows if row.printed}
    assert printed == {row: figures[column] for row, figures in TABLE_1.items()}


@pytest.mark.parametrize("budget", ["quick", "paper"])
def test_every_method_is_there_with_all_its_named_weights(budget):
    comparison = load_comparison("mnist", budget)
    found = {(row.recipe.method, row.recipe.weights) for row in comparison.rows}
    assert found == {(m.name, w) for m in METHODS.values() for w in m.weights if w != "levels"}
    assert comparison.one("binaryconnect-stochastic").printed_error is None
    assert comparison.one("twn").printed_error == 0.65
    assert next(row for row in comparison.rows if row.printed == "1.29±0.08").printed_error == 1.29


@pytest.mark.parametrize(
    ("name", "budget", "epochs", "dropout"),
    [
        ("mnist", "quick", 2, 0.5),
        ("mnist", "paper", 190, 0.5),
        ("cifar10", "quick", 5, 0),
        ("cifar10", "longer", 16, 0),
        ("cifar10", "paper", 290, 0.5),
    ],
)
def test_rows_share_start_epochs_batch_and_split(name, budget, epochs, dropout):
    comparison = load_comparison(name, budget)
    rows = [row.recipe for row in comparison.rows if row.recipe.discrete_stage]
    assert len(rows) == len(comparison.rows) - 1
    assert {r.discrete_stage.epochs for r in rows} == {epochs}
    assert {(r.batch_size, r.valid_size, r.dropout, r.network) for r in rows} == {
        (256 if budget == "paper" else 128, 5000, dropout, {"mnist": "mnist_net", "cifar10": "cifar10_vgg"}[name])
    }
    assert all(r.float_stage == comparison.start.recipe.float_stage for r in rows)


def test_the_longer_budget_of_cifar10_is_the_quick_one_with_more_epochs():
    quick, longer = load_comparison("cifar10", "quick"), load_comparison("cifar10", "longer")
    for short, long in zip((quick.start, *quick.rows), (longer.start, *longer.rows), strict=True):
        settings = asdict(short.recipe), asdict(long.recipe)
        for recipe in settings:
            del recipe["name"]
            (recipe["discrete_stage"] or recipe["float_stage"]).pop("epochs")
        assert settings[0] == settings[1], short.name


def test_sharpening_and_the_rate_are_all_that_differs_between_the_two_ternary_lr_rows_at_the_quick_budget():
    comparison = load_comparison("mnist", "quick")
    plain, sharp = (vars(comparison.one(n).recipe.discrete_stage).copy() for n in ("lr-ternary", "lr-sharp-ternary"))
    assert plain.pop("sharpen") is None
    assert sharp.pop("sharpen").factor == 10
    assert (plain.pop("logit_lr"), sharp.pop("logit_lr")) == (0.5, 0.15)
    assert plain == sharp


@pytest.mark.parametrize(("name", "file"), [("mnist", "rates.json"), ("cifar10", "rates-cifar10.json")])
def test_rates_are_the_best_of_the_search(name, file):
    """Of equal ones the lowest, as experiments/rates.py has it."""
    records = json.loads((Path(__file__).parents[2] / "experiments/records" / file).read_text())
    errors: dict[str, list[tuple[float, float]]] = {}
    for key, record in records.items():
        row, _, rate = key.partition("@")
        errors.setdefault(row, []).append((record["valid_error"], float(rate)))
    comparison = load_comparison(name, "quick")
    found = {row: comparison.one(row).recipe.discrete_stage.logit_lr for row in errors}
    assert found == {row: min(pairs)[1] for row, pairs in errors.items()}


def test_what_is_above_goes_first_and_null_takes_away():
    assert merged({"a": {"b": 1, "c": 2}, "d": 3}, {"a": {"b": 4}, "d": None}) == {"a": {"b": 4, "c": 2}, "d": None}


def test_names_choose_rows_and_methods_choose_all_of_theirs(tmp_path):
    comparison = load_comparison(small_file(tmp_path), "quick")
    assert comparison.name == "small"
    assert [row.name for row in comparison.named(["twn", "lr"])] == ["lr-ternary", "lr-binary", "twn"]
    assert len(comparison.named([])) == 4
    with pytest.raises(ValueError, match="no method 'tnw' in the table small; there are float, lr-ternary, lr-binary"):
        comparison.named(["tnw"])
    with pytest.raises(ValueError, match="several rows; name one: lr-ternary, lr-binary"):
        comparison.one("lr")


@pytest.mark.parametrize(
    ("row", "change", "words"),
    [
        ("twn", {"recipe": {"batch_size": 64}}, "'twn' has batch_size 64, the table 32"),
        ("twn", {"recipe": {"classes": 5}}, "'twn' has classes 5, the table 10"),
        ("twn", {"recipe": {"discrete_stage": {"epochs": 2}}}, "2 discrete epochs, the others 1"),
        ("twn", {"recipe": {"float_stage": {"lr": 0.1}}}, "float_stage of its own"),
        ("float", {"recipe": {"float_stage": {"epochs": 3}}}, "3 float epochs; the others have 2"),
        ("twn", {"colour": "red"}, "unknown colour; a row has label, printed, recipe"),
        ("twn", {"recipe": {"weights": "binary"}}, "row 'twn' of the table small: .*twn has no binary weights"),
    ],
)
def test_an_unfair_or_impossible_row_is_refused(tmp_path, row, change, words):
    content = copy.deepcopy(SMALL)
    content["rows"][row] = merged(content["rows"][row], change)
    with pytest.raises(ValueError, match=words):
        load_comparison(small_file(tmp_path, content), "quick")


def test_unknown_comparisons_and_budgets_are_refused_with_what_there_is(tmp_path):
    with pytest.raises(ValueError, match="neither a file nor one of cifar10, mnist"):
        load_comparison("imagenet", "quick")
    with pytest.raises(ValueError, match="no budget 'huge' in the table mnist; there are quick, paper"):
        load_comparison("mnist", "huge")
    with pytest.raises(ValueError, match="has no budgets"):
        load_comparison(small_file(tmp_path, {"recipe": {"data": "mnist"}, "rows": {"a": {}}}), "quick")
