"""A drawn network as a .c and a .h for a microcontroller, with a report of the flash and RAM that they take."""

from __future__ import annotations

import os
import re
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from lrnets_runtime import reference
from torch import Tensor, nn

from lrnets.export.c_code import CSource, c_source
from lrnets.export.c_text import check_header_name, check_name
from lrnets.export.packed import Numbers, Prepared, folder_checked, prepare
from lrnets.tables import table
from lrnets.whole_files import temporary_beside


@dataclass(frozen=True)
class CReport:
    """What the two files take on a device, layer by layer; prints as a table."""

    path: Path  # of the .c; the .h is beside it
    name: str
    source: CSource
    activations: Numbers
    difference: float  # largest, from the network's output for the example
    largest_output: float

    @property
    def flash_bytes(self) -> int:
        return self.source.flash_bytes

    @property
    def ram_bytes(self) -> int:
        return self.source.ram_bytes

    def __str__(self) -> str:
        source = self.source
        rows: list[tuple[object, ...]] = [
            (
                r.name, r.kind, "x".join(map(str, r.shape)), r.coding, *map(_number, (r.weight_bytes, r.other_bytes)),
                *map(_number, (r.output_bytes, r.room_bytes)),
            )
            for r in source.layers
        ]  # fmt: skip
        header = ("layer", "kind", "output", "coding", "weights", "others", "output RAM", "room")
        off = f"{self.difference:.2g} off where the largest is {self.largest_output:.3g}"
        return "\n".join(
            [
                table(header, rows, right=range(4, 8)),
                f"flash: {source.flash_bytes:,} bytes of constants; the code, about 2 KB as compiled, comes on top",
                f"RAM: {source.ram_bytes:,} bytes: arena {source.arena_bytes:,}, where values share memory, "
                f"input {source.input_bytes:,} and output {source.output_bytes:,}; the stack comes on top; "
                "room is for decoded weights, and for rows on their way to a pool",
                f"{self.path} and .h: {self.name}_run, {self.activations} activations; outputs for the example {off}",
            ]
        )


def save_c(
    net: nn.Module,
    example_input: Tensor,
    path: str | os.PathLike[str],
    *,
    activations: Numbers = "float32",
    calibration: Any = None,
    float_weights: Numbers | None = None,
    name: str | None = None,
) -> CReport:
    """Write a drawn network as C99, `path`.c and `path`.h, and report the flash and RAM it takes.

    The network is prepared as by save_packed, with the same arguments. `name` begins the names of all that the files
    make public, as in name_run; it is the file's name unless given. The first of `example_input` is the input of the
    self-test, `cc -std=c99 -DNAME_TEST path.c -lm && ./a.out`.
    """
    target, name = _checked(path, name)
    return write_c(prepare(net, example_input, activations, calibration, float_weights), target, name=name)


def write_c(prepared: Prepared, target: Path, *, name: str | None = None) -> CReport:
    """The two files for a prepared network; see save_c."""
    code_path, name = _checked(target, name)
    header_path = code_path.with_suffix(".h")
    graph, tensors, x, expected, _ = prepared
    source = c_source(graph, tensors, name=name, example=x[0], header_name=header_path.name)
    _write({header_path: source.header, code_path: source.code})
    off = float(np.abs(reference.run(graph, tensors, x) - expected).max())
    return CReport(code_path, name, source, prepared.activations, off, float(np.abs(expected).max()))


def _checked(path: str | os.PathLike[str], name: str | None) -> tuple[Path, str]:
    """The path of the .c, and the name that all its public names begin with; refused before anything is computed."""
    target = folder_checked(path)
    base = target.name.removesuffix(".c").removesuffix(".h")
    check_header_name(f"{base}.h")
    name = _name_of(base) if name is None else name
    check_name(name)
    return target.with_name(f"{base}.c"), name


def _write(files: dict[Path, str]) -> None:
    """All files or none: each is put back as it was, or away, if a later one fails."""
    temporaries = {path: temporary_beside(path) for path in files}
    before = dict[Path, bytes | None]()
    try:
        for path, text in files.items():
            temporaries[path].write_text(text, encoding="ascii", newline="\n")
        for path, temporary in temporaries.items():
            old = path.read_bytes() if path.exists() else None
            os.replace(temporary, path)
            before[path] = old
    except BaseException:
        for path, old in before.items():
            path.unlink() if old is None else path.write_bytes(old)
        raise
    finally:
        for temporary in temporaries.values():
            temporary.unlink(missing_ok=True)


def _name_of(base: str) -> str:
    """A C identifier from a file's name."""
    name = re.sub(r"[^A-Za-z0-9]+", "_", base)[:50].strip("_")
    return name if name[:1].isalpha() else f"net_{name}"[:50].rstrip("_")


def _number(count: int) -> str:
    return f"{count:,}" if count else ""
