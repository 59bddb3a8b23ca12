"""The command `lrnets`. Heavy imports happen inside the verbs, so that help comes at once."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any


def main(arguments: Sequence[str] | None = None) -> int:
    """Run a verb; errors a user can mend are one line on stderr and exit code 1."""
    args = _parser().parse_args(arguments)
    try:
        args.run(args)
    except (OSError, ValueError, RuntimeError) as error:
        print(f"lrnets {args.verb}: {error}", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        print("\ninterrupted; `lrnets train ... --resume` goes on from the last finished epoch", file=sys.stderr)
        return 130
    return 0


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="lrnets", description="Neural networks with binary or ternary weights.")
    verbs = parser.add_subparsers(dest="verb", required=True, metavar="VERB")

    def verb(name: str, run: Any, about: str, example: str) -> argparse.ArgumentParser:
        sub = verbs.add_parser(
            name, help=about, description=about, epilog=f"example: {example}",
            formatter_class=argparse.RawDescriptionHelpFormatter,
        )  # fmt: skip
        sub.set_defaults(run=run)
        return sub

    train = verb(
        "train", _train, "Run a recipe: from data to a chosen discrete network.",
        "lrnets train mnist-ternary-quick --seed 1 --set discrete_stage.epochs=8",
    )  # fmt: skip
    train.add_argument("recipe", help="a name that `lrnets recipes` lists, or a YAML file")
    train.add_argument("--set", nargs="+", action="extend", default=[], metavar="KEY=VALUE", help="change settings")
    train.add_argument("--seed", type=int, help="instead of the recipe's")
    train.add_argument("--out", type=Path, help="run folder (default: runs/RECIPE/SEED)")
    train.add_argument("--init", type=Path, help="float weights to start from (safetensors, or a torch state dict)")
    train.add_argument("--resume", action="store_true", help="go on with the run in the folder")
    train.add_argument("--data-dir", help="where data sets are (default: $LRNETS_DATA, or ~/.cache/lrnets)")
    train.add_argument("--devices", type=int, help="processes or GPUs on this machine (default: 1, or torchrun's)")
    train.add_argument("--nodes", type=int, help="machines (default: 1, or torchrun's)")
    train.add_argument("--precision", default="32-true", help="Lightning's names: 32-true, bf16-mixed, 16-mixed")
    evaluate = verb(
        "evaluate", _evaluate, "Measure a finished run: draws, ensembles, calibration; also as RUN/evaluation.json.",
        "lrnets evaluate runs/mnist-ternary-quick/0 --draws 20 --ensemble 1,4,16",
    )  # fmt: skip
    evaluate.add_argument("folder", type=Path, metavar="RUN", help="a run's folder")
    evaluate.add_argument("--draws", type=int, default=20, help="networks to draw (default: 20)")
    evaluate.add_argument("--ensemble", type=_sizes, default=(1, 4, 16), metavar="K,K", help="sizes (default: 1,4,16)")
    evaluate.add_argument("--seed", type=int, help="of the draws (default: fresh ones, from the recipe's seed)")
    evaluate.add_argument("--data-dir", help="where data sets are (default: $LRNETS_DATA, or ~/.cache/lrnets)")
    export = verb(
        "export", _export, "Write the chosen network of a run as a packed file, ONNX or C.",
        "lrnets export runs/mnist-ternary-quick/0 --to c --activations int8",
    )  # fmt: skip
    export.add_argument("folder", type=Path, metavar="RUN", help="a run's folder")
    export.add_argument("--to", choices=["packed", "onnx", "c"], default="packed", help="default: packed")
    export.add_argument(
        "--out", type=Path, help="file to write (default: in RUN, network.packed.safetensors, .onnx, .c)"
    )
    export.add_argument(
        "--activations", choices=["float32", "int8"], default="float32",
        help="what layers hand on; int8 is calibrated on training data, and its loss is told",
    )  # fmt: skip
    export.add_argument("--data-dir", help="where data sets are (default: $LRNETS_DATA, or ~/.cache/lrnets)")
    verb("recipes", _recipes, "List the recipes and what they cost.", "lrnets recipes")
    data = verb("data", _data, "Bring a data set into the data folder.", "lrnets data mnist --data-dir ~/data")
    data.add_argument("name", choices=["mnist", "cifar10"])
    data.add_argument("--data-dir", help="where to put it (default: $LRNETS_DATA, or ~/.cache/lrnets)")
    return parser


def _train(args: argparse.Namespace) -> None:
    from lrnets.data import fetch
    from lrnets.training.hardware import Hardware
    from lrnets.training.pipeline import run
    from lrnets.training.recipe import load_recipe
    from lrnets.training.run_folder import RunFolder

    settings = [*args.set, *([] if args.seed is None else [f"seed={args.seed}"])]
    recipe = load_recipe(args.recipe, settings)
    folder = RunFolder(args.out or Path("runs") / recipe.name / str(recipe.seed))
    fetch(recipe.data, args.data_dir)  # does nothing if the files are there
    hardware = Hardware.here(args.devices, args.nodes, args.precision)
    results = run(recipe, folder, data_dir=args.data_dir, init=args.init, resume=args.resume, hardware=hardware)
    if results:  # the first process has them
        print(_results_table(results))
        print(f"run folder: {folder.path}")


def _results_table(results: dict[str, Any]) -> str:
    import statistics

    from lrnets.tables import table

    def spread(errors: list[float]) -> str:
        return f"{statistics.fmean(errors):.2f} ± {statistics.stdev(errors) if len(errors) > 1 else 0:.2f} %"

    sizes, valid, test = results["bytes"], results["valid_error"], results["test_error"]
    size = sizes.get("discrete", 0)
    rows: list[tuple[str, ...]] = []
    for name, error in valid.items():
        bytes_ = sizes["float"] if name == "float" else size
        rows.append((name, f"{error:.2f} %", f"{test[name]:.2f} %", f"{bytes_:,}"))
    if "draws" in results:
        count = results["draws"]
        errors = (spread(results[f"{part}_error_of_draws"]) for part in ("valid", "test"))
        rows.insert(2, (f"{count} draws", *errors, f"{size:,}"))
        rows.append((f"ensemble of {count}", "", f"{test['ensemble']:.2f} %", f"{count * size:,}"))
    return table(("network", "validation error", "test error", "bytes"), rows, right=(1, 2, 3))


def _sizes(text: str) -> tuple[int, ...]:
    try:
        return tuple(int(part) for part in text.split(",") if part.strip())
    except ValueError:
        raise argparse.ArgumentTypeError(f"{text!r} is no list of whole numbers such as 1,4,16") from None


def _evaluate(args: argparse.Namespace) -> None:
    from lrnets.training.evaluate import evaluate_run, evaluation_table
    from lrnets.training.run_folder import RunFolder

    folder = RunFolder(args.folder)
    result = evaluate_run(folder, draws=args.draws, ensembles=args.ensemble, data_dir=args.data_dir, seed=args.seed)
    print(evaluation_table(result))
    print(f"all figures: {folder.path / 'evaluation.json'}")


def _export(args: argparse.Namespace) -> None:
    from lrnets.training.packing import FILES, export_run
    from lrnets.training.run_folder import RunFolder

    out = args.out or args.folder / FILES[args.to]
    exported = export_run(RunFolder(args.folder), out, to=args.to, activations=args.activations, data_dir=args.data_dir)
    print(exported)


def _recipes(args: argparse.Namespace) -> None:
    from lrnets.tables import table
    from lrnets.training.recipe import load_recipe, recipe_names

    recipes = [load_recipe(name) for name in recipe_names()]
    print(table(("recipe", "what", "cost on two cores"), [(r.name, r.about, r.cost) for r in recipes]))


def _data(args: argparse.Namespace) -> None:
    from lrnets.data import fetch

    print(f"{args.name} is in {fetch(args.name, args.data_dir)}")


if __name__ == "__main__":
    sys.exit(main())
