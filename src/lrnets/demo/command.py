"""`lrnets demo`: from a run, or a packed file, to a page."""

from __future__ import annotations

import tempfile
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from lrnets_runtime.graph import Graph

from lrnets.demo.facts import Example, check_graph, facts_of
from lrnets.demo.page import page
from lrnets.demo.wasm import compile_network, require_tools
from lrnets.export.from_packed import from_packed
from lrnets.export.packed import Numbers, folder_checked, source_checked
from lrnets.whole_files import write_whole

EXAMPLES = 10
EXAMPLES_FILE = "examples.safetensors"
ADVISED_BYTES = 300_000


@dataclass(frozen=True)
class DemoReport:
    """A page, and what is in it."""

    path: Path
    bytes: int
    wasm_bytes: int
    network_bytes: int
    examples: int

    def __str__(self) -> str:
        told = (
            f"{self.path}: {self.bytes:,} bytes, with a network of {self.network_bytes:,} in {self.wasm_bytes:,} bytes "
            f"of WebAssembly, and {self.examples} example images. Open it in a browser: it needs nothing else"
        )
        return told if self.bytes <= ADVISED_BYTES else f"{told}; it is over {ADVISED_BYTES:,} bytes, slow on a phone"


def make_demo(
    source: Path, out: Path | None = None, *, activations: Numbers | None = None,
    data_dir: str | None = None, say: Callable[[str], None] = lambda text: None, **own: Any,
) -> DemoReport:  # fmt: skip
    """Write a page that runs the network of a run folder, or of a packed file.

    `activations` of a run are int8 unless said otherwise, calibrated on its training data; a packed file's are its own,
    or "float32". A run with an `own` model, data and transforms is given them as `run` was.
    """
    source = source_checked(source)
    require_tools()
    target = folder_checked(out or (source.with_suffix(".html") if source.is_file() else source / "demo.html"))
    with tempfile.TemporaryDirectory(prefix="lrnets-demo-") as name:
        folder, error, examples = Path(name), None, list[Example]()
        if source.is_file():
            packed = source
        else:
            packed = folder / "network.safetensors"
            error = _pack(source, packed, activations or "int8", data_dir, say, own)
        prepared = from_packed(packed, activations)
        check_graph(prepared.graph, prepared.tensors)
        if source.is_dir():
            examples = read_examples(source / EXAMPLES_FILE, prepared.graph)
        say("compiling the network to WebAssembly")
        wasm, report = compile_network(prepared, folder)
    facts = facts_of(prepared.graph, prepared.tensors, examples=examples, error=error)
    content = page(wasm, facts).encode()
    write_whole(target, content)
    return DemoReport(target, len(content), len(wasm), report.flash_bytes, len(examples))


def _pack(
    source: Path,
    target: Path,
    activations: Numbers,
    data_dir: str | None,
    say: Callable[[str], None],
    own: dict[str, Any],
) -> float | None:
    """Write the run's network; its error on validation data by the run-time."""
    from lrnets.training.packing import export_run
    from lrnets.training.run_folder import RunFolder

    say(f"packing the network of {source}, and measuring it on validation data")
    return export_run(RunFolder(source), target, activations=activations, data_dir=data_dir, **own).file_error


def read_examples(path: Path, graph: Graph) -> list[Example]:
    """The first image of each class that the run keeps, in the order of the classes; none if it keeps none."""
    if not path.is_file():
        return []
    from safetensors import SafetensorError
    from safetensors.numpy import load_file

    try:
        content = load_file(path)
        images, labels = content["images"], content["labels"]
    except (SafetensorError, KeyError) as error:
        raise ValueError(f"{path} is damaged ({error}); delete it for a page without examples") from error
    if images.dtype.name != "uint8" or images.shape[1:] != graph.input_shape or len(labels) != len(images):
        raise ValueError(
            f"{path} has images of {images.dtype} {list(images.shape)} and {len(labels)} labels, which the network's "
            f"input {list(graph.input_shape)} does not fit; delete it for a page without examples"
        )
    first = {int(label): place for place, label in reversed(list(enumerate(labels)))}
    names = graph.classes or tuple(map(str, range(max(first, default=0) + 1)))
    return [Example(images[first[label]], names[label]) for label in sorted(first)[:EXAMPLES]]
