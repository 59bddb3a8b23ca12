"""A small comparison in a file, launchers that stand for `lrnets train`, and run folders written by hand."""

import json
import sys
from pathlib import Path

import yaml

from lrnets.comparison.costs import Cost
from lrnets.comparison.runs import Run

STAGE = {"epochs": 1, "lr": 0.001, "schedule": "one-cycle"}
SMALL = {
    "recipe": {"data": "mnist", "network": "mnist_net", "valid_size": 50},
    "budgets": {
        "quick": {
            "about": "one epoch",
            "recipe": {
                "batch_size": 32, "draws": 2, "norm_batches": 1, "float_stage": STAGE, "discrete_stage": STAGE,
            },
        },
        "long": {"recipe": {"float_stage": STAGE, "discrete_stage": {**STAGE, "epochs": 7}}},
    },
    "rows": {
        "float": {"printed": "0.52", "recipe": {"weights": "float", "discrete_stage": None}},
        "lr-ternary": {"label": "LR-net", "printed": "0.50", "recipe": {"method": "lr", "weights": "ternary"}},
        "lr-binary": {"recipe": {"method": "lr", "weights": "binary"}},
        "twn": {"label": "TWN", "printed": "0.65±0.08", "recipe": {"method": "twn", "weights": "ternary"}},
    },
}  # fmt: skip

# Stands for `lrnets train`: notes that it was called, then does as it is told in plan.json beside it.
FAKE = """
import json, sys
from pathlib import Path
here = Path(__file__).parent
options = dict(part.removeprefix("--").partition("=")[::2] for part in sys.argv[3:])
run = Path(options["out"])
key = f"{run.parent.name}/{run.name}"
with (here / "calls.txt").open("a") as calls:
    calls.write(json.dumps({"run": key, **options}) + chr(10))
if key in json.loads((here / "plan.json").read_text()):
    print("lrnets train: the disk is full", file=sys.stderr)
    sys.exit(1)
from finished import finish
finish(run, Path(sys.argv[2]).read_text().replace("seed: 0", f"seed: {options['seed']}"), 0.5)
"""


def small_file(folder: Path, content: dict = SMALL) -> str:
    path = folder / "small.yaml"
    path.write_text(yaml.safe_dump(content, sort_keys=False))
    return str(path)


def fake_launcher(folder: Path, failing: list[str]) -> list[str]:
    script = folder / "fake.py"
    script.write_text(f"import sys; sys.path.insert(0, {str(Path(__file__).parent)!r})\n{FAKE}")
    (folder / "plan.json").write_text(json.dumps(failing))
    return [sys.executable, str(script)]


def calls(folder: Path) -> list[dict]:
    path = folder / "calls.txt"
    return [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []


def cost(run: Run) -> Cost:
    """In the place of measuring a network that is not there."""
    problem = "no coding" if run.row.name == "lr-binary" else None
    return Cost(1.6 if run.row.recipe.weights == "ternary" else 32.0, 1234567, 28160, problem)
