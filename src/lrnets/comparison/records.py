"""What finished runs say, without their networks: small text files that outlive a machine, and can be committed.

A table takes such a record for the run itself, so that one machine can go on where another has stopped.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace
from pathlib import Path

from lrnets.comparison.costs import FILE as COST
from lrnets.comparison.costs import cost_of
from lrnets.comparison.runs import Run, state_of
from lrnets.training.run_folder import RunFolder

FILES = ("recipe.yaml", "environment.json", COST, "metrics/float.csv", "metrics/stochastic.csv")
LAST = "results.json"  # what makes a run finished


def or_recorded(runs: Iterable[Run], records: Path, out: Path) -> list[Run]:
    """The runs; one that is not finished and has a record of the same settings is replaced by it."""
    return [_recorded(run, records, out) for run in runs]


def _recorded(run: Run, records: Path, out: Path) -> Run:
    record = replace(run, folder=_place(run, records, out))
    return record if state_of(run)[0] != "finished" and state_of(record)[0] == "finished" else run


def record(runs: Sequence[Run], records: Path, out: Path) -> None:
    """Copy what finished runs say to the records, with what their networks cost."""
    for run in runs:
        place = _place(run, records, out)
        if state_of(run)[0] == "finished" and place != run.folder:
            cost_of(run)  # kept in the run's folder
            for name in (*FILES, LAST):
                if (run.folder.path / name).exists():
                    place.write_text(name, (run.folder.path / name).read_text())


def _place(run: Run, records: Path, out: Path) -> RunFolder:
    path = run.folder.path
    return RunFolder(records / path.relative_to(out)) if path.is_relative_to(out) else run.folder
