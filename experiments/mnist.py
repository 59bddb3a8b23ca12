"""The MNIST runs of RESULTS.md: float and sharpened LR-nets over several seeds, and an ablation.

    python experiments/mnist.py run --out runs/mnist --seeds 0 1 2 --workers 2     # hours; resumes what was interrupted
    python experiments/mnist.py norms --out runs/mnist         # "all of it" again, batch norm as it was
    python experiments/mnist.py table --out runs/mnist         # Markdown, from finished runs only

Every run is `lrnets train` in a process of its own, with as many threads as its share of the cores. All runs of a seed
start from the same float network, that of mnist-float-quick.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
from collections.abc import Iterable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from lrnets.comparison.runs import chosen

START = "mnist-float-quick"
ABLATION = "mnist-ternary-quick"


@dataclass(frozen=True)
class Experiment:
    """A recipe with settings on top; `label` names its folder and its row."""

    label: str
    recipe: str
    settings: tuple[str, ...] = ()


FLOAT = [Experiment("float", START)]
SHARP = [Experiment("ternary, sharpened", "mnist-ternary-sharp"), Experiment("binary, sharpened", "mnist-binary-sharp")]
VARIANTS = [
    Experiment("all of it", ABLATION),
    Experiment("without sharpening", ABLATION, ("discrete_stage.sharpen=null",)),
    Experiment("without probability decay", ABLATION, ("discrete_stage.probability_decay=0",)),
    Experiment("from a random start", ABLATION, ("discrete_stage.start=random",)),
]
WITH_NORMS = VARIANTS[:2]  # batch norm re-estimated or not: weights that are decided, and that are not
GROUPS = {"float": FLOAT, "sharp": SHARP, "ablation": VARIANTS}


def folder_of(out: Path, experiment: Experiment, seed: int) -> Path:
    return out / experiment.label.replace(",", "").replace(" ", "-") / str(seed)


def train(out: Path, experiment: Experiment, seed: int, threads: int) -> None:
    """One run, unless it is finished; goes on with one that was interrupted."""
    folder = folder_of(out, experiment, seed)
    if (folder / "results.json").exists():
        return
    command = [sys.executable, "-m", "lrnets.cli", "train", experiment.recipe, f"--seed={seed}", f"--out={folder}"]
    command += ["--resume"] if (folder / "recipe.yaml").exists() else []
    command += ["--set", *experiment.settings] if experiment.settings else []
    if experiment.recipe != START and "discrete_stage.start=random" not in experiment.settings:
        command += ["--init", str(folder_of(out, FLOAT[0], seed) / "float.safetensors")]
    folder.parent.mkdir(parents=True, exist_ok=True)
    with (folder.parent / f"{seed}.log").open("a") as log:
        print(" ".join(command[3:]), flush=True)
        environment = os.environ | {"OMP_NUM_THREADS": str(threads)}
        if subprocess.run(command, stdout=log, stderr=subprocess.STDOUT, env=environment).returncode:
            print(f"{experiment.label}, seed {seed}: failed; see {log.name}", flush=True)


def run_all(out: Path, groups: Iterable[str], seeds: Iterable[int], workers: int) -> None:
    threads = max(1, (os.cpu_count() or 1) // workers)
    for group in ["float", *(group for group in groups if group != "float")]:
        jobs = [(experiment, seed) for seed in seeds for experiment in GROUPS[group]]
        with ThreadPoolExecutor(workers) as pool:
            for done in [pool.submit(train, out, experiment, seed, threads) for experiment, seed in jobs]:
                done.result()


def compare_norms(out: Path, draws: int = 5) -> None:
    """Test errors of the same mode and draws with batch norm re-estimated and without, to norms.json in each run."""
    import torch

    from lrnets.data import TRANSFORMS, load
    from lrnets.discretize import discretize
    from lrnets.training.evaluation import error, mend_norms
    from lrnets.training.pipeline import build_network, convert_by
    from lrnets.training.run_folder import RunFolder

    runs = [run for experiment in WITH_NORMS for run in folder_of(out, experiment, 0).parent.glob("*/results.json")]
    for finished in sorted(runs):
        folder = RunFolder(finished.parent)
        if (folder.path / "norms.json").exists():
            continue
        recipe = folder.read_recipe()
        data, view = load(recipe.data, valid_size=recipe.valid_size), TRANSFORMS[recipe.data].evaluation
        model = build_network(recipe)
        convert_by(recipe, model)
        folder.load_weights("stochastic", model)
        generator = torch.Generator().manual_seed(recipe.seed)
        nets = [discretize(model, "mode"), *(discretize(model, generator=generator) for _ in range(draws))]
        found = {}
        for name, batches in (("as trained", 0), ("re-estimated", recipe.norm_batches)):
            errors = [
                error(mend_norms(net, data.train, view, batches) if batches else net, data.test, view) for net in nets
            ]
            found[name] = {"mode": errors[0], "draws": errors[1:]}
        folder.write_json("norms.json", found)
        print(finished.parent, found, flush=True)


def results_of(out: Path, experiment: Experiment) -> list[dict[str, Any]]:
    parent = folder_of(out, experiment, 0).parent
    return [json.loads(file.read_text()) for file in sorted(parent.glob("*/results.json"))]


def spread(values: list[float]) -> str:
    deviation = f" ± {statistics.stdev(values):.2f}" if len(values) > 1 else ""
    return f"{statistics.mean(values):.2f}{deviation}" if values else ""


def tables(out: Path) -> str:
    """Test errors in per cent: mean and deviation over seeds; draws are averaged within a seed first."""
    lines = []
    for title, experiments in (("runs", FLOAT + SHARP), ("ablation", VARIANTS)):
        lines += [f"| {title} | seeds | chosen on validation | mode | mean of draws | ensemble | seconds |"]
        lines += ["|---|---|---|---|---|---|---|"]
        for experiment in experiments:
            results = results_of(out, experiment)
            tests = [result["test_error"] for result in results]
            ends = [chosen(test) for test in tests]
            draws = [statistics.mean(r["test_error_of_draws"]) for r in results if "test_error_of_draws" in r]
            cells = [spread([t[name] for t in tests if name in t]) for name in ("mode", "ensemble")]
            seconds = spread([sum(r["seconds"].values()) for r in results]).split(".")[0]
            cells = [experiment.label, str(len(tests)), spread(ends), cells[0], spread(draws), cells[1], seconds]
            lines += [f"| {' | '.join(cells)} |"]
        lines += [""]
    lines += ["| batch norm | seeds | mode | mean of draws |", "|---|---|---|---|"]
    for experiment in WITH_NORMS:
        files = sorted(folder_of(out, experiment, 0).parent.glob("*/norms.json"))
        norms = [json.loads(file.read_text()) for file in files]
        for name in norms[0] if norms else ():
            mode = spread([n[name]["mode"] for n in norms])
            mean = spread([statistics.mean(n[name]["draws"]) for n in norms])
            lines += [f"| {experiment.label}, {name} | {len(norms)} | {mode} | {mean} |"]
    return "\n".join(lines)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("verb", choices=["run", "norms", "table"])
    parser.add_argument("--out", type=Path, default=Path("runs/mnist"))
    parser.add_argument("--groups", nargs="+", choices=list(GROUPS), default=list(GROUPS))
    parser.add_argument("--seeds", nargs="+", type=int, default=[0, 1, 2])
    parser.add_argument("--workers", type=int, default=2, help="runs at a time")
    args = parser.parse_args()
    if args.verb == "run":
        run_all(args.out, args.groups, args.seeds, args.workers)
    elif args.verb == "norms":
        compare_norms(args.out)
    print(tables(args.out))


if __name__ == "__main__":
    main()
