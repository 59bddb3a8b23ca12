"""The rows of a table as recipes: one YAML file of settings, merged for a budget and checked to be fair."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from importlib import resources
from typing import Any

from lrnets.training.recipe import Recipe, recipe_from
from lrnets.training.settings_file import read_settings, shipped

_FOLDER = resources.files("lrnets.comparison")

# What a row may not have for itself; epochs and the float start are looked at besides.
SHARED = (
    "data", "data_options", "network", "classes", "width", "dropout", "batch_size", "valid_size", "draws",
    "norm_batches", "seed",
)  # fmt: skip
ROW_KEYS = ("label", "printed", "recipe")


@dataclass(frozen=True)
class Row:
    """One line of the table: a method with its settings, and the figure that the paper prints for it, if any."""

    name: str
    label: str
    recipe: Recipe
    printed: str | None = None

    @property
    def printed_error(self) -> float | None:
        """The printed error in per cent, without its deviation."""
        return None if self.printed is None else float(self.printed.partition("±")[0])

    @property
    def epochs(self) -> int:
        """Of the row's own training; the float start that rows share does not count."""
        return (self.recipe.discrete_stage or self.recipe.float_stage).epochs


@dataclass(frozen=True)
class Comparison:
    """All rows at a budget, and the float network that they start from."""

    name: str  # "mnist", or the stem of an own file
    budget: str
    about: str
    start: Row
    rows: tuple[Row, ...]

    def named(self, names: Sequence[str]) -> tuple[Row, ...]:
        """The rows of these names, or of methods of these names, in the table's order; all if there are no names."""
        for name in names:
            if not self._of(name):
                raise ValueError(f"no method {name!r} in the table {self.name}; {self._what_there_is()}")
        return tuple(row for row in self.rows if not names or any(row in self._of(name) for name in names))

    def one(self, name: str) -> Row:
        """The single row of that name; a method with several rows is refused with their names."""
        found = [row for row in self.rows if row.name == name] or self._of(name)
        if not found:
            raise ValueError(f"no method {name!r} in the table {self.name}; {self._what_there_is()}")
        if len(found) > 1:
            raise ValueError(f"{name!r} has several rows; name one: {', '.join(row.name for row in found)}")
        return found[0]

    def _of(self, name: str) -> list[Row]:
        return [row for row in self.rows if name in (row.name, row.recipe.method)]

    def _what_there_is(self) -> str:
        methods = {str(row.recipe.method) for row in self.rows} - {row.name for row in self.rows}
        groups = f" (and for all of a kind {', '.join(sorted(methods))})" if methods else ""
        return f"there are {', '.join(row.name for row in self.rows)}{groups}"


def comparison_names() -> list[str]:
    """Names of the comparisons that come with lrnets."""
    return shipped(_FOLDER)


def load_comparison(source: str, budget: str) -> Comparison:
    """The comparison of that name, or in a file like ours, at a budget."""
    raw, name = read_settings("comparison", source, _FOLDER)
    for key in ("recipe", "budgets", "rows"):
        if not isinstance(raw, dict) or not isinstance(raw.get(key), dict) or not raw[key]:
            raise ValueError(f"comparison {source!r} has no {key}; see lrnets/comparison/mnist.yaml for what it needs")
    for kind in ("budgets", "rows"):
        for key, settings in raw[kind].items():
            if not isinstance(settings, dict):
                raise ValueError(f"{key!r} under {kind} of the table {name} has no settings; leave it out")
    if budget not in raw["budgets"]:
        raise ValueError(f"no budget {budget!r} in the table {name}; there are {', '.join(raw['budgets'])}")
    return _at_budget(raw, name, budget)


def _at_budget(raw: Mapping[str, Any], name: str, budget: str) -> Comparison:
    shared = merged(raw["recipe"], raw["budgets"][budget].get("recipe") or {})

    def recipe(row: str, about: str, *settings: Mapping[str, Any]) -> Recipe:
        whole = {"name": f"{name}-{budget}-{row}", "about": about, **shared}
        for more in settings:
            whole = merged(whole, more)
        return recipe_from(whole, f"row {row!r} of the table {name}")

    start = Row(
        "start", "float start", recipe("start", "the float start", {"weights": "float", "discrete_stage": None})
    )
    rows = []
    for key, row in raw["rows"].items():
        unknown = set(row) - {*ROW_KEYS, *raw["budgets"]}
        if unknown:
            raise ValueError(
                f"row {key!r} of the table {name} has unknown {', '.join(sorted(unknown))}; "
                f"a row has {', '.join(ROW_KEYS)}, and settings under {', '.join(raw['budgets'])}"
            )
        label, printed = row.get("label", key), row.get("printed")
        own = recipe(key, label, row.get("recipe") or {}, row.get(budget) or {})
        rows.append(Row(key, label, own, None if printed is None else str(printed)))
    discrete_epochs = shared.get("discrete_stage", {}).get("epochs", 0)
    for one in rows:
        _require_fair(one, start.recipe, discrete_epochs)
    return Comparison(name, budget, raw["budgets"][budget].get("about", budget), start, tuple(rows))


def _require_fair(row: Row, start: Recipe, discrete_epochs: int) -> None:
    """Refuse a row that has more, or something else, than the others."""
    for name in SHARED:
        own, others = getattr(row.recipe, name), getattr(start, name)
        if own != others:
            raise ValueError(f"row {row.name!r} has {name} {own}, the table {others}; leave it out, all rows share it")
    if row.recipe.discrete_stage is None:
        total = start.float_stage.epochs + discrete_epochs
        if row.epochs > total:
            raise ValueError(f"row {row.name!r} has {row.epochs} float epochs; the others have {total} in both stages")
    elif row.recipe.float_stage != start.float_stage:
        raise ValueError(f"row {row.name!r} has a float_stage of its own; leave it out, all rows share the float start")
    elif row.epochs != discrete_epochs:
        raise ValueError(f"row {row.name!r} has {row.epochs} discrete epochs, the others {discrete_epochs}")


def merged(below: Mapping[str, Any], above: Mapping[str, Any]) -> dict[str, Any]:
    """Two nested mappings as one, what is above first."""
    result = dict(below)
    for key, value in above.items():
        under = result.get(key)
        result[key] = merged(under, value) if isinstance(value, Mapping) and isinstance(under, Mapping) else value
    return result
