"""What a run ends with, as rows of a table."""

from __future__ import annotations

import statistics
from collections.abc import Mapping, Sequence
from typing import Any

RESULTS_HEADER = ("network", "validation error", "test error", "bytes")


def results_rows(results: Mapping[str, Any]) -> list[tuple[str, ...]]:
    """A row a network of results.json; of the draws: mean ± deviation."""
    sizes, valid, test = results["bytes"], results["valid_error"], results["test_error"]
    size = sizes.get("discrete", 0)
    rows: list[tuple[str, ...]] = []
    for name, error in valid.items():
        bytes_ = sizes["float"] if name == "float" else size
        rows.append((name, f"{error:.2f} %", f"{test[name]:.2f} %", f"{bytes_:,}"))
    if "draws" in results:
        count = results["draws"]
        errors = (_spread(results[f"{part}_error_of_draws"]) for part in ("valid", "test"))
        rows.insert(2, (f"{count} draws", *errors, f"{size:,}"))
        rows.append((f"ensemble of {count}", "", f"{test['ensemble']:.2f} %", f"{count * size:,}"))
    return rows


def _spread(errors: Sequence[float]) -> str:
    return f"{statistics.fmean(errors):.2f} ± {statistics.stdev(errors) if len(errors) > 1 else 0:.2f} %"
