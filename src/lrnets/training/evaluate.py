"""A finished run looked at closely: many fresh draws, ensembles of them, and how far their probabilities are true."""

from __future__ import annotations

import copy
import math
import statistics
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from lrnets.calibration import expected_calibration_error, negative_log_likelihood
from lrnets.data import AnySplit, Data, Transforms
from lrnets.data.progress import progress_bars
from lrnets.data.shuffle import mix
from lrnets.discretize import discretize
from lrnets.errors import describe
from lrnets.methods.twin import is_random
from lrnets.summary import Summary, summary
from lrnets.tables import table
from lrnets.training.data_notes import require_kept
from lrnets.training.evaluation import errors_of, mend_norms, probabilities, transforms_of
from lrnets.training.pipeline import build_network, convert_by, load_by
from lrnets.training.run_folder import RunFolder, environment
from lrnets.training.stored import load_into, require_finished
from lrnets.words import counted

Judged = dict[str, tuple[Tensor, Tensor]]  # by part: probabilities (n, classes) in float64, and labels (n,)

ENSEMBLES = (1, 4, 16)  # of so many draws, as far as there are as many
FRESH = -1  # beside a recipe's seed: neither the pipeline's own draws nor those after any epoch


def evaluate_run(
    folder: RunFolder,
    *,
    draws: int = 20,
    ensembles: Sequence[int] | None = None,
    data: Data | None = None,
    data_dir: str | None = None,
    transforms: Transforms | None = None,
    model: nn.Module | None = None,
    seed: int | None = None,
    say: Callable[[str], None] = print,
) -> dict[str, Any]:
    """Error (%), NLL (nats) and ECE (%) of a run's networks on test and validation data; also in evaluation.json.

    The networks: float, mode, `draws` fresh draws (their mean, deviation, least and greatest), the best of these by
    validation error, the network stored in the folder, and ensembles of the first k fresh draws. A float run has only
    the first; one of a method without randomness has float, mode and what is stored, which is mode again. Batch norm is
    re-estimated for all but the float and the stored network, which come with theirs. A run with an own float `model`
    or own `data` needs them here again; the model given is left as it is.
    """
    ensembles = _check(draws, ensembles, seed)
    recipe = folder.read_recipe()
    weights = ("float",) if recipe.discrete_stage is None else ("stochastic", "drawn")
    require_finished(folder, weights)
    net = build_network(recipe) if model is None else copy.deepcopy(model)
    data = data or load_by(recipe, data_dir, folder=folder)
    transforms = transforms or transforms_of(data, recipe.data)
    require_kept(folder, data, transforms)
    judge = _Judge(data, transforms, recipe.norm_batches)
    if seed is None:
        seed = mix(recipe.seed, FRESH) % 2**63
    networks: dict[str, Any] = {}
    if folder.weights_file("float").exists():
        load_into(net, folder, "float", recipe)
        networks["float"] = judge.of(net) | {"bytes": judge.size(net).float_bytes}
    if recipe.discrete_stage is not None:
        convert_by(recipe, net)
        load_into(net, folder, "stochastic", recipe)
        stored = discretize(net, "mode")
        load_into(stored, folder, "drawn", recipe)
        if not is_random(net):
            draws, ensembles = 0, []
        networks |= _discrete(net, stored, judge, draws, ensembles, seed, say)
    result = {
        "recipe": recipe.name,
        "method": recipe.method,
        "recipe_seed": recipe.seed,
        "commit": environment(recipe.seed)["commit"],
        "seed": seed,
        "draws": 0 if recipe.discrete_stage is None else draws,
        "ensembles": [] if recipe.discrete_stage is None else ensembles,
        "networks": networks,
    }
    folder.write_json("evaluation.json", result)
    return result


def evaluation_table(result: dict[str, Any]) -> str:
    """What evaluate_run found on test data, a row a network; of several draws: mean ± deviation (least-greatest)."""
    header = evaluation_header(result)
    return f"{table(header, evaluation_rows(result), right=(len(header) - 1,))}\n{evaluation_remark(result)}"


def evaluation_header(result: dict[str, Any]) -> tuple[str, ...]:
    """The columns of the table; top-5 errors are of data with many classes."""
    top5 = any("top5_error" in found["test"] for found in result["networks"].values())
    return ("network", "error %", *(["top-5 error %"] if top5 else []), "NLL", "ECE %", "bytes")


def evaluation_rows(result: dict[str, Any]) -> list[tuple[str, ...]]:
    """The cells of the table."""
    rows: list[tuple[str, ...]] = []
    for name, found in result["networks"].items():
        test = found["test"]
        cells = [_cell(test["error"], "5.2f", True), _cell(test["nll"], ".4f"), _cell(test["ece"], "5.2f")]
        if "top5_error" in test:
            cells.insert(1, _cell(test["top5_error"], "5.2f"))
        rows.append((name, *cells, f"{found['bytes']:,}"))
    return rows


def evaluation_remark(result: dict[str, Any]) -> str:
    """What the table is of."""
    if not result["draws"]:
        return "on test data"
    return (
        f"on test data; {result['draws']} fresh draws (seed {result['seed']}), the best of them by validation error, "
        "of equals by validation NLL"
    )


@dataclass(frozen=True)
class _Judge:
    """The data, and what a network is measured by on it."""

    data: Data
    transforms: Transforms
    norm_batches: int

    def mended(self, net: nn.Module) -> nn.Module:
        return mend_norms(net, self.data.train, self.transforms.evaluation, self.norm_batches)

    def size(self, net: nn.Module) -> Summary:
        return summary(net, self.data.train.shape)

    def probabilities(self, net: nn.Module) -> Judged:
        """Class probabilities and labels of all test and all validation examples."""
        return {name: probabilities(net, split, self.transforms.evaluation) for name, split in self._splits.items()}

    def measure(self, judged: Judged) -> dict[str, dict[str, float]]:
        return {name: _measures(p, labels) for name, (p, labels) in judged.items()}

    def of(self, net: nn.Module) -> dict[str, Any]:
        return self.measure(self.probabilities(net))

    @property
    def _splits(self) -> dict[str, AnySplit]:
        return {"test": self.data.test, "valid": self.data.valid}


def _discrete(
    model: nn.Module, stored: nn.Module, judge: _Judge, draws: int, ensembles: Sequence[int], seed: int,
    say: Callable[[str], None],
) -> dict[str, Any]:  # fmt: skip
    """All that is found out about a discrete network; each drawn one, if any can be drawn, sees the data once."""
    size = judge.size(stored).bytes
    networks: dict[str, Any] = {"mode": judge.of(judge.mended(discretize(model, "mode"))) | {"bytes": size}}
    if not draws:
        return networks | {"stored": judge.of(stored) | {"bytes": size}}
    found, means = _draw(model, judge, draws, ensembles, seed, say)
    best = min(range(draws), key=lambda i: (found[i]["valid"]["error"], found[i]["valid"]["nll"]))
    networks["draws"] = _spread(found) | {"bytes": size, "each": found}
    networks["best draw"] = found[best] | {"bytes": size, "draw": best + 1}
    networks["stored"] = judge.of(stored) | {"bytes": size}
    for k in ensembles:
        networks[f"ensemble of {k}"] = judge.measure(means[k]) | {"bytes": k * size}
    return networks


def _draw(
    model: nn.Module, judge: _Judge, draws: int, ensembles: Sequence[int], seed: int, say: Callable[[str], None]
) -> tuple[list[dict[str, Any]], dict[int, Judged]]:
    """What each draw measures, and the averaged probabilities of the first k draws for each k in `ensembles`."""
    generator = torch.Generator(next(model.parameters()).device).manual_seed(seed)
    found, means = [], {}
    totals: Judged = {}
    start = time.perf_counter()
    with progress_bars() as report:
        for drawn in range(1, draws + 1):
            judged = judge.probabilities(judge.mended(discretize(model, generator=generator)))
            found.append(judge.measure(judged))
            totals = {name: (totals[name][0] + p, y) if totals else (p, y) for name, (p, y) in judged.items()}
            if drawn in ensembles:
                means[drawn] = {name: (total / drawn, y) for name, (total, y) in totals.items()}
            report("draws", drawn, draws)
            expected = draws * (time.perf_counter() - start)
            if drawn == 1 and expected > 2:
                say(f"{counted(draws, 'draw')}, about {math.ceil(expected)} s")
    return found, means


def _measures(p: Tensor, labels: Tensor) -> dict[str, float]:
    return {
        **errors_of(p, labels),
        "nll": negative_log_likelihood(p, labels),
        "ece": 100 * expected_calibration_error(p, labels),
    }


def _spread(found: list[dict[str, Any]]) -> dict[str, Any]:
    """Mean, deviation (of n - 1; None of a single draw), least and greatest of each measure over the draws."""

    def over(values: list[float]) -> dict[str, float | None]:
        deviation = statistics.stdev(values) if len(values) > 1 else None
        return {"mean": statistics.fmean(values), "sd": deviation, "min": min(values), "max": max(values)}

    return {
        part: {name: over([one[part][name] for one in found]) for name in measures}
        for part, measures in found[0].items()
    }


def _cell(value: float | dict[str, float | None], form: str, ends: bool = False) -> str:
    if not isinstance(value, dict):
        return format(value, form)
    if value["sd"] is None:
        return format(value["mean"], form)
    text = f"{value['mean']:{form}} ± {format(value['sd'], form).strip()}"
    bounds = [format(value[end], form).strip() for end in ("min", "max")]
    return f"{text} ({'-'.join(bounds)})" if ends else text


def _check(draws: int, ensembles: Sequence[int] | None, seed: int | None) -> list[int]:
    """The sizes of ensembles, each once, if all arguments can be meant; if none are given, those that fit."""
    fitting = ensembles is None
    ensembles = ENSEMBLES if ensembles is None else ensembles
    for name, value in (("draws", draws), *(("an ensemble's size", k) for k in ensembles)):
        if isinstance(value, bool) or not isinstance(value, int) or value < 1:
            raise ValueError(f"{name} must be a whole number of at least 1, got {describe(value)}")
    if fitting:
        ensembles = [size for size in ensembles if size <= draws]
    if max(ensembles, default=0) > draws:
        raise ValueError(
            f"an ensemble of {max(ensembles)} needs as many draws, got {draws}; raise draws or leave it out"
        )
    if seed is not None and not 0 <= seed < 2**63:
        raise ValueError(f"seed must be from 0 to 2^63 - 1, got {seed}")
    return list(dict.fromkeys(ensembles))
