"""The command line: quick help, clear errors, and a run from a recipe to its table."""

import importlib.metadata
import json
import subprocess
import sys

import pytest
import torch

from lrnets.cli import main
from lrnets.data import Data, Split
from lrnets.training.recipe import load_recipe, recipe_names


def test_help_does_not_import_torch():
    code = """
import sys, lrnets.cli
try:
    lrnets.cli.main(["train", "--help"])
except SystemExit:
    assert "torch" not in sys.modules
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 0, done.stderr
    assert "example: lrnets train" in done.stdout


@pytest.mark.parametrize(
    "verb", ["train", "evaluate", "export", "run", "bench", "report", "demo", "table", "figures", "recipes", "data"]
)
def test_every_verb_has_help_with_an_example(verb, capsys):
    with pytest.raises(SystemExit) as done:
        main([verb, "--help"])
    assert done.value.code == 0
    assert f"example: lrnets {verb}" in capsys.readouterr().out
    with pytest.raises(SystemExit):
        main(["--help"])
    assert f"\n    {verb} " in capsys.readouterr().out


def test_only_train_speaks_of_resuming(monkeypatch, capsys):
    def interrupt(*arguments):
        raise KeyboardInterrupt

    monkeypatch.setattr("lrnets.training.recipe.shipped", interrupt)
    monkeypatch.setattr("lrnets.training.recipe.read_settings", interrupt)
    assert main(["recipes"]) == main(["train", "mnist-float"]) == 130
    lines = [line for line in capsys.readouterr().err.splitlines() if line]
    assert lines == ["interrupted", "interrupted; `lrnets train ... --resume` goes on from the last finished epoch"]


def test_functions_and_modules_of_one_name_do_not_hide_each_other():
    code = "import lrnets.summary, lrnets.discretize; assert callable(lrnets.summary) and callable(lrnets.discretize)"
    subprocess.run([sys.executable, "-c", code], timeout=60, check=True)
    import lrnets

    assert lrnets.models.mnist_net().__class__.__name__ == "Sequential"
    with pytest.raises(AttributeError, match="no attribute 'nonsense'"):
        lrnets.nonsense  # noqa: B018


@pytest.mark.parametrize("columns", [80, 200])
def test_recipes_are_listed_in_the_width_of_the_terminal(columns, monkeypatch, capsys):
    monkeypatch.setenv("COLUMNS", str(columns))
    assert main(["recipes"]) == 0
    text = capsys.readouterr().out
    assert max(map(len, text.splitlines())) <= columns
    for recipe in map(load_recipe, recipe_names()):
        words = " ".join(text[text.index(f"{recipe.name} ") :].split())
        assert words.startswith(f"{recipe.name} {recipe.about} cost: {recipe.cost} ")


def test_the_version_is_told(capsys):
    with pytest.raises(SystemExit) as done:
        main(["--version"])
    assert (done.value.code, capsys.readouterr().out) == (0, f"lrnets {importlib.metadata.version('lrnets')}\n")


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["train", "nonsense"], "no recipe 'nonsense'"),
        (["train", "mnist-float", "--set", "seed=-3"], "seed must be from 0"),
        (["evaluate", "/nowhere/at/all"], "is no run folder"),
        (["export", "/nowhere/at/all"], "no run folder or packed file at '/nowhere/at/all'"),
    ],
)
def test_errors_are_one_line_with_the_remedy(arguments, words, capsys):
    assert main(arguments) == 1
    text = capsys.readouterr().err
    assert words in text
    assert "Traceback" not in text


def test_evaluate_wants_whole_numbers(tmp_path, capsys):
    with pytest.raises(SystemExit):
        main(["evaluate", str(tmp_path), "--ensemble", "1,many"])
    assert "no list of whole numbers" in capsys.readouterr().err


def random_images(count: int) -> Split:
    return Split(torch.randint(0, 256, (count, 1, 28, 28), dtype=torch.uint8), torch.arange(count) % 10)


def test_train_brings_the_data_and_ends_with_a_table_and_evaluate_goes_on_from_there(tmp_path, capsys, monkeypatch):
    fetched = []
    data = Data("mnist", tuple("0123456789"), random_images(320), random_images(50), lambda: random_images(50))
    monkeypatch.setattr("lrnets.data.fetch", lambda *arguments: fetched.append(arguments))
    monkeypatch.setattr("lrnets.training.pipeline.load", lambda *arguments, **settings: data)
    run = str(tmp_path / "run")
    settings = ["float_stage.epochs=1", "discrete_stage.epochs=1", "batch_size=32", "draws=2", "norm_batches=1"]
    assert main(["train", "mnist-ternary-quick", "--out", run, "--data-dir", "here", "--set", *settings]) == 0
    assert fetched == [("mnist", "here")]
    text = capsys.readouterr().out
    rows = {line.split("  ")[0]: line for line in text.splitlines()}
    chosen = json.loads((tmp_path / "run/results.json").read_text())["chosen"]
    assert {"float", "mode", "2 draws", f"chosen: {chosen}", "ensemble of 2"} <= set(rows)
    assert rows["float"].endswith("2,329,256")
    assert text.endswith(f"run folder: {run}\n")
    assert main(["evaluate", run, "--draws", "2", "--ensemble", "1,2"]) == 0
    assert "ensemble of 2" in capsys.readouterr().out
    assert (tmp_path / "run/evaluation.json").exists()
