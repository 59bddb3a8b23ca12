"""Every recipe runs from start to end in a short version, ImageNet's too, on JPEG files made here."""

import json
import sys
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file

sys.path.append(str(Path(__file__).parents[1] / "data"))
from image_files import make_folder

from lrnets.cli import main
from lrnets.data import Data, Split
from lrnets.models import resnet18
from lrnets.training import load_recipe, recipe_names
from lrnets.training.evaluate import evaluate_run, evaluation_table
from lrnets.training.metrics import read_epochs
from lrnets.training.module import Stage
from lrnets.training.pipeline import run
from lrnets.training.run_folder import RunFolder

CLASSES = 12
WIDTH = 0.125  # 8 channels at least: with 4 or fewer torch 2.13.0 (oneDNN) writes beyond its memory in channels-last


@pytest.fixture(autouse=True)
def notes(tmp_path, monkeypatch):
    monkeypatch.setenv("LRNETS_DATA", str(tmp_path / "cache"))


@pytest.fixture(scope="module")
def images(tmp_path_factory) -> Path:
    return make_folder(tmp_path_factory.mktemp("images"), classes=CLASSES, train=3, val=1, side=36)


def in_memory(name: str) -> Data:
    def split(count: int) -> Split:
        shape = (1, 28, 28) if name == "mnist" else (3, 32, 32)
        return Split(torch.randint(256, (count, *shape), dtype=torch.uint8), torch.arange(count) % 10)

    return Data(name, tuple("0123456789"), split(24), split(10), lambda: split(10))


def short(name: str, **more: object) -> list[str]:
    """Settings that make a recipe short and its network narrow; everything else is as it stands."""
    recipe = load_recipe(name)
    settings = {"batch_size": 8, "draws": 2, "norm_batches": 1, "width": WIDTH, "float_stage.epochs": 1}
    if recipe.discrete_stage is not None:
        settings["discrete_stage.epochs"] = 1
    if recipe.data == "imagenet":
        settings |= {"classes": CLASSES, "valid_size": CLASSES, "data_options": "{size: 32, resize: 36}"}
    return [f"{key}={value}" for key, value in (settings | more).items()]


@pytest.mark.parametrize("name", recipe_names())
def test_every_recipe_runs_from_start_to_end(name, tmp_path, images):
    recipe = load_recipe(name, short(name))
    source = {"data_dir": str(images), "workers": 0} if recipe.data == "imagenet" else {"data": in_memory(recipe.data)}
    results = run(recipe, RunFolder(tmp_path / "run"), say=lambda text: None, **source)
    chosen = "float" if recipe.discrete_stage is None else "chosen"
    assert 0 <= results["test_error"][chosen] <= 100
    many = recipe.data == "imagenet"  # ten classes have no top-5 errors, and results as they always were
    assert ("test_top5_error" in results) == ("valid_top5_error" in results) == many
    if many:
        assert set(results["test_top5_error"]) == set(results["test_error"])
        assert all(results["test_top5_error"][net] <= error for net, error in results["test_error"].items())
    if name == "imagenet-binary":
        drawn = load_file(tmp_path / "run/drawn.safetensors")
        assert len(drawn["conv1.weight"].unique()) > 100
        assert drawn["layer2.0.downsample.0.weight"].unique().tolist() == [-1, 1]


def state_of(folder: Path) -> dict[str, torch.Tensor]:
    return load_file(folder / "float.safetensors")


@pytest.mark.thorough
def test_an_interrupted_run_on_images_ends_with_the_same_bits_whatever_the_workers(tmp_path, images, monkeypatch):
    recipe = load_recipe("imagenette-float", short("imagenette-float", **{"float_stage.epochs": 3}))
    whole, broken = RunFolder(tmp_path / "whole"), RunFolder(tmp_path / "broken")
    settings = {"data_dir": str(images), "say": lambda text: None}
    results = run(recipe, whole, workers=2, **settings)
    begin = Stage.on_train_epoch_start

    def stumble(stage):
        if stage.current_epoch == 2:
            raise RuntimeError("the power is gone")
        begin(stage)

    with monkeypatch.context() as patched:
        patched.setattr(Stage, "on_train_epoch_start", stumble)
        with pytest.raises(RuntimeError, match="the power is gone"):
            run(recipe, broken, workers=0, **settings)
    assert len(read_epochs(broken, "float")) == 2
    again = run(recipe, broken, workers=0, resume=True, **settings)
    assert again | {"seconds": 0} == results | {"seconds": 0}
    assert all(torch.equal(tensor, state_of(broken.path)[name]) for name, tensor in state_of(whole.path).items())


def test_a_public_checkpoint_starts_a_run_from_the_command_line(tmp_path, images, capsys):
    torch.manual_seed(1)
    source = resnet18(CLASSES, width=WIDTH)
    torch.save(source.state_dict(), tmp_path / "resnet18.pth")
    folder = tmp_path / "run"
    arguments = ["train", "imagenet-ternary", "--init", str(tmp_path / "resnet18.pth"), "--data-dir", str(images)]
    arguments += ["--out", str(folder), "--workers", "0", "--start-or-resume", "--set"]
    assert main([*arguments, *short("imagenet-ternary", draws=1)]) == 0
    told, hint = capsys.readouterr()
    assert (
        "is a public checkpoint, give its mean and deviation: --set 'data_options.mean=[0.485, 0.456, 0.406]'" in hint
    )
    assert "24 images of 12 classes to train on, 12 to choose on, 32 pixels; decoded by 0 workers" in told
    assert "top-5 error" in told
    assert all(torch.equal(source.state_dict()[name], tensor) for name, tensor in state_of(folder).items())
    assert main([*arguments, *short("imagenet-ternary", draws=1)]) == 0  # it is finished: nothing is left to do
    told, hint = capsys.readouterr()
    assert "stochastic network: from" in told
    assert "public checkpoint" not in hint
    assert json.loads((folder / "results.json").read_text())["left_out"] == {"train": 0, "valid": 0, "test": 0}
    found = evaluate_run(RunFolder(folder), draws=2, ensembles=(2,), data_dir=str(images), say=lambda text: None)
    assert 0 <= found["networks"]["mode"]["test"]["top5_error"] <= found["networks"]["mode"]["test"]["error"]
    assert "top-5 error %" in evaluation_table(found)
    others = make_folder(tmp_path / "others", classes=CLASSES, train=3, val=1, side=40)  # of other colours, a little
    assert main(["export", str(folder), "--data-dir", str(others)]) == 0
    import lrnets_runtime

    graph = lrnets_runtime.load(folder / "network.packed.safetensors").graph
    assert graph.classes[0] == "class00"
    assert graph.preparation.kind == "fixed"
    kept = json.loads((folder / "data.json").read_text())
    assert graph.preparation.mean == pytest.approx(kept["mean"], rel=1e-6)
    assert len(kept["mean"]) == 3
    assert graph.preparation.shorter_side == 36


def test_a_network_for_another_number_of_classes_is_refused_before_colours_are_measured(
    tmp_path, images, capsys, monkeypatch
):
    monkeypatch.setattr("lrnets.data.statistics._measure", None)
    arguments = ["train", "imagenet-float", "--out", str(tmp_path / "run"), "--data-dir", str(images), "--workers", "0"]
    settings = ["valid_size=12", "data_options={size: 32, resize: 36}"]
    assert main([*arguments, "--set", *settings]) == 1
    message = "the data have 12 classes and the network 1000; --set classes=12, or name other data"
    assert message in capsys.readouterr().err
    assert not (tmp_path / "run").exists()
    assert main(["train", "imagenet-float", "--data-dir", str(tmp_path), "--out", str(tmp_path / "run")]) == 1
    assert "no train folder and no train-*.tar" in capsys.readouterr().err
