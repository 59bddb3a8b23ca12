"""The learning rates of `lrnets table`: each method at several rates of its own, judged by validation error.

    python experiments/rates.py mnist --out runs/rates --workers 2     # hours; resumes what was interrupted
    python experiments/rates.py cifar10 --out runs/rates --workers 2
    python experiments/rates.py mnist --out runs/rates --no-train      # what is finished

Validation errors are kept in experiments/records, and what is there is not trained again. A rate is that of what the
weights come from (`logit_lr`; `lr` for the relatives with float weights). All runs are those of the quick budget,
from the float start of seed 0, so that a method's best run is that of the table, bit for bit. Test errors are in the
run folders, as always, and are neither read nor shown here.
"""

from __future__ import annotations

import argparse
from collections.abc import Mapping
from importlib import resources
from pathlib import Path
from typing import Any, NamedTuple

import yaml

from lrnets.comparison.rows import load_comparison, merged
from lrnets.comparison.runs import Run, chosen, runs_of, state_of
from lrnets.comparison.workers import train_all, wanting
from lrnets.tables import table
from lrnets.training.run_folder import RunFolder

BUDGET = "search"
RECORDS = Path(__file__).parent / "records"
LOGITS = (0.005, 0.015, 0.05, 0.15)
UNITS = (0.003, 0.01, 0.03)  # weights in units of the layer's deviation
FLOATS = (0.0006, 0.002, 0.006)  # weights as they are
LOWER = (0.00006, 0.0002, *FLOATS)
# Lists were made longer until the best rate was not the last one, or until the limit of a sitting.
Rates = Mapping[str, tuple[float, ...]]
MNIST: Rates = {
    "lr-sharp-ternary": (*LOGITS, 0.5), "lr-sharp-binary": LOGITS, "lr-ternary": (*LOGITS, 0.5, 1.5),
    "lr-binary": (0.05, 0.15, 0.5, 1.5),
    "binaryconnect": UNITS, "bnn": (*UNITS, 0.1, 0.3), "twn": FLOATS,
    "bwn": LOWER, "xnor": LOWER[1:], "ttq": LOWER, "bitnet": LOWER,
    "gumbel-ternary": (*LOGITS, 0.5, 1.5), "gumbel-annealed-ternary": (*LOGITS, 0.5),
    "gumbel-annealed-binary": (0.05, 0.15, 0.5, 1.5),
    "logderivative-ternary": (0.0003, 0.001, 0.005, 0.02, 0.1, 0.5),
    "ebp": (*LOGITS, 0.5, 1.5, 5.0, 15.0, 50.0),
    "gaussian": FLOATS, "fastdropout": FLOATS,
}  # fmt: skip
CIFAR10: Rates = {  # what was best on MNIST, and a neighbour; lr-binary has the rate of lr-ternary
    "lr-natural-ternary": (0.015, 0.05, 0.15), "lr-natural-binary": (0.015, 0.05, 0.15),
    "lr-sharp-ternary": (0.05, 0.15), "lr-sharp-binary": (0.015, 0.05, 0.15), "lr-ternary": (0.15, 0.5),
    "twn": (0.0002, 0.0006, 0.002), "bwn": (0.0002, 0.0006, 0.002, 0.006),
    "gumbel-annealed-ternary": (0.05, 0.15, 0.5),
}  # fmt: skip


class Search(NamedTuple):
    """What is searched for a table, and where it is written down."""

    rates: Rates
    records: str


SEARCHES = {"mnist": Search(MNIST, "rates.json"), "cifar10": Search(CIFAR10, "rates-cifar10.json")}


def search_settings(name: str, search: Search) -> dict[str, Any]:
    """A comparison like ours with a row for each method and rate."""
    raw = yaml.safe_load(resources.files("lrnets.comparison").joinpath(f"{name}.yaml").read_text())
    budget, rows = raw["budgets"]["quick"], {}
    for method, rates in search.rates.items():
        row = raw["rows"][method]
        own = merged(row.get("recipe", {}), row.get("quick", {}))
        key = "lr" if own.get("weights") == "float" else "logit_lr"
        for rate in rates:
            settings = merged(own, {"discrete_stage": {key: rate}})
            rows[f"{method}@{rate:g}"] = {"label": f"{row.get('label', method)}, {rate:g}", "recipe": settings}
    return {"about": raw["about"], "recipe": raw["recipe"], "budgets": {BUDGET: budget}, "rows": rows}


def outcome(run: Run) -> dict[str, Any]:
    """What a finished run says of its rate, and the commit it was made with."""
    errors, environment = run.folder.read_json("results.json")["valid_error"], run.folder.read_json("environment.json")
    return {"valid_error": chosen(errors), "commit": environment.get("commit")}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("table", choices=list(SEARCHES), help="whose rates are searched")
    parser.add_argument("--out", type=Path, default=Path("runs/rates"))
    parser.add_argument("--methods", nargs="+", default=[], metavar="ROW", help="rows of the table (default: all)")
    parser.add_argument("--workers", type=int, default=2, help="runs at a time")
    parser.add_argument("--data-dir")
    parser.add_argument("--no-train", action="store_true", help="show what is finished")
    args = parser.parse_args()
    search = SEARCHES[args.table]
    methods = args.methods or list(search.rates)
    if unknown := set(methods) - set(search.rates):
        parser.error(f"{', '.join(sorted(unknown))}: no such row is searched; there is {', '.join(search.rates)}")
    settings = Path(search.records).with_suffix(".yaml").name
    RunFolder(args.out).write_text(settings, yaml.safe_dump(search_settings(args.table, search), sort_keys=False))
    comparison = load_comparison(str(args.out / settings), BUDGET)
    records = RunFolder(RECORDS)
    found: dict[str, Any] = records.read_json(search.records) if (RECORDS / search.records).exists() else {}
    runs = runs_of(comparison, comparison.rows, 1, args.out)
    wanted = [run for run in runs if run.row.name not in found and run.row.name.rpartition("@")[0] in methods]
    if not args.no_train:
        train_all(wanting(wanted), workers=args.workers, data_dir=args.data_dir)
    found |= {run.row.name: outcome(run) for run in runs if state_of(run)[0] == "finished"}
    if found:
        records.write_json(search.records, {run.row.name: found[run.row.name] for run in runs if run.row.name in found})
    lines = []
    for name in methods:
        cells = [(rate, found.get(f"{name}@{rate:g}", {}).get("valid_error")) for rate in search.rates[name]]
        known = [(error, rate) for rate, error in cells if error is not None]
        best = f"{min(known)[1]:g}" if known else ""
        shown = ", ".join(f"{rate:g}: {'-' if error is None else f'{error:.2f} %'}" for rate, error in cells)
        lines.append((name, shown, best))
    print(table(("method", "validation error by rate", "best"), lines))


if __name__ == "__main__":
    main()
