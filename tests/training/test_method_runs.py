"""Runs of other methods than LR-net: straight-through ones, with draws and without, and what is told of them."""

import pytest
import torch
from digit_runs import TRANSFORMS, digits, network, recipe, train
from safetensors.torch import load_file

from lrnets.training.evaluate import evaluate_run, evaluation_table
from lrnets.training.metrics import read_epochs
from lrnets.training.run_folder import RunFolder
from lrnets.training.stored import drawn_network

FLOAT = {"epochs": 4, "lr": 0.005, "schedule": "one-cycle"}
STAGE = {"epochs": 5, "lr": 0.003, "schedule": "one-cycle", "scale": True}


def test_a_method_without_randomness_has_one_network_and_no_draws(tmp_path):
    said = []
    chosen = recipe(method="twn", float_stage=FLOAT, discrete_stage=STAGE)
    results = train(tmp_path / "run", chosen)
    assert set(results["test_error"]) == set(results["valid_error"]) == {"float", "mode"}
    assert not [key for key in results if "draw" in key]
    assert results["method"] == "twn"
    assert results["test_error"]["mode"] <= 8  # 300 digits; a linear classifier has about 4
    assert results["bytes"]["discrete"] < results["bytes"]["float"] / 5
    rows = read_epochs(RunFolder(tmp_path / "run"), "stochastic")
    assert len(rows) == 5
    assert "valid_error" in rows[0]
    assert not {"valid_error_draw", "sharpness"} & set(rows[0])
    stored = load_file(tmp_path / "run/drawn.safetensors")["0.weight"]
    assert len(stored.unique()) == 3
    net = drawn_network(RunFolder(tmp_path / "run"), network())
    assert torch.equal(net[0].weight, stored)
    found = evaluate_run(
        RunFolder(tmp_path / "run"), draws=4, ensembles=(1, 4), data=digits(), transforms=TRANSFORMS, model=network(),
        say=said.append,
    )  # fmt: skip
    assert list(found["networks"]) == ["float", "mode", "stored"]
    assert (found["draws"], found["ensembles"], said) == (0, [], [])
    assert found["networks"]["mode"]["test"]["error"] == results["test_error"]["mode"]
    assert found["networks"]["stored"]["test"] == found["networks"]["mode"]["test"]
    assert evaluation_table(found).splitlines()[-1] == "on test data"
    again = train(tmp_path / "run", chosen, resume=True)
    assert again == results


def test_a_stochastic_method_has_draws_its_options_and_clipped_weights(tmp_path):
    stage = {**STAGE, "logit_lr": 0.3, "epochs": 2}  # large steps: without clipping weights would leave [-1, 1]
    chosen = recipe(
        method="binaryconnect", method_options={"stochastic": True}, weights="binary", float_stage=FLOAT,
        discrete_stage=stage,
    )  # fmt: skip
    results = train(tmp_path / "run", chosen)
    assert len(results["test_error_of_draws"]) == 3
    assert "chosen" in results["test_error"]
    latent = load_file(tmp_path / "run/stochastic.safetensors")["5.parametrizations.weight.original"]
    assert latent.abs().max() == 1
    assert "valid_error_draw" in read_epochs(RunFolder(tmp_path / "run"), "stochastic")[0]
    assert RunFolder(tmp_path / "run").read_recipe().method_options == {"stochastic": True}


@pytest.mark.parametrize(
    ("method", "weights", "values"), [("bnn", "binary", 2), ("ttq", "ternary", 3), ("gaussian", "float", None)]
)
def test_other_methods_run_from_start_to_end(tmp_path, method, weights, values):
    chosen = recipe(
        method=method, weights=weights, float_stage={**FLOAT, "epochs": 1}, discrete_stage={**STAGE, "epochs": 1}
    )
    results = train(tmp_path / "run", chosen)
    assert 0 < results["test_error"]["mode"] < 90
    count = len(load_file(tmp_path / "run/drawn.safetensors")["5.weight"].unique())
    assert count == values if values else count > 1000
