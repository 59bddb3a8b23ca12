"""Run folders as figures see them: read when needed, and whatever is missing or damaged named with its remedy."""

from __future__ import annotations

import copy
import fnmatch
import os
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Any

from torch import nn

from lrnets.comparison.runs import chosen, settings_difference
from lrnets.diagnostics import entropy
from lrnets.discretize import discretize
from lrnets.layers import LRLayer, lr_layers
from lrnets.methods import method_named
from lrnets.training.examples import Examples, load_examples
from lrnets.training.metrics import metrics_file, read_epochs
from lrnets.training.pipeline import build_network, convert_by
from lrnets.training.recipe import Recipe
from lrnets.training.run_folder import RunFolder
from lrnets.training.stored import load_into, require_finished

Say = Callable[[str], None]


class ImpossibleError(ValueError):
    """A figure that these runs do not allow; the text says why, and what would make it possible."""


@dataclass(eq=False)
class Source:
    """One run. Networks and tables are read once, when first asked for."""

    folder: RunFolder
    recipe: Recipe
    label: str = ""

    @property
    def slug(self) -> str:
        """The label as a part of a file name."""
        return "".join(c if c.isalnum() or c in "-.@" else "-" for c in self.label).strip("-.") or "run"

    @property
    def has_logits(self) -> bool:
        """Whether its weights have distributions given by logits."""
        return self.recipe.discrete_stage is not None and method_named(str(self.recipe.method)).logits

    @property
    def resume(self) -> str:
        """The command that finishes the run."""
        return f"`lrnets train {self.folder.recipe_file} --out {self.folder.path} --resume`"

    @cached_property
    def float_net(self) -> nn.Module:
        require_finished(self.folder, ["float"])
        net = build_network(self.recipe)
        load_into(net, self.folder, "float", self.recipe)
        return net.eval()

    @cached_property
    def start(self) -> nn.Module:
        """The network in training as it was before the first step, made again from the float network."""
        stage = self.recipe.discrete_stage
        if stage is None:
            raise ImpossibleError(f"{self.folder.path} is a run in float; name one with discrete weights")
        if self.folder.weights_file("float").exists() or stage.start == "pretrained":
            net = copy.deepcopy(self.float_net)
        else:
            net = build_network(self.recipe)
        convert_by(self.recipe, net)
        return net.eval()

    @cached_property
    def trained(self) -> nn.Module:
        """The network in training, after it."""
        if self.recipe.discrete_stage is None:
            raise ImpossibleError(f"{self.folder.path} is a run in float; name one with discrete weights")
        require_finished(self.folder, ["stochastic"])
        net = build_network(self.recipe)
        convert_by(self.recipe, net)
        load_into(net, self.folder, "stochastic", self.recipe)
        return net.eval()

    @cached_property
    def drawn(self) -> nn.Module:
        """The discrete network that the run chose, by its file."""
        require_finished(self.folder, ["drawn"])
        net = build_network(self.recipe)
        convert_by(self.recipe, net)
        net = discretize(net, "mode")
        load_into(net, self.folder, "drawn", self.recipe)
        return net.eval()

    @cached_property
    def examples(self) -> Examples:
        return load_examples(self.folder)

    @cached_property
    def results(self) -> dict[str, Any]:
        path = self.folder.path / "results.json"
        try:
            found = self.folder.read_json(path.name)
        except FileNotFoundError:
            raise FileNotFoundError(f"{path} is not there: the run is not finished; {self.resume} goes on") from None
        except ValueError as error:
            raise ValueError(f"{path} is damaged ({error}); {self.resume} writes it anew") from error
        if not isinstance(found, dict) or not isinstance(found.get("test_error"), dict) or not found["test_error"]:
            raise ValueError(f"{path} has no test_error; {self.resume} writes it anew")
        return found

    @property
    def test_error(self) -> float:
        """Of the network that the run ends in, in per cent."""
        return chosen(self.results["test_error"])

    def epochs(self, stage: str, *needed: str) -> list[dict[str, float]]:
        """The figures of a stage's epochs, at least one, each with those that are needed."""
        path = metrics_file(self.folder, stage)
        try:
            rows = read_epochs(self.folder, stage)
            numbers = [[row[name] for name in ("epoch", *needed)] for row in rows]
        except (ValueError, TypeError, KeyError) as error:
            raise ValueError(
                f"{path} is damaged ({type(error).__name__}: {error}); remove the lines that are cut short, or train "
                "the run again"
            ) from error
        if not numbers:
            raise ImpossibleError(f"{path} has no epoch; {self.resume} trains the run on")
        return rows

    def layers(self, wanted: Sequence[str] = ()) -> list[str]:
        """Names of the layers with distributions, those that `wanted` (names or patterns) matches; all if empty."""
        if not self.has_logits:
            raise ImpossibleError(
                f"{self.folder.path}: method {self.recipe.method} has no distributions of weights; name a run of a "
                "method with logits, such as lr or gumbel"
            )
        names = [name for name, _ in lr_layers(self.trained)]
        return self._among(names, wanted)

    def entropies(self, wanted: Sequence[str] = ()) -> dict[str, list[tuple[int, float]]]:
        """Mean entropy in bits a weight after each epoch, by layer; epoch 0 is the start, where it can be had."""
        if not self.has_logits:
            self.layers()  # says why there is none
        rows = self.epochs("stochastic")
        names = [key.removeprefix("entropy/") for key in rows[0] if key.startswith("entropy/")]
        if not names:
            raise ImpossibleError(
                f"{metrics_file(self.folder, 'stochastic')} has no column entropy/...: it is of an older version; "
                "train the run again"
            )
        try:
            before = entropy(self.start)
        except (OSError, ValueError):
            before = {}  # an own model, say: the first epoch is all there is
        found = {}
        for name in self._among(names, wanted):
            after = [(int(row["epoch"]), row[f"entropy/{name}"]) for row in rows if f"entropy/{name}" in row]
            found[name] = ([(0, before[name])] if name in before else []) + after
        return found

    def _among(self, names: Sequence[str], wanted: Sequence[str]) -> list[str]:
        found = [name for name in names if not wanted or any(fnmatch.fnmatchcase(name, each) for each in wanted)]
        if not found:
            raise ImpossibleError(f"{self.folder.path} has no layer {' '.join(wanted)}; it has {', '.join(names)}")
        return found


def lr_layer(model: nn.Module, name: str) -> LRLayer:
    """The layer of that name."""
    return dict(lr_layers(model))[name]


def open_sources(runs: Sequence[RunFolder], say: Say) -> list[Source]:
    """The runs whose recipe can be read, with labels that tell them apart; the others are said."""
    found = []
    for folder in runs:
        try:
            found.append(Source(folder, folder.read_recipe()))
        except (OSError, ValueError) as error:
            say(f"left out: {error}")
    for source, label in zip(found, _labels(found)):
        source.label = label
    return found


def without_seeds(sources: Sequence[Source]) -> list[list[Source]]:
    """Runs that differ in nothing but the seed, together, in the order of their seeds."""
    groups: list[list[Source]] = []
    for source in sources:
        for group in groups:
            if not difference(group[0], source, "seed"):
                group.append(source)
                break
        else:
            groups.append([source])
    return [sorted(group, key=lambda source: source.recipe.seed) for group in groups]


def difference(one: Source, other: Source, *apart: str) -> str:
    """The settings in which two runs differ, apart from some of the recipe's or of its discrete stage."""
    return settings_difference(_without(one.recipe, apart), _without(other.recipe, apart))


def _without(recipe: Recipe, apart: Sequence[str]) -> Recipe:
    plain = {"seed": 0, "method": "lr", "method_options": {}, "probability_decay": 0.0}
    own = {name: plain[name] for name in apart if name != "probability_decay"}
    if "probability_decay" in apart and recipe.discrete_stage is not None:
        own["discrete_stage"] = replace(recipe.discrete_stage, probability_decay=0.0)
    return replace(recipe, **own) if own else recipe  # type: ignore[arg-type]


def _labels(sources: Sequence[Source]) -> list[str]:
    """Names of recipes without what all of them begin with; folders where one name stands for several recipes."""
    names = [source.recipe.name for source in sources]
    if len(set(names)) < len({str({**asdict(source.recipe), "seed": 0}) for source in sources}):
        paths = [source.folder.path.absolute() for source in sources]
        top = os.path.commonpath([str(path) for path in paths])
        return [str(path.relative_to(top)) for path in paths]
    parts = [name.split("-") for name in names]
    cut = 0
    while len(set(names)) > 1 and all(len(own) > cut + 1 and own[cut] == parts[0][cut] for own in parts):
        cut += 1
    return ["-".join(own[cut:]) for own in parts]


def found_runs(paths: Sequence[Path]) -> Iterator[RunFolder]:
    """The run folders that are meant: each path itself, or the runs inside, as `lrnets table` leaves them."""
    seen = set()
    for path in paths:
        if not path.is_dir():
            raise FileNotFoundError(f"there is no folder {path}; name a run's folder, or one with runs inside")
        here = [path] if _is_run(path) else sorted((p.parent for p in path.rglob("recipe.yaml")), key=_by_number)
        runs = [run for run in here if _is_run(run)] or [run for run in here if run == path]
        if not runs:
            raise FileNotFoundError(
                f"{path} is no run folder, and there is none inside (one has recipe.yaml and environment.json); "
                "`lrnets train` makes one"
            )
        for run in runs:
            if run.resolve() not in seen:
                seen.add(run.resolve())
                yield RunFolder(run)


def _is_run(path: Path) -> bool:
    """A table's rows have a recipe.yaml as well, for all their seeds, and nothing else."""
    return (path / "recipe.yaml").is_file() and any(
        (path / name).exists() for name in ("environment.json", "results.json", "metrics", "float.safetensors")
    )


def _by_number(path: Path) -> tuple[Any, ...]:
    return tuple((0, int(part), "") if part.isdigit() else (1, 0, part) for part in path.parts)
