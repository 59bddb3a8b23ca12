"""Networks out of a run's folder."""

from __future__ import annotations

import copy
from collections.abc import Sequence

from torch import nn

from lrnets.discretize import discretize
from lrnets.training.pipeline import build_network, convert_by
from lrnets.training.recipe import Recipe
from lrnets.training.run_folder import RunFolder


def drawn_network(folder: RunFolder, model: nn.Module | None = None) -> nn.Module:
    """What a finished run chose, as an ordinary network in eval mode; the float network of a float run.

    A run with an own float `model` needs it here again; it is left as it is.
    """
    recipe = folder.read_recipe()
    name = "float" if recipe.discrete_stage is None else "drawn"
    require_finished(folder, [name])
    net = build_network(recipe) if model is None else copy.deepcopy(model)
    if recipe.discrete_stage is not None:
        convert_by(recipe, net)
        net = discretize(net, "mode")
    load_into(net, folder, name, recipe)
    return net.eval()


def require_finished(folder: RunFolder, weights: Sequence[str]) -> None:
    """Refuse a folder that lacks some of its weights."""
    for name in weights:
        if not folder.weights_file(name).is_file():
            raise FileNotFoundError(
                f"{folder.path} has no {folder.weights_file(name).name}: the run is not finished; "
                f"`lrnets train {folder.recipe_file} --out {folder.path} --resume` goes on with it"
            )


def load_into(net: nn.Module, folder: RunFolder, name: str, recipe: Recipe) -> None:
    """Weights of a folder into a network that has their shapes."""
    try:
        folder.load_weights(name, net)
    except RuntimeError as error:
        raise ValueError(
            f"{folder.weights_file(name)} does not fit the network ({recipe.network} by the recipe); "
            "a run with an own model is evaluated with the same model="
        ) from error
