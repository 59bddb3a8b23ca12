"""`lrnets demo`: a page's network, run in node, is the run-time's; what cannot become a page is refused in one line."""

import json
from dataclasses import replace

import lrnets_runtime
import numpy as np
import pytest
import torch
from demo_pages import digit_net, drawn, images, needs_clang, needs_node, node, pack
from lrnets_runtime import file, reference
from lrnets_runtime.images import prepare
from safetensors.torch import save_file
from torch import nn

from lrnets.cli import main
from lrnets.data import Data, Split
from lrnets.data.augment import Transforms, scale
from lrnets.demo import make_demo, wasm
from lrnets.discretize import discretize
from lrnets.export import Preparation
from lrnets.training.pipeline import convert_by
from lrnets.training.recipe import recipe_from
from lrnets.training.run_folder import RunFolder

DIGITS = tuple("0123456789")


def expected(packed, pictures):
    """Outputs by the run-time, and the first convolution's maps by the reference."""
    network = lrnets_runtime.load(packed)
    x = prepare(pictures, network.graph.preparation)
    convolution = wasm.first_convolution(network.graph)
    if convolution is None:
        return network(x), None
    graph = replace(network.graph, output=convolution.output, classes=None)
    return network(x), reference.run(graph, network.tensors, x)


def softmax(y):
    powers = np.exp(y.astype(np.float64) - y.max(1, keepdims=True))
    return powers / powers.sum(1, keepdims=True)


@needs_clang
@needs_node
@pytest.mark.parametrize("values", ["ternary", "binary"])
def test_a_page_answers_what_the_runtime_answers_bit_for_bit(tmp_path, values):
    packed = pack(drawn(digit_net(), values), (1, 28, 28), tmp_path / "net.safetensors", classes=DIGITS)
    report = make_demo(packed)
    assert report.path == tmp_path / "net.html"
    assert report.bytes == report.path.stat().st_size
    pictures = np.concatenate([images(40, 1, 28, 28), np.zeros((1, 1, 28, 28), np.uint8)])
    found = node(report.path, images=pictures.reshape(len(pictures), -1).tolist())
    outputs, maps = expected(packed, pictures)
    np.testing.assert_array_equal(np.float32([a["outputs"] for a in found["answers"]]), outputs)
    np.testing.assert_array_equal(np.float32([a["maps"] for a in found["answers"]]), maps.reshape(len(maps), -1))
    np.testing.assert_allclose([a["probabilities"] for a in found["answers"]], softmax(outputs), atol=1e-12)
    assert np.ptp(outputs, axis=0).min() > 0  # every output depends on the picture


@needs_clang
@needs_node
def test_float32_activations_stay_within_rounding(tmp_path):
    packed = pack(drawn(digit_net()), (1, 28, 28), tmp_path / "net.safetensors", activations="float32")
    pictures = images(10, 1, 28, 28)
    found = node(make_demo(packed).path, images=pictures.reshape(10, -1).tolist())
    outputs, maps = expected(packed, pictures)
    for name, wanted in (("outputs", outputs), ("maps", maps)):
        given = np.float32([answer[name] for answer in found["answers"]]).reshape(wanted.shape)
        np.testing.assert_allclose(given, wanted, atol=1e-5 * np.abs(wanted).max())  # 800 float32 sums at most
    assert found["facts"]["activations"] == "float32"
    assert found["facts"]["classes"] == list(DIGITS)  # numbered, where the file has no names


def colour_net():
    return nn.Sequential(
        nn.Conv2d(3, 40, 3, stride=2), nn.ReLU(), nn.AdaptiveAvgPool2d(2), nn.Flatten(), nn.Linear(160, 4),
        nn.Softmax(1),
    )  # fmt: skip


@needs_clang
@needs_node
@pytest.mark.parametrize("preparation", [Preparation("each"), Preparation("fixed", (0.5, 0.4, 0.3), (0.2, 0.3, 0.1))])
def test_colour_a_softmax_and_names(tmp_path, preparation):
    names = ("cat", "</script>", "a b", "dog")
    packed = pack(
        drawn(colour_net()), (3, 17, 17), tmp_path / "net.safetensors", preparation=preparation, classes=names,
        activations="float32",
    )  # fmt: skip
    pictures = images(6, 3, 17, 17)
    found = node(make_demo(packed).path, images=pictures.reshape(6, -1).tolist())
    outputs, maps = expected(packed, pictures)
    np.testing.assert_allclose([a["probabilities"] for a in found["answers"]], outputs, atol=1e-5)
    np.testing.assert_allclose(
        [a["maps"] for a in found["answers"]], maps.reshape(6, -1), atol=1e-5 * np.abs(maps).max()
    )
    assert found["facts"]["classes"] == list(names)
    assert found["facts"]["maps"]["kernel"] == [32, 3, 3, 3]  # of 40


@needs_clang
@needs_node
def test_a_network_without_a_convolution_has_no_maps(tmp_path):
    net = drawn(nn.Sequential(nn.Flatten(), nn.Linear(64, 16), nn.ReLU(), nn.Linear(16, 10)))
    packed = pack(net, (1, 8, 8), tmp_path / "net.safetensors")
    pictures = images(5, 1, 8, 8)
    found = node(make_demo(packed).path, images=pictures.reshape(5, -1).tolist())
    np.testing.assert_array_equal(np.float32([a["outputs"] for a in found["answers"]]), expected(packed, pictures)[0])
    assert found["facts"]["maps"] is None


@pytest.fixture
def run(tmp_path):
    """A finished run that never trained, and how to load it."""
    torch.manual_seed(0)
    recipe = recipe_from(
        {
            "name": "drawn", "about": "a test", "data": "mnist", "network": "mnist_net", "weights": "ternary",
            "float_stage": {"epochs": 1, "lr": 0.01}, "discrete_stage": {"epochs": 1, "lr": 0.01},
        }
    )  # fmt: skip
    folder = RunFolder(tmp_path / "run")
    folder.prepare(recipe, resume=False)
    net = digit_net()
    convert_by(recipe, net)
    folder.save_weights("drawn", discretize(net, "mode"))
    split = Split(torch.from_numpy(images(40, 1, 28, 28)), torch.arange(40) % 10)
    data = Data("mnist", DIGITS, split, split, lambda: split)
    return folder.path, {"data": data, "transforms": Transforms(scale, scale), "model": digit_net()}


@needs_clang
@needs_node
def test_a_run_becomes_a_page_with_its_examples(run, tmp_path):
    folder, own = run
    labels = torch.tensor([3, 3, 0, 7, 0])
    pictures = images(5, 1, 28, 28, seed=4)
    save_file({"images": torch.from_numpy(pictures), "labels": labels}, folder / "examples.safetensors")
    told = list[str]()
    report = make_demo(folder, say=told.append, **own)
    assert report.path == folder / "demo.html"
    assert report.examples == 3
    weights = 30 + 240 + 512 + 200  # five ternary ones a byte, and a byte each in the last layer
    scales, biases = (
        10,
        20 + 10,
    )  # fresh batch norm shifts nothing, and scales all channels alike: a number in the graph
    assert report.network_bytes == weights + 4 * (scales + biases)
    assert len(told) == 2
    facts = node(report.path)["facts"]
    assert [example["label"] for example in facts["examples"]] == ["0", "3", "7"]
    assert facts["weights"] == 6 * 25 + 8 * 6 * 25 + 128 * 20 + 20 * 10
    assert facts["codings"] == {"ternary": 3910, "int8": 200}
    assert facts["bytes"] == report.network_bytes
    assert 0 <= facts["error"] <= 100
    assert sorted(path.name for path in folder.iterdir() if path.suffix == ".part") == []


@needs_clang
@pytest.mark.parametrize(
    ("content", "message"),
    [
        ({"images": torch.zeros(2, 1, 28, 28, dtype=torch.uint8)}, "damaged .*labels.*delete it"),
        ({"images": torch.zeros(2, 1, 8, 8, dtype=torch.uint8), "labels": torch.zeros(2)}, r"\[2, 1, 8, 8\]"),
    ],
)
def test_examples_that_do_not_fit_are_named(run, content, message):
    folder, own = run
    save_file(content, folder / "examples.safetensors")
    with pytest.raises(ValueError, match=message):
        make_demo(folder, **own)


@needs_clang
def test_the_command_writes_a_page_and_says_what_is_in_it(tmp_path, capsys):
    packed = pack(drawn(digit_net()), (1, 28, 28), tmp_path / "net.safetensors", classes=DIGITS)
    assert main(["demo", str(packed), "--out", str(tmp_path / "page.html")]) == 0
    told = capsys.readouterr().out
    size = (tmp_path / "page.html").stat().st_size
    assert f"{size:,} bytes" in told
    assert size < 60_000
    text = (tmp_path / "page.html").read_text()
    assert "http:" not in text
    assert "https:" not in text
    assert "{{" not in text.replace("${{", "")


def test_without_clang_the_debian_packages_are_named(tmp_path, monkeypatch, capsys):
    monkeypatch.setenv("PATH", str(tmp_path))
    assert main(["demo", str(tmp_path)]) == 1
    assert "apt-get install clang lld" in capsys.readouterr().err


@needs_clang
@pytest.mark.parametrize(
    ("net", "shape", "told", "message"),
    [
        (nn.Sequential(nn.Flatten(), nn.Linear(32, 4)), (2, 4, 4), {}, r"input of shape \[2, 4, 4\]"),
        (nn.Conv2d(1, 2, 3), (1, 5, 5), {}, r"output has shape \[2, 3, 3\]"),
        (nn.Sequential(nn.Flatten(), nn.Linear(16, 4)), (1, 4, 4), {"preparation": None}, "does not say how an image"),
        (nn.Sequential(nn.Flatten(), nn.Linear(10_000, 101)), (1, 100, 100), {}, "4,000,000 at most"),
    ],
)
def test_networks_that_are_no_page_are_refused(tmp_path, net, shape, told, message):
    packed = pack(net.eval(), shape, tmp_path / "net.safetensors", activations="float32", **told)
    with pytest.raises(ValueError, match=message):
        make_demo(packed)
    assert not (tmp_path / "net.html").exists()


@needs_clang
def test_a_compiler_that_fails_is_quoted_and_leaves_the_old_page(tmp_path, monkeypatch):
    packed = pack(drawn(digit_net()), (1, 28, 28), tmp_path / "net.safetensors")
    (tmp_path / "net.html").write_text("old")
    monkeypatch.setattr(wasm, "FLAGS", ("--target=wasm32", "--no-such-flag"))
    with pytest.raises(RuntimeError, match=r"no-such-flag.*apt-get install clang lld"):
        make_demo(packed)
    assert (tmp_path / "net.html").read_text() == "old"


def test_a_packed_file_keeps_its_bytes(tmp_path):
    """The page says what the packed file holds: the sum of its tensors."""
    from lrnets.demo.facts import facts_of

    packed = pack(drawn(digit_net()), (1, 28, 28), tmp_path / "net.safetensors")
    graph, tensors = file.read(packed)
    facts = facts_of(graph, tensors)
    assert facts["bytes"] == sum(tensor.nbytes for tensor in tensors.values())
    assert sum(layer[-1] for layer in json.loads(json.dumps(facts))["layers"]) == facts["bytes"]
