"""Packed files: what is written is what is read, byte for byte as documented, whole or not at all."""

import dataclasses
import json
import os
import re
import struct
from pathlib import Path

import numpy as np
import pytest
import safetensors.numpy
from raw_files import metadata_of, write_raw
from samples import described, everything, small, spelled_out

from lrnets_runtime import Network, PackedFileError, file, native, reference
from lrnets_runtime.graph import Affine, Graph, Linear, Preparation, Weight
from lrnets_runtime.reading import graph_from_json

DOCUMENT = Path(__file__).parents[2] / "docs" / "packed-format.md"


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
