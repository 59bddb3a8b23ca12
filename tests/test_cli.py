"""The command line: quick help, clear errors, and a run from a recipe to its table."""

import subprocess
import sys

import pytest

from lrnets.cli import main


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


def test_functions_and_modules_of_one_name_do_not_hide_each_other():
    code = "import lrnets.summary, lrnets.discretize; assert callable(lrnets.summary) and callable(lrnets.discretize)"
    subprocess.run([sys.executable, "-c", code], timeout=60, check=True)
    import lrnets

    assert lrnets.models.mnist_net().__class__.__name__ == "Sequential"
    with pytest.raises(AttributeError, match="no attribute 'nonsense'"):
        lrnets.nonsense  # noqa: B018


def test_recipes_are_listed(capsys):
    assert main(["recipes"]) == 0
    assert "mnist-ternary-quick" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["train", "nonsense"], "no recipe 'nonsense'"),
        (["train", "mnist-float", "--set", "seed=-3"], "seed must be from 0"),
        (["train", "mnist-float", "--data-dir", "/nowhere/at/all"], "lrnets data mnist"),
    ],
)
def test_errors_are_one_line_with_the_remedy(arguments, words, capsys):
    assert main(arguments) == 1
    text = capsys.readouterr().err
    assert words in text
    assert "Traceback" not in text


def test_evaluate_wants_whole_numbers_and_a_run(tmp_path, capsys):
    with pytest.raises(SystemExit):
        main(["evaluate", str(tmp_path), "--ensemble", "1,many"])
    assert "no list of whole numbers" in capsys.readouterr().err
    assert main(["evaluate", str(tmp_path)]) == 1
    assert "is no run folder" in capsys.readouterr().err
