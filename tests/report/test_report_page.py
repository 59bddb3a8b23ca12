"""The page of a finished run: whole, harmless, and with the very numbers of the run."""

import csv
import json
import shutil

import pytest
import torch
from report_page import read_page

from lrnets.cli import main
from lrnets.diagnostics import undecided
from lrnets.report import write_report
from lrnets.summary import summary
from lrnets.training.pipeline import build_network, convert_by
from lrnets.training.run_folder import RunFolder
from lrnets.training.stored import drawn_network


def silent(text: str) -> None:
    """Nobody listens."""


@pytest.fixture(scope="module")
def page(ternary, tmp_path_factory):
    """With all figures."""
    return read_page(write_report(ternary.path, tmp_path_factory.mktemp("out") / "report.html", say=silent))


def test_the_glance_has_the_numbers_of_results_json(page, ternary):
    results = json.loads((ternary.path / "results.json").read_text())
    test, sizes = results["test_error"], results["bytes"]
    words = page.words
    assert f"The chosen network is wrong on {test['chosen']:.2f} % of the test images" in words
    assert f"the float network it started from ({test['float']:.2f} %)" in words
    assert f"{sizes['discrete']:,} bytes instead of {sizes['float']:,}" in words
    assert f"{sizes['float'] / sizes['discrete']:.1f} times less" in words
    change = test["chosen"] - test["float"]
    assert f"{abs(change):.2f} points against the float start".replace("0.00 ", "") in words


def test_networks_are_those_of_results_json(page, ternary):
    results = json.loads((ternary.path / "results.json").read_text())
    header, *rows = page.tables["Errors and sizes of the run's networks"]
    assert header == ["network", "validation error", "test error", "bytes"]
    by_name = {name: cells for name, *cells in rows}
    for name in ("float", "mode", "chosen"):
        size = results["bytes"]["float" if name == "float" else "discrete"]
        shown = f"chosen: {results['chosen']}" if name == "chosen" else name
        assert by_name[shown] == [f"{results[part][name]:.2f} %" for part in ("valid_error", "test_error")] + [
            f"{size:,}"
        ]
    draws = torch.tensor(results["test_error_of_draws"], dtype=torch.float64)
    assert by_name["3 draws"][1] == f"{draws.mean():.2f} ± {draws.std():.2f} %"


def test_layers_are_those_of_the_summary(page, ternary):
    size = summary(drawn_network(ternary), (1, 28, 28))
    header, *rows = page.tables["Layers"]
    shapes = {name: tuple(t.shape) for name, t in drawn_network(ternary).named_parameters() if t.dim() > 1}
    for row, layer in zip(rows, size.layers):
        cells = dict(zip(header, row))
        assert cells["layer"] == layer.name
        assert cells["kind"] == layer.kind
        assert cells["values"] == layer.values
        assert cells["weights' shape"] == "x".join(map(str, shapes[f"{layer.name}.weight"]))
        assert cells["bits a weight"] == f"{layer.bits:.2f}"
        for name in ("weights", "bytes", "additions", "multiplications"):
            assert int(cells[name].replace(",", "")) == getattr(layer, name)
    *_, before, last = rows
    assert before[header.index("bytes")] == f"{size.header_bytes:,}"
    assert last[header.index("bytes")] == f"{size.bytes:,}"
    assert len(rows) == len(size.layers) + 2


def test_distributions_are_measured_on_the_trained_network(page, ternary):
    recipe = ternary.read_recipe()
    net = build_network(recipe)
    convert_by(recipe, net)
    ternary.load_weights("stochastic", net)
    header, *rows = page.tables["Layers"]
    shares = {row[0]: row[header.index("undecided")] for row in rows}
    for name, share in undecided(net).items():
        assert shares[name] == f"{100 * share:.1f}%"
    for row in rows[:-2]:
        distance = row[header.index("distance to Gaussian")]
        assert (row[0] in undecided(net)) == bool(distance)
        assert not distance or 0 < float(distance) < 1


def test_every_epoch_is_there_as_text(page, ternary):
    with (ternary.path / "metrics/stochastic.csv").open() as file:
        noted = list(csv.DictReader(file))
    header, *rows = page.tables["Figures of every epoch"]
    shown = [dict(zip(header, row)) for row in rows]
    assert [row["stage"] for row in shown] == ["float", "stochastic", "stochastic"]
    for row, epoch in zip(shown[1:], noted):
        assert row["loss"] == f"{float(epoch['loss']):.4f}"
        assert row["of a draw %"] == f"{float(epoch['valid_error_draw']):.2f}"


def test_it_has_curves_recipe_origin_commands_and_files(page, ternary):
    for name in ("Loss", "Validation error", "Learning rate", "Sharpness"):
        assert f"{name}." in page.words
    assert ternary.recipe_file.read_text().strip() in [text.strip() for text in page.pre]
    environment = json.loads((ternary.path / "environment.json").read_text())
    assert environment["torch"] in page.words
    again = f"lrnets train {ternary.recipe_file} --out {ternary.path}-again"
    assert again in page.pre
    files = {name: size for name, _, size in page.tables["Files of the run"][1:]}
    there = [path for path in ternary.path.rglob("*") if path.is_file()]
    assert files == {str(path.relative_to(ternary.path)): f"{path.stat().st_size:,}" for path in there}


def test_text_in_pictures_is_text_in_the_colours_of_the_page(page):
    inside = [own.get("style", "") for _, own in page.elements]
    assert any("var(--ink)" in style for style in inside)
    assert len(page.all("text")) > 20
    assert page.words.count("validation error (%)") >= 1


@pytest.mark.usefixtures("without_figures")
def test_what_files_say_is_never_markup(ternary, tmp_path):
    folder = RunFolder(tmp_path / "<b>run")
    shutil.copytree(ternary.path, folder.path)
    text = folder.recipe_file.read_text()
    evil = "<script>alert(1)</script>\"'&lt;<img src=x onerror=alert(1)>"
    lines = [line for line in text.splitlines() if not line.startswith(("about:", "name:"))]
    told = [f"about: {json.dumps(evil)}", f"name: {json.dumps('$x$' + evil)}"]
    folder.recipe_file.write_text("\n".join([*lines, *told]))
    environment = json.loads((folder.path / "environment.json").read_text())
    folder.write_json("environment.json", environment | {"processor": evil, "command": f"lrnets {evil}"})
    (folder.path / "<i>file").write_text("")
    page = read_page(write_report(folder.path, say=silent))
    assert page.text.count(evil) >= 4
    assert not page.all("img")
    assert not page.all("i")


@pytest.mark.usefixtures("without_figures")
def test_the_command_writes_the_page_and_says_where(twn, tmp_path, capsys):
    assert main(["report", str(twn.path), "--out", str(tmp_path / "new/page.html")]) == 0
    assert f"report: {tmp_path / 'new/page.html'} (" in capsys.readouterr().out
    page = read_page(tmp_path / "new/page.html")
    assert "The discrete network is wrong on" in page.words
    assert "entropy (bits)" not in page.tables["Layers"][0]
    assert f"--init {twn.weights_file('float')}" in page.words
    assert [path.name for path in (tmp_path / "new").iterdir()] == ["page.html"]


@pytest.mark.usefixtures("without_figures")
def test_a_float_run_has_a_report_too(in_float, tmp_path):
    page = read_page(write_report(in_float.path, tmp_path / "report.html", say=silent))
    results = json.loads((in_float.path / "results.json").read_text())
    assert f"The float network is wrong on {results['test_error']['float']:.2f} %" in page.words
    assert "times less" not in page.words
    assert "Please note" not in page.words


def test_what_cannot_be_reported_is_one_line(tmp_path, capsys):
    assert main(["report", str(tmp_path)]) == 1
    assert main(["report", str(tmp_path / "nowhere")]) == 1
    text = capsys.readouterr().err
    assert text.count("is no run folder") == 2
    assert "Traceback" not in text
