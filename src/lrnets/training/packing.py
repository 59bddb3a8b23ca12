"""The chosen network of a run as a packed file, and what it costs in accuracy."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Literal

import numpy as np
from torch import nn

from lrnets.data import TRANSFORMS, Data, Transforms, load
from lrnets.training.evaluation import error, inputs
from lrnets.training.run_folder import RunFolder
from lrnets.training.stored import drawn_network

if TYPE_CHECKING:
    from lrnets.export import PackedReport

CALIBRATION_BATCHES = 2  # of 1000 training images


@dataclass(frozen=True)
class ExportedRun:
    """The file's report, and errors on validation data in per cent: of the network in torch, and of the file."""

    report: PackedReport
    torch_error: float
    file_error: float

    def __str__(self) -> str:
        return (
            f"{self.report}\nvalidation error: {self.torch_error:.2f} % in torch, {self.file_error:.2f} % by the "
            "run-time from the file"
        )


def export_run(
    folder: RunFolder, path: Path, *, activations: Literal["float32", "int8"] = "float32", data: Data | None = None,
    data_dir: str | None = None, transforms: Transforms | None = None, model: nn.Module | None = None,
) -> ExportedRun:  # fmt: skip
    """Write the network that a finished run chose to `path`, and run the file on the validation data.

    int8 activations are calibrated on training data. An own `model`, `data` and `transforms` are given as to `run`.
    """
    try:
        import lrnets_runtime

        from lrnets.export import save_packed
    except ImportError as error_:
        raise RuntimeError(f"packed files need the run-time: pip install lrnets-runtime ({error_})") from error_
    recipe = folder.read_recipe()
    net = drawn_network(folder, model)
    data = data or load(recipe.data, data_dir, valid_size=recipe.valid_size)
    evaluation = (transforms or TRANSFORMS[recipe.data]).evaluation
    example = next(inputs(net, data.train, evaluation))[0][:8]
    calibration = None
    if activations == "int8":
        calibration = [x for x, _ in islice(inputs(net, data.train, evaluation), CALIBRATION_BATCHES)]
    report = save_packed(net, example, path, activations=activations, calibration=calibration)
    packed = lrnets_runtime.load(path)
    wrong = sum(
        int(np.sum(packed(x.numpy()).argmax(1) != labels.numpy())) for x, labels in inputs(net, data.valid, evaluation)
    )
    return ExportedRun(report, error(net, data.valid, evaluation), 100 * wrong / len(data.valid))
