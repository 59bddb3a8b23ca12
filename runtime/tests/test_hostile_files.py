"""Damaged and hostile files: each is refused with a PackedFileError."""

import os
import struct

import numpy as np
import pytest
from raw_files import metadata_of, write_header, write_raw
from samples import described, small

from lrnets_runtime import PackedFileError, file, reference
from lrnets_runtime.graph import Graph, Linear, Weight


def test_every_truncation_is_refused(tmp_path):
    path = tmp_path / "net"
    file.write(path, *small())
    whole = path.read_bytes()
    assert len(whole) < 2000
    for length in range(len(whole)):
        path.write_bytes(whole[:length])
        with pytest.raises(PackedFileError, match="cut short, damaged or no packed network"):
            file.read(path)
    path.write_bytes(whole + b"\0")
    with pytest.raises(PackedFileError, match="cut short, damaged"):
        file.read(path)


@pytest.mark.parametrize("sample", [small, lambda: described(quantized=True)])
def test_random_bytes(tmp_path, sample):
    """Flipped bytes give a PackedFileError or another sound network, which runs."""
    path = tmp_path / "net"
    file.write(path, *sample())
    whole = path.read_bytes()
    rng = np.random.default_rng(0)
    sound = 0
    for _ in range(2000):
        damaged = bytearray(whole)
        for place in rng.integers(len(whole), size=rng.integers(1, 4)):
            damaged[place] = rng.choice([rng.integers(256), damaged[place] ^ 1 << rng.integers(8)])
        path.write_bytes(damaged)
        try:
            graph, tensors = file.read(path)
        except PackedFileError:
            continue
        sound += 1
        if sound % 20 == 0:
            reference.run(graph, tensors, np.zeros((1, *graph.input_shape), np.float32))
    assert 0 < sound < 2000


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"format": None}, "its format is None, not 'lrnets-packed'"),
        ({"format": "pt"}, "its format is 'pt'"),
        ({"version": "4"}, "its version is 4, this library reads up to 3; update lrnets-runtime"),
        ({"version": "4", "graph": None, "new": "x"}, "update lrnets-runtime"),
        ({"version": "0"}, "its version is '0', no whole number from 1"),
        ({"version": "01"}, "its version is '01'"),
        ({"version": "1.0"}, "its version is '1.0'"),
        ({"version": ""}, "its version is ''"),
        ({"version": "²"}, "its version is"),
        ({"version": "9" * 5000}, "its version is '999"),
        ({"version": None}, "its version is ''"),
        ({"graph": None}, r"its metadata has \['format', 'version'\]"),
        ({"more": "x"}, "its metadata has"),
        ({"graph": ""}, "its graph is no JSON"),
        ({"graph": "{"}, "its graph is no JSON"),
        ({"graph": "[" * 100_000}, "nested too deeply"),
        ({"graph": '{"a":' * 100_000}, "nested too deeply"),
        ({"graph": "[" * 900 + "]" * 900}, "must be an object"),
        ({"graph": '{"input":"x","input":"y"}'}, "the key 'input' is given twice"),
        ({"graph": "[NaN]"}, "NaN is not allowed"),
        ({"graph": "[-Infinity]"}, "-Infinity is not allowed"),
        ({"graph": "1" * 5000}, "graph"),
        ({"graph": "[]" + " " * 2**24}, "has 16777218 characters of JSON; at most 16777216"),
        ({"graph": "{}"}, "graph: input_shape: is missing"),
    ],
)
def test_metadata_is_refused(tmp_path, changes, message):
    graph, tensors = small()
    write_raw(tmp_path / "net", tensors, metadata_of(graph, **changes))
    with pytest.raises(PackedFileError, match=message):
        file.read(tmp_path / "net")


def test_files_of_others_are_refused(tmp_path):
    path = tmp_path / "net"
    write_raw(path, {"w": np.zeros(3, np.float32)}, None)
    with pytest.raises(PackedFileError, match=r"net: its format is None.*save_packed"):
        file.read(path)
    path.write_text("hello, I am text and nothing else")
    with pytest.raises(PackedFileError, match="damaged or no packed network"):
        file.read(path)


@pytest.mark.parametrize(
    ("name", "tensor", "message"),
    [
        ("w", None, "node 'layer': weight: tensor 'w' is missing"),
        ("s", None, "node 'layer': scale: tensor 's' is missing"),
        ("b", None, "node 'layer': bias: tensor 'b' is missing"),
        ("more", np.zeros(1, np.float32), r"tensors: \['more'\] belong to no node"),
        ("w", np.array([0], np.uint8), "must be uint8 .2., ternary weights .2, 3."),
        ("w", np.array([0, 121, 121], np.uint8), r"\[3\], must be uint8 \[2\]"),
        ("w", np.array([[0, 121]], np.uint8), r"\[1, 2\], must be uint8 \[2\]"),
        ("w", np.array([0, 121], np.int8), "must be uint8"),
        ("w", np.array([0, 243], np.uint8), "node 'layer': weight: tensor 'w': byte 1 is 243, above 242"),
        ("w", np.array([0, 0], np.uint8), "what follows weight 5 must be weights of 0"),
        ("s", np.ones(3, np.float32), r"tensor 's' is .*\[3\], must be float32 \[2\]"),
        ("s", np.ones((2, 1), np.float32), r"\[2, 1\], must be float32 \[2\]"),
        ("s", np.ones(2, np.float64), "must be float32"),
        ("b", np.array([1, np.nan], np.float32), "node 'layer': bias: tensor 'b' has nan at 1; all must be finite"),
        ("b", np.array([-np.inf, 1], np.float32), "has -inf at 0"),
        ("w", np.zeros((0, 2**40), np.uint8), "must be uint8"),
    ],
)
def test_tensors_are_refused(tmp_path, name, tensor, message):
    """On reading, and on writing: nothing is written that could not be read."""
    graph, tensors = small()
    tensors = tensors | {name: tensor}
    if tensor is None:
        del tensors[name]
    write_raw(tmp_path / "net", tensors, metadata_of(graph))
    with pytest.raises(PackedFileError, match=message):
        file.read(tmp_path / "net")
    with pytest.raises(PackedFileError, match=message):
        file.write(tmp_path / "new", graph, tensors)
    assert os.listdir(tmp_path) == ["net"]


@pytest.mark.parametrize(
    ("coding", "tensor", "message"),
    [
        ("float32", np.zeros((3, 2), np.float32), r"\[3, 2\], must be float32 \[2, 3\]"),
        ("float32", np.full((2, 3), np.inf, np.float32), "has inf at 0"),
        ("int8", np.zeros((2, 3), np.uint8), r"must be int8 \[2, 3\]"),
        ("int8", np.zeros(6, np.int8), r"\[6\], must be int8 \[2, 3\]"),
    ],
)
def test_plain_weights_are_refused(tmp_path, coding, tensor, message):
    graph = Graph("x", (3,), "y", (Linear("layer", ("x",), "y", Weight("w", coding, (2, 3)), None, None),))
    write_raw(tmp_path / "net", {"w": tensor}, metadata_of(graph))
    with pytest.raises(PackedFileError, match=message):
        file.read(tmp_path / "net")


def spec(start, stop, *, shape=None, dtype="U8"):
    return {"dtype": dtype, "shape": [stop - start] if shape is None else shape, "data_offsets": [start, stop]}


@pytest.mark.parametrize(
    "specs",
    [
        {"w": spec(0, 2), "s": spec(0, 8, dtype="F32", shape=[2]), "b": spec(8, 16, dtype="F32", shape=[2])},  # overlap
        {"w": spec(0, 2), "s": spec(2, 10, dtype="F32", shape=[2]), "b": spec(2, 10, dtype="F32", shape=[2])},  # twice
        {"w": spec(0, 2), "s": spec(3, 11, dtype="F32", shape=[2]), "b": spec(11, 19, dtype="F32", shape=[2])},  # hole
        {"w": spec(0, 2**40), "s": spec(2**40, 2**40), "b": spec(2**40, 2**40)},  # beyond the end
        {"w": spec(0, 18, shape=[2**62, 2**62])},
        {"w": spec(0, 18, shape=[-1])},
        {"w": spec(0, 18, dtype="F128")},
        {"w": spec(0, 18, dtype="BF16", shape=[9])},
        {"w": spec(0, 18, dtype="F4", shape=[36])},
        {"w": spec(0, 18) | {"shape": "abc"}},
        {"w": []},
        {},
    ],
)
def test_hostile_headers(tmp_path, specs):
    write_header(tmp_path / "net", {"__metadata__": metadata_of(small()[0]), **specs}, bytes(18))
    with pytest.raises(PackedFileError):
        file.read(tmp_path / "net")


@pytest.mark.parametrize("length", [2**63, 2**64 - 1, 10**8 + 1, 10**8, 3, 0])
def test_hostile_header_lengths(tmp_path, length):
    (tmp_path / "net").write_bytes(struct.pack("<Q", length) + b"{}  ")
    with pytest.raises(PackedFileError):
        file.read(tmp_path / "net")


def test_sizes_are_checked_before_reading(tmp_path):
    """A file with a hole of 2 GB for a weight that needs 2 bytes: refused without a byte of it being read."""
    graph, _ = small()
    size = 2**31
    specs = {
        "b": spec(0, 8, dtype="F32", shape=[2]),
        "s": spec(8, 16, dtype="F32", shape=[2]),
        "w": spec(16, 16 + size),
    }
    write_header(tmp_path / "net", {"__metadata__": metadata_of(graph), **specs}, bytes(16))
    path = tmp_path / "net"
    os.truncate(path, path.stat().st_size + size)
    with pytest.raises(PackedFileError, match=r"tensor 'w' is U8 \[2147483648\], must be uint8 \[2\]"):
        file.read(path)
    os.truncate(path, 2**32 + 1)
    with pytest.raises(PackedFileError, match="has 4294967297 bytes; packed networks have at most 4294967296"):
        file.read(path)


def test_paths_that_are_no_files(tmp_path):
    with pytest.raises(FileNotFoundError, match=r"there is no packed network at .*missing.*; check the path"):
        file.read(tmp_path / "missing")
    with pytest.raises(IsADirectoryError):
        file.read(tmp_path)


@pytest.mark.skipif(not hasattr(os, "mkfifo"), reason="needs named pipes")
def test_a_pipe_does_not_make_reading_wait(tmp_path):
    os.mkfifo(tmp_path / "pipe")
    with pytest.raises(PackedFileError, match="is no regular file"):
        file.read(tmp_path / "pipe")
