"""Run folders written by hand, as a finished training leaves them: real networks, invented epochs; no training."""

from pathlib import Path

import torch

from lrnets.data import Split
from lrnets.data.augment import TRANSFORMS
from lrnets.diagnostics import entropy, undecided
from lrnets.discretize import discretize
from lrnets.layers import lr_layers
from lrnets.training.examples import answers_of, save_examples
from lrnets.training.metrics import note_epoch
from lrnets.training.pipeline import build_network, convert_by
from lrnets.training.recipe import Recipe, recipe_from
from lrnets.training.run_folder import RunFolder

SHAPES = {"mnist": (1, 28, 28), "cifar10": (3, 32, 32)}


def recipe(**changes) -> Recipe:
    """LR-net with ternary weights on MNIST; `discrete` changes settings of the discrete stage."""
    stage = {"epochs": 3, "lr": 0.003, "logit_lr": 0.02, "scale": True, "probability_decay": 1e-11}
    raw = {
        "name": "small", "about": "a test", "data": "mnist", "network": "mnist_net", "weights": "ternary",
        "float_stage": {"epochs": 2, "lr": 0.005}, "discrete_stage": stage | changes.pop("discrete", {}),
        "valid_size": 80, "draws": 3, "norm_batches": 1,
    }  # fmt: skip
    return recipe_from(raw | changes)


def fabricate(folder: Path, chosen: Recipe | None = None, *, decided: float = 2.0, error: float = 1.0) -> RunFolder:
    """A finished run whose logits are those of the start, multiplied by `decided`."""
    made, run = chosen or recipe(), RunFolder(folder)
    run.prepare(made, resume=False)
    net = build_network(made).eval()
    run.save_weights("float", net)
    generator = torch.Generator().manual_seed(made.seed)
    valid, test = (_images(made.data, n, generator) for n in (80, 50))
    for epoch in (1, 2):
        note_epoch(
            run, "float", {"epoch": epoch, "loss": 1 / epoch, "valid_error": 3.0 / epoch, "lr": 1e-3, "seconds": 1}
        )
    results = {"recipe": made.name, "method": made.method, "seed": made.seed, "test_error": {"float": error}}
    results |= {"valid_error": {"float": error + 0.1}, "seconds": {"float": 2, "stochastic": 3}}
    results["bytes"] = {"float": 1000}
    evaluate = TRANSFORMS[made.data].evaluation
    if made.discrete_stage is None:
        save_examples(run, valid, evaluate)
    else:
        convert_by(made, net)
        _train_by_hand(run, net, decided, error)
        run.save_weights("stochastic", net)
        run.save_weights("drawn", discretize(net, generator=generator))
        named = [torch.rand(2, 130, 10, generator=generator) for _ in range(made.draws)]
        sure = torch.nn.functional.one_hot(torch.cat([valid.labels, test.labels]), 10) * 0.9
        both = [(one[0] + sure).softmax(1) for one in named]
        named = [p.argmax(1) for p in both]
        answers = answers_of([n[:80] for n in named], valid, [n[80:] for n in named], test.labels)
        save_examples(run, valid, evaluate, answers)
        results["test_error"] |= {"mode": error + 0.2, "chosen": error}
        results["valid_error"] |= {"mode": error + 0.3, "chosen": error + 0.1}
        results |= {"test_error_of_draws": [error, error + 0.1, error + 0.2], "draws": made.draws, "chosen": "draw 1"}
    run.write_json("results.json", results)
    return run


def _train_by_hand(run: RunFolder, net: torch.nn.Module, decided: float, error: float) -> None:
    layers = list(lr_layers(net))
    starts = [layer.logits.detach().clone() for _, layer in layers]
    for epoch in (1, 2, 3):
        for (_, layer), logits in zip(layers, starts):
            layer.logits.data = logits * (1 + (decided - 1) * epoch / 3)
        figures = {"epoch": epoch, "loss": 0.5 / epoch, "valid_error": 3 * error / epoch}
        figures["valid_error_draw"] = 3.5 * error / epoch
        figures |= {f"entropy/{name}": bits for name, bits in entropy(net).items()}
        figures |= {f"undecided/{name}": share for name, share in undecided(net).items()}
        note_epoch(run, "stochastic", figures | {"lr": 1e-3, "seconds": 1})


def _images(data: str, n: int, generator: torch.Generator) -> Split:
    images = torch.randint(256, (n, *SHAPES[data]), generator=generator, dtype=torch.uint8)
    return Split(images, torch.arange(n) % 10)
