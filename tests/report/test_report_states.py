"""Folders that are incomplete, older or damaged: a page of what there is, and what is missing with its remedy."""

import json
import shutil

import pytest
from report_page import Page, read_page

from lrnets.cli import main
from lrnets.report import write_report
from lrnets.report.found import look_into
from lrnets.training.run_folder import RunFolder

pytestmark = pytest.mark.usefixtures("without_figures")


@pytest.fixture
def copied(ternary, tmp_path) -> RunFolder:
    shutil.copytree(ternary.path, tmp_path / "run")
    return RunFolder(tmp_path / "run")


def page_of(folder: RunFolder) -> Page:
    return read_page(write_report(folder.path, data_dir=str(folder.path / "no-data"), say=lambda text: None))


def remove(folder: RunFolder, *names: str) -> None:
    for name in names:
        path = folder.path / name
        shutil.rmtree(path) if path.is_dir() else path.unlink()


LATER = ("results.json", "drawn.safetensors", "examples.safetensors")


def test_interrupted_in_the_float_stage(copied):
    remove(copied, *LATER, "stochastic.safetensors", "float.safetensors", "metrics/stochastic.csv")
    page = page_of(copied)
    assert "The run is not finished: it stopped, or still is, in training the float network, with 1 of 1" in page.words
    assert f"lrnets train {copied.recipe_file} --out {copied.path} --resume" in page.pre
    assert "Not finished: epoch 1 of 1 of the float stage is done" in page.words
    assert "the float network before training, by the recipe" in page.words
    assert "the network that the run chose" not in page.words


def test_interrupted_before_the_first_epoch(copied):
    remove(copied, *LATER, "stochastic.safetensors", "float.safetensors", "metrics")
    page = page_of(copied)
    assert "not one epoch is finished" in page.words
    assert "Training" not in [text for _, own in page.elements for text in own.values()]
    assert "Loss." not in page.words


def test_interrupted_in_the_discrete_stage(copied):
    remove(copied, *LATER, "stochastic.safetensors")
    lines = (copied.path / "metrics/stochastic.csv").read_text().splitlines()
    (copied.path / "metrics/stochastic.csv").write_text("\n".join(lines[:2]) + "\n")
    page = page_of(copied)
    assert "in training the discrete weights, with 1 of 2 epochs done" in page.words
    error = dict(zip(lines[0].split(","), lines[1].split(",")))["valid_error"]
    assert f"the discrete network is wrong on {float(error):.2f} % of the validation images" in page.words
    assert "This is the float network:" in page.words


def test_interrupted_while_choosing(copied):
    remove(copied, *LATER)
    page = page_of(copied)
    assert "training is done, and the network is still to be chosen and tested" in page.words
    assert "This is the most probable network so far:" in page.words
    assert "entropy (bits)" in page.tables["Layers"][0]
    assert "the Gaussian fit is left out: the data cannot be used" in page.words


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("recipe.yaml", "Without a recipe nobody can tell"),
        ("environment.json", "There is no environment.json"),
        ("metrics", "There is no metrics/stochastic.csv"),
        ("drawn.safetensors", "This is the most probable network so far"),
        ("stochastic.safetensors", "This is the network that the run chose"),
    ],
)
def test_a_file_is_missing(copied, name, words):
    error = json.loads((copied.path / "results.json").read_text())["test_error"]["chosen"]
    remove(copied, name)
    page = page_of(copied)
    assert words in page.words
    assert f"is wrong on {error:.2f} % of the test images" in page.words


DAMAGES = {
    "recipe.yaml": [b"\xff\xfe\x00", b"about: [", b"about: x\nnew_setting_of_tomorrow: 3\n"],
    "results.json": [
        b"{", b"[1, 2]", b'{"test_error": {"float": "much"}}',
        b'{"test_error": {"mode": NaN}, "bytes": {"float": -1, "discrete": 1e400}, "seconds": [3]}',
        b'{"test_error": {"chosen": 1.5}, "valid_error": {"chosen": 1}, "bytes": {}, "draws": "some"}',
    ],
    "environment.json": [b"{", b'"text"', b'{"commit": 3, "command": ["a"], "seed": {}}'],
    "evaluation.json": [b"{", b'{"networks": 3}', b'{"networks": {"float": {}}, "draws": 1}'],
    "metrics/stochastic.csv": [b"\x00\xff", b"loss\n3\n", b"epoch,loss\n1,nan\n2,inf\n", b"epoch,loss\n1,2,3,4\n"],
    "metrics/float.csv": [b"epoch\nx\n", b"epoch,lr\n1,0\n2,1\n"],
    "drawn.safetensors": [b"", b"\x00" * 20, b"\x10\x00\x00\x00\x00\x00\x00\x00{}"],
    "stochastic.safetensors": [b"", b"nonsense"],
    "float.safetensors": [b""],
    "examples.safetensors": [b"", b"nonsense"],
}  # fmt: skip
FIRST = ("results.json", "metrics/stochastic.csv", "drawn.safetensors")  # one of each kind


@pytest.mark.parametrize(
    "name",
    [name if name in FIRST else pytest.param(name, marks=pytest.mark.thorough) for name in DAMAGES],
)
def test_a_damaged_file_costs_its_part_alone(copied, name):
    for content in DAMAGES[name]:
        (copied.path / name).write_bytes(content)
        page = page_of(copied)
        assert "Files" in page.words
        if name.endswith(".safetensors") and name != "float.safetensors":
            assert "Please note" in page.words


def test_a_note_names_the_file_and_what_is_wrong_with_it(copied):
    (copied.path / "results.json").write_text("{")
    (copied.path / "metrics/stochastic.csv").write_text("epoch,loss\n1,many\n")
    words = page_of(copied).words
    assert "results.json cannot be used: Expecting property name" in words
    assert "metrics/stochastic.csv cannot be used: could not convert string to float: 'many'" in words


def test_weights_that_do_not_fit_the_recipe_are_said(copied):
    text = copied.recipe_file.read_text()
    copied.recipe_file.write_text(text.replace("network: mnist_net", "network: cifar10_vgg"))
    page = page_of(copied)
    assert "does not fit the network (cifar10_vgg by the recipe)" in page.words
    assert "Layers" not in page.tables


def test_a_random_start_is_not_called_a_float_start(copied):
    text = copied.recipe_file.read_text()
    copied.recipe_file.write_text(text.replace("start: pretrained", "start: random"))
    remove(copied, "float.safetensors", "metrics/float.csv")
    page = page_of(copied)
    assert "it started from" not in page.words
    assert "the discrete weights began at random" in page.words
    assert "Please note" not in page.words


def test_a_start_that_was_given_is_part_of_the_command(ternary, twn):
    assert not look_into(ternary).given_start
    assert look_into(twn).given_start
    assert look_into(twn).trained_start


def test_a_folder_that_cannot_be_written_is_said(copied, capsys):
    (copied.path / "file").write_text("")
    assert main(["report", str(copied.path), "--out", str(copied.path / "file/report.html")]) == 1
    assert main(["report", str(copied.path), "--out", str(copied.path)]) == 1
    text = capsys.readouterr().err
    assert "cannot be written" in text
    assert "is a folder; name a file" in text
    assert "Traceback" not in text
