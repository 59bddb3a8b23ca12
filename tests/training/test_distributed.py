"""Two real processes over gloo: the float run of one process, and an LR run whose processes agree."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from digit_runs import recipe, train
from safetensors.torch import load_file
from torch import nn

from lrnets.training.hardware import Hardware
from lrnets.training.metrics import read_epochs
from lrnets.training.run_folder import RunFolder

TWO = Hardware(devices=2, accelerator="cpu", precision="64-true")  # Lightning starts the second process
TORCHRUN = Hardware(devices=2, accelerator="cpu")

SCRIPT = """
import json, os, sys
sys.path[:0] = [{tests!r}]
import torch
torch.set_num_threads(1)
from safetensors.torch import save_file
from pathlib import Path
from lrnets.training import module
from lrnets.training.module import Stage
import digit_runs, test_distributed

seeds, begin = [], Stage.on_train_epoch_start
def noting(stage):
    begin(stage)
    seeds.append(torch.initial_seed())
Stage.on_train_epoch_start = noting

validated, probabilities = [], module.probabilities
def noting_images(net, split, transform):
    validated.append(len(split))
    return probabilities(net, split, transform)
module.probabilities = noting_images

folder, model = Path({folder!r}), test_distributed.network()
results = digit_runs.train(
    folder / "run", test_distributed.{recipe}(), model=model, hardware=test_distributed.{hardware}
)
rank = os.environ.get("RANK", os.environ.get("LOCAL_RANK"))
save_file({{name: t.clone() for name, t in model.state_dict().items()}}, folder / f"{{rank}}.safetensors")
(folder / f"{{rank}}.json").write_text(json.dumps({{"seeds": seeds, "results": results, "validated": validated}}))
"""


def network() -> nn.Module:
    """Without dropout: its noise differs between processes, which are to be compared with one."""
    torch.manual_seed(0)
    return nn.Sequential(
        nn.Conv2d(1, 16, 3, padding=1, bias=False), nn.BatchNorm2d(16), nn.ReLU(), nn.MaxPool2d(2),
        nn.Flatten(), nn.Linear(256, 64), nn.BatchNorm1d(64), nn.ReLU(), nn.Linear(64, 10),
    )  # fmt: skip


def float_recipe():
    return recipe(weights="float", discrete_stage=None, float_stage={"epochs": 2, "lr": 0.005, "schedule": "one-cycle"})


def lr_recipe():
    stage = {"epochs": 8, "lr": 0.003, "logit_lr": 0.05, "schedule": "one-cycle", "scale": True, "sharpen": {}}
    return recipe(float_stage={"epochs": 4, "lr": 0.005, "schedule": "one-cycle"}, discrete_stage=stage)


def two_processes(folder: Path, launcher: list[str], **names: str) -> list[dict]:
    """Run the script, and return what each process noted."""
    tests = str(Path(__file__).parent)
    script = folder / "script.py"
    script.write_text(SCRIPT.format(tests=tests, folder=str(folder), **names))
    outcome = subprocess.run(
        [sys.executable, *launcher, str(script)], capture_output=True, text=True, timeout=300,
        env={**os.environ, "OMP_NUM_THREADS": "1", "PYTHONPATH": tests},
    )  # fmt: skip
    assert outcome.returncode == 0, outcome.stderr[-3000:]
    return [json.loads((folder / f"{rank}.json").read_text()) for rank in (0, 1)]


def test_a_float_run_of_two_processes_is_that_of_one_with_the_whole_batch(tmp_path):
    first, second = two_processes(tmp_path, [], recipe="float_recipe", hardware="TWO")
    alone = network()
    results = train(tmp_path / "alone", float_recipe(), model=alone, hardware=Hardware(precision="64-true"))
    for rank in (0, 1):
        state = load_file(tmp_path / f"{rank}.safetensors")
        for name, expected in alone.state_dict().items():
            torch.testing.assert_close(state[name], expected, rtol=1e-8, atol=1e-8)
    assert first["results"]["test_error"] == results["test_error"]
    assert second["results"] == {}
    assert first["validated"] == second["validated"] == [150, 150]  # 300 images after each of two epochs, shared out
    together, by_one = (read_epochs(RunFolder(tmp_path / run), "float") for run in ("run", "alone"))
    assert [row["valid_error"] for row in together] == [row["valid_error"] for row in by_one]


def test_an_lr_run_under_torchrun_converges_and_its_processes_agree(tmp_path):
    launcher = ["-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2"]
    first, second = two_processes(tmp_path, launcher, recipe="lr_recipe", hardware="TORCHRUN")
    assert first["results"]["test_error"]["chosen"] <= 6
    states = [load_file(tmp_path / f"{rank}.safetensors") for rank in (0, 1)]
    assert all(torch.equal(states[0][name], states[1][name]) for name in states[0])
    assert len(first["seeds"]) == len(second["seeds"]) == 4 + 8
    assert not set(first["seeds"]) & set(second["seeds"]), "both processes would see the same noise"
    stored = load_file(tmp_path / "run/stochastic.safetensors")
    assert all(torch.equal(stored[name], states[0][name]) for name in stored)
    assert not list((tmp_path / "run").rglob("*.part"))


def test_mixed_precision_trains(tmp_path):
    results = train(tmp_path / "run", lr_recipe(), model=network(), hardware=Hardware(precision="bf16-mixed"))
    assert results["test_error"]["chosen"] <= 6
    stored = load_file(tmp_path / "run/stochastic.safetensors")
    assert {tensor.dtype for tensor in stored.values()} == {torch.float32, torch.int64}  # the weights themselves


def test_a_batch_that_cannot_be_shared_is_refused_before_anything_is_written(tmp_path):
    with pytest.raises(ValueError, match="cannot be shared evenly by 3"):
        train(tmp_path / "run", float_recipe(), hardware=Hardware(devices=3))
    assert not (tmp_path / "run").exists()
