"""`lrnets report`: read a folder, write a page."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

from lrnets.methods import method_named
from lrnets.report.found import Found, attempt, look_into
from lrnets.report.layers import EXAMPLES
from lrnets.report.page import render
from lrnets.report.seeds import require_one_recipe, run_folders
from lrnets.training.evaluation import transforms_of
from lrnets.training.examples import load_examples
from lrnets.training.pipeline import load_by
from lrnets.whole_files import write_whole

if TYPE_CHECKING:
    from torch import Tensor, nn

FILE = "report.html"


def write_report(
    path: Path | str, out: Path | str | None = None, *, model: nn.Module | None = None, inputs: Tensor | None = None,
    data_dir: str | None = None, say: Callable[[str], None] = print,
) -> Path:  # fmt: skip
    """Write the report of a run, or of a folder of seeds, to `out` (report.html in the folder); returns where it is.

    A run with an own float `model` needs it here again. `inputs`, as the network sees them, are for the Gaussian fit;
    by default they are those that the run kept, or else images of its data set.
    """
    path = Path(path)
    target = path / FILE if out is None else Path(out)
    if target.is_dir():
        raise IsADirectoryError(f"{target} is a folder; name a file, {target / FILE} say")
    found = [look_into(folder) for folder in run_folders(path)]
    require_one_recipe(found)
    if inputs is None:
        inputs = _inputs(found[0], data_dir)
    html = render(found, model=model, inputs=inputs, out=target, say=say)
    try:
        target.parent.mkdir(parents=True, exist_ok=True)
        write_whole(target, html.encode())
    except OSError as error:
        raise OSError(f"{target} cannot be written ({error.strerror}); name another file with --out") from error
    return target


def _inputs(found: Found, data_dir: str | None) -> Tensor | None:
    """A few inputs of the network: those in the folder, or else of the data set; a note if there are none."""
    recipe = found.recipe
    if recipe is None or not method_named(found.method).logits or not found.folder.weights_file("stochastic").exists():
        return None
    try:
        return load_examples(found.folder).inputs
    except (OSError, ValueError):  # an older run: the data set has them as well
        pass

    def read() -> Tensor:
        import torch

        data = load_by(recipe, data_dir, folder=found.folder)
        images, _ = next(iter(data.valid.take([torch.arange(min(EXAMPLES, len(data.valid)))])))
        return transforms_of(data, recipe.data).evaluation(images).float()

    return attempt(found.notes, "the Gaussian fit is left out: the data", read, None)
