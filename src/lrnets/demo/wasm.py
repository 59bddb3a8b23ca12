"""A network's C code, as export writes it, compiled to WebAssembly: freestanding, by clang and lld, without a libc."""

from __future__ import annotations

import shutil
import subprocess
from dataclasses import replace
from pathlib import Path

from lrnets_runtime import reference
from lrnets_runtime.graph import Conv2d, Graph

from lrnets.export.c_file import CReport, write_c
from lrnets.export.c_plan import needed
from lrnets.export.packed import Prepared

TEMPLATES = Path(__file__).with_name("templates")
TOOLS = {"clang": "clang", "wasm-ld": "lld"}  # and the Debian packages they are in
FLAGS = (
    "--target=wasm32", "-std=c99", "-O2", "-ffreestanding", "-fno-builtin", "-nostdlib", "-nostdlibinc",
    "-Wl,--no-entry", "-Wl,--strip-all",
)  # fmt: skip
SECONDS = 600


def require_tools() -> None:
    """Refuse to begin without a compiler and a linker for WebAssembly."""
    missing = [tool for tool in TOOLS if shutil.which(tool) is None]
    if missing:
        packages = " ".join(TOOLS[tool] for tool in missing)
        raise FileNotFoundError(
            f"{' and '.join(missing)} not found; a network becomes WebAssembly by clang and lld: "
            f"apt-get install {packages}"
        )


def first_convolution(graph: Graph) -> Conv2d | None:
    """The convolution that sees the image itself, if there is one."""
    found = next((node for node in graph.nodes if isinstance(node, Conv2d)), None)
    return found if found is not None and found.inputs == (graph.input,) else None


def compile_network(prepared: Prepared, folder: Path) -> tuple[bytes, CReport]:
    """The .wasm, and what the C code takes; `folder` is for the files on the way.

    Beside the whole network it holds one that ends with the first convolution, whose output is the feature maps.
    """
    report = write_c(prepared, folder / "network.c")
    sources, macros = [folder / "network.c", TEMPLATES / "glue.c"], list[str]()
    convolution = first_convolution(prepared.graph)
    if convolution is not None:
        graph = needed(replace(prepared.graph, output=convolution.output, classes=None))
        expected = reference.run(graph, prepared.tensors, prepared.x)
        write_c(prepared._replace(graph=graph, expected=expected), folder / "first.c")
        sources.append(folder / "first.c")
        macros.append("-DHAS_FIRST")
    wasm = folder / "network.wasm"
    includes = [f"-I{TEMPLATES}", f"-I{folder}"]  # our math.h, and the headers beside the sources
    _compile(["clang", *FLAGS, *macros, *includes, *map(str, sources), "-o", str(wasm)])
    return wasm.read_bytes(), report


def _compile(command: list[str]) -> None:
    try:
        subprocess.run(command, capture_output=True, text=True, check=True, timeout=SECONDS)
    except subprocess.CalledProcessError as error:
        told = "; ".join(error.stderr.strip().splitlines()[:3])
        raise RuntimeError(
            f"clang cannot make WebAssembly of the network's C code ({told}); it needs LLVM's clang with its wasm32 "
            "target, and lld: apt-get install clang lld"
        ) from error
    except subprocess.TimeoutExpired as error:
        raise RuntimeError(f"clang did not finish within {SECONDS} s; is the network very large?") from error
