"""Several seeds of one recipe, side by side."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from lrnets.comparison.runs import chosen
from lrnets.report.found import Found, numbers
from lrnets.training.recipe_difference import settings_difference
from lrnets.training.run_folder import RunFolder

SEEDS_HEADER = ("seed", "state", "validation error", "test error", "float start", "minutes")


def run_folders(path: Path) -> list[RunFolder]:
    """The folder itself if it is a run's, else those in it that are named by their seed."""
    if path.is_dir() and not (path / "environment.json").exists():
        seeds = [child for child in path.iterdir() if child.name.isdecimal() and (child / "recipe.yaml").exists()]
        if seeds:
            return [RunFolder(child) for child in sorted(seeds, key=lambda child: int(child.name))]
    return [RunFolder(path)]


def require_one_recipe(found: Sequence[Found]) -> None:
    """Refuse a mean over runs that differ in more than the seed."""
    recipes = [(one.path, replace(one.recipe, seed=0)) for one in found if one.recipe is not None]
    for path, recipe in recipes[1:]:
        different = settings_difference(recipes[0][1], recipe)
        if different:
            raise ValueError(f"{path} differs from {recipes[0][0]} ({different}); make a report of each")


def seed_rows(found: Sequence[Found]) -> list[tuple[str, ...]]:
    """A row a seed, finished or not."""
    rows = []
    for one in found:
        valid, test = (numbers(one.results.get(f"{part}_error")) for part in ("valid", "test"))
        errors = [f"{chosen(part):.2f} %" if part else "" for part in (valid, test)]
        start = f"{test['float']:.2f} %" if "float" in test and one.trained_start else ""
        seconds = sum(row.get("seconds", 0.0) for rows_ in one.epochs.values() for row in rows_)
        rows.append((str(one.seed), one.state, *errors, start, f"{seconds / 60:.1f}" if seconds else ""))
    return rows
