"""The figures of every epoch, as a CSV file that survives interruptions."""

from __future__ import annotations

import csv
import io
from collections.abc import Mapping
from pathlib import Path

from lrnets.training.run_folder import RunFolder


def metrics_file(folder: RunFolder, stage: str) -> Path:
    """Where a stage's figures are: one row an epoch."""
    return folder.path / "metrics" / f"{stage}.csv"


def read_epochs(folder: RunFolder, stage: str) -> list[dict[str, float]]:
    """The rows so far, none if there are none."""
    try:
        text = metrics_file(folder, stage).read_text()
    except FileNotFoundError:
        return []
    return [{name: float(value) for name, value in row.items() if value} for row in csv.DictReader(text.splitlines())]


def note_epoch(folder: RunFolder, stage: str, figures: Mapping[str, float]) -> None:
    """Add a row; rows of the same epoch and later ones, left by a run that was killed, give way."""
    rows = [row for row in read_epochs(folder, stage) if row["epoch"] < figures["epoch"]] + [dict(figures)]
    text = io.StringIO()
    writer = csv.DictWriter(text, list(dict.fromkeys(name for row in rows for name in row)), lineterminator="\n")
    writer.writeheader()
    writer.writerows({name: f"{value:.8g}" for name, value in row.items()} for row in rows)
    folder.write_text(f"metrics/{stage}.csv", text.getvalue())


def seconds_of(folder: RunFolder, stage: str) -> float:
    """How long a stage's epochs took, over all sittings."""
    return sum(row["seconds"] for row in read_epochs(folder, stage))
