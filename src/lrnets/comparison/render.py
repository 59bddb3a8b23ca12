"""The table as text, as Markdown and as JSON."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any

from lrnets.comparison.differences import Difference
from lrnets.comparison.results import RowResult
from lrnets.comparison.rows import Comparison
from lrnets.tables import table
from lrnets.words import counted

HEADER = (
    "method", "test error %", "paper %", "mode %", "draws %", "bits", "bytes", "multiplications", "minutes", "seeds",
)  # fmt: skip
UNPACKED = "*"  # beside bytes that are not a file's


@dataclass(frozen=True)
class Table:
    """All there is to show; `absent` says of each run that is not in it why."""

    comparison: Comparison
    results: Sequence[RowResult]
    absent: dict[str, str]
    command: str
    difference: Difference | None = None

    def text(self) -> str:
        # By the names that --methods and --compare take; labels are for readers of the other forms.
        rows = [(found.row.name, *_figures(found)) for found in self.results]
        parts = [table(HEADER, rows, right=range(1, len(HEADER)))]
        parts.append("\n".join(self._notes()))
        if self.difference is not None:
            parts.append(str(self.difference))
        return "\n\n".join(parts)

    def markdown(self) -> str:
        lines = [_line(HEADER), _line(["---", *["---:"] * (len(HEADER) - 1)])]
        lines += [_line([found.row.label.replace("|", "\\|"), *_figures(found)]) for found in self.results]
        parts = [f"`{self.command}`", "\n".join(lines), "\n".join(f"- {note}" for note in self._notes())]
        if self.difference is not None:
            parts.append(f"```\n{self.difference}\n```")
        return "\n\n".join(parts) + "\n"

    def to_json(self) -> dict[str, Any]:
        return {
            "comparison": self.comparison.name,
            "budget": self.comparison.budget,
            "about": self.comparison.about,
            "command": self.command,
            "rows": [_row_json(found) for found in self.results],
            "absent": self.absent,
            "difference": None if self.difference is None else self.difference.to_json(),
        }

    def _notes(self) -> list[str]:
        start = self.comparison.start
        notes = [
            f"{self.comparison.budget} budget: {self.comparison.about}",
            "test error: mean ± deviation over seeds; of methods that draw, the most probable network or a draw, "
            "as validation data chose",
            "mode: the most probable network; draws: the mean of all draws, chosen or not",
            "paper: Table 1 of Shayer, Levi and Fetaya (2018), as printed",
            "bits: a weight, in the layers the method is for; bytes: of the packed file; multiplications: an image",
            f"minutes: of a row's own training, without the {counted(start.epochs, 'epoch')} of the float start that "
            "all share",
        ]
        begun = [found for found in self.results if found.start_error is not None]
        if begun:
            most = max(begun, key=lambda found: len(found.seeds))
            notes.append(f"the float start has {most.start_error} % on seeds {', '.join(map(str, most.seeds))}")
        unpacked = [found.row.name for found in self.results if found.cost.problem]
        if unpacked:
            notes.append(f"{UNPACKED} weights and numbers alone: there is no packed file yet for {', '.join(unpacked)}")
        commits = dict.fromkeys(commit for found in self.results for commit in found.commits)
        notes.append(f"commit{'s' if len(commits) > 1 else ''}: {', '.join(commits) or 'none'}")
        return [*notes, *(f"not in the table: {run}: {why}" for run, why in self.absent.items())]


def _figures(found: RowResult) -> tuple[str, ...]:
    cost = found.cost
    return (
        str(found.error),
        (found.row.printed or "").replace("±", " ± "),
        "" if found.mode is None else str(found.mode),
        "" if found.draws is None else str(found.draws),
        f"{cost.bits:.2f}",
        f"{cost.bytes:,}{UNPACKED if cost.problem else ''}",
        f"{cost.multiplications:,}",
        f"{found.seconds.mean / 60:.1f}",
        str(len(found.seeds)),
    )


def _line(cells: Sequence[str]) -> str:
    return f"| {' | '.join(cells)} |"


def _row_json(found: RowResult) -> dict[str, Any]:
    spreads = {
        name: None if (spread := getattr(found, name)) is None else spread.to_json()
        for name in ("error", "valid_error", "start_error", "mode", "draws", "seconds")
    }
    return {
        "name": found.row.name,
        "label": found.row.label,
        "method": found.row.recipe.method,
        "weights": found.row.recipe.weights,
        "printed": found.row.printed,
        "seeds": list(found.seeds),
        **spreads,
        **asdict(found.cost),
        "commits": list(found.commits),
    }
