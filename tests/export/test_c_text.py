"""Exported C as text: names, numbers, sections, the arena's plan, and the two files."""

from __future__ import annotations

import os
from pathlib import Path

import numpy as np
import pytest
import torch
from c_programs import needs_gcc, normal, runner, samples, self_test
from lrnets_runtime import reference
from lrnets_runtime.graph import (
    AdaptivePool2d,
    Graph,
    Linear,
    Pool2d,
    Weight,
)
from lrnets_runtime.shapes import infer_shapes
from torch import nn

from lrnets.export import save_c
from lrnets.export.c_code import c_source
from lrnets.export.c_plan import Call, plan_arena
from lrnets.export.c_text import comment, identifier, number, select

NASTY = [
    "features.0-conv",
    "int",
    "*/ int x; /*",
    '"\\',
    "??/",
    "é",
    "if",
    "a" * 190,
    "int",
    "//",
    "_",
    "run_conv",
]


@needs_gcc
def test_no_name_breaks_the_source(tmp_path: Path) -> None:
    nodes, tensors, value = [], {}, "x"
    for i, name in enumerate(NASTY):
        tensors[name + " w"] = samples.random_weights(np.random.default_rng(i), "ternary", (3, 3))[0]
        tensors[name] = normal(3)
        weight = Weight(name + " w", "ternary", (3, 3))
        nodes.append(Linear(name, (value,), f"{i} {name}"[:200], weight, name, name))
        value = nodes[-1].output
    graph = Graph("x", (3,), value, tuple(nodes))
    x = normal(4, 3)
    source = c_source(graph, tensors, name="net", example=x[0])
    assert source.code.isascii()
    outputs, expected = runner(source, tmp_path)(x), reference.run(graph, tensors, x)
    assert np.abs(outputs - expected).max() <= 1e-5 * np.abs(expected).max()
    assert self_test(tmp_path / "net.c", "net").returncode == 0
    assert comment("*/ ??/ \\\n // é") == "__ ___ __ __ _"
    assert identifier("layer", 3, "*/") == "layer3"


@pytest.mark.parametrize("name", ["", "1x", "a-b", "a b", "_x", "é", "x" * 51, "a\n", 'a"'])
def test_names_that_are_no_identifiers_are_refused(name: str, tmp_path: Path) -> None:
    graph, tensors = samples.everything(quantized=False)
    with pytest.raises(ValueError, match="cannot begin the names of C functions; use a letter"):
        c_source(graph, tensors, name=name)
    with pytest.raises(ValueError, match="cannot begin the names of C functions; use a letter"):
        save_c(nn.Linear(2, 2), torch.ones(1, 2), tmp_path / "a", name=name)
    assert not list(tmp_path.iterdir())


def test_the_same_network_gives_the_same_text() -> None:
    graph, tensors = samples.everything(quantized=True)
    shuffled = {name: tensors[name] for name in reversed(tensors)}
    assert c_source(graph, tensors).code == c_source(graph, shuffled).code


def test_numbers_are_exact() -> None:
    x = np.random.default_rng(0).integers(0, 2**32, 2000, dtype=np.uint32).view(np.float32)
    for value in [*x[np.isfinite(x)], np.float32(0.1), np.float32(-0.0), np.float32(2**24), np.float32(1e-45)]:
        text = number(value)
        assert text.endswith("f")
        back = float.fromhex(text[:-1]) if "x" in text else float(text[:-1])
        assert np.float32(back).tobytes() == value.tobytes()
    assert number(0) == "0.0f"
    assert number(0.75) == "0x1.8p-1f"


def test_sections_of_a_template() -> None:
    template = "a\n#if HAS_X || HAS_Y\nb\n#ifdef C\nc\n#else\nd\n#endif\n#if HAS_Z\ne\n#else\nf\n#endif\n#endif\ng\n"
    assert select(template, set()) == "a\ng\n"
    assert select(template, {"HAS_Y"}) == "a\nb\n#ifdef C\nc\n#else\nd\n#endif\nf\ng\n"
    assert select(template, {"HAS_X", "HAS_Z"}) == "a\nb\n#ifdef C\nc\n#else\nd\n#endif\ne\ng\n"


def test_the_arena_by_hand() -> None:
    """a (10 bytes) -> b (20) -> c (9) -> d (4), with room for 3 bytes at the second."""
    rooms = {"b": 0, "c": 3, "d": 0}
    calls = [Call("f", "", {}, (source,), made, room) for source, (made, room) in zip("abc", rooms.items())]
    arena = plan_arena(calls, {"a": 10, "b": 20, "c": 9, "d": 4})
    assert arena.values == {"b": 0, "a": 20, "c": 20, "d": 0}
    assert arena.rooms == {1: 32}
    assert arena.bytes == 36


def test_sizes_that_c_cannot_count_to_are_refused() -> None:
    side = 2**15 + 1
    pool = AdaptivePool2d("wide", ("x",), "y", "max", (1, 2**17 - 1))
    with pytest.raises(ValueError, match=r"layer 'wide' \(adaptive_pool2d\) counts to 42\d+, C export to 2147483647"):
        c_source(Graph("x", (1, 1, side), "y", (pool,)), {})
    pool = Pool2d("deep", ("x",), "y", "average", (2**17, 2**17), (1, 1), (2**16, 2**16))
    graph = Graph("x", (1, 1, 1), "y", (pool,))
    assert infer_shapes(graph)["y"] == (1, 2, 2)
    with pytest.raises(ValueError, match="layer 'deep'"):
        c_source(graph, {})


# Files.


def test_file_names(tmp_path: Path) -> None:
    net, x = nn.Linear(2, 2), torch.ones(1, 2)
    names = {"net.c": "net", "my-net.v2": "my_net_v2", "2nd": "net_2nd", "int.h": "int", "__": "net"}
    for given, name in names.items():
        report = save_c(net, x, tmp_path / given)
        base = given.removesuffix(".c").removesuffix(".h")
        assert (report.path, report.name) == (tmp_path / f"{base}.c", name)
        assert f'#include "{base}.h"\n' in report.path.read_text()
        assert f"void {name}_run(" in report.path.with_name(f"{base}.h").read_text()
    for wrong in ('a"b', ".c", "a b", "é"):
        with pytest.raises(ValueError, match="no file name for #include"):
            save_c(net, x, tmp_path / wrong)
    with pytest.raises(FileNotFoundError, match="create it first"):
        save_c(net, x, tmp_path / "none" / "net")
    with pytest.raises(ValueError, match="activations='int8' with no calibration"):
        save_c(net, x, tmp_path / "a", activations="int8")
    assert len(list(tmp_path.iterdir())) == 2 * len(names)


def test_both_files_or_none(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    net, x = nn.Linear(2, 2), torch.ones(1, 2)
    save_c(net, x, tmp_path / "net")
    before = {path.name: path.read_bytes() for path in tmp_path.iterdir()}
    real = os.replace

    def fails(source: Path, target: Path) -> None:
        if target.suffix == ".c":
            raise OSError("disk full")
        real(source, target)

    monkeypatch.setattr(os, "replace", fails)
    other = nn.Sequential(nn.Linear(2, 3), nn.ReLU())
    with pytest.raises(OSError, match="disk full"):
        save_c(other, x, tmp_path / "net")
    assert {path.name: path.read_bytes() for path in tmp_path.iterdir()} == before
    with pytest.raises(OSError, match="disk full"):
        save_c(other, x, tmp_path / "new")
    assert {path.name for path in tmp_path.iterdir()} == set(before)
