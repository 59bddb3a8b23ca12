"""What the training pipeline costs beside the bare step: seconds an epoch of both, taking turns, MNIST's size and net.

The bare epoch is as many steps of benchmarks/train_step.py (forward, backward, Adam; one batch that lies ready) as the
pipeline makes in an epoch. The pipeline's is all of `lrnets.training.pipeline.fit` with one epoch: Lightning's set-up,
batches, penalties, logging, validation of the mode and of a draw with batch norm re-estimated, the checkpoint. Images
are random: times do not depend on them. Keep the machine quiet meanwhile.

    python benchmarks/train_loop.py [--rounds 3] [--threads 2] [--variants float32 lrnets]
"""

from __future__ import annotations

import argparse
import statistics
import tempfile
import time
from pathlib import Path

import torch
from train_step import NETWORKS, build

from lrnets.data import TRANSFORMS, Data, Split
from lrnets.tables import table
from lrnets.training.hardware import Hardware
from lrnets.training.pipeline import build_network, convert_by, fit
from lrnets.training.recipe import load_recipe
from lrnets.training.run_folder import RunFolder

AIM = 1.10


def random_mnist() -> Data:
    def split(count: int) -> Split:
        images = torch.randint(0, 256, (count, 1, 28, 28), dtype=torch.uint8)
        return Split(images, torch.arange(count) % 10)

    return Data("mnist", tuple("0123456789"), split(55_000), split(5_000), lambda: split(10_000))


def pipeline_epoch(data: Data, variant: str) -> float:
    recipe = load_recipe("mnist-ternary-quick", ["float_stage.epochs=1", "discrete_stage.epochs=1"])
    model = build_network(recipe)
    settings = recipe.float_stage
    if variant == "lrnets":
        assert recipe.discrete_stage is not None
        convert_by(recipe, model)
        settings = recipe.discrete_stage
    with tempfile.TemporaryDirectory() as folder:
        start = time.perf_counter()
        fit(
            model, settings, variant, RunFolder(Path(folder)), data, TRANSFORMS["mnist"],
            batch_size=NETWORKS["mnist"][1][0], seed=0, hardware=Hardware(), say=lambda text: None,
        )  # fmt: skip
        return time.perf_counter() - start


def bare_epoch(data: Data, variant: str) -> float:
    step = build("mnist", variant, "channels_last")
    steps = len(data.train) // NETWORKS["mnist"][1][0]
    start = time.perf_counter()
    for _ in range(steps):
        step()
    return time.perf_counter() - start


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=3, help="pairs of epochs to take the median of")
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--variants", nargs="+", choices=["float32", "lrnets"], default=["float32", "lrnets"])
    args = parser.parse_args()
    torch.set_num_threads(args.threads)
    data, rows = random_mnist(), []
    for variant in args.variants:
        pairs = [(bare_epoch(data, variant), pipeline_epoch(data, variant)) for _ in range(args.rounds)]
        bare, whole = (statistics.median(times) for times in zip(*pairs))
        ratio = statistics.median(b / a for a, b in pairs)
        verdict = f"{AIM:.2f}: {'met' if ratio <= AIM else 'missed'}"
        rows.append((variant, f"{bare:.1f}", f"{whole:.1f}", f"{ratio:.2f}", verdict))
    print(table(("epoch of", "bare steps (s)", "pipeline (s)", "ratio", "aim"), rows, right=(1, 2, 3)))


if __name__ == "__main__":
    main()
