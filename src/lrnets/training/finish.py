"""The end of a run: draws, the choice on validation data, and one look at the test data."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor, nn

from lrnets.data import AnySplit, Data, Transform, Transforms
from lrnets.data.progress import progress_bars
from lrnets.data.shuffle import mix
from lrnets.discretize import discretize, select_best
from lrnets.summary import summary
from lrnets.training.evaluation import error, error_of, errors_of, mend_norms, probabilities
from lrnets.training.examples import answers_of, save_examples
from lrnets.training.recipe import Recipe
from lrnets.training.run_folder import RunFolder

FINAL_DRAWS = -2  # beside a recipe's seed: not the draws after any epoch, nor those of `lrnets evaluate`


def finish_float(
    recipe: Recipe, folder: RunFolder, net: nn.Module, data: Data, transforms: Transforms
) -> dict[str, Any]:
    """What there is to tell of a float network."""
    size = summary(net, data.train.shape)
    save_examples(folder, data.valid, transforms.evaluation)
    return {
        **_names(recipe),
        **_errors("valid", {"float": net}, data.valid, transforms.evaluation),
        **_errors("test", {"float": net}, data.test, transforms.evaluation),
        "bytes": {"float": size.float_bytes},
    }


def finish_fixed(
    recipe: Recipe, folder: RunFolder, float_net: nn.Module, model: nn.Module, data: Data, transforms: Transforms,
) -> dict[str, Any]:  # fmt: skip
    """The one network of a method without randomness, batch norm re-estimated, and one look at the test data."""
    evaluate = transforms.evaluation
    mode = mend_norms(discretize(model, "mode"), data.train, evaluate, recipe.norm_batches)
    folder.save_weights("drawn", mode)
    save_examples(folder, data.valid, evaluate)
    nets = {"float": float_net.to(next(model.parameters()).device), "mode": mode}
    size = summary(mode, data.train.shape)
    return {
        **_names(recipe),
        **_errors("valid", nets, data.valid, evaluate),
        **_errors("test", nets, data.test, evaluate),
        "bytes": {"float": size.float_bytes, "discrete": size.bytes},
    }


def finish_random(
    recipe: Recipe, folder: RunFolder, float_net: nn.Module, model: nn.Module, data: Data, transforms: Transforms,
) -> dict[str, Any]:  # fmt: skip
    """The most probable network and draws, batch norm re-estimated, the choice among all of them on validation data,
    of equals the most probable one, and one look at the test data.
    """
    evaluate = transforms.evaluation
    device = next(model.parameters()).device
    mode = mend_norms(discretize(model, "mode"), data.train, evaluate, recipe.norm_batches)
    generator = torch.Generator(device).manual_seed(mix(recipe.seed, FINAL_DRAWS) % 2**63)
    draws: list[nn.Module] = []
    on_valid: list[Tensor] = []  # the classes that each draw names, (n,)
    with progress_bars() as report:

        def score(net: nn.Module) -> float:
            draws.append(mend_norms(net, data.train, evaluate, recipe.norm_batches))
            report("draws", len(draws), recipe.draws)
            p, labels = probabilities(net, data.valid, evaluate)
            on_valid.append(p.argmax(1))
            return -error_of(p, labels)

        best_draw, scores = select_best(model, score, draws=recipe.draws, generator=generator)
    mode_wins = error(mode, data.valid, evaluate) <= -max(scores)
    chosen = mode if mode_wins else best_draw
    folder.save_weights("drawn", chosen)
    nets: dict[str, nn.Module] = {"float": float_net.to(device), "mode": mode, "chosen": chosen}
    size = summary(chosen, data.train.shape)
    valid, test = (_errors(part, nets, getattr(data, part), evaluate) for part in ("valid", "test"))
    on_test, labels, ensemble = _named_by_draws(draws, data.test, evaluate)
    save_examples(folder, data.valid, evaluate, answers_of(on_valid, data.valid, on_test, labels))
    for kind, value in ensemble.items():
        test[f"test_{kind}"]["ensemble"] = value
    return {
        **_names(recipe),
        **valid,
        "valid_error_of_draws": [-s for s in scores],
        **test,
        "test_error_of_draws": [100 * int((named != labels).sum()) / len(labels) for named in on_test],
        "draws": recipe.draws,
        "chosen": "mode" if mode_wins else f"draw {scores.index(max(scores)) + 1}",
        "bytes": {"float": size.float_bytes, "discrete": size.bytes},
    }


def _names(recipe: Recipe) -> dict[str, Any]:
    """What a run was, for whoever finds its results alone."""
    return {"recipe": recipe.name, "method": recipe.method, "seed": recipe.seed}


def _errors(
    part: str, nets: Mapping[str, nn.Module], split: AnySplit, transform: Transform
) -> dict[str, dict[str, float]]:
    """Errors by network: {"test_error": {"float": ...}}, and "test_top5_error" if there are many classes."""
    found = {name: errors_of(*probabilities(net, split, transform)) for name, net in nets.items()}
    kinds = next(iter(found.values()))
    return {f"{part}_{kind}": {name: errors[kind] for name, errors in found.items()} for kind in kinds}


def _named_by_draws(
    draws: Sequence[nn.Module], split: AnySplit, transform: Transform
) -> tuple[list[Tensor], Tensor, dict[str, float]]:
    """Classes (n,) that each draw names, the labels, and the errors of the draws' average.

    Only one draw's probabilities are kept at a time.
    """
    named, total, labels = [], None, torch.empty(0)
    for net in draws:
        p, labels = probabilities(net, split, transform)
        named.append(p.argmax(1))
        total = p if total is None else total.add_(p)
    assert total is not None
    return named, labels, errors_of(total.div_(len(draws)), labels)
