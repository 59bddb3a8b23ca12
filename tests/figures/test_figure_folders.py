"""`lrnets figures`: what is found, what is written, and what is said of folders that lack something."""

import shutil
from pathlib import Path

import pytest
import torch
from fabricated_runs import fabricate, recipe

from lrnets.cli import main
from lrnets.figures import figures_of
from lrnets.figures.command import make_figures, write_figure
from lrnets.figures.sources import found_runs
from lrnets.training.run_folder import RunFolder

OF_ONE = [
    "training", "preactivation-gaussian", "kernels", "entropy-over-training", "entropy-heat-map", "zero-probability",
    "draws-disagree", "disputed-images",
]  # fmt: skip


def figures(*folders: Path, **settings):
    said: list[str] = []
    return {
        figure.name: figure for figure in figures_of([RunFolder(f) for f in folders], say=said.append, **settings)
    }, said


@pytest.fixture
def run(house, tmp_path) -> Path:
    """A run to damage."""
    return Path(shutil.copytree(house / "decay/0", tmp_path / "run"))


def test_one_run_gives_its_own_figures(run):
    found, said = figures(run)
    assert list(found) == OF_ONE
    assert said == []
    for figure in found.values():
        assert figure.caption.endswith(".")
        assert figure.alt
        assert figure.rows
        assert all(len(row) == len(figure.columns) for row in figure.rows)


def test_a_float_run_and_one_without_logits_have_what_they_can(tmp_path):
    stage = {"probability_decay": 0.0, "scale": False}
    chosen = recipe(method="twn", discrete=stage)
    folder = fabricate(tmp_path / "twn", chosen).path
    found, said = figures(folder)
    assert (list(found), said) == (["training", "kernels"], [])


@pytest.mark.parametrize(
    ("file", "lost"),
    [
        ("examples.safetensors", ["preactivation-gaussian", "disputed-images"]),
        ("stochastic.safetensors", ["preactivation-gaussian", "zero-probability", "draws-disagree"]),
        ("drawn.safetensors", ["kernels"]),
        ("float.safetensors", ["zero-probability"]),
        ("metrics/stochastic.csv", ["entropy-over-training", "entropy-heat-map"]),
    ],
)
@pytest.mark.parametrize("damage", ["missing", "cut"])
def test_what_is_missing_or_damaged_is_named_and_the_rest_is_made(run, file, lost, damage):
    path = run / file
    if damage == "missing":
        path.unlink()
    elif path.suffix == ".csv":
        path.write_text(path.read_text()[:-40].replace("0.", "0,", 3))
        lost = ["training", *lost]
    else:
        path.write_bytes(path.read_bytes()[:1000])
        lost = ["kernels", *lost] if file == "float.safetensors" else lost
    found, said = figures(run)
    assert [name for name in OF_ONE if name not in found] == sorted(lost, key=OF_ONE.index)
    told = {line.partition(": not made, ")[0]: line for line in said}
    assert sorted(told) == sorted(lost)
    for line in told.values():
        assert str(path) in line or (damage == "missing" and path.name in line)
        assert "lrnets train" in line or "train" in line or "make it anew" in line


def test_a_folder_without_a_readable_recipe_is_left_out(run, house):
    (run / "recipe.yaml").write_text("name: [")
    found, said = figures(run, house / "float/0")
    assert said[0].startswith(f"left out: {run / 'recipe.yaml'} is damaged")
    assert list(found) == ["training", "kernels"]
    (run / "recipe.yaml").write_text("nonsense: 1")
    _, said = figures(run)
    assert "left out" in said[0]


def test_an_unfinished_run_shows_its_curves(run):
    for name in ("stochastic.safetensors", "drawn.safetensors", "results.json", "examples.safetensors"):
        (run / name).unlink()
    found, said = figures(run)
    assert list(found) == ["training", "entropy-over-training", "entropy-heat-map"]
    assert all("--resume" in line for line in said)


def test_weights_of_another_network_are_refused(run):
    RunFolder(run).save_tensors("stochastic.safetensors", {"weight": torch.zeros(3)})
    found, said = figures(run)
    assert "zero-probability" not in found
    assert any("does not fit the network" in line for line in said)


def test_a_table_is_looked_through_and_seeds_belong_together(house):
    runs = [run.path for run in found_runs([house])]
    assert [str(path.relative_to(house)) for path in runs] == [
        "binary/0", "decay/0", "decay/1", "float/0", "gumbel/0", "no-decay/0",
    ]  # fmt: skip
    assert [run.path for run in found_runs([house / "decay", house])][:2] == [house / "decay/0", house / "decay/1"]


def test_files_of_several_runs(house, tmp_path, capsys):
    out = tmp_path / "pictures"
    names = ["kernels-decay", "kernels-binary-ternary-float", "entropy-with-and-without-decay", "lr-against-gumbel"]
    assert main(["figures", str(house), "--out", str(out), "--only", *names, "error*", "--layers", "conv*"]) == 0
    assert "6 runs found" in capsys.readouterr().out
    names.append("error-against-bits")
    files = {f"{name}.{ending}" for name in names for ending in ("svg", "png", "csv")} | {"captions.md"}
    assert {path.name for path in out.iterdir()} == files
    rows = (out / "entropy-with-and-without-decay.csv").read_text().splitlines()[1:]
    assert {row.split(",")[0] for row in rows} == {"conv1", "conv2"}
    assert all(f"({name}.svg)" in (out / "captions.md").read_text() for name in names)


def test_the_csv_is_what_is_drawn(run, tmp_path):
    found, _ = figures(run)
    figure = found["zero-probability"]
    write_figure(figure, tmp_path)
    lines = (tmp_path / "zero-probability.csv").read_text().splitlines()
    (axis, *_) = figure.draw().axes
    drawn = {patch.get_label(): patch.get_data().values for patch in axis.patches}
    for when in ("at the start", "after training"):
        written = [float(line.split(",")[4]) for line in lines if line.startswith(f"conv1,{when},")]
        assert [100 * share for share in written] == pytest.approx(drawn[when].tolist(), rel=1e-5)


def test_a_failed_write_leaves_the_old_file_and_nothing_temporary(run, tmp_path, monkeypatch):
    out = tmp_path / "out"
    out.mkdir()
    (out / "training.svg").write_text("old")
    found, _ = figures(run)

    def full(self, content):
        self.touch()
        raise OSError("the disk is full")

    monkeypatch.setattr(Path, "write_bytes", full)
    with pytest.raises(OSError, match="full"):
        write_figure(found["training"], out)
    assert [path.name for path in out.iterdir()] == ["training.svg"]
    assert (out / "training.svg").read_text() == "old"


def test_one_run_of_a_pair_names_what_is_missing(house):
    said = figures(house / "decay/0", house / "binary/0")[1]
    told = " ".join(said)
    assert "differ in probability decay alone" in told
    assert "--set discrete_stage.probability_decay=0" in told
    assert "no run of gumbel is given" in told


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["/nowhere/at/all"], "there is no folder /nowhere/at/all"),
        (["EMPTY"], "is no run folder, and there is none inside"),
        (["RUN", "--only", "nonsense"], "no figure is called nonsense"),
        (["RUN", "--layers", "conv9", "--only", "zero-probability"], "no figure could be made"),
        (["RUN", "--out", "FILE/inside"], "name another with --out"),
    ],
)
def test_errors_are_one_line_with_the_remedy(arguments, words, run, tmp_path, capsys):
    (tmp_path / "empty").mkdir()
    (tmp_path / "file").touch()
    places = {"EMPTY": tmp_path / "empty", "RUN": run, "FILE/inside": tmp_path / "file/inside"}
    given = [str(places.get(each, each)) for each in arguments]
    if "--out" not in given:
        given += ["--out", str(tmp_path / "out")]
    assert main(["figures", *given]) == 1
    captured = capsys.readouterr()
    assert words in captured.err
    assert "Traceback" not in captured.err
    if "conv9" in arguments:
        assert "has no layer conv9; it has conv1, conv2, fc1" in captured.out


def test_nothing_is_written_to_a_run(house, tmp_path):
    before = {path: path.stat().st_mtime_ns for path in house.rglob("*")}
    make_figures(
        [house / "float", house / "binary"], tmp_path / "out", only=["error-against-bits"], say=lambda text: None
    )
    assert {path: path.stat().st_mtime_ns for path in house.rglob("*")} == before
