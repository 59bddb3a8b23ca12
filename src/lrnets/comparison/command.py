"""`lrnets table`: train what is missing, then show what there is."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from lrnets.comparison.picture import picture, require_picture
from lrnets.comparison.records import or_recorded, record
from lrnets.comparison.render import Table
from lrnets.comparison.results import difference, gather
from lrnets.comparison.rows import load_comparison
from lrnets.comparison.runs import Run, runs_of, state_of, table_folder
from lrnets.comparison.workers import LAUNCHER, train_all, wanting
from lrnets.whole_files import write_whole
from lrnets.words import counted


@dataclass(frozen=True)
class Outputs:
    """Files to write beside the text, if named."""

    json: Path | None = None
    markdown: Path | None = None
    plot: Path | None = None

    def require(self) -> None:
        """Refuse what could not be written, before hours are spent."""
        for path in (self.json, self.markdown, self.plot):
            if path is not None and not path.absolute().parent.is_dir():
                raise FileNotFoundError(f"there is no folder {str(path.parent)!r} to write {path.name!r} to")
        if self.plot is not None:
            require_picture(self.plot)

    def write(self, table: Table) -> list[Path]:
        """The files, each whole or not there."""
        if self.json is not None:
            write_whole(self.json, (json.dumps(table.to_json(), indent=1) + "\n").encode())
        if self.markdown is not None:
            write_whole(self.markdown, table.markdown().encode())
        if self.plot is not None:
            title = f"{table.comparison.name}, {table.comparison.budget} budget"
            write_whole(self.plot, picture(table.results, title, self.plot.suffix[1:].lower()))
        return [path for path in (self.json, self.markdown, self.plot) if path is not None]


def make_table(
    source: str, *, methods: Sequence[str] = (), seeds: int = 3, budget: str = "quick", out: Path = Path("runs/table"),
    workers: int = 2, data_dir: str | None = None, outputs: Outputs = Outputs(),  # noqa: B008 (frozen)
    records: Path | None = None, compare: Sequence[str] = (), train: bool = True, launcher: Sequence[str] = LAUNCHER,
    say: Callable[[str], None] = print,
) -> Table:  # fmt: skip
    """The table of a comparison ("mnist", "cifar10", or a file like ours); without `train`, of finished runs alone.

    All names and files are looked at before anything is trained. `records` is a folder where finished runs are kept
    without their networks; what is there need not be trained again.
    """
    comparison = load_comparison(source, budget)
    rows = comparison.named(methods)
    pair = [comparison.one(name).name for name in compare]
    for name in pair:
        if name not in [row.name for row in rows]:
            raise ValueError(f"{name!r} is to be compared and not among the methods; add it to --methods")
    outputs.require()
    runs = runs_of(comparison, rows, seeds, out)
    runs = or_recorded(runs, records, out) if records else runs
    changed = {run: detail for run in runs for state, detail in [state_of(run)] if state == "changed"}
    for run, detail in changed.items():
        say(f"{run}: left out, trained with other settings ({detail}); move {run.folder.path} away to train it anew")
    problems: dict[Run, str] = {}
    todo = wanting(runs) if train else []
    if todo:
        from lrnets.data import fetch

        fetch(comparison.start.recipe.data, data_dir)  # once, before several processes would
        say(f"{counted(len(todo), 'run')} to train, {workers} at a time, in {table_folder(comparison, out)}")
        problems = train_all(todo, workers=workers, data_dir=data_dir, launcher=launcher, say=say)
    absent = {str(run): f"other settings: {detail}" for run, detail in changed.items()}
    absent |= {str(run): problem for run, problem in problems.items()}
    absent |= {str(run): state for run in runs for state, _ in [state_of(run)]
               if state in ("missing", "interrupted") and str(run) not in absent}  # fmt: skip
    results = gather(runs)
    if records:
        record(runs, records, out)
    if not results:
        raise RuntimeError(f"no run is finished in {table_folder(comparison, out)}; {_reasons(absent)}")
    chosen = f" --methods {' '.join(methods)}" if methods else ""
    command = f"lrnets table {source}{chosen} --seeds {seeds} --budget {budget}"
    told = difference(pair[0], pair[1], results) if pair else None
    return Table(comparison, results, absent, command, told)


def _reasons(absent: dict[str, str]) -> str:
    first = next(iter(absent.items()))
    return f"{first[0]}: {first[1]}" + (f", and {len(absent) - 1} more" if len(absent) > 1 else "")
