"""Evaluation of finished runs on small real data, against networks drawn and averaged by hand."""

import json
import shutil
from pathlib import Path
from types import SimpleNamespace

import digit_runs
import numpy as np
import pytest
import torch
from digit_runs import TRANSFORMS, digits, network
from torch import nn

import lrnets
from lrnets.data import Split
from lrnets.data.augment import scale
from lrnets.data.shuffle import mix
from lrnets.training.evaluate import evaluate_run, evaluation_table
from lrnets.training.pipeline import convert_by, run
from lrnets.training.recipe import Recipe
from lrnets.training.run_folder import RunFolder

ROWS = ["float", "mode", "draws", "best draw", "stored", "ensemble of 1", "ensemble of 3"]


def recipe(**changes) -> Recipe:
    return digit_runs.recipe(
        **{"float_stage": {"epochs": 0}, "discrete_stage": {"epochs": 0, "scale": True}, "norm_batches": 1} | changes
    )


def make_run(path: Path, chosen: Recipe, norm: bool = True) -> dict:
    """A run without epochs: distributions straight from a network that a few steps of Adam have trained."""
    net, data = network(norm), digits()
    optimizer = torch.optim.Adam(net.parameters(), 0.01)
    x = scale(data.train.images)
    for _ in range(25):
        optimizer.zero_grad()
        nn.functional.cross_entropy(net(x), data.train.labels).backward()
        optimizer.step()
    weights = path.with_suffix(".pt")
    torch.save(net.state_dict(), weights)
    results = run(
        chosen, RunFolder(path), data=data, transforms=TRANSFORMS, model=network(norm), init=weights,
        say=lambda text: None,
    )  # fmt: skip
    RunFolder(path).save_weights("float", net)
    return results


@pytest.fixture(scope="module")
def finished(tmp_path_factory):
    """A finished run of a ternary network; not to be changed."""
    path = tmp_path_factory.mktemp("runs") / "digits"
    make_run(path, recipe())
    return path


@pytest.fixture
def folder(finished, tmp_path):
    return RunFolder(Path(shutil.copytree(finished, tmp_path / "run")))


def evaluate(folder: RunFolder, **arguments) -> dict:
    settings = {
        "draws": 5, "ensembles": (1, 3), "data": digits(), "transforms": TRANSFORMS, "model": network(),
        "say": lambda text: None,
    }  # fmt: skip
    return evaluate_run(folder, **(settings | arguments))


def stochastic(folder: RunFolder) -> nn.Module:
    net = network()
    convert_by(folder.read_recipe(), net)
    folder.load_weights("stochastic", net)
    return net


def draw_by_hand(folder: RunFolder, count: int, seed: int) -> list[nn.Module]:
    model, generator = stochastic(folder), torch.Generator().manual_seed(seed)
    nets = [lrnets.discretize(model, generator=generator) for _ in range(count)]
    for net in nets:
        lrnets.update_bn(net, [scale(digits().train.images[:1000])])
    return nets


def softmax_of(net: nn.Module, split: Split) -> np.ndarray:
    with torch.no_grad():
        logits = net.eval()(scale(split.images)).double().numpy()
    powers = np.exp(logits - logits.max(1, keepdims=True))
    return powers / powers.sum(1, keepdims=True)


def error_of(p: np.ndarray, split: Split) -> float:
    return 100 * np.sum(p.argmax(1) != split.labels.numpy()) / len(split)


def nll_of(p: np.ndarray, split: Split) -> float:
    return -np.mean([np.log(row[label]) for row, label in zip(p, split.labels)])


def test_everything_equals_networks_drawn_and_averaged_by_hand(folder):
    result, data = evaluate(folder, seed=7), digits()
    nets = draw_by_hand(folder, 5, seed=7)
    found = result["networks"]
    assert list(found) == ROWS
    for part, split in (("test", data.test), ("valid", data.valid)):
        each = [softmax_of(net, split) for net in nets]
        errors, nlls = [error_of(p, split) for p in each], [nll_of(p, split) for p in each]
        assert [one[part]["error"] for one in found["draws"]["each"]] == errors
        for measure, values in (("error", errors), ("nll", nlls)):
            spread = found["draws"][part][measure]
            expected = [np.mean(values), np.std(values, ddof=1), min(values), max(values)]
            assert [spread[key] for key in ("mean", "sd", "min", "max")] == pytest.approx(
                expected, rel=1e-3
            )  # float32 in another layout
        assert len(set(errors)) > 1
        for k in (1, 3):
            average = sum(each[:k]) / k
            ensemble = found[f"ensemble of {k}"][part]
            assert ensemble["error"] == error_of(average, split)
            assert ensemble["nll"] == pytest.approx(nll_of(average, split), rel=1e-3)
        with torch.no_grad():
            by_class = lrnets.Ensemble(nets[:3])(scale(split.images))
        assert found["ensemble of 3"][part]["ece"] == pytest.approx(
            100 * lrnets.calibration.expected_calibration_error(by_class, split.labels), abs=1e-3
        )
    mode = lrnets.update_bn(lrnets.discretize(stochastic(folder), "mode"), [scale(data.train.images[:1000])])
    assert found["mode"]["test"]["nll"] == pytest.approx(nll_of(softmax_of(mode, data.test), data.test), rel=1e-3)
    plain = network()
    folder.load_weights("float", plain)
    assert found["float"]["test"]["error"] == error_of(softmax_of(plain, data.test), data.test)


def test_the_best_draw_is_chosen_on_validation_data_alone(folder):
    misleading = digits()
    misleading._read_test = lambda: Split(misleading.valid.images, (misleading.valid.labels + 1) % 10)
    result = evaluate(folder, draws=8, data=misleading)
    each, best = result["networks"]["draws"]["each"], result["networks"]["best draw"]
    by_validation = sorted((one["valid"]["error"], one["valid"]["nll"], i) for i, one in enumerate(each))
    assert best["draw"] == by_validation[0][2] + 1
    assert best["test"]["error"] > min(one["test"]["error"] for one in each)
    assert {"test": best["test"], "valid": best["valid"]} == each[best["draw"] - 1]


def test_equal_validation_errors_are_decided_by_likelihood(folder):
    one_example = digits()
    one_example.valid = one_example.valid[slice(0, 1)]  # all draws get it right, or nearly all
    found = evaluate(folder, draws=8, data=one_example)["networks"]
    valid = [one["valid"] for one in found["draws"]["each"]]
    equals = [one for one in valid if one["error"] == min(other["error"] for other in valid)]
    assert len(equals) > 1
    assert found["best draw"]["valid"]["nll"] == min(one["nll"] for one in equals)


def test_the_stored_network_and_the_bytes_are_those_the_run_told_of(folder):
    told, found = folder.read_json("results.json"), evaluate(folder)["networks"]
    assert found["stored"]["test"]["error"] == told["test_error"]["chosen"]
    assert found["stored"]["valid"]["error"] == told["valid_error"]["chosen"]
    assert found["mode"]["test"]["error"] == told["test_error"]["mode"]
    assert found["float"]["test"]["error"] == told["test_error"]["float"]
    size = told["bytes"]["discrete"]
    assert [found[name]["bytes"] for name in ROWS] == [told["bytes"]["float"], *[size] * 5, 3 * size]


def test_the_same_seed_gives_the_same_result_and_it_is_in_the_folder(folder):
    model = network()
    before = {name: tensor.clone() for name, tensor in model.state_dict().items()}
    result = evaluate(folder, model=model)
    assert json.loads((folder.path / "evaluation.json").read_text()) == result
    assert all(torch.equal(tensor, before[name]) for name, tensor in model.state_dict().items())
    assert result["seed"] == mix(0, -1) % 2**63
    assert (result["recipe"], result["recipe_seed"], result["draws"]) == ("digits", 0, 5)
    assert "commit" in result
    assert evaluate(folder) == result == evaluate(folder, seed=result["seed"])
    other = evaluate(folder, seed=1)
    assert other["networks"]["draws"] != result["networks"]["draws"]
    assert other["networks"]["mode"] == result["networks"]["mode"]
    more = evaluate(folder, draws=6)["networks"]
    assert more["draws"]["each"][:5] == result["networks"]["draws"]["each"]
    assert more["ensemble of 3"] == result["networks"]["ensemble of 3"]


def test_draws_are_others_than_the_runs_own(folder):
    told = folder.read_json("results.json")["valid_error_of_draws"]
    each = evaluate(folder, draws=3)["networks"]["draws"]["each"]
    assert [one["valid"]["error"] for one in each] != told


def test_one_draw_has_no_deviation_and_repeated_sizes_count_once(folder):
    result = evaluate(folder, draws=1, ensembles=[1, 1])
    spread = result["networks"]["draws"]["test"]["error"]
    assert spread["sd"] is None
    assert spread["mean"] == spread["min"] == spread["max"] == result["networks"]["ensemble of 1"]["test"]["error"]
    assert result["ensembles"] == [1]
    assert "±" not in evaluation_table(result)
    assert not any(name.startswith("ensemble") for name in evaluate(folder, ensembles=())["networks"])


def test_the_table_has_a_row_for_each_network(folder):
    result = evaluate(folder)
    header, _, *rows, below = evaluation_table(result).splitlines()
    assert header.split() == ["network", "error", "%", "NLL", "ECE", "%", "bytes"]
    assert [row[: len(name)] for row, name in zip(rows, ROWS)] == ROWS
    error = result["networks"]["draws"]["test"]["error"]
    spread = f"{error['mean']:.2f} ± {error['sd']:.2f} ({error['min']:.2f}-{error['max']:.2f})"
    assert spread in rows[2]
    assert max(map(len, rows)) <= 100
    assert "validation error" in below


def test_a_run_without_float_weights_or_without_batch_norm(folder, tmp_path):
    folder.weights_file("float").unlink()
    assert list(evaluate(folder)["networks"]) == ROWS[1:]
    make_run(tmp_path / "bare", recipe(weights="binary"), norm=False)
    found = evaluate(RunFolder(tmp_path / "bare"), model=network(norm=False))["networks"]
    assert found["ensemble of 3"]["test"]["error"] < 90


def test_a_float_run_has_one_network(tmp_path):
    told = make_run(tmp_path / "run", recipe(weights="float", discrete_stage=None))
    folder = RunFolder(tmp_path / "run")
    result = evaluate(folder)
    assert list(result["networks"]) == ["float"]
    assert result["networks"]["float"]["test"]["error"] == told["test_error"]["float"]
    assert (result["draws"], result["ensembles"]) == (0, [])
    assert "draws" not in evaluation_table(result)
    folder.weights_file("float").unlink()
    with pytest.raises(FileNotFoundError, match=r"no float.safetensors.*--resume"):
        evaluate(folder)


@pytest.mark.parametrize("missing", ["stochastic", "drawn"])
def test_an_unfinished_run_is_to_be_resumed(folder, missing):
    folder.weights_file(missing).unlink()
    remedy = rf"no {missing}.safetensors.*not finished.*lrnets train .*recipe.yaml --out .* --resume"
    with pytest.raises(FileNotFoundError, match=remedy):
        evaluate(folder)
    assert not (folder.path / "evaluation.json").exists()


def test_a_folder_without_a_run_and_weights_of_another_network_are_refused(folder, tmp_path):
    with pytest.raises(FileNotFoundError, match="no run folder"):
        evaluate(RunFolder(tmp_path / "nothing"))
    with pytest.raises(ValueError, match=r"does not fit the network \(mnist_net .* model="):
        evaluate(folder, model=None)


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ({"draws": 0}, r"draws must be .* at least 1, got 0"),
        ({"draws": 2.0}, r"draws must be a whole number"),
        ({"draws": True}, r"draws must be a whole number"),
        ({"ensembles": (1, 0)}, r"ensemble's size must be .* got 0"),
        ({"ensembles": (1, 6, 16)}, "an ensemble of 16 needs as many draws, got 5; raise draws"),
        ({"seed": -1}, "seed must be from 0"),
    ],
)
def test_impossible_arguments_are_refused(folder, arguments, words):
    with pytest.raises(ValueError, match=words):
        evaluate(folder, **arguments)


def test_a_long_evaluation_is_announced_once(folder, monkeypatch):
    clock = SimpleNamespace(perf_counter=iter(range(1000)).__next__)
    monkeypatch.setattr("lrnets.training.evaluate.time", clock)
    said = []
    evaluate(folder, say=said.append)
    assert said == ["5 draws, about 5 s"]
