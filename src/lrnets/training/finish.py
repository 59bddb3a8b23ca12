"""The end of a run: draws, the choice on validation data, and one look at the test data."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import nn

from lrnets.data import AnySplit, Data, Transform, Transforms
from lrnets.data.progress import progress_bars
from lrnets.data.shuffle import mix
from lrnets.discretize import discretize, select_best
from lrnets.summary import summary
from lrnets.training.evaluation import error, error_of, errors_of, mend_norms, probabilities
from lrnets.training.recipe import Recipe
from lrnets.training.run_folder import RunFolder

FINAL_DRAWS = -2  # beside a recipe's seed: not the draws after any epoch, nor those of `lrnets evaluate`


def finish_float(recipe: Recipe, net: nn.Module, data: Data, transforms: Transforms) -> dict[str, Any]:
    """What there is to tell of a float network."""
    size = summary(net, data.train.shape)
    return {
        "recipe": recipe.name,
        "method": recipe.method,
        "seed": recipe.seed,
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
    nets = {"float": float_net.to(next(model.parameters()).device), "mode": mode}
    size = summary(mode, data.train.shape)
    return {
        "recipe": recipe.name,
        "method": recipe.method,
        "seed": recipe.seed,
        **_errors("valid", nets, data.valid, evaluate),
        **_errors("test", nets, data.test, evaluate),
        "bytes": {"float": size.float_bytes, "discrete": size.bytes},
    }


def finish_random(
    recipe: Recipe, folder: RunFolder, float_net: nn.Module, model: nn.Module, data: Data, transforms: Transforms,
) -> dict[str, Any]:  # fmt: skip
    """Draws with re-estimated batch norm, the choice on validation data, and one look at the test data."""
    evaluate = transforms.evaluation
    device = next(model.parameters()).device
    generator = torch.Generator(device).manual_seed(mix(recipe.seed, FINAL_DRAWS) % 2**63)
    draws: list[nn.Module] = []
    with progress_bars() as report:

        def score(net: nn.Module) -> float:
            draws.append(mend_norms(net, data.train, evaluate, recipe.norm_batches))
            report("draws", len(draws), recipe.draws)
            return -error(net, data.valid, evaluate)

        chosen, scores = select_best(model, score, draws=recipe.draws, generator=generator)
    mode = mend_norms(discretize(model, "mode"), data.train, evaluate, recipe.norm_batches)
    folder.save_weights("drawn", chosen)
    nets: dict[str, nn.Module] = {"float": float_net.to(device), "mode": mode, "chosen draw": chosen}
    size = summary(chosen, data.train.shape)
    valid, test = (_errors(part, nets, getattr(data, part), evaluate) for part in ("valid", "test"))
    of_draws, ensemble = _errors_of_draws(draws, data.test, evaluate)
    for kind, value in ensemble.items():
        test[f"test_{kind}"]["ensemble"] = value
    return {
        "recipe": recipe.name,
        "method": recipe.method,
        "seed": recipe.seed,
        **valid,
        "valid_error_of_draws": [-s for s in scores],
        **test,
        "test_error_of_draws": of_draws,
        "draws": recipe.draws,
        "bytes": {"float": size.float_bytes, "discrete": size.bytes},
    }


def _errors(
    part: str, nets: Mapping[str, nn.Module], split: AnySplit, transform: Transform
) -> dict[str, dict[str, float]]:
    """Errors by network: {"test_error": {"float": ...}}, and "test_top5_error" if there are many classes."""
    found = {name: errors_of(*probabilities(net, split, transform)) for name, net in nets.items()}
    kinds = next(iter(found.values()))
    return {f"{part}_{kind}": {name: errors[kind] for name, errors in found.items()} for kind in kinds}


def _errors_of_draws(
    draws: Sequence[nn.Module], split: AnySplit, transform: Transform
) -> tuple[list[float], dict[str, float]]:
    """The error of each draw, and the errors of their average; only one draw's probabilities are kept at a time."""
    errors, total, labels = [], None, torch.empty(0)
    for net in draws:
        p, labels = probabilities(net, split, transform)
        errors.append(error_of(p, labels))
        total = p if total is None else total.add_(p)
    assert total is not None
    return errors, errors_of(total.div_(len(draws)), labels)
