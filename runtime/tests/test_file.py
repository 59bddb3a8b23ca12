import dataclasses
import json
import os
import re
import struct
from pathlib import Path

import numpy as np
import pytest
import safetensors.numpy
from samples import described, everything, spelled_out

from lrnets_runtime import Network, PackedFileError, file, native, reference
from lrnets_runtime.graph import Affine, Graph, Linear, Preparation, Weight
from lrnets_runtime.reading import graph_from_json

DOCUMENT = Path(__file__).parents[2] / "docs" / "packed-format.md"


def small():
    """The example of docs/packed-format.md: a file of few bytes with a packed weight, a scale and a bias."""
    node = Linear("layer", ("x",), "y", Weight("w", "ternary", (2, 3)), "s", "b")
    tensors = {
        "w": np.array([194, 122], np.uint8),
        "s": np.array([0.5, 0.25], np.float32),
        "b": np.array([0, -1], np.float32),
    }
    return Graph("x", (3,), "y", (node,), {"x": (0.5, 3)}), tensors


def metadata_of(graph, /, **changes):
    found = {"format": "lrnets-packed", "version": "2", "graph": json.dumps(graph.to_json())} | changes
    return {key: value for key, value in found.items() if value is not None}


def write_raw(path, tensors, metadata):
    """With safetensors' own writer, and no checks."""
    path.write_bytes(safetensors.numpy.save(tensors, metadata))


def write_header(path, header, data):
    text = header if isinstance(header, bytes) else json.dumps(header).encode()
    path.write_bytes(struct.pack("<Q", len(text)) + text + data)


@pytest.mark.parametrize("quantized", [False, True])
def test_round_trip(tmp_path, quantized):
    graph, tensors = described(quantized=quantized)
    file.write(tmp_path / "net", graph, tensors)
    again, loaded = file.read(str(tmp_path / "net"))
    assert again == graph
    assert loaded.keys() == tensors.keys()
    for name, tensor in tensors.items():
        assert loaded[name].dtype == tensor.dtype
        np.testing.assert_array_equal(loaded[name], tensor)


def test_a_shorter_side_asks_for_version_3():
    for version, preparation in ((2, Preparation("each")), (3, Preparation("each", shorter_side=4))):
        assert file.lowest_version(Graph("x", (1, 4, 4), "x", (), preparation=preparation)) == version


@pytest.mark.parametrize("quantized", [False, True])
def test_one_number_for_all_channels_is_in_the_graph(tmp_path, quantized):
    """It computes what a tensor of equal numbers does, and asks for version 3; without it the file is of version 2."""
    graph, tensors = everything(quantized=quantized)
    by_tensor = tensors | {"conv.s": np.full(4, 0.3, np.float32), "affine.b": np.full(4, -0.2, np.float32)}
    numbers = {"conv": {"scale": 0.3}, "affine": {"bias": -0.2}}
    nodes = tuple(dataclasses.replace(node, **numbers.get(node.name, {})) for node in graph.nodes)
    by_number = dataclasses.replace(graph, nodes=nodes)
    fewer = {name: tensor for name, tensor in tensors.items() if name not in ("conv.s", "affine.b")}
    file.write(tmp_path / "tensor", graph, by_tensor)
    file.write(tmp_path / "number", by_number, fewer)
    assert b'"version":"2"' in (tmp_path / "tensor").read_bytes()
    assert b'"version":"3"' in (tmp_path / "number").read_bytes()
    again, loaded = file.read(tmp_path / "number")
    assert again == by_number
    assert loaded.keys() == fewer.keys()
    x = np.random.default_rng(4).normal(size=(3, *graph.input_shape)).astype(np.float32)
    assert np.array_equal(reference.run(again, loaded, x), reference.run(graph, by_tensor, x))
    for kernels in native.kernels():
        one, other = Network(again, loaded, kernels=kernels), Network(graph, by_tensor, kernels=kernels)
        assert np.array_equal(one(x), other(x))


@pytest.mark.parametrize("quantized", [False, True])
def test_files_of_version_1_are_read(tmp_path, quantized):
    """They have every field of the graph, and no more than version 1 knew."""
    graph, tensors = everything(quantized=quantized)
    raw = spelled_out(graph)
    del raw["preparation"], raw["classes"]
    write_raw(tmp_path / "net", tensors, {"format": "lrnets-packed", "version": "1", "graph": json.dumps(raw)})
    again, loaded = file.read(tmp_path / "net")
    assert again == graph
    assert loaded.keys() == tensors.keys()


@pytest.mark.parametrize("sample", [small, lambda: described(quantized=True)])
def test_the_size_is_known_beforehand(tmp_path, sample):
    file.write(tmp_path / "net", *sample())
    assert file.size(*sample()) == (tmp_path / "net").stat().st_size


def test_classes_are_as_many_as_the_outputs(tmp_path):
    graph, tensors = small()
    file.write(tmp_path / "net", dataclasses.replace(graph, classes=("no", "yes")), tensors)
    assert file.read(tmp_path / "net")[0].classes == ("no", "yes")
    three = dataclasses.replace(graph, classes=("no", "yes", "maybe"))
    with pytest.raises(PackedFileError, match=r"graph: classes: 3 names for an output of shape \[2\]"):
        file.write(tmp_path / "net", three, tensors)
    write_raw(tmp_path / "net", tensors, metadata_of(three))
    with pytest.raises(PackedFileError, match="3 names for an output"):
        file.read(tmp_path / "net")
    image = Graph("x", (1, 2, 2), "x", (), classes=("a",))
    with pytest.raises(PackedFileError, match=r"1 names for an output of shape \[1, 2, 2\]; .* a flat output"):
        file.write(tmp_path / "net", image, {})


def test_safetensors_reads_it_and_bytes_are_documented(tmp_path):
    graph, tensors = small()
    file.write(tmp_path / "net", graph, tensors)
    raw = (tmp_path / "net").read_bytes()
    assert safetensors.numpy.load(raw).keys() == tensors.keys()
    length = int.from_bytes(raw[:8], "little")
    assert length % 8 == 0
    header = json.loads(raw[8 : 8 + length])
    assert header.pop("__metadata__") == {
        "format": "lrnets-packed",
        "version": "2",
        "graph": json.dumps(graph.to_json(), separators=(",", ":")),
    }
    assert header == {
        "b": {"dtype": "F32", "shape": [2], "data_offsets": [0, 8]},
        "s": {"dtype": "F32", "shape": [2], "data_offsets": [8, 16]},
        "w": {"dtype": "U8", "shape": [2], "data_offsets": [16, 18]},
    }
    assert raw[8 + length :] == struct.pack("<4f", 0, -1, 0.5, 0.25) + bytes([194, 122])


@pytest.mark.skipif(not DOCUMENT.exists(), reason="the format's page is not here, only the distribution")
def test_documented_example(tmp_path):
    """The page shows a whole file, its graph and what it computes; all three are checked here."""
    text = DOCUMENT.read_text(encoding="utf-8")
    graph, tensors = small()
    file.write(tmp_path / "net", graph, tensors)
    raw = (tmp_path / "net").read_bytes()
    shown = re.search(r"```json\n(.*?)```", text, re.DOTALL)[1]
    assert graph_from_json(json.loads(shown)) == graph
    assert json.loads(shown) == graph.to_json()
    assert f"The file has {len(raw)} bytes:" in text
    dump = re.search(r"```hexdump\n(.*?)```", text, re.DOTALL)[1]
    for line in dump.splitlines():
        place, values = line.split("  ")[:2]
        values = bytes.fromhex(values)
        assert raw[int(place) : int(place) + len(values)] == values, line
    assert reference.run(graph, tensors, np.array([[1, -0.5, 0.25]], np.float32)).tolist() == [[0.5, -1.125]]


def test_equal_networks_give_equal_bytes(tmp_path):
    graph, tensors = everything(quantized=True)
    file.write(tmp_path / "a", graph, tensors)
    file.write(tmp_path / "b", graph, dict(reversed(tensors.items())))
    big_endian = {name: t.astype(t.dtype.newbyteorder(">"))[..., ::-1][..., ::-1] for name, t in tensors.items()}
    file.write(tmp_path / "c", graph, big_endian)
    assert (tmp_path / "a").read_bytes() == (tmp_path / "b").read_bytes() == (tmp_path / "c").read_bytes()


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


def test_affine_takes_a_number_for_each_channel(tmp_path):
    graph = Graph("x", (3, 2, 2), "y", (Affine("norm", ("x",), "y", "s", None),))
    file.write(tmp_path / "net", graph, {"s": np.ones(3, np.float32)})
    with pytest.raises(PackedFileError, match=r"node 'norm': scale: .* is float32 \[2\], must be float32 \[3\]"):
        file.write(tmp_path / "net", graph, {"s": np.ones(2, np.float32)})


def test_a_tensor_may_serve_two_nodes(tmp_path):
    nodes = [Linear(f"l{i}", (f"v{i}",), f"v{i + 1}", Weight("w", "binary", (4, 4)), "s", None) for i in range(2)]
    graph = Graph("v0", (4,), "v2", tuple(nodes))
    file.write(tmp_path / "net", graph, {"w": np.array([1, 2], np.uint8), "s": np.ones(4, np.float32)})
    assert file.read(tmp_path / "net")[0] == graph


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


def test_writing_is_whole_or_not_at_all(tmp_path, monkeypatch):
    path = tmp_path / "net"
    file.write(path, *small())
    before = path.read_bytes()

    def fails_half_way(tensors, metadata):
        yield b"half"
        raise OSError("the disk is full")

    with monkeypatch.context() as patch:
        patch.setattr(file, "_safetensors", fails_half_way)
        with pytest.raises(OSError, match="the disk is full"):
            file.write(path, *small())
    assert path.read_bytes() == before
    assert os.listdir(tmp_path) == ["net"]

    def interrupted(source, target):
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(os, "replace", interrupted)
        with pytest.raises(KeyboardInterrupt):
            file.write(path, *small())
    assert path.read_bytes() == before
    assert os.listdir(tmp_path) == ["net"]

    graph, tensors = everything(quantized=False)
    file.write(path, graph, tensors)  # over the old one
    assert file.read(path)[0] == graph


def test_written_files_follow_the_umask(tmp_path):
    file.write(tmp_path / "net", *small())
    (tmp_path / "other").touch()
    assert (tmp_path / "net").stat().st_mode == (tmp_path / "other").stat().st_mode


def test_graphs_that_cannot_be_read_are_not_written(tmp_path):
    graph, tensors = small()
    for broken in (
        Graph("x", (4,), "y", graph.nodes),
        Graph("x", (3,), "z", graph.nodes),
        Graph("x", (3,), "y", graph.nodes, {"x": (np.float32(0.5), 3)}),
        Graph("x", (3,), "y", graph.nodes, {"x": (0.5, np.int64(3))}),
    ):
        with pytest.raises(PackedFileError):
            file.write(tmp_path / "net", broken, tensors)
    assert os.listdir(tmp_path) == []
