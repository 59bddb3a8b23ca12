"""What a run ends with, as rows of a table."""

from __future__ import annotations

import statistics
from collections.abc import Mapping, Sequence
from typing import Any

from lrnets.words import counted


def results_header(results: Mapping[str, Any]) -> tuple[str, ...]:
    """The columns; top-5 errors are of data with many classes."""
    top5 = ("top-5 error",) if "test_top5_error" in results else ()
    return ("network", "validation error", "test error", *top5, "bytes")


def results_rows(results: Mapping[str, Any]) -> list[tuple[str, ...]]:
    """A row a network of results.json; of the draws: mean ± deviation."""
    sizes, valid, test = results["bytes"], results["valid_error"], results["test_error"]
    size = sizes.get("discrete", 0)
    rows: list[tuple[str, ...]] = []
    for name, error in valid.items():
        bytes_ = sizes["float"] if name == "float" else size
        shown = f"chosen: {results['chosen']}" if name == "chosen" else name
        rows.append((shown, f"{error:.2f} %", f"{test[name]:.2f} %", f"{bytes_:,}"))
    if "draws" in results:
        count = results["draws"]
        errors = (_spread(results[f"{part}_error_of_draws"]) for part in ("valid", "test"))
        rows.insert(2, (counted(count, "draw"), *errors, f"{size:,}"))
        rows.append((f"ensemble of {count}", "", f"{test['ensemble']:.2f} %", f"{count * size:,}"))
    top5 = dict(results.get("test_top5_error", {}))
    if not top5:
        return rows
    if "chosen" in top5:
        top5[f"chosen: {results['chosen']}"] = top5["chosen"]
    if "ensemble" in top5:
        top5[f"ensemble of {results['draws']}"] = top5["ensemble"]
    return [(*row[:3], f"{top5[row[0]]:.2f} %" if row[0] in top5 else "", row[3]) for row in rows]


def _spread(errors: Sequence[float]) -> str:
    spread = f" ± {statistics.stdev(errors):.2f}" if len(errors) > 1 else ""
    return f"{statistics.fmean(errors):.2f}{spread} %"
