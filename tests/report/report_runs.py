"""Small runs of the recipes' own network on random images: quick, and complete in every file."""

from pathlib import Path

import torch

from lrnets.data import Data, Split
from lrnets.training.pipeline import run
from lrnets.training.recipe import load_recipe
from lrnets.training.run_folder import RunFolder

SETTINGS = ("batch_size=50", "draws=3", "norm_batches=1", "float_stage.epochs=1", "valid_size=50")


def images(count: int, seed: int) -> Split:
    generator = torch.Generator().manual_seed(seed)
    pixels = torch.randint(0, 256, (count, 1, 28, 28), dtype=torch.uint8, generator=generator)
    return Split(pixels, torch.arange(count) % 10)


def data() -> Data:
    return Data("mnist", tuple("0123456789"), images(100, 0), images(60, 1), lambda: images(60, 2))


def train(path: Path, recipe: str, *settings: str, init: Path | None = None) -> RunFolder:
    folder = RunFolder(path)
    run(load_recipe(recipe, [*SETTINGS, *settings]), folder, data=data(), init=init, say=lambda text: None)
    return folder
