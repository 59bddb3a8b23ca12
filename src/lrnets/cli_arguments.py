"""The arguments of the command `lrnets`, and the help that teaches them."""

from __future__ import annotations

import argparse
from pathlib import Path

from lrnets import __version__


def command_parser() -> argparse.ArgumentParser:
    """Verbs, their arguments and their help; nothing heavy is imported."""
    parser = argparse.ArgumentParser(prog="lrnets", description="Neural networks with binary or ternary weights.")
    parser.add_argument("--version", action="version", version=f"lrnets {__version__}")
    verbs = parser.add_subparsers(dest="verb", required=True, metavar="VERB")

    def verb(name: str, about: str, example: str, short: str = "") -> argparse.ArgumentParser:
        return verbs.add_parser(
            name, help=short or about, description=about, epilog=f"example: {example}",
            formatter_class=argparse.RawDescriptionHelpFormatter,
        )  # fmt: skip

    def data_dir(sub: argparse.ArgumentParser, what: str = "where data sets are", more: str = "") -> None:
        sub.add_argument("--data-dir", help=f"{what} (default: $LRNETS_DATA, or ~/.cache/lrnets){more}")

    train = verb(
        "train", "Run a recipe: from data to a chosen discrete network.",
        "lrnets train mnist-ternary-quick --seed 1 --set discrete_stage.epochs=8",
    )  # fmt: skip
    train.add_argument("recipe", help="a name that `lrnets recipes` lists, or a YAML file")
    train.add_argument(
        "--set", nargs="+", action="extend", default=[], metavar="KEY=VALUE",
        help="change settings, those of a stage by a dot: batch_size=128 discrete_stage.epochs=50",
    )  # fmt: skip
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
        "evaluate", "Measure a finished run: draws, ensembles, calibration; also as RUN/evaluation.json.",
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
        "export", "Write the chosen network of a run, or a packed file's, as a packed file, ONNX or C.",
        "lrnets export runs/mnist-ternary-quick/0 --to c --activations int8",
    )  # fmt: skip
    export.add_argument("source", type=Path, metavar="RUN|FILE", help="a run's folder, or a packed .safetensors file")
    export.add_argument("--to", choices=["packed", "onnx", "c"], default="packed", help="default: packed")
    export.add_argument(
        "--out", type=Path,
        help="file to write, or to replace (default: in RUN, network.packed.safetensors, .onnx, .c; beside FILE)",
    )  # fmt: skip
    export.add_argument(
        "--activations", choices=["float32", "int8"],
        help="what layers hand on (default: float32, or FILE's own); int8 is calibrated on training data of RUN",
    )  # fmt: skip
    data_dir(export)
    run = verb(
        "run", "Name the classes of images with a packed file; torch is not needed.",
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
        "bench", "Time a packed file with every set of kernels that this CPU has.",
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
        "report", "Make a page of a run, to be read in any browser: result, curves, figures, layers, recipe.",
        "lrnets report runs/mnist-ternary-quick/0",
    )  # fmt: skip
    report.add_argument(
        "folder", type=Path, metavar="RUN",
        help="a run's folder, finished or not; or one of several seeds (runs/RECIPE), for mean and deviation",
    )  # fmt: skip
    report.add_argument("--out", type=Path, metavar="FILE", help="HTML file to write (default: RUN/report.html)")
    report.add_argument("--data-dir", help="where data sets are; only runs that kept no examples of theirs need one")
    demo = verb(
        "demo", "Write a page, one HTML file, in which a network names what one draws; needs clang and lld.",
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
        "table", "Compare the methods: train what is missing, and show the paper's table with ours beside it.",
        "lrnets table mnist --methods lr-sharp-ternary twn --seeds 3 --compare lr-sharp-ternary twn --plot table.png",
    )  # fmt: skip
    table.add_argument("comparison", help="mnist, cifar10, or a YAML file like lrnets/comparison/mnist.yaml")
    table.add_argument("--methods", nargs="+", default=[], metavar="NAME", help="rows, or methods (default: all)")
    table.add_argument("--seeds", type=int, default=3, help="how many: 0, 1, ... (default: 3)")
    table.add_argument("--budget", default="quick", help="quick or paper; cifar10 has longer, too (default: quick)")
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
        "figures",
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
    verb("recipes", "List the recipes and what they cost.", "lrnets recipes")
    data = verb(
        "data", "Bring a data set into the data folder, or look at a folder of images.",
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


def _sizes(text: str) -> tuple[int, ...]:
    try:
        return tuple(int(part) for part in text.split(",") if part.strip())
    except ValueError:
        raise argparse.ArgumentTypeError(f"{text!r} is no list of whole numbers such as 1,4,16") from None
