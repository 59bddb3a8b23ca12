"""The runs behind a table: where they lie, and whether each is missing, interrupted, finished or of other settings."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Literal

from lrnets.comparison.rows import Comparison, Row
from lrnets.training.metrics import read_epochs
from lrnets.training.recipe import Recipe
from lrnets.training.recipe_difference import settings_difference
from lrnets.training.run_folder import RunFolder

State = Literal["missing", "interrupted", "finished", "changed"]


@dataclass(frozen=True, eq=False)  # each is itself only: recipes cannot be hashed
class Run:
    """One row with one seed. `start` is the run whose float network it starts from."""

    row: Row
    seed: int
    folder: RunFolder
    start: Run | None = None

    def __str__(self) -> str:
        return f"{self.row.name}, seed {self.seed}"

    @property
    def recipe(self) -> Recipe:
        return replace(self.row.recipe, seed=self.seed)

    @property
    def recipe_file(self) -> Path:
        """The row's recipe, one for all seeds."""
        return self.folder.path.parent / "recipe.yaml"

    @property
    def log_file(self) -> Path:
        return self.folder.path.parent / f"{self.seed}.log"

    @property
    def stage(self) -> str:
        """What its own training is called in its folder."""
        return "float" if self.row.recipe.discrete_stage is None else "stochastic"

    def epochs_done(self) -> int:
        return len(read_epochs(self.folder, self.stage))


def table_folder(comparison: Comparison, out: Path) -> Path:
    """Where the runs of a comparison at a budget are: a folder a row, in it one a seed."""
    return out / f"{comparison.name}-{comparison.budget}"


def runs_of(comparison: Comparison, rows: Sequence[Row], seeds: int, out: Path) -> list[Run]:
    """All runs of these rows, seed after seed, so that the first seed is complete first."""
    if seeds < 1:
        raise ValueError(f"the number of seeds must be at least 1, got {seeds}")
    where, runs = table_folder(comparison, out), []
    for seed in range(seeds):
        start = Run(comparison.start, seed, RunFolder(where / comparison.start.name / str(seed)))
        for row in rows:
            stage = row.recipe.discrete_stage
            begins = None if stage is None or stage.start == "random" else start
            runs.append(Run(row, seed, RunFolder(where / row.name / str(seed)), begins))
    return runs


def state_of(run: Run) -> tuple[State, str]:
    """What there is of a run, and for a changed one in which settings it differs."""
    if not run.folder.recipe_file.exists():
        return "missing", ""
    try:
        old = run.folder.read_recipe()
    except ValueError as error:  # of another version of lrnets, say
        return "changed", str(error)
    difference = settings_difference(old, run.recipe)
    if difference:
        return "changed", difference
    return ("finished" if (run.folder.path / "results.json").exists() else "interrupted"), ""


def chosen(errors: Mapping[str, float]) -> float:
    """The error of the network that a run ends in: the chosen one, else the only discrete one, else the float one.

    Runs of before the most probable network could be chosen have a chosen draw.
    """
    return next(errors[name] for name in ("chosen", "chosen draw", "mode", "float") if name in errors)
