"""The learning rates of `lrnets table mnist`: each method at several rates of its own, judged by validation error.

    python experiments/rates.py --out runs/rates --workers 2     # an hour or two; resumes what was interrupted
    python experiments/rates.py --out runs/rates --no-train      # what is finished

Validation errors are kept in experiments/records/rates.json, and what is there is not trained again. A rate is that of
what the weights come from (`logit_lr`; `lr` for the relatives with float weights). All runs are those of the quick
budget, from the float start of seed 0. Test errors are in the run folders, as always, and are neither read nor shown
here.
"""

from __future__ import annotations

import argparse
from collections.abc import Mapping
from importlib import resources
from pathlib import Path
from typing import Any

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
RATES: Mapping[str, tuple[float, ...]] = {
    "lr-sharp-ternary": (*LOGITS, 0.5), "lr-sharp-binary": LOGITS, "lr-ternary": (*LOGITS, 0.5, 1.5),
    "lr-binary": (0.05, 0.15, 0.5, 1.5),
    "binaryconnect": UNITS, "bnn": (*UNITS, 0.1, 0.3), "twn": FLOATS,
    "bwn": LOWER, "xnor": LOWER[1:], "ttq": LOWER, "bitnet": LOWER,
    "gumbel-ternary": (*LOGITS, 0.5), "gumbel-annealed-ternary": (*LOGITS, 0.5),
    "gumbel-annealed-binary": (0.05, 0.15, 0.5),
    "logderivative-ternary": (0.0003, 0.001, 0.005, 0.02, 0.1), "ebp": (*LOGITS, 0.5, 1.5),
    "gaussian": FLOATS, "fastdropout": FLOATS,
}  # fmt: skip


def search_settings() -> dict[str, Any]:
    """A comparison like ours with a row for each method and rate."""
    raw = yaml.safe_load(resources.files("lrnets.comparison").joinpath("mnist.yaml").read_text())
    quick, rows = raw["budgets"]["quick"], {}
    for name, rates in RATES.items():
        row = raw["rows"][name]
        own = merged(row.get("recipe", {}), row.get("quick", {}))
        key = "lr" if own.get("weights") == "float" else "logit_lr"
        for rate in rates:
            settings = merged(own, {"discrete_stage": {key: rate}})
            rows[f"{name}@{rate:g}"] = {"label": f"{row.get('label', name)}, {rate:g}", "recipe": settings}
    return {"about": raw["about"], "recipe": raw["recipe"], "budgets": {BUDGET: quick}, "rows": rows}


def outcome(run: Run) -> dict[str, Any]:
    """What a finished run says of its rate, and the commit it was made with."""
    errors, environment = run.folder.read_json("results.json")["valid_error"], run.folder.read_json("environment.json")
    return {"valid_error": chosen(errors), "commit": environment.get("commit")}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, default=Path("runs/rates"))
    parser.add_argument("--methods", nargs="+", default=list(RATES), choices=list(RATES), metavar="ROW")
    parser.add_argument("--workers", type=int, default=2, help="runs at a time")
    parser.add_argument("--data-dir")
    parser.add_argument("--no-train", action="store_true", help="show what is finished")
    args = parser.parse_args()
    RunFolder(args.out).write_text("rates.yaml", yaml.safe_dump(search_settings(), sort_keys=False))
    comparison = load_comparison(str(args.out / "rates.yaml"), BUDGET)
    records = RunFolder(RECORDS)
    found: dict[str, Any] = records.read_json("rates.json") if (RECORDS / "rates.json").exists() else {}
    runs = runs_of(comparison, comparison.rows, 1, args.out)
    wanted = [run for run in runs if run.row.name not in found and run.row.name.rpartition("@")[0] in args.methods]
    if not args.no_train:
        train_all(wanting(wanted), workers=args.workers, data_dir=args.data_dir)
    found |= {run.row.name: outcome(run) for run in runs if state_of(run)[0] == "finished"}
    records.write_json("rates.json", {run.row.name: found[run.row.name] for run in runs if run.row.name in found})
    lines = []
    for name in args.methods:
        cells = [(rate, found.get(f"{name}@{rate:g}", {}).get("valid_error")) for rate in RATES[name]]
        known = [(error, rate) for rate, error in cells if error is not None]
        best = f"{min(known)[1]:g}" if known else ""
        shown = ", ".join(f"{rate:g}: {'-' if error is None else f'{error:.2f} %'}" for rate, error in cells)
        lines.append((name, shown, best))
    print(table(("method", "validation error by rate", "best"), lines))


if __name__ == "__main__":
    main()
