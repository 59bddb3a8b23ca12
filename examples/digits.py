"""A ternary network for scikit-learn's handwritten digits, from data to discrete weights, in well under a minute.

Float training -> conversion -> training of the distributions -> draws with re-estimated batch norm -> choice on
validation data -> one look at the test data.

    python examples/digits.py [--values binary] [--epochs 30] [--seed 0] [--out runs/digits]
"""

from __future__ import annotations

import argparse
import copy
import warnings
from pathlib import Path

import torch
import torch.nn.functional as F
from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn, TimeRemainingColumn
from rich.table import Table
from sklearn.datasets import load_digits
from sklearn.model_selection import train_test_split
from torch import Tensor, nn

import lrnets
from lrnets.diagnostics import RandomnessWarning
from lrnets.layers import bake_sharpness_, set_sharpness

Data = tuple[Tensor, Tensor]
BATCH = 64


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--values", choices=["binary", "ternary"], default="ternary", help="what weights may be")
    parser.add_argument("--epochs", type=int, default=30, help="of each of the two trainings (default %(default)s)")
    parser.add_argument("--draws", type=int, default=8, help="networks to draw and choose from (default %(default)s)")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--out", type=Path, default=Path("runs/digits"), help="folder for the drawn network")
    args = parser.parse_args()
    if args.epochs < 1 or args.draws < 1:
        parser.error(f"--epochs and --draws must be at least 1, got {args.epochs} and {args.draws}")
    console = Console()
    torch.manual_seed(args.seed)
    train, valid, test = load_data(args.seed)
    console.print(f"{len(train[0])} digits to train on, {len(valid[0])} to choose on, {len(test[0])} to test on")

    model = network()
    fit(model, train, args.epochs, lr=3e-3, label="float network", console=console)
    float_net = copy.deepcopy(model).eval()

    console.print(str(lrnets.convert_(model, args.values)), highlight=False)
    fit(model, train, args.epochs, lr=3e-3, logit_lr=3e-2, label=f"{args.values} distributions", console=console)
    with warnings.catch_warnings():  # sharpening decides the weights on purpose
        warnings.simplefilter("ignore", RandomnessWarning)
        console.print(str(lrnets.diagnose(model, train[0][:64])), highlight=False)

    batches = train[0].split(256)

    def score(net: nn.Module) -> float:
        return -error(lrnets.update_bn(net, batches), valid)

    best, scores = lrnets.select_best(model, score, draws=args.draws)
    mode = lrnets.update_bn(lrnets.discretize(model, "mode"), batches)
    console.print(
        f"validation error of {args.draws} draws: {-max(scores):.2f} to {-min(scores):.2f} %", highlight=False
    )

    table = Table("network", "test error", "bytes", title="Digits")
    sizes = lrnets.summary(best, (1, 1, 8, 8))
    table.add_row("float", f"{error(float_net, test):.2f} %", f"{sizes.float_bytes:,}")
    table.add_row(f"{args.values}, most probable", f"{error(mode, test):.2f} %", f"{sizes.bytes:,}")
    table.add_row(f"{args.values}, best draw on validation", f"{error(best, test):.2f} %", f"{sizes.bytes:,}")
    console.print(table)
    args.out.mkdir(parents=True, exist_ok=True)
    path = args.out / f"{args.values}.pt"
    torch.save(best.state_dict(), path)
    console.print(f"drawn network (state dict): {path}")


def load_data(seed: int) -> tuple[Data, Data, Data]:
    """1797 images of 8x8 pixels in 0..1: 60 % to train on, 20 % to choose on, 20 % to test on."""
    pixels, labels = load_digits(return_X_y=True)
    x = torch.tensor(pixels / 16, dtype=torch.float32).view(-1, 1, 8, 8)
    y = torch.tensor(labels)
    rest, test = train_test_split(range(len(y)), test_size=0.2, stratify=labels, random_state=seed)
    train, valid = train_test_split(rest, test_size=0.25, stratify=labels[rest], random_state=seed)
    return (x[train], y[train]), (x[valid], y[valid]), (x[test], y[test])


def network() -> nn.Sequential:
    return nn.Sequential(
        nn.Conv2d(1, 32, 3, padding=1, bias=False), nn.BatchNorm2d(32), nn.ReLU(), nn.MaxPool2d(2),
        nn.Conv2d(32, 64, 3, padding=1, bias=False), nn.BatchNorm2d(64), nn.ReLU(), nn.MaxPool2d(2),
        nn.Flatten(), nn.Linear(256, 128), nn.ReLU(), nn.Dropout(0.2), nn.Linear(128, 10),
    )  # fmt: skip


def fit(
    model: nn.Module, data: Data, epochs: int, lr: float, label: str, console: Console, logit_lr: float | None = None
) -> None:
    """Adam with a one-cycle schedule; the penalty is 0 for a float network.

    Distributions are sharpened: from 40 % of training on, the logits count as multiplied by a factor that grows to 10.
    """
    steps = -(-len(data[0]) // BATCH)
    optimizer = torch.optim.Adam(lrnets.param_groups(model, lr=lr, weight_decay=1e-4, logit_lr=logit_lr))
    peaks = [group["lr"] for group in optimizer.param_groups]
    schedule = torch.optim.lr_scheduler.OneCycleLR(optimizer, peaks, epochs=epochs, steps_per_epoch=steps)
    model.train()
    loss_column = TextColumn("loss {task.fields[loss]:.3f}")
    with Progress(
        TextColumn("{task.description}"), BarColumn(), loss_column, TimeRemainingColumn(), console=console
    ) as progress:
        task = progress.add_task(label, total=epochs * steps, loss=float("nan"))
        for epoch in range(epochs):
            set_sharpness(model, 1 + 9 * max(0.0, epoch / epochs - 0.4) / 0.6)
            for batch in torch.randperm(len(data[0])).split(BATCH):
                optimizer.zero_grad()
                loss = F.cross_entropy(model(data[0][batch]), data[1][batch])
                (loss + lrnets.penalty(model, probability_decay=1e-11)).backward()
                optimizer.step()
                schedule.step()
                progress.update(task, advance=1, loss=loss.item())
    bake_sharpness_(model)


@torch.no_grad()
def error(net: nn.Module, data: Data) -> float:
    """Classification error in per cent, in eval mode."""
    return 100 * (net.eval()(data[0]).argmax(1) != data[1]).float().mean().item()


if __name__ == "__main__":
    main()
