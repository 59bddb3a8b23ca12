"""What the README and the example promise is what happens."""

import re
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from torch import nn

import lrnets

ROOT = Path(__file__).parent.parent


TRAINING, DEPLOYMENT = re.findall(r"```python\n(.*?)```", (ROOT / "README.md").read_text(), re.DOTALL)


def test_the_whole_path_in_20_lines_runs_as_printed(tmp_path, monkeypatch, capsys):
    code = TRAINING
    assert len([line for line in code.splitlines() if line.strip()]) <= 20
    torch.manual_seed(0)
    batches = [(torch.randn(8, 3, 32, 32), torch.randint(4, (8,))) for _ in range(3)]

    def accuracy(net: nn.Module, loader: list) -> float:
        assert not net.training
        return sum((net(x).argmax(1) == y).float().mean().item() for x, y in loader)

    names = {
        "my_trained_float_network": lambda: nn.Sequential(
            nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4), nn.ReLU(), nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(4, 4)
        ),
        "train_loader": batches, "valid_loader": batches, "accuracy": accuracy,
    }  # fmt: skip
    monkeypatch.chdir(tmp_path)
    exec(code, names)
    assert "classifier" in capsys.readouterr().out
    saved = torch.load(tmp_path / "ternary.pt", weights_only=True)
    assert len(saved["0.weight"].unique()) == 3


def test_deployment_runs_as_printed(tmp_path, monkeypatch):
    torch.manual_seed(0)
    model = nn.Sequential(nn.Conv2d(3, 4, 3), nn.ReLU(), nn.Flatten(), nn.Linear(144, 32), nn.ReLU(), nn.Linear(32, 4))
    lrnets.convert_(model)
    net, example = lrnets.discretize(model), torch.randn(2, 3, 8, 8)
    names = {"net": net, "example_input": example, "batches": [example], "x": example.numpy()}
    monkeypatch.chdir(tmp_path)
    exec(DEPLOYMENT, names)
    torch.testing.assert_close(torch.from_numpy(names["y"]), net(example), atol=1e-5, rtol=1e-4)
    files = {"net.safetensors", "net8.safetensors", "net.c", "net.h", "net.onnx"}
    assert files <= {path.name for path in tmp_path.iterdir()}


def test_all_public_names_are_there():
    assert all(hasattr(lrnets, name) for name in lrnets.__all__)


@pytest.mark.thorough
def test_the_digits_example_goes_from_data_to_a_saved_network(tmp_path):
    command = [
        sys.executable,
        str(ROOT / "examples/digits.py"),
        "--epochs",
        "4",
        "--draws",
        "2",
        "--out",
        str(tmp_path),
    ]
    done = subprocess.run(command, capture_output=True, text=True, timeout=300, check=False)
    assert done.returncode == 0, done.stderr
    assert "best draw on validation" in done.stdout
    assert len(torch.load(tmp_path / "ternary.pt", weights_only=True)["0.weight"].unique()) == 3


def test_the_example_refuses_impossible_arguments():
    command = [sys.executable, str(ROOT / "examples/digits.py"), "--epochs", "0"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=300, check=False)
    assert done.returncode == 2
    assert "at least 1, got 0" in done.stderr
