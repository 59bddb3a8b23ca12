"""`lrnets table`: what is trained and what is not, the table's numbers, its files, its errors."""

import copy
import json
import sys
from pathlib import Path

import fabricated
import pytest
from fabricated import SMALL, calls, fake_launcher, small_file
from finished import finish

from lrnets.cli import main
from lrnets.comparison import records as records_module
from lrnets.comparison import results as results_module
from lrnets.comparison.command import Outputs, make_table
from lrnets.comparison.costs import cost_of
from lrnets.comparison.rows import load_comparison
from lrnets.comparison.runs import runs_of


@pytest.fixture
def no_networks(monkeypatch):
    """Fabricated runs have none to measure, and no data to fetch."""
    monkeypatch.setattr(results_module, "cost_of", fabricated.cost)
    monkeypatch.setattr(records_module, "cost_of", fabricated.cost)
    monkeypatch.setattr("lrnets.data.fetch", lambda *arguments: None)


def table_of(tmp_path: Path, failing=(), **settings):
    launcher = fake_launcher(tmp_path, list(failing))
    said: list[str] = []
    settings = {"seeds": 2, "out": tmp_path / "out", "launcher": launcher, "say": said.append} | settings
    return make_table(settings.pop("source", None) or small_file(tmp_path), **settings), said


def test_what_is_missing_is_trained_once_from_one_float_start_a_seed(tmp_path, no_networks):
    table, _ = table_of(tmp_path)
    done = calls(tmp_path)
    rows = ["float", "lr-ternary", "lr-binary", "twn"]
    assert sorted(call["run"] for call in done) == sorted(f"{row}/{s}" for row in [*rows, "start"] for s in (0, 1))
    for call in done:
        row, seed = call["run"].split("/")
        begins = (
            None if row in ("float", "start") else str(tmp_path / f"out/small-quick/start/{seed}/float.safetensors")
        )
        assert (call.get("init"), call["seed"], "resume" in call) == (begins, seed, False)
    assert table.absent == {}
    table_of(tmp_path)
    assert len(calls(tmp_path)) == len(done)
    table_of(tmp_path, seeds=3, methods=["twn"])
    assert [call["run"] for call in calls(tmp_path)[len(done) :]] == ["start/2", "twn/2"]


def test_an_interrupted_run_goes_on(tmp_path, no_networks):
    comparison = load_comparison(small_file(tmp_path), "quick")
    (run,) = runs_of(comparison, comparison.named(["twn"]), 1, tmp_path / "out")
    run.folder.write_text("recipe.yaml", run.recipe.to_yaml())
    (run.folder.path / "float.safetensors").touch()
    _, said = table_of(tmp_path, seeds=1, methods=["twn"])
    (call,) = calls(tmp_path)
    assert (call["run"], "resume" in call, "init" in call) == ("twn/0", True, False)
    assert any(line.startswith("twn, seed 0: goes on") for line in said)


def test_a_failed_run_is_named_with_its_reason_and_the_others_go_on(tmp_path, no_networks):
    table, said = table_of(tmp_path, failing=["twn/1"])
    assert list(table.absent) == ["twn, seed 1"]
    assert "failed with code 1, lrnets train: the disk is full; see" in table.absent["twn, seed 1"]
    assert any(line.startswith("twn, seed 1: failed") for line in said)
    assert {found.row.name: found.seeds for found in table.results}["twn"] == (0,)
    assert "not in the table: twn, seed 1: failed" in table.text()
    table_of(tmp_path)  # tries again
    assert [call["run"] for call in calls(tmp_path)].count("twn/1") == 2


def test_without_its_float_start_a_row_is_not_trained(tmp_path, no_networks):
    table, _ = table_of(tmp_path, failing=["start/0"], methods=["float", "twn"], seeds=1)
    assert [call["run"] for call in calls(tmp_path) if call["run"] != "start/0"] == ["float/0"]
    assert "its float start failed" in table.absent["twn, seed 0"]


def test_other_settings_of_a_finished_run_are_named_and_it_is_neither_shown_nor_trained(tmp_path, no_networks):
    table_of(tmp_path, methods=["twn", "float"], seeds=1)
    before = len(calls(tmp_path))
    content = copy.deepcopy(SMALL)
    content["rows"]["twn"]["recipe"]["discrete_stage"] = {"lr": 0.25}
    content["rows"]["twn"]["label"] = "a new word"  # changes nothing
    source = small_file(tmp_path, content)
    table, said = table_of(tmp_path, source=source, methods=["twn", "float"], seeds=1)
    assert len(calls(tmp_path)) == before
    assert [found.row.name for found in table.results] == ["float"]
    assert table.absent == {"twn, seed 0": "other settings: discrete_stage.lr: 0.001 there, 0.25 asked for"}
    assert "move" in said[0]


def test_what_is_recorded_is_not_trained_again_on_another_machine(tmp_path, no_networks):
    records = tmp_path / "records"
    first, _ = table_of(tmp_path, methods=["lr-ternary", "twn"], seeds=1, records=records)
    trained = len(calls(tmp_path))
    assert sorted(path.name for path in records.rglob("*") if path.is_file()) == sorted(
        2 * ["environment.json", "recipe.yaml", "results.json"]
    )
    (tmp_path / "out").rename(tmp_path / "lost")
    again, _ = table_of(tmp_path, methods=["lr-ternary", "twn"], seeds=1, records=records)
    assert len(calls(tmp_path)) == trained
    assert again.to_json()["rows"] == first.to_json()["rows"]
    more, _ = table_of(tmp_path, methods=["twn"], seeds=2, records=records)
    assert [call["run"] for call in calls(tmp_path)[trained:]] == ["start/1", "twn/1"]
    assert more.results[0].seeds == (0, 1)


def test_a_record_of_other_settings_is_not_taken_for_the_run(tmp_path, no_networks):
    records = tmp_path / "records"
    table_of(tmp_path, methods=["twn"], seeds=1, records=records)
    (tmp_path / "out").rename(tmp_path / "lost")
    content = copy.deepcopy(SMALL)
    content["rows"]["twn"]["recipe"]["discrete_stage"] = {"lr": 0.25}
    before = len(calls(tmp_path))
    table_of(tmp_path, source=small_file(tmp_path, content), methods=["twn"], seeds=1, records=records)
    assert [call["run"] for call in calls(tmp_path)[before:]] == ["start/0", "twn/0"]
    assert "lr: 0.25" in (records / "small-quick/twn/0/recipe.yaml").read_text()  # the new one takes its place


@pytest.fixture
def filled(tmp_path, no_networks):
    """Two rows over three seeds with errors chosen by hand."""
    comparison = load_comparison(small_file(tmp_path), "quick")
    errors = {"lr-ternary": (0.5, 0.6, 0.7), "twn": (0.9, 0.9, 1.2)}
    for run in runs_of(comparison, comparison.named(list(errors)), 3, tmp_path / "out"):
        finish(run.folder.path, run.recipe.to_yaml(), errors[run.row.name][run.seed], seconds=60 * (1 + run.seed))
    return tmp_path


def finished_table(filled, **settings):
    return table_of(filled, methods=["lr-ternary", "twn"], seeds=3, train=False, **settings)[0]


def test_numbers_are_those_worked_out_by_hand(filled):
    lr, twn = finished_table(filled).results
    assert (lr.error.mean, lr.error.deviation) == pytest.approx((0.6, 0.1))
    assert (lr.mode.mean, lr.draws.mean) == pytest.approx((0.7, 0.7))  # error + 0.1; mean of error and error + 0.2
    assert (twn.mode, twn.draws) == (None, None)
    assert (twn.error.mean, twn.error.deviation) == pytest.approx((1.0, 0.03**0.5))
    assert (twn.valid_error.mean, twn.seconds.mean, twn.start_error.mean) == pytest.approx((2.0, 120, 0.4))


def test_text_markdown_and_json_say_the_same(filled):
    table = finished_table(filled, compare=["lr-ternary", "twn"])
    line = next(line for line in table.text().splitlines() if line.startswith("twn"))
    assert " ".join(line.split()) == "twn 1.00 ± 0.17 0.65 ± 0.08 1.60 1,234,567 28,160 2.0 3"
    markdown = table.markdown()
    assert (
        "| LR-net | 0.60 ± 0.10 | 0.50 | 0.70 ± 0.10 | 0.70 ± 0.10 | 1.60 | 1,234,567 | 28,160 | 2.0 | 3 |" in markdown
    )
    assert "`lrnets table" in markdown
    assert "commit: abc" in markdown
    outputs = Outputs(filled / "t.json", filled / "t.md")
    outputs.write(table)
    read = json.loads((filled / "t.json").read_text())
    assert [row["error"]["each"] for row in read["rows"]] == [[0.5, 0.6, 0.7], [0.9, 0.9, 1.2]]
    assert read["difference"]["mean"] == pytest.approx(-0.4)
    assert (filled / "t.md").read_text() == markdown
    assert not list(filled.glob(".*.part"))


def test_bytes_that_are_no_files_are_marked(tmp_path, no_networks):
    text = table_of(tmp_path, methods=["lr-binary"])[0].text()
    assert "1,234,567*" in text
    assert "no packed file yet for lr-binary" in text


@pytest.mark.parametrize(("suffix", "head"), [("png", b"\x89PNG"), ("svg", b"<?xml"), ("pdf", b"%PDF")])
def test_the_picture_is_a_file_of_its_kind(filled, suffix, head):
    pytest.importorskip("matplotlib")
    path = filled / f"bars.{suffix}"
    Outputs(plot=path).write(finished_table(filled))
    assert path.read_bytes().startswith(head)


def test_one_failing_method_does_not_flatten_the_picture(filled):
    from lrnets.comparison.picture import axis_end

    found = list(finished_table(filled).results)
    assert axis_end(found) == pytest.approx(1.15 * (1.0 + 0.03**0.5))
    bad = copy.deepcopy(found[0])
    object.__setattr__(bad.error, "values", (90.0, 90.0))
    assert axis_end([*found, bad]) == pytest.approx(1.15 * 2.5 * 1.0)


def test_compare_wants_rows_of_the_table(filled):
    with pytest.raises(ValueError, match="'float' is to be compared and not among the methods"):
        finished_table(filled, compare=["twn", "float"])


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["--methods", "nonsense"], "no method 'nonsense' in the table mnist; there are float, lr-ternary"),
        (["--budget", "huge"], "there are quick, paper"),
        (["--seeds", "0"], "at least 1, got 0"),
        (["--compare", "twn", "tnw"], "no method 'tnw'"),
        (["--plot", "bars.jpeg"], "is no picture; end its name in one of .pdf, .png, .svg"),
        (["--json", "/nowhere/t.json"], "no folder '/nowhere'"),
        (["--no-train"], "no run is finished in"),
    ],
)
def test_errors_come_before_training_in_one_line(arguments, words, tmp_path, capsys, monkeypatch):
    monkeypatch.setattr("lrnets.comparison.command.train_all", lambda *a, **k: pytest.fail("trained"))
    assert main(["table", "mnist", "--out", str(tmp_path), *arguments]) == 1
    assert words in capsys.readouterr().err


def test_help_has_an_example(capsys):
    with pytest.raises(SystemExit):
        main(["table", "--help"])
    assert "example: lrnets table mnist" in capsys.readouterr().out


@pytest.mark.thorough
def test_real_processes_train_on_a_few_images_and_networks_are_measured(tmp_path, monkeypatch):
    monkeypatch.setattr("lrnets.data.fetch", lambda *arguments: None)
    launcher = [sys.executable, str(Path(__file__).with_name("tiny_train.py"))]
    settings = {"methods": ["lr-ternary", "twn"], "seeds": 1, "out": tmp_path / "out", "launcher": launcher}
    said: list[str] = []
    table = make_table(small_file(tmp_path), say=said.append, **settings)
    assert table.absent == {}, said
    lr, twn = table.results
    assert (lr.cost.bits, twn.cost.bits) == (pytest.approx(1.6, abs=0.01),) * 2
    assert lr.cost.multiplications < 30_000
    assert (lr.mode is None, twn.mode is None) == (False, True)
    assert lr.start_error == twn.start_error
    run = runs_of(table.comparison, [twn.row], 1, tmp_path / "out")[0]
    monkeypatch.setattr("lrnets.comparison.costs.measured_cost", lambda folder: pytest.fail("measured again"))
    assert cost_of(run) == twn.cost
    table = make_table(small_file(tmp_path), say=said.append, records=tmp_path / "records", **settings)
    (tmp_path / "out").rename(tmp_path / "lost")  # with all networks
    again = make_table(small_file(tmp_path), say=said.append, records=tmp_path / "records", train=False, **settings)
    assert [found.cost for found in again.results] == [lr.cost, twn.cost]
