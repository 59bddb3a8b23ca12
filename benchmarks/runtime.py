"""The run-time against torch, onnxruntime and OpenVINO: single layers, the MNIST network, the CIFAR-10 VGG.

All engines take turns in one process, so that a slow moment of the machine hits all; a time is the shortest of the
rounds, since what else goes on in a machine only ever makes them longer. A ratio is the fastest rival's time over
ours: above 1 ours is faster. The median of the rounds' ratios is kept beside it. Rivals are compared in the same type
of activations: float32 (torch, onnxruntime, OpenVINO) or int8 (onnxruntime, OpenVINO, and 2-bit MatMulNBits for
linear layers), quantising included. With `signs`, single layers of binary weights take the signs of their input, by
counting bits, and are compared with the same layer on the input itself: ours in float32, and onnxruntime's in float32
and int8 (neither has a layer for signs). Weights are random draws: times do not depend on them. Keep the machine
quiet.

    python benchmarks/runtime.py [--cases linear conv mnist vgg] [--activations float32 int8 signs] [--threads 1 2]
                                 [--batches 1 32] [--json FILE]
    python benchmarks/runtime.py --from FILE --plot benchmarks/runtime.svg  # table and picture of a measurement

Needs onnx and onnxruntime; OpenVINO (`pip install openvino`) is used if it is there.
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
import tempfile
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from itertools import product
from pathlib import Path
from typing import TYPE_CHECKING, Any

import lrnets_runtime
import numpy as np
import torch
from torch import nn

import lrnets
from lrnets import export
from lrnets.bench import interleaved
from lrnets.figures.style import BLUE, GRID, INK, ORANGE, SKY, SOFT, VERMILION, house_style, light_grid, new_figure
from lrnets.methods.activations import SignConv2d, SignLinear
from lrnets.methods.twin import filled
from lrnets.models import cifar10_vgg, mnist_net
from lrnets.tables import table
from lrnets.words import counted

if TYPE_CHECKING:
    from matplotlib.figure import Figure

Call = Callable[[], Any]
KINDS = ("float32", "int8", "signs")  # of activations


@dataclass(frozen=True)
class Case:
    """A network in float, and the shape of an input."""

    name: str
    make: Callable[[], nn.Module]
    shape: tuple[int, ...]


def linear(inside: int, outside: int) -> Case:
    return Case(f"linear {inside}->{outside}", lambda: nn.Sequential(nn.Linear(inside, outside)), (inside,))


def conv(channels: int, size: int) -> Case:
    def make() -> nn.Module:
        return nn.Sequential(nn.Conv2d(channels, channels, 3, padding=1))

    return Case(f"conv {channels} @ {size}x{size}", make, (channels, size, size))


CASES = {
    "linear": [linear(8192, 1024), linear(4096, 4096)],
    "conv": [conv(128, 32), conv(256, 16), conv(512, 8)],
    "mnist": [Case("MNIST net", mnist_net, (1, 28, 28))],
    "vgg": [Case("CIFAR-10 VGG", cifar10_vgg, (3, 32, 32))],
}


def drawn(case: Case, values: str) -> nn.Module:
    torch.manual_seed(0)
    net = case.make()
    lrnets.convert_(net, values, keep=() if len(list(net.children())) == 1 else None)
    return lrnets.discretize(net)


def on_signs(net: nn.Module) -> nn.Module:
    """The same single layer, of the signs of its input."""
    (layer,) = net.children()
    kind = SignLinear if isinstance(layer, nn.Linear) else SignConv2d
    weight, bias = layer.get_parameter("weight"), layer._parameters["bias"]
    return nn.Sequential(filled(kind, layer, weight.detach(), bias))


def onnx_call(path: Path, x: np.ndarray, threads: int) -> Call:
    import onnxruntime

    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads, options.inter_op_num_threads = threads, 1
    session = onnxruntime.InferenceSession(str(path), options, providers=["CPUExecutionProvider"])
    inputs = {session.get_inputs()[0].name: x}
    return lambda: session.run(None, inputs)


def openvino_call(path: Path, x: np.ndarray, threads: int) -> Call | None:
    try:
        import openvino
    except ImportError:
        return None
    core = openvino.Core()
    model = core.read_model(str(path))
    model.reshape(list(x.shape))
    hints = {"PERFORMANCE_HINT": "LATENCY", "INFERENCE_NUM_THREADS": threads, "INFERENCE_PRECISION_HINT": "f32"}
    request = core.compile_model(model, "CPU", hints).create_infer_request()
    tensor = openvino.Tensor(x, shared_memory=True)
    return lambda: request.infer([tensor], share_outputs=True)


def torch_call(net: nn.Module, x: np.ndarray, threads: int) -> Call:
    tensor = torch.from_numpy(x)
    if tensor.dim() == 4:
        tensor = tensor.to(memory_format=torch.channels_last)
        net = net.to(memory_format=torch.channels_last)  # type: ignore[call-overload]

    def call() -> Any:
        torch.set_num_threads(threads)
        with torch.inference_mode():
            return net(tensor)

    return call


def engines(
    case: Case, values: str, activations: str, batch: int, threads: int, folder: Path
) -> dict[str, tuple[Call, int]]:
    """Each engine's call, and the bytes of its file; ours is first."""
    if activations == "signs":
        return engines_for_signs(case, batch, threads, folder)
    net = drawn(case, values)
    example = torch.randn(4, *case.shape)
    x = np.random.default_rng(0).normal(size=(batch, *case.shape)).astype(np.float32)
    settings: dict[str, Any] = {"activations": activations}
    if activations == "int8":
        settings["calibration"] = [torch.from_numpy(x)]
    packed = export.save_packed(net, example, folder / "net.safetensors", **settings)
    ours = lrnets_runtime.load(packed.path, threads=threads)
    found: dict[str, tuple[Call, int]] = {"lrnets": (lambda: ours(x), packed.bytes)}
    kinds = {"": {"weights": "float32"}} if activations == "float32" else {" int8": settings}
    for suffix, choice in kinds.items():
        report = export.save_onnx(net, example, folder / f"net{suffix.strip()}.onnx", **choice)
        found[f"onnxruntime{suffix}"] = (onnx_call(report.path, x, threads), report.bytes)
        if (call := openvino_call(report.path, x, threads)) is not None:
            found[f"OpenVINO{suffix}"] = (call, report.bytes)
    if activations == "float32":
        found["torch"] = (torch_call(net, x, threads), sum(4 * p.numel() for p in net.parameters()))
    elif case.name.startswith("linear"):
        report = export.save_onnx(net, example, folder / "net2.onnx", weights="2bit", accuracy_level=4)
        found["onnxruntime 2-bit"] = (onnx_call(report.path, x, threads), report.bytes)
    return found


def engines_for_signs(case: Case, batch: int, threads: int, folder: Path) -> dict[str, tuple[Call, int]]:
    """Ours on signs; ours in float32, and onnxruntime in float32 and int8, on the input itself."""
    net = drawn(case, "binary")
    example = torch.randn(4, *case.shape)
    x = np.random.default_rng(0).normal(size=(batch, *case.shape)).astype(np.float32)
    found: dict[str, tuple[Call, int]] = {}
    for name, own in (("lrnets", on_signs(net)), ("lrnets float32", net)):
        packed = export.save_packed(own, example, folder / f"{name}.safetensors")
        found[name] = partial(lrnets_runtime.load(packed.path, threads=threads), x), packed.bytes
    int8 = {"activations": "int8", "calibration": [torch.from_numpy(x)]}
    for name, choice in (("onnxruntime", {"weights": "float32"}), ("onnxruntime int8", int8)):
        report = export.save_onnx(net, example, folder / f"{name}.onnx", **choice)
        found[name] = onnx_call(report.path, x, threads), report.bytes
    return found


def makes_sense(case: Case, activations: str, values: str) -> bool:
    """Signs are for single layers of binary weights."""
    return activations != "signs" or (values == "binary" and case.name.startswith(("linear", "conv")))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--cases", nargs="+", choices=CASES, default=list(CASES))
    parser.add_argument("--values", nargs="+", choices=["binary", "ternary"], default=["binary", "ternary"])
    parser.add_argument("--activations", nargs="+", choices=KINDS, default=list(KINDS))
    parser.add_argument("--threads", nargs="+", type=int, default=[1, 2])
    parser.add_argument("--batches", nargs="+", type=int, default=[1, 32])
    parser.add_argument("--rounds", type=int, default=15)
    parser.add_argument("--json", type=Path, help="write all figures to this file too, after each case")
    parser.add_argument("--from", type=Path, dest="source", help="show the figures of such a file; measure nothing")
    parser.add_argument("--plot", type=Path, help="draw the ratios")
    parser.add_argument("--markdown", action="store_true", help="a short table of ratios instead of the long one")
    args = parser.parse_args()
    figures: list[dict[str, Any]] = json.loads(args.source.read_text()) if args.source else []
    chosen = [] if args.source else [case for group in args.cases for case in CASES[group]]
    for setting in product(chosen, args.activations, args.values, args.batches, args.threads):
        if not makes_sense(*setting[:3]):
            continue
        figures.append(compare(*setting, args.rounds))
        if args.json:
            args.json.write_text(json.dumps(figures, indent=1))
    print("\r" + " " * 100 + "\r", end="", file=sys.stderr)
    if args.markdown:
        print(short_table(figures))
    else:
        print(table(HEADER, [row(figure) for figure in figures], right=(3, 4, 5, 7, 8, 10, 11)))
    if args.plot:
        plot(figures, args.plot)


def compare(case: Case, activations: str, values: str, batch: int, threads: int, rounds: int) -> dict[str, Any]:
    """All engines on one case."""
    label = f"{case.name}, {activations}, {values}, batch {batch}, {threads} threads"
    print(f"\r{label:100}", end="", file=sys.stderr, flush=True)
    with tempfile.TemporaryDirectory() as folder:
        found = engines(case, values, activations, batch, threads, Path(folder))
        seconds = interleaved([call for call, _ in found.values()], rounds)
    times = {name: [1e6 * second for second in own] for name, own in zip(found, seconds)}
    shortest = {name: min(own) for name, own in times.items()}
    best = min(set(times) - {"lrnets"}, key=lambda name: shortest[name])
    return {
        "case": case.name, "activations": activations, "values": values, "batch": batch, "threads": threads,
        "best": best, "ratio": shortest[best] / shortest["lrnets"], "microseconds": shortest,
        "median_ratio": statistics.median(a / b for a, b in zip(times[best], times["lrnets"])),
        "bytes": {name: size for name, (_, size) in found.items()},
    }  # fmt: skip


HEADER = (
    "case", "activations", "weights", "batch", "threads", "lrnets µs", "best rival", "its µs", "ratio", "aim", "bytes",
    "its bytes",
)  # fmt: skip


def aim_of(figure: dict[str, Any]) -> float | None:
    """The ratio that is asked for."""
    if figure["activations"] == "signs":
        return None
    floats = figure["activations"] == "float32"
    if figure["case"].startswith("conv"):
        return (1.3 if figure["values"] == "binary" else 1.05) if floats else 1.0
    if figure["batch"] > 1:
        return None
    if figure["case"].startswith("linear"):
        return 5.0 if floats else 1.8
    return 1.5 if floats and "VGG" in figure["case"] else 1.0


def verdict(figure: dict[str, Any]) -> str:
    aim = aim_of(figure)
    return "" if aim is None else f"{aim:g}: {'met' if figure['ratio'] >= aim else 'missed'}"


def short_table(figures: list[dict[str, Any]]) -> str:
    """Ratios as Markdown: a row a case, a column a batch and number of threads; missed aims are in bold."""
    kinds = sorted({(f["batch"], f["threads"]) for f in figures})
    found = {(f["case"], f["activations"], f["values"], f["batch"], f["threads"]): f for f in figures}
    heads = [f"batch {batch}, {counted(threads, 'thread')}" for batch, threads in kinds]
    lines = [f"| case | activations | weights | {' | '.join(heads)} | aim | bytes of the best rival | ours |"]
    lines += ["|---" * (6 + len(kinds)) + "|"]
    for case, activations, values in dict.fromkeys(key[:3] for key in found):
        here = [found.get((case, activations, values, *kind)) for kind in kinds]
        cells = [_ratio(figure) for figure in here]
        first = next(figure for figure in here if figure is not None)
        aim, sizes = aim_of(first), first["bytes"]
        ends = ["" if aim is None else f"{aim:g}", f"{sizes[first['best']]:,}", f"{sizes['lrnets']:,}"]
        lines += ["| " + " | ".join([case, activations, values, *cells, *ends]) + " |"]
    return "\n".join(lines)


def _ratio(figure: dict[str, Any] | None) -> str:
    if figure is None:
        return ""
    aim, text = aim_of(figure), f"{figure['ratio']:.2f} ({figure['microseconds']['lrnets']:,.0f} µs)"
    return f"**{text}**" if aim is not None and figure["ratio"] < aim else text


PAIRS = (BLUE, SKY, VERMILION, ORANGE)  # a dark and a light one: one thread and two of each batch


def plot(figures: list[dict[str, Any]], path: Path) -> None:
    """How many times faster than the best rival: bars from 1, to the left if slower; a line marks the aim."""
    with house_style():
        bars(figures).savefig(path, metadata={"Date": None} if path.suffix == ".svg" else None)


def bars(figures: list[dict[str, Any]]) -> Figure:
    from matplotlib.lines import Line2D
    from matplotlib.patches import Patch

    kinds = sorted({(f["batch"], f["threads"]) for f in figures})
    order = [f["case"] for f in figures]
    labels = sorted({(f["case"], f["values"]) for f in figures}, key=lambda pair: (order.index(pair[0]), pair[1]))
    height = 0.8 / len(kinds)
    figure = new_figure(11, 0.5 * len(labels) + 1.6)
    axes = figure.subplots(1, 2, sharex=True, sharey=True)
    for panel, activations in zip(axes, ("float32", "int8")):
        for f in (f for f in figures if f["activations"] == activations):
            kind = kinds.index((f["batch"], f["threads"]))
            y = labels.index((f["case"], f["values"])) - 0.4 + (kind + 0.5) * height
            panel.barh(y, f["ratio"] - 1, height, left=1, color=PAIRS[kind % 4], edgecolor="white", linewidth=0.4)
            if (aim := aim_of(f)) is not None:
                panel.plot([aim, aim], [y - height / 2, y + height / 2], color=INK, linewidth=1.8)
        for between in range(1, len(labels)):
            panel.axhline(between - 0.5, color=GRID, linewidth=0.8, zorder=0)
        panel.axvline(1, color=SOFT, linewidth=1)
        panel.set(xscale="log", xlabel="← slower    times as fast as the fastest rival    faster →")
        panel.set_title(f"{activations} activations")
        ticks = [0.5, 1, 2, 5, 10]
        panel.set_xticks(ticks, [f"{tick:g}" for tick in ticks])
        panel.minorticks_off()
        light_grid(panel, "x")
        panel.tick_params(axis="y", length=0)
    axes[0].set_yticks(range(len(labels)), [f"{case}, {values}" for case, values in labels])
    axes[0].set_ylim(len(labels) - 0.5, -0.5)  # the first on top
    names = [f"batch {batch}, {counted(threads, 'thread')}" for batch, threads in kinds]
    handles: list[Any] = [Patch(color=PAIRS[i % 4], label=name) for i, name in enumerate(names)]
    handles.append(Line2D([], [], color=INK, linewidth=1.8, label="aim"))
    figure.legend(handles=handles, loc="outside lower center", ncols=len(handles))
    return figure


def row(figure: dict[str, Any]) -> tuple[str, ...]:
    best, times, sizes = figure["best"], figure["microseconds"], figure["bytes"]
    return (
        *(str(figure[key]) for key in ("case", "activations", "values", "batch", "threads")),
        f"{times['lrnets']:,.0f}", best, f"{times[best]:,.0f}", f"{figure['ratio']:.2f}", verdict(figure),
        f"{sizes['lrnets']:,}", f"{sizes[best]:,}",
    )  # fmt: skip


if __name__ == "__main__":
    main()
