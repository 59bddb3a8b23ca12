"""The chosen network of a run as a file for elsewhere, and what a packed one costs in accuracy."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import numpy as np
from torch import nn

from lrnets.data import AnySplit, Data, Transform, Transforms
from lrnets.data.augment import StandardizeChannels, scale, standardize
from lrnets.data.disk_split import DiskSplit
from lrnets.training.data_notes import require_kept
from lrnets.training.evaluation import error, inputs, transforms_of
from lrnets.training.pipeline import load_by
from lrnets.training.run_folder import RunFolder
from lrnets.training.stored import drawn_network

if TYPE_CHECKING:
    from lrnets.export import CReport, PackedReport, Preparation

CALIBRATION_BATCHES = 2  # of 1000 training images

FILES = {"packed": "network.packed.safetensors", "onnx": "network.onnx", "c": "network.c"}
# As packed files say it; a transform that is not here cannot be told there.
PREPARATIONS: dict[Transform, Literal["fixed", "each"]] = {scale: "fixed", standardize: "each"}


@dataclass(frozen=True)
class ExportedRun:
    """The file's report, and errors on validation data in per cent: in torch, and of a packed file by the run-time."""

    report: PackedReport | CReport
    torch_error: float
    file_error: float | None

    def __str__(self) -> str:
        told = f"{self.report}\nvalidation error: {self.torch_error:.2f} % in torch"
        return told if self.file_error is None else f"{told}, {self.file_error:.2f} % by the run-time from the file"


def export_run(
    folder: RunFolder, path: Path, *, to: Literal["packed", "onnx", "c"] = "packed",
    activations: Literal["float32", "int8"] = "float32", data: Data | None = None, data_dir: str | None = None,
    transforms: Transforms | None = None, model: nn.Module | None = None,
) -> ExportedRun:  # fmt: skip
    """Write the network that a finished run chose to `path`; a packed file is run on the validation data.

    int8 activations are calibrated on training data. A packed file names the classes, and says how an image becomes the
    input, unless the transforms are not ours. An own `model`, `data` and `transforms` are given as to `run`.
    """
    try:
        from lrnets import export
    except ImportError as problem:
        raise RuntimeError(str(problem)) from problem
    recipe = folder.read_recipe()
    net = drawn_network(folder, model)
    data = data or load_by(recipe, data_dir, folder=folder)
    transforms = transforms or transforms_of(data, recipe.data)
    require_kept(folder, data, transforms)
    evaluation = transforms.evaluation
    example = next(inputs(net, data.train, evaluation))[0][:8]
    calibration = None
    if activations == "int8":
        calibration = [x for x, _ in islice(inputs(net, data.train, evaluation), CALIBRATION_BATCHES)]
    savers: dict[str, Callable[..., PackedReport | CReport]] = {
        "packed": export.save_packed, "onnx": export.save_onnx, "c": export.save_c,
    }  # fmt: skip
    told: dict[str, Any] = {}
    if to == "packed":
        told = {"classes": data.classes, "preparation": _preparation(evaluation, data.valid)}
    report = savers[to](net, example, path, activations=activations, calibration=calibration, **told)
    packed_error = _packed_error(net, path, data.valid, evaluation) if to == "packed" else None
    return ExportedRun(report, error(net, data.valid, evaluation), packed_error)


def _preparation(evaluation: Transform, split: AnySplit) -> Preparation | None:
    """How a packed file says what an image goes through, if it can."""
    from lrnets.export import Preparation

    shorter_side = split.view.resize if isinstance(split, DiskSplit) else None
    if isinstance(evaluation, StandardizeChannels):
        return Preparation("fixed", evaluation.mean, evaluation.deviation, shorter_side)
    kind = PREPARATIONS.get(evaluation)
    return None if kind is None else Preparation(kind, shorter_side=shorter_side)


def _packed_error(net: nn.Module, path: Path, split: AnySplit, transform: Transform) -> float:
    """Error of a packed file, in per cent, by the run-time; the network only tells how inputs look."""
    import lrnets_runtime

    packed = lrnets_runtime.load(path)
    wrong = np.concatenate(
        [packed(x.cpu().numpy()).argmax(1) != labels.cpu().numpy() for x, labels in inputs(net, split, transform)]
    )
    return 100 * int(wrong.sum()) / len(wrong)
