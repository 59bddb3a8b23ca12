"""The whole pipeline on small real data: it learns, it resumes to the same bits, it says when it cannot go on."""

import json
import math
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
import torch
from digit_runs import network, recipe, short, train
from safetensors.torch import load_file

from lrnets.layers import lr_layers
from lrnets.training import load_recipe
from lrnets.training.examples import load_examples
from lrnets.training.metrics import read_epochs
from lrnets.training.module import DivergedError, Stage
from lrnets.training.pipeline import convert_by, run
from lrnets.training.recipe import Recipe, recipe_from
from lrnets.training.run_folder import RunFolder


def test_it_learns_digits_and_leaves_a_complete_folder(tmp_path):
    results = train(tmp_path / "run")
    assert results["test_error"]["chosen"] <= 5  # 300 digits; a linear classifier has about 4
    assert results["valid_error"]["chosen"] == min(results["valid_error"]["mode"], *results["valid_error_of_draws"])
    assert results["bytes"]["discrete"] < results["bytes"]["float"] / 5
    assert json.loads((tmp_path / "run/results.json").read_text()) == results
    drawn = load_file(tmp_path / "run/drawn.safetensors")
    for name in ("0.weight", "5.weight"):
        values = drawn[name].unique()
        assert len(values) == 3
        torch.testing.assert_close(values[2], -values[0])
    assert RunFolder(tmp_path / "run").read_recipe() == recipe()
    environment = json.loads((tmp_path / "run/environment.json").read_text())
    assert {"torch", "commit", "seed", "threads"} <= set(environment)
    rows = (tmp_path / "run/metrics/stochastic.csv").read_text().splitlines()
    assert {"loss", "valid_error", "valid_error_draw", "entropy/0", "undecided/5", "sharpness"} <= set(
        rows[0].split(",")
    )
    assert len(rows) == 1 + 12
    assert not list((tmp_path / "run").rglob(".*"))
    kept = load_examples(RunFolder(tmp_path / "run"))
    assert kept.answers is not None
    errors = [100 * (named != kept.answers.valid_labels).double().mean().item() for named in kept.answers.valid]
    assert errors == pytest.approx(results["valid_error_of_draws"])


SCRIPT = """
import sys, torch
torch.set_num_threads(1)
sys.path[:0] = [{tests!r}]
from digit_runs import short, train
from pathlib import Path
folder = Path(sys.argv[1])
train(folder, short(epochs=8), resume=(folder / "recipe.yaml").exists())
"""


def in_a_process(folder: Path) -> subprocess.Popen:
    script = SCRIPT.format(tests=str(Path(__file__).parent))
    return subprocess.Popen(
        [sys.executable, "-c", script, str(folder)], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
    )


@pytest.fixture(scope="module")
def whole_run(tmp_path_factory) -> Path:
    folder = tmp_path_factory.mktemp("whole") / "run"
    train(folder, short(epochs=8))
    return folder


@pytest.mark.parametrize(
    ("blow", "code"),
    [
        pytest.param(signal.SIGKILL, -signal.SIGKILL, id="kill -9"),
        pytest.param(signal.SIGTERM, 128 + signal.SIGTERM, id="kill"),
        pytest.param(signal.SIGINT, -signal.SIGINT, id="Ctrl-C", marks=pytest.mark.thorough),
    ],
)
def test_an_interrupted_run_ends_with_the_same_bits_when_resumed(tmp_path, whole_run, blow, code):
    killed = tmp_path / "killed"
    process = in_a_process(killed)
    checkpoint = killed / "checkpoints/stochastic/last.ckpt"
    deadline = time.monotonic() + 120
    while not checkpoint.exists():  # at least one epoch of the second stage is done
        assert process.poll() is None, "the run ended before it could be killed"
        assert time.monotonic() < deadline
        time.sleep(0.005)
    os.kill(process.pid, blow)
    assert process.wait(240) == code
    assert not (killed / "stochastic.safetensors").exists()
    train(killed, short(epochs=8), resume=True)
    for name in ("float", "stochastic", "drawn"):
        whole, resumed = (load_file(run / f"{name}.safetensors") for run in (whole_run, killed))
        assert whole.keys() == resumed.keys()
        assert all(torch.equal(whole[key], resumed[key]) for key in whole), name
    for stage in ("float", "stochastic"):
        whole, resumed = (read_epochs(RunFolder(run), stage) for run in (whole_run, killed))
        assert [row | {"seconds": 0} for row in whole] == [row | {"seconds": 0} for row in resumed]


def test_a_folder_in_use_or_of_another_recipe_or_without_a_run_is_refused(tmp_path):
    quick = short(epochs=0)
    train(tmp_path / "run", quick)
    with pytest.raises(FileExistsError, match="--resume"):
        train(tmp_path / "run", quick)
    first = RunFolder(tmp_path / "run").read_json("environment.json")
    train(tmp_path / "run", recipe_from(vars_of(quick) | {"cost": "measured anew"}), resume=True)  # words do not count
    again = RunFolder(tmp_path / "run").read_json("environment.json")
    assert {**again, "resumed": None} == {**first, "resumed": None}  # where it began stays known
    assert len(again["resumed"]) == 1
    with pytest.raises(ValueError, match="seed: 0 there, 1 asked for"):
        train(tmp_path / "run", recipe_from(vars_of(quick) | {"seed": 1}), resume=True)
    with pytest.raises(FileNotFoundError, match="no run in"):
        train(tmp_path / "none", quick, resume=True)


def test_a_finished_run_can_be_resumed_and_ends_as_before(tmp_path):
    quick = short(epochs=0)
    results = train(tmp_path / "run", quick)
    assert train(tmp_path / "run", quick, resume=True) == results
    file = tmp_path / "run/recipe.yaml"
    older = [line for line in file.read_text().splitlines() if "logit_limit" not in line]  # before there was one
    assert len(older) == len(file.read_text().splitlines()) - 1
    file.write_text("\n".join(older))
    assert train(tmp_path / "run", quick, resume=True) == results


@pytest.mark.parametrize("limit", [None, 1.0])
def test_no_logit_is_beyond_its_limit_after_a_step(tmp_path, monkeypatch, limit):
    end, largest = Stage.on_train_batch_end, []

    def noting(stage, *others):
        end(stage, *others)
        largest.append(max(layer.logits.abs().max().item() for _, layer in lr_layers(stage.model)))

    monkeypatch.setattr(Stage, "on_train_batch_end", noting)
    train(tmp_path / "run", short(epochs=1, start="random", logit_limit=limit))  # sharpened beyond it all the same
    assert len(largest) == 1197 // 64
    assert (max(largest) <= 1) == (limit is not None)


def test_what_is_cheap_to_look_at_is_looked_at_before_the_data(tmp_path, monkeypatch):
    monkeypatch.setattr("lrnets.training.pipeline.load_by", None)  # may take hours
    chosen, folder = load_recipe("imagenette-float"), RunFolder(tmp_path / "run")
    with pytest.raises(FileNotFoundError, match="no weights in"):
        run(chosen, folder, init=tmp_path / "missing.pth")
    torch.save(torch.nn.Linear(2, 2).state_dict(), tmp_path / "other.pth")
    with pytest.raises(ValueError, match="does not fit"):
        run(chosen, folder, init=tmp_path / "other.pth")
    with pytest.raises(FileNotFoundError, match="no run in"):
        run(chosen, folder, resume=True)
    folder.write_text("recipe.yaml", chosen.to_yaml())
    with pytest.raises(FileExistsError, match="holds a run already"):
        run(chosen, folder)


def vars_of(chosen: Recipe) -> dict:
    import yaml

    return yaml.safe_load(chosen.to_yaml())


def test_a_folder_that_cannot_be_written_or_a_full_disk_is_reported_before_training(tmp_path, monkeypatch):
    (tmp_path / "file").write_text("")
    with pytest.raises(OSError, match="cannot be written"):
        train(tmp_path / "file" / "run", short())
    import shutil

    monkeypatch.setattr(shutil, "disk_usage", lambda path: shutil._ntuple_diskusage(100, 99, 1))
    with pytest.raises(OSError, match="MB free"):
        train(tmp_path / "full", short())


def test_a_loss_that_is_not_finite_stops_the_run_with_step_layer_and_remedy(tmp_path):
    model = network()
    with torch.no_grad():
        model[5].bias[0] = math.nan
    with pytest.raises(DivergedError, match=r"step 0 .*'5.bias'.*tenth of lr"):
        train(tmp_path / "run", short(), model=model)


def test_init_takes_safetensors_or_a_torch_checkpoint_and_skips_the_float_stage(tmp_path):
    source = network()
    torch.save({"state_dict": source.state_dict()}, tmp_path / "float.pt")
    results = train(tmp_path / "run", short(epochs=1), init=tmp_path / "float.pt")
    assert results["seconds"]["float"] == 0 < results["seconds"]["stochastic"]


def test_a_file_that_does_not_fit_leaves_no_run_behind(tmp_path):
    torch.save(torch.nn.Linear(2, 2).state_dict(), tmp_path / "other.pt")
    with pytest.raises(ValueError, match="does not fit"):
        train(tmp_path / "run", short(), init=tmp_path / "other.pt")
    with pytest.raises(FileNotFoundError, match="no weights"):
        train(tmp_path / "run", short(), init=tmp_path / "missing.pt")
    torch.save({name: tensor / 0 for name, tensor in network().state_dict().items()}, tmp_path / "diverged.pt")
    with pytest.raises(ValueError, match="diverged"):
        train(tmp_path / "run", short(), init=tmp_path / "diverged.pt")
    assert not (tmp_path / "run").exists()


def test_natural_gradients_decay_and_learnt_scales_reach_layers_and_optimiser(tmp_path):
    settings = {"natural": True, "logit_decay": 0.05, "sharpen": {"start": 0, "first": 3.5}}
    model, chosen = network(), short(**settings, scale=True, learn_scale=True)
    convert_by(chosen, model)
    assert [layer.natural for _, layer in lr_layers(model)] == [True, True]
    assert [layer.gain.item() for _, layer in lr_layers(model)] == [1, 1]
    results = train(tmp_path / "natural", chosen)
    assert results["valid_error"]["mode"] < 15
    learnt = [
        value.item() for name, value in load_file(tmp_path / "natural/stochastic.safetensors").items() if "gain" in name
    ]
    assert len(learnt) == 2
    assert 1 not in learnt
    checkpoint = torch.load(tmp_path / "natural/checkpoints/stochastic/last.ckpt", weights_only=True)
    decays = {
        g["name"]: (g["weight_decay"], g["decoupled_weight_decay"])
        for g in checkpoint["optimizer_states"][0]["param_groups"]
    }
    assert decays["logits"] == (0.05, True)
    assert decays["rest"] == (0.0, False)


def test_a_float_recipe_and_a_random_start(tmp_path):
    float_only = recipe(weights="float", discrete_stage=None, float_stage={"epochs": 1})
    results = train(tmp_path / "float", float_only)
    assert set(results["test_error"]) == {"float"}
    results = train(tmp_path / "random", short(epochs=1, start="random"))
    assert results["seconds"]["float"] == 0 < results["seconds"]["stochastic"]


def test_a_batch_larger_than_the_data_and_a_start_without_use_are_refused(tmp_path):
    with pytest.raises(ValueError, match=r"a batch of 1200 is more than the 1197 training images; --set batch_size="):
        train(tmp_path / "run", recipe(batch_size=1200))
    torch.save(network().state_dict(), tmp_path / "float.pt")
    with pytest.raises(ValueError, match=r"starts from random weights, so --init .*float.pt has no use; leave it out"):
        train(tmp_path / "run", short(start="random"), init=tmp_path / "float.pt")
    assert not (tmp_path / "run").exists()
