"""Packed files to make pages of, and what a page's own scripts answer in node."""

from __future__ import annotations

import json
import shutil
import subprocess
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

import lrnets
from lrnets.export import Preparation, save_packed

needs_clang = pytest.mark.skipif(not (shutil.which("clang") and shutil.which("wasm-ld")), reason="no clang with lld")
needs_node = pytest.mark.skipif(shutil.which("node") is None, reason="no node")
READY = "typeof network !== 'undefined' && network !== null && shown !== null"  # in a browser
NODE = Path(__file__).with_name("node_page.js")


def images(*shape: int, seed: int = 0) -> np.ndarray:
    """Bytes, of which half are black, as in drawings."""
    random = np.random.default_rng(seed)
    return (random.integers(0, 256, shape) * random.integers(0, 2, shape)).astype(np.uint8)


def digit_net() -> nn.Sequential:
    """A small one for (1, 28, 28), the same each time."""
    torch.manual_seed(0)
    return nn.Sequential(
        nn.Conv2d(1, 6, 5, bias=False), nn.BatchNorm2d(6), nn.ReLU(), nn.MaxPool2d(2),
        nn.Conv2d(6, 8, 5, bias=False), nn.BatchNorm2d(8), nn.ReLU(), nn.MaxPool2d(2),
        nn.Flatten(), nn.Linear(128, 20), nn.ReLU(), nn.Linear(20, 10),
    )  # fmt: skip


def drawn(net: nn.Module, values: str = "ternary") -> nn.Module:
    """The model converted and drawn; its batch norm as if trained."""
    torch.manual_seed(0)
    lrnets.convert_(net, values)
    net = lrnets.discretize(net, generator=torch.Generator().manual_seed(1))
    for module in net.modules():
        if isinstance(module, nn.BatchNorm2d):
            nn.init.normal_(module.bias, 0, 0.3)
            nn.init.uniform_(module.running_var, 0.5, 2)
    return net.eval()


def pack(net: nn.Module, shape: tuple[int, ...], path: Path, *, activations: str = "int8", **told: Any) -> Path:
    settings: dict[str, Any] = {"preparation": Preparation("fixed"), "activations": activations} | told
    x = torch.from_numpy(images(16, *shape, seed=9)).float() / 255
    if activations == "int8":
        settings["calibration"] = [x]
    save_packed(net, x, path, **settings)
    return path


def node(page: Path, **given: Any) -> dict[str, Any]:
    """`facts`, `answers` for `images`, and what is `drawn` of `strokes`."""
    command, told = ["node", str(NODE), str(page)], json.dumps(given)
    done = subprocess.run(command, input=told, capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)
