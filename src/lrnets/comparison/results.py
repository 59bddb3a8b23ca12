"""Figures of finished runs, gathered over seeds."""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from lrnets.comparison.costs import Cost, cost_of
from lrnets.comparison.differences import Difference
from lrnets.comparison.rows import Row
from lrnets.comparison.runs import Run, chosen, state_of
from lrnets.data.progress import progress_bars


@dataclass(frozen=True)
class Spread:
    """Numbers, one a seed."""

    values: tuple[float, ...]

    @property
    def mean(self) -> float:
        return statistics.fmean(self.values)

    @property
    def deviation(self) -> float | None:
        """With n - 1; None of a single number."""
        return statistics.stdev(self.values) if len(self.values) > 1 else None

    def __str__(self) -> str:
        return f"{self.mean:.2f}" + ("" if self.deviation is None else f" ± {self.deviation:.2f}")

    def to_json(self) -> dict[str, Any]:
        return {"mean": self.mean, "deviation": self.deviation, "each": list(self.values)}


@dataclass(frozen=True)
class RowResult:
    """A row's finished runs. Errors are on test data, in per cent; `mode` and `draws` are of methods that draw."""

    row: Row
    seeds: tuple[int, ...]
    error: Spread  # of the network chosen on validation data
    valid_error: Spread
    start_error: Spread | None  # of the float network it started from
    mode: Spread | None
    draws: Spread | None  # mean over the draws of a seed
    seconds: Spread  # of its own training, without the float start
    cost: Cost
    commits: tuple[str, ...]


def gather(runs: Sequence[Run]) -> list[RowResult]:
    """The rows that have finished runs, in the order of the runs."""
    finished: dict[str, list[Run]] = {}
    for run in runs:
        if state_of(run)[0] == "finished":
            finished.setdefault(run.row.name, []).append(run)
    order = [name for name in dict.fromkeys(run.row.name for run in runs) if name in finished]
    with progress_bars() as report:
        found = []
        for name in order:
            found.append(_row_result(finished[name]))
            report("sizes of networks", len(found), len(order))
    return found


def _row_result(runs: Sequence[Run]) -> RowResult:
    results = [run.folder.read_json("results.json") for run in runs]
    tests = [result["test_error"] for result in results]
    random = all("test_error_of_draws" in result for result in results)
    own_start = runs[0].start is not None
    commits = [str(run.folder.read_json("environment.json").get("commit")) for run in runs]
    return RowResult(
        row=runs[0].row,
        seeds=tuple(run.seed for run in runs),
        error=Spread(tuple(chosen(test) for test in tests)),
        valid_error=Spread(tuple(chosen(result["valid_error"]) for result in results)),
        start_error=Spread(tuple(test["float"] for test in tests)) if own_start else None,
        mode=Spread(tuple(test["mode"] for test in tests)) if random else None,
        draws=Spread(tuple(statistics.fmean(r["test_error_of_draws"]) for r in results)) if random else None,
        seconds=Spread(tuple(result["seconds"][runs[0].stage] for result in results)),
        cost=cost_of(runs[0]),
        commits=tuple(dict.fromkeys(commits)),
    )


def difference(first: str, second: str, results: Sequence[RowResult]) -> Difference:
    """Of two rows, on the seeds that both have finished."""
    errors = {found.row.name: dict(zip(found.seeds, found.error.values)) for found in results}
    one, other = errors.get(first, {}), errors.get(second, {})
    return Difference(first, second, {seed: (one[seed], other[seed]) for seed in sorted(one.keys() & other.keys())})
