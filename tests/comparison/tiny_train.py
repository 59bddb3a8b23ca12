"""`lrnets train` on a few random images in the place of MNIST; a launcher for tests, run as a script."""

import sys

import torch

import lrnets.data
import lrnets.training.pipeline
from lrnets.cli import main
from lrnets.data import Data, Split


def images(count: int) -> Split:
    pixels = torch.randint(0, 256, (count, 1, 28, 28), dtype=torch.uint8, generator=torch.Generator().manual_seed(0))
    return Split(pixels, torch.arange(count) % 10)


if __name__ == "__main__":
    data = Data("mnist", tuple("0123456789"), images(96), images(50), lambda: images(50))
    lrnets.data.fetch = lambda *arguments: None
    lrnets.training.pipeline.load = lambda *arguments, **settings: data
    sys.exit(main(sys.argv[1:]))
