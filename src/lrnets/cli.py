"""The command `lrnets`. Heavy imports happen inside the verbs, so that help comes at once."""

from __future__ import annotations

import argparse
import shutil
import signal
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from lrnets.cli_arguments import command_parser
from lrnets.words import counted

RESUME_HINTS = {
    "train": "; `lrnets train ... --resume` goes on from the last finished epoch",
    "table": "; the same command goes on from the last finished epochs",
}


def main(arguments: Sequence[str] | None = None) -> int:
    """Run a verb; errors a user can mend are one line on stderr and exit code 1."""
    args = command_parser().parse_args(arguments)
    try:
        VERBS[args.verb](args)
    except (OSError, ValueError, RuntimeError, ImportError, MemoryError) as error:
        untold = getattr(error, "name", None) == "lrnets_runtime" and "pip install" not in str(error)
        print(f"lrnets {args.verb}: {error}{'; pip install lrnets-runtime' if untold else ''}", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        print(f"\ninterrupted{RESUME_HINTS.get(args.verb, '')}", file=sys.stderr)
        return 130
    except SystemExit as end:
        if end.code == 128 + signal.SIGTERM:
            print(f"terminated{RESUME_HINTS.get(args.verb, '')}", file=sys.stderr)
        raise
    return 0


def _train(args: argparse.Namespace) -> None:
    from lrnets.data import fetch
    from lrnets.tables import table
    from lrnets.training.allocator import keep_freed_memory
    from lrnets.training.amx import avoid_broken_amx
    from lrnets.training.denormals import flushed_denormals
    from lrnets.training.hardware import Hardware, is_first_process
    from lrnets.training.pipeline import run
    from lrnets.training.recipe import load_recipe
    from lrnets.training.results import results_header, results_rows
    from lrnets.training.run_folder import RunFolder

    settings = [*args.set, *([] if args.seed is None else [f"seed={args.seed}"])]
    recipe = load_recipe(args.recipe, settings)
    folder = RunFolder(args.out or Path("runs") / recipe.name / str(recipe.seed))
    resume = args.resume or (args.start_or_resume and folder.recipe_file.exists())
    if is_first_process():
        folder.require(recipe, resume)  # before data are brought
    if args.init is not None and not args.init.is_file() and not folder.weights_file("float").exists():
        raise FileNotFoundError(f"--init: there is no file {str(args.init)!r}; check the path")
    fetch(recipe.data, args.data_dir)  # does nothing if the files are there
    keep_freed_memory()
    if "16" in args.precision and avoid_broken_amx():  # 16-mixed is bf16-mixed on a CPU
        print("this machine names AMX and cannot run it: products in bfloat16 are computed without", file=sys.stderr)
    hardware = Hardware.here(args.devices, args.nodes, args.precision)
    with flushed_denormals():
        results = run(
            recipe,
            folder,
            data_dir=args.data_dir,
            init=args.init,
            resume=resume,
            hardware=hardware,
            workers=args.workers,
        )
    if results:  # the first process has them
        header = results_header(results)
        print(table(header, results_rows(results), right=range(1, len(header))))
        print(f"run folder: {folder.path}")


def _evaluate(args: argparse.Namespace) -> None:
    from lrnets.training.evaluate import evaluate_run, evaluation_table
    from lrnets.training.run_folder import RunFolder

    folder = RunFolder(args.folder)
    result = evaluate_run(folder, draws=args.draws, ensembles=args.ensemble, data_dir=args.data_dir, seed=args.seed)
    print(evaluation_table(result))
    print(f"all figures: {folder.path / 'evaluation.json'}")


def _export(args: argparse.Namespace) -> None:
    from lrnets.export.packed import source_checked

    print(_export_file(args) if source_checked(args.source).is_file() else _export_run(args))


def _export_run(args: argparse.Namespace) -> Any:
    from lrnets.training.packing import FILES, export_run
    from lrnets.training.run_folder import RunFolder

    settings = {"to": args.to, "activations": args.activations or "float32", "data_dir": args.data_dir}
    return export_run(RunFolder(args.source), args.out or args.source / FILES[args.to], **settings)


def _export_file(args: argparse.Namespace) -> Any:
    from lrnets.export import export_packed

    if args.out is None and args.to == "packed":
        raise ValueError(f"{args.source} is packed already; name the new file with --out, or another kind with --to")
    out = args.out or args.source.with_suffix({"onnx": ".onnx", "c": ".c"}[args.to])
    return export_packed(args.source, out, to=args.to, activations=args.activations)


def _run(args: argparse.Namespace) -> None:
    import json

    from lrnets_runtime import load

    from lrnets.predict import predict, predictions_table

    predictions = list(predict(load(args.model, threads=args.threads), args.images, top=args.top))
    if args.json:
        print(json.dumps([prediction.to_json() for prediction in predictions], indent=1))
    else:
        print(predictions_table(predictions))


def _bench(args: argparse.Namespace) -> None:
    import json

    from lrnets.bench import bench, timings_table

    timings = bench(
        args.model, kernels=args.kernels, threads=args.threads, batches=args.batches, against=args.against
    )  # fmt: skip
    print(json.dumps([timing.to_json() for timing in timings], indent=1) if args.json else timings_table(timings))


def _report(args: argparse.Namespace) -> None:
    from lrnets.report import write_report

    written = write_report(args.folder, args.out, data_dir=args.data_dir)
    print(f"report: {written} ({written.stat().st_size / 1e3:,.0f} kB); open it in a browser")


def _demo(args: argparse.Namespace) -> None:
    from lrnets.demo import make_demo

    def say(text: str) -> None:
        print(f"{text} ...", file=sys.stderr)

    print(make_demo(args.source, args.out, activations=args.activations, data_dir=args.data_dir, say=say))


def _table(args: argparse.Namespace) -> None:
    from lrnets.comparison.command import Outputs, make_table

    outputs = Outputs(args.json, args.markdown, args.plot)
    table = make_table(
        args.comparison, methods=args.methods, seeds=args.seeds, budget=args.budget, out=args.out, workers=args.workers,
        data_dir=args.data_dir, outputs=outputs, records=args.records, compare=args.compare, train=not args.no_train,
    )  # fmt: skip
    print(table.text())
    for path in outputs.write(table):
        print(f"written: {path}")
    if table.absent and not args.no_train:
        raise RuntimeError(f"{counted(len(table.absent), 'run')} missing in the table; the reasons stand below it")


def _figures(args: argparse.Namespace) -> None:
    from lrnets.figures.command import make_figures

    written = make_figures(args.folders, args.out, layers=args.layers, only=args.only)
    count, captions = counted(len(written), "figure"), args.out / "captions.md"
    print(f"{count} in {args.out}, each as .svg, .png and .csv; captions in {captions}")


def _recipes(args: argparse.Namespace) -> None:
    from lrnets.tables import catalogue
    from lrnets.training.recipe import load_recipe, recipe_names

    recipes = [load_recipe(name) for name in recipe_names()]
    print(catalogue([(r.name, r.about, f"cost: {r.cost}") for r in recipes], shutil.get_terminal_size().columns))
    print("cost: by default that of two cores without a GPU")


def _data(args: argparse.Namespace) -> None:
    from lrnets.data import DATA_SETS, fetch

    if args.name not in DATA_SETS and Path(args.name).is_dir():
        from lrnets.data.inspection import inspect_folder

        for line in inspect_folder(
            Path(args.name), size=args.size, resize=args.resize, workers=args.workers, measure=args.measure,
            shards=args.to_shards, shrink=args.shrink,
        ):  # fmt: skip
            print(line, flush=True)
        return
    if args.name not in DATA_SETS:
        raise ValueError(f"{args.name!r} is neither {' nor '.join(DATA_SETS)}, nor a folder of images")
    print(f"{args.name} is in {fetch(args.name, args.data_dir)}")


VERBS: dict[str, Callable[[argparse.Namespace], None]] = {
    "train": _train,
    "evaluate": _evaluate,
    "export": _export,
    "run": _run,
    "bench": _bench,
    "report": _report,
    "demo": _demo,
    "table": _table,
    "figures": _figures,
    "recipes": _recipes,
    "data": _data,
}


if __name__ == "__main__":
    sys.exit(main())
