"""The command `lrnets`. Heavy imports happen inside the verbs, so that help comes at once."""

from __future__ import annotations

import argparse
import signal
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from lrnets.words import counted

RESUME_HINTS = {
    "train": "; `lrnets train ... --resume` goes on from the last finished epoch",
    "table": "; the same command goes on from the last finished epochs",
}


def main(arguments: Sequence[str] | None = None) -> int:
    """Run a verb; errors a user can mend are one line on stderr and exit code 1."""
    args = _parser().parse_args(arguments)
    try:
        args.run(args)
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


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="lrnets", description="Neural networks with binary or ternary weights.")
    verbs = parser.add_subparsers(dest="verb", required=True, metavar="VERB")

    def verb(name: str, run: Any, about: str, example: str, short: str = "") -> argparse.ArgumentParser:
        sub = verbs.add_parser(
            name, help=short or about, description=about, epilog=f"example: {example}",
            formatter_class=argparse.RawDescriptionHelpFormatter,
        )  # fmt: skip
        sub.set_defaults(run=run)
        return sub

    def data_dir(sub: argparse.ArgumentParser, what: str = "where data sets are", more: str = "") -> None:
        sub.add_argument("--data-dir", help=f"{what} (default: $LRNETS_DATA, or ~/.cache/lrnets){more}")

    train = verb(
        "train", _train, "Run a recipe: from data to a chosen discrete network.",
        "lrnets train mnist-ternary-quick --seed 1 --set discrete_stage.epochs=8",
    )  # fmt: skip
    train.add_argument("recipe", help="a name that `lrnets recipes` lists, or a YAML file")
    train.add_argument("--set", nargs="+", action="extend", default=[], metavar="KEY=VALUE", help="change settings")
    train.add_argument("--seed", type=int, help="instead of the recipe's")
    train.add_argument("--out", type=Path, help="run folder (default: runs/RECIPE/SEED)")
    train.add_argument(
        "--init", type=Path, metavar="FILE",
        help="float weights to start from, instead of training them: safetensors, or what torch.save wrote (a state "
        "dict, a checkpoint that holds one, a whole network; nothing is unpickled)",
    )  # fmt: skip
    resuming = train.add_mutually_exclusive_group()
    resuming.add_argument("--resume", action="store_true", help="go on with the run in the folder")
    resuming.add_argument(
        "--start-or-resume", action="store_true",
        help="go on with the run in the folder if it holds one, else start it: for jobs that are restarted",
    )  # fmt: skip
    data_dir(train, more="; the folder of imagenet's")
    train.add_argument("--workers", type=int, help="processes that decode images, for each device (default: by cores)")
    train.add_argument("--devices", type=int, help="processes or GPUs on this machine (default: 1, or torchrun's)")
    train.add_argument("--nodes", type=int, help="machines (default: 1, or torchrun's)")
    train.add_argument("--precision", default="32-true", help="Lightning's names: 32-true, bf16-mixed, 16-mixed")
    evaluate = verb(
        "evaluate", _evaluate, "Measure a finished run: draws, ensembles, calibration; also as RUN/evaluation.json.",
        "lrnets evaluate runs/mnist-ternary-quick/0 --draws 20 --ensemble 1,4,16",
    )  # fmt: skip
    evaluate.add_argument("folder", type=Path, metavar="RUN", help="a run's folder")
    evaluate.add_argument("--draws", type=int, default=20, help="networks to draw (default: 20)")
    evaluate.add_argument(
        "--ensemble", type=_sizes, metavar="K,K", help="sizes (default: 1,4,16, as far as there are draws)"
    )
    evaluate.add_argument("--seed", type=int, help="of the draws (default: fresh ones, from the recipe's seed)")
    data_dir(evaluate)
    export = verb(
        "export", _export, "Write the chosen network of a run, or a packed file's, as a packed file, ONNX or C.",
        "lrnets export runs/mnist-ternary-quick/0 --to c --activations int8",
    )  # fmt: skip
    export.add_argument("source", type=Path, metavar="RUN|FILE", help="a run's folder, or a packed .safetensors file")
    export.add_argument("--to", choices=["packed", "onnx", "c"], default="packed", help="default: packed")
    export.add_argument(
        "--out", type=Path, help="file to write (default: in RUN, network.packed.safetensors, .onnx, .c; beside FILE)"
    )
    export.add_argument(
        "--activations", choices=["float32", "int8"],
        help="what layers hand on (default: float32, or FILE's own); int8 is calibrated on training data of RUN",
    )  # fmt: skip
    data_dir(export)
    run = verb(
        "run", _run, "Name the classes of images with a packed file; torch is not needed.",
        "lrnets run runs/mnist-ternary-quick/0/network.packed.safetensors digit.png more-digits/ --top 3",
    )  # fmt: skip
    run.add_argument(
        "model", type=Path, metavar="MODEL.safetensors", help="a packed file, as `lrnets export` writes it"
    )
    run.add_argument(
        "images", type=Path, nargs="+", metavar="IMAGE",
        help="PNG or JPEG (with Pillow), .npy of raw bytes or of prepared floats, folders of these",
    )  # fmt: skip
    run.add_argument("--top", type=int, default=3, metavar="K", help="classes of each image (default: 3)")
    run.add_argument("--threads", type=int, help="default: as many as there are cores")
    run.add_argument("--json", action="store_true", help="print JSON instead of a table")
    bench = verb(
        "bench", _bench, "Time a packed file with every set of kernels that this CPU has.",
        "lrnets bench network.packed.safetensors --threads 1 2 --batches 1 32 --against onnxruntime",
    )  # fmt: skip
    bench.add_argument("model", type=Path, metavar="FILE", help="a packed file")
    bench.add_argument("--threads", type=int, nargs="+", default=[], help="default: 1, and as many as there are cores")
    bench.add_argument("--batches", type=int, nargs="+", default=[1, 32], help="images at a time (default: 1 32)")
    bench.add_argument(
        "--kernels", nargs="+", default=[], help="default: all this CPU has; `reference` is plain NumPy, and slow"
    )
    bench.add_argument("--against", nargs="+", default=[], choices=["onnxruntime"], help="time this as well, in turn")
    bench.add_argument("--json", action="store_true", help="print JSON instead of a table")
    report = verb(
        "report", _report, "Make a page of a run, to be read in any browser: result, curves, figures, layers, recipe.",
        "lrnets report runs/mnist-ternary-quick/0",
    )  # fmt: skip
    report.add_argument(
        "folder", type=Path, metavar="RUN",
        help="a run's folder, finished or not; or one of several seeds (runs/RECIPE), for mean and deviation",
    )  # fmt: skip
    report.add_argument("--out", type=Path, metavar="FILE", help="HTML file to write (default: RUN/report.html)")
    report.add_argument("--data-dir", help="where data sets are; only runs that kept no examples of theirs need one")
    demo = verb(
        "demo", _demo, "Write a page, one HTML file, in which a network names what one draws; needs clang and lld.",
        "lrnets demo runs/mnist-ternary-quick/0 --out digits.html",
    )  # fmt: skip
    demo.add_argument(
        "source", type=Path, metavar="RUN|FILE",
        help="a run's folder, or a packed file; RUN/examples.safetensors, if it is there, gives ten images to click",
    )  # fmt: skip
    demo.add_argument("--out", type=Path, metavar="FILE", help="page to write (default: RUN/demo.html; beside FILE)")
    demo.add_argument(
        "--activations", choices=["float32", "int8"],
        help="what layers hand on (default: int8, calibrated on RUN's training data, or FILE's own)",
    )  # fmt: skip
    data_dir(demo)
    table = verb(
        "table", _table, "Compare the methods: train what is missing, and show the paper's table with ours beside it.",
        "lrnets table mnist --methods lr-sharp-ternary twn --seeds 3 --compare lr-sharp-ternary twn --plot table.png",
    )  # fmt: skip
    table.add_argument("comparison", help="mnist, cifar10, or a YAML file like lrnets/comparison/mnist.yaml")
    table.add_argument("--methods", nargs="+", default=[], metavar="NAME", help="rows, or methods (default: all)")
    table.add_argument("--seeds", type=int, default=3, help="how many: 0, 1, ... (default: 3)")
    table.add_argument("--budget", default="quick", help="quick or paper (default: quick)")
    table.add_argument("--out", type=Path, default=Path("runs/table"), help="where runs are (default: runs/table)")
    table.add_argument("--workers", type=int, default=2, help="runs at a time, which share the cores (default: 2)")
    data_dir(table)
    table.add_argument(
        "--records", type=Path, metavar="DIR",
        help="keep finished runs here too, without networks; what is here is not trained again (for git)",
    )  # fmt: skip
    table.add_argument("--no-train", action="store_true", help="show what is finished, train nothing")
    table.add_argument("--json", type=Path, metavar="FILE", help="write all figures")
    table.add_argument("--markdown", type=Path, metavar="FILE", help="write the table")
    table.add_argument("--plot", type=Path, metavar="FILE", help="draw bars: .png, .svg or .pdf")
    table.add_argument("--compare", nargs=2, default=[], metavar=("A", "B"), help="two rows, seed by seed")
    figures = verb(
        "figures", _figures,
        "Draw the paper's figures and ours from run folders, as SVG and PNG with the numbers beside them as CSV.\n\n"
        "From one run: training curves, pre-activations against their Gaussian (fig. 1), kernels (fig. 3-5), entropy\n"
        "over training and p(w = 0) (appendix B), where draws disagree. From two runs that differ in probability\n"
        "decay alone: fig. 2 and both entropies. From lr and gumbel with the same start: appendix A. From several\n"
        "methods: error against bits. What is impossible is said, with what would make it possible. Nothing is\n"
        "trained, and no data set is read.",
        "lrnets figures runs/with-decay runs/without-decay --out pictures --layers 'conv*'",
        short="Draw the paper's figures and ours from run folders: SVG, PNG and CSV.",
    )  # fmt: skip
    figures.add_argument(
        "folders", type=Path, nargs="+", metavar="RUN",
        help="run folders, or folders with runs inside, as `lrnets table` leaves them",
    )  # fmt: skip
    figures.add_argument("--out", type=Path, default=Path("figures"), help="where to write (default: figures)")
    figures.add_argument(
        "--layers", nargs="+", default=[], metavar="LAYER", help="names or patterns such as 'conv*' (default: all)"
    )
    figures.add_argument(
        "--only", nargs="+", default=[], metavar="NAME",
        help="figures whose names match, such as kernels or 'entropy*' (default: all)",
    )  # fmt: skip
    verb("recipes", _recipes, "List the recipes and what they cost.", "lrnets recipes")
    data = verb(
        "data", _data, "Bring a data set into the data folder, or look at a folder of images.",
        "lrnets data mnist --data-dir ~/data\n         lrnets data ~/imagenet --measure\n"
        "         lrnets data ~/imagenet --to-shards ~/imagenet-shards --shrink",
    )  # fmt: skip
    data.add_argument("name", metavar="mnist|cifar10|FOLDER", help="FOLDER has train/<class>/* and val/<class>/*")
    data_dir(data, "where to put it")
    data.add_argument("--measure", action="store_true", help="tell how many images of FOLDER are decoded in a second")
    data.add_argument("--workers", type=int, help="processes that decode (default: as many as there are cores)")
    data.add_argument("--size", type=int, default=224, help="pixels that a network sees (default: 224)")
    data.add_argument("--resize", type=int, default=256, help="pixels of the shorter side (default: 256)")
    data.add_argument("--to-shards", type=Path, metavar="OUT", help="write the images as tar files, for clusters")
    data.add_argument(
        "--shrink", action="store_true", help="into tar files: images no larger than --resize, decoded in half the time"
    )
    return parser


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
    from lrnets.tables import table
    from lrnets.training.recipe import load_recipe, recipe_names

    recipes = [load_recipe(name) for name in recipe_names()]
    print(table(("recipe", "what", "cost, by default on two cores"), [(r.name, r.about, r.cost) for r in recipes]))


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


if __name__ == "__main__":
    sys.exit(main())
