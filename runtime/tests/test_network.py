import copy
import pickle

import numpy as np
import pytest
from samples import everything

import lrnets_runtime
from lrnets_runtime import Network, PackedFileError, file, load, reference
from lrnets_runtime.graph import Graph, Linear, Weight


@pytest.fixture
def path(tmp_path):
    file.write(tmp_path / "net", *everything(quantized=True))
    return tmp_path / "net"


@pytest.fixture
def batch():
    return np.random.default_rng(0).normal(size=(4, 2, 5, 5)).astype(np.float32)


def test_public_names():
    assert sorted(lrnets_runtime.__all__) == ["Network", "PackedFileError", "__version__", "load"]
    assert issubclass(PackedFileError, ValueError)


def test_load_and_call(path, batch):
    network = load(str(path))
    assert isinstance(network, Network)
    assert network.input_shape == (2, 5, 5)
    assert network.output_shape == (3,)
    y = network(batch)
    assert y.dtype == np.float32
    np.testing.assert_array_equal(y, reference.run(*file.read(path), batch))
    np.testing.assert_array_equal(network(batch[0]), y[0])  # a single sample gives a single result
    assert network(batch[:0]).shape == (0, 3)
    assert "int8 activations" in repr(network)


@pytest.mark.parametrize("activations", ["int8", "float32"])
def test_copies_compute_the_same(path, batch, activations):
    network = load(path, threads=1, activations=activations)
    y, copies = network(batch), (copy.deepcopy(network), pickle.loads(pickle.dumps(network)))
    del network
    for again in copies:
        assert (again.threads, again.activations, again.kernels) == (1, activations, load(path).kernels)
        np.testing.assert_array_equal(again(batch), y)
    assert load(path, kernels="reference").__reduce__()[0].keywords["kernels"] == "reference"


def test_array_likes(path, batch):
    network = load(path)
    y = network(batch)
    np.testing.assert_array_equal(network(batch.astype(np.float64)), y)
    np.testing.assert_array_equal(network(batch.tolist()), y)
    np.testing.assert_array_equal(network(batch.astype(">f4")), y)
    np.testing.assert_array_equal(network(np.asfortranarray(batch)), y)
    np.testing.assert_array_equal(network(np.repeat(batch, 2, axis=3)[..., ::2]), y)
    read_only = batch.copy()
    read_only.flags.writeable = False
    np.testing.assert_array_equal(network(read_only), y)
    for dtype in (np.float16, np.uint8, np.int64, bool):
        x = (np.abs(batch) * 3).astype(dtype)
        np.testing.assert_array_equal(network(x), network(x.astype(np.float32)))


def test_numbers_at_odd_addresses(path, batch, monkeypatch):
    """As np.frombuffer may find them; C may read float32 at multiples of 4 only."""
    network, given = load(path), []
    core = network._native or (lambda x, threads: reference.run(network.graph, network.tensors, x))
    monkeypatch.setattr(network, "_native", lambda x, threads: given.append(x) or core(x, threads))
    odd = np.frombuffer(b"?" + batch.tobytes(), np.float32, offset=1).reshape(batch.shape)
    assert not odd.flags.aligned
    np.testing.assert_array_equal(network(odd), network(batch))
    assert given[0].flags.aligned
    assert given[1] is batch


@pytest.mark.parametrize("shape", [(), (2,), (5, 5), (2, 5), (1, 2, 5, 6), (2, 2, 5, 5, 1), (1, 1, 2, 5, 5), (0,)])
def test_wrong_shapes(path, shape):
    with pytest.raises(ValueError, match=r"this network takes \[batch, 2, 5, 5\] or \[2, 5, 5\]"):
        load(path)(np.zeros(shape))


@pytest.mark.parametrize("dtype", [np.complex64, object, "U3", "S3", "datetime64[s]"])
def test_wrong_types(path, dtype):
    with pytest.raises(TypeError, match="give real numbers"):
        load(path)(np.zeros((1, 2, 5, 5)).astype(int).astype(dtype))


def test_numbers_beyond_float32(path, batch):
    """Infinite in float32, as everywhere; no warning."""
    assert load(path)(batch.astype(np.float64) * 1e300).shape == (4, 3)


def test_activations(path, tmp_path, batch):
    assert load(path).activations == "int8"
    np.testing.assert_array_equal(load(path)(batch), load(path, activations="int8")(batch))
    graph, tensors = everything(quantized=False)
    file.write(tmp_path / "plain", graph, tensors)
    plain, ignored = load(tmp_path / "plain"), load(path, activations="float32")
    assert plain.activations == ignored.activations == "float32"
    np.testing.assert_array_equal(plain(batch), ignored(batch))
    assert not np.array_equal(plain(batch), load(path)(batch))
    batch[1, 0, 0, 0] = np.nan
    assert np.isnan(plain(batch)[1]).all()
    assert not np.isnan(plain(batch)[0]).any()
    with pytest.raises(PackedFileError, match="activations='int8' needs a quantization"):
        load(tmp_path / "plain", activations="int8")
    with pytest.raises(ValueError, match="activations is 'int4'"):
        load(path, activations="int4")


def test_threads(path):
    assert load(path).threads is None
    assert load(path, threads=3).threads == 3
    for threads in (0, -1, 1.0, True, "2", 1025):
        with pytest.raises(ValueError, match=r"threads is .* whole number from 1"):
            load(path, threads=threads)


def test_layers(path):
    network = load(path)
    layers = {layer.name: layer for layer in network.layers}
    assert list(layers) == [node.name for node in network.graph.nodes]
    assert layers["conv"] == ("conv", "conv2d", (4, 5, 5), "ternary", 15 + 16 + 16)  # 72 weights, 5 to a byte
    assert layers["grouped"] == ("grouped", "conv2d", (4, 3, 3), "binary", 1)
    assert layers["hidden"] == ("hidden", "linear", (5,), "int8", 120 + 20)
    assert layers["last"] == ("last", "linear", (3,), "float32", 60 + 12)
    assert layers["affine"].bytes == 32
    assert layers["pool"] == ("pool", "pool2d", (4, 3, 3), None, 0)
    assert network.nbytes == sum(layer.bytes for layer in layers.values())


def test_shared_tensors_count_once():
    nodes = [Linear(f"l{i}", (f"v{i}",), f"v{i + 1}", Weight("w", "binary", (4, 4)), None, None) for i in range(2)]
    network = Network(Graph("v0", (4,), "v2", tuple(nodes)), {"w": np.array([1, 2], np.uint8)})
    assert [layer.bytes for layer in network.layers] == [2, 2]
    assert network.nbytes == 2
