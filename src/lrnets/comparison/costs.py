"""What the network of a finished run costs: bits a weight, bytes of its packed file, multiplications for an image."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from pathlib import Path

from lrnets.comparison.runs import Run
from lrnets.data.pictures import View
from lrnets.training.recipe import Recipe
from lrnets.training.run_folder import RunFolder

FILE = "cost.json"
INPUTS = {"mnist": (1, 28, 28), "cifar10": (3, 32, 32)}


@dataclass(frozen=True)
class Cost:
    """`bits` is the mean over the layers that the method is for. `problem` says why there is no packed file, if so."""

    bits: float
    bytes: int
    multiplications: int
    problem: str | None = None


def input_shape(recipe: Recipe) -> tuple[int, ...]:
    """What the network of a recipe takes, without the batch."""
    size = recipe.data_options.get("size", View.size)  # of an image folder
    return INPUTS.get(recipe.data, (3, size, size))


def cost_of(run: Run) -> Cost:
    """Measured once and kept in the run's folder, until the code that measures is newer, as make would do it."""
    cost = kept_cost(run.folder)
    if cost is None:
        cost = measured_cost(run.folder)
        run.folder.write_json(FILE, asdict(cost))
    return cost


def kept_cost(folder: RunFolder) -> Cost | None:
    """What was measured before, unless the code that measures is newer; of a record, which has no network, always."""
    kept = folder.path / FILE
    if not kept.exists():
        return None
    network = any(folder.weights_file(name).exists() for name in ("drawn", "float"))
    return Cost(**folder.read_json(FILE)) if kept.stat().st_mtime > _code_changed() or not network else None


def measured_cost(folder: RunFolder) -> Cost:
    """Of the network that a run ends in; nothing is written."""
    from lrnets.methods.twin import twins
    from lrnets.summary import summary
    from lrnets.training.pipeline import build_network, convert_by
    from lrnets.training.stored import drawn_network

    recipe = folder.read_recipe()
    own: set[str] = set()
    if recipe.discrete_stage is not None:
        network = build_network(recipe)
        convert_by(recipe, network)
        own = {name for name, _ in twins(network)}
    found = summary(drawn_network(folder), input_shape(recipe))
    weighted = [layer for layer in found.layers if layer.weights]
    layers = [layer for layer in weighted if layer.name in own] or weighted
    bits = sum(layer.bits * layer.weights for layer in layers) / sum(layer.weights for layer in layers)
    return Cost(bits, found.bytes, found.multiplications, found.problem)


def _code_changed() -> float:
    """When the newest of the files that decide about sizes was written."""
    house = Path(__file__).parent.parent
    files = [house / "summary.py", house / "weights.py", Path(__file__), *(house / "export").glob("*.py")]
    return max(file.stat().st_mtime for file in files)
