"""Small real runs for the tests of training: scikit-learn's digits, a small network, recipes for it."""

from pathlib import Path

import torch
from sklearn.datasets import load_digits
from torch import nn

from lrnets.data import Data, Split, stratified
from lrnets.data.augment import Transforms, scale
from lrnets.training.pipeline import run
from lrnets.training.recipe import Recipe, recipe_from
from lrnets.training.run_folder import RunFolder

TRANSFORMS = Transforms(scale, scale)


def digits() -> Data:
    """scikit-learn's 1797 digits: 1197 to train on, 300 to choose on, 300 to test on."""
    pixels, labels = load_digits(return_X_y=True)
    everything = Split(torch.tensor(pixels * 15.9).byte().view(-1, 1, 8, 8), torch.tensor(labels))
    rest, test = stratified(everything.labels, 300)
    learning = everything[rest]
    train, valid = stratified(learning.labels, 300)
    return Data("digits", tuple("0123456789"), learning[train], learning[valid], lambda: everything[test])


def network(norm: bool = True, dropout: float = 0.1) -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(
        nn.Conv2d(1, 16, 3, padding=1, bias=not norm), nn.BatchNorm2d(16) if norm else nn.Identity(), nn.ReLU(),
        nn.MaxPool2d(2), nn.Flatten(), nn.Linear(256, 64), nn.ReLU(), nn.Dropout(dropout), nn.Linear(64, 10),
    )  # fmt: skip


def recipe(**changes) -> Recipe:
    raw = {
        "name": "digits", "about": "a test", "data": "mnist", "network": "mnist_net", "weights": "ternary",
        "float_stage": {"epochs": 8, "lr": 0.005, "schedule": "one-cycle"},
        "discrete_stage": {
            "epochs": 12, "lr": 0.003, "logit_lr": 0.05, "schedule": "one-cycle", "scale": True,
            "probability_decay": 1e-11, "sharpen": {"start": 0.4, "factor": 10},
        },
        "batch_size": 64, "draws": 3, "norm_batches": 2,
    }  # fmt: skip
    return recipe_from(raw | changes)


def train(folder: Path, chosen: Recipe | None = None, **arguments) -> dict:
    model = arguments.pop("model", None) or network()
    return run(
        chosen or recipe(), RunFolder(folder), data=digits(), transforms=TRANSFORMS, model=model,
        say=lambda text: None, **arguments,
    )  # fmt: skip


def short(**discrete) -> Recipe:
    stage = {"epochs": 3, "lr": 0.003, "logit_lr": 0.05, "schedule": "one-cycle", "sharpen": {"start": 0.3}} | discrete
    return recipe(float_stage={"epochs": 2, "lr": 0.005, "schedule": "step", "milestones": [1]}, discrete_stage=stage)
