"""A packed file becomes C, ONNX or a packed file again, and computes the same."""

from __future__ import annotations

import json
import shutil
import subprocess
from pathlib import Path

import lrnets_runtime
import numpy as np
import pytest
import safetensors.numpy
import torch
from export_networks import ResNet, drawn
from lrnets_runtime import PackedFileError, file, reference

from lrnets.cli import main
from lrnets.export import Preparation, export_packed, save_c, save_packed

CLASSES = ("ant", "bee", "cat", "dog", "elk")


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """The same network with float32 and with int8 activations."""
    folder = tmp_path_factory.mktemp("packed")
    torch.manual_seed(0)
    net, x = drawn(ResNet()), torch.rand(16, 3, 16, 16)
    told = {"preparation": Preparation("fixed", (0.4, 0.5, 0.6)), "classes": CLASSES}
    save_packed(net, x, folder / "float32.safetensors", **told)
    save_packed(net, x, folder / "int8.safetensors", activations="int8", calibration=x, **told)
    save_c(net, x, folder / "direct.c", name="network")
    return {name: folder / f"{name}.safetensors" for name in ("float32", "int8")}


def random_images() -> np.ndarray:
    return np.random.default_rng(3).normal(0, 0.3, (6, 3, 16, 16)).astype(np.float32)


def test_what_a_file_tells_of_itself_is_kept(files: dict[str, Path], tmp_path: Path) -> None:
    graph, _ = file.read(files["int8"])
    assert graph.classes == CLASSES
    assert graph.preparation == Preparation("fixed", (0.4, 0.5, 0.6))
    report = export_packed(files["int8"], tmp_path / "again", to="packed")
    assert (tmp_path / "again").read_bytes() == files["int8"].read_bytes()
    assert report.bytes == files["int8"].stat().st_size
    assert report.difference > 0  # what the quantisation costs


@pytest.mark.parametrize("activations", ["float32", "int8"])
def test_onnx_computes_what_the_file_computes(files: dict[str, Path], tmp_path: Path, activations: str) -> None:
    pytest.importorskip("onnx")
    onnxruntime = pytest.importorskip("onnxruntime")
    report = export_packed(files[activations], tmp_path / "n.onnx", to="onnx")
    assert report.activations == activations
    x = random_images()
    (outputs,) = onnxruntime.InferenceSession(str(report.path)).run(None, {"input": x})
    expected = reference.run(*file.read(files[activations]), x)
    # A byte here and there may round to its neighbour.
    allowed = 1e-5 if activations == "float32" else 0.05
    np.testing.assert_allclose(outputs, expected, atol=allowed * np.abs(expected).max())


@pytest.mark.skipif(shutil.which("gcc") is None, reason="no gcc")
@pytest.mark.parametrize("activations", ["float32", "int8"])
def test_c_passes_its_own_test(files: dict[str, Path], tmp_path: Path, activations: str) -> None:
    report = export_packed(files[activations], tmp_path / "net.c", to="c")
    assert report.activations == activations
    command = ["gcc", "-std=c99", "-Wall", "-Wextra", "-pedantic", "-Werror", "-DNET_TEST", str(report.path), "-lm"]
    subprocess.run([*command, "-o", str(tmp_path / "net")], check=True)
    subprocess.run([str(tmp_path / "net")], check=True, stdout=subprocess.DEVNULL)


def test_c_is_that_of_the_network_itself(files: dict[str, Path], tmp_path: Path) -> None:
    """But for the example, which a file has not."""
    export_packed(files["float32"], tmp_path / "network.c", to="c")
    direct = files["float32"].with_name("direct.c").read_text().replace("direct.h", "network.h")
    code = (tmp_path / "network.c").read_text()
    end = code.index("#ifdef NETWORK_TEST")
    assert code[:end] == direct[: direct.index("#ifdef NETWORK_TEST")]


def test_quantisation_can_be_left_out_but_not_made(files: dict[str, Path], tmp_path: Path) -> None:
    export_packed(files["int8"], tmp_path / "plain", to="packed", activations="float32")
    graph, tensors = file.read(tmp_path / "plain")
    assert graph.quantization is None
    x = random_images()
    expected = lrnets_runtime.load(files["int8"], activations="float32")(x)
    np.testing.assert_allclose(reference.run(graph, tensors, x), expected, atol=1e-5)
    with pytest.raises(ValueError, match=r"int8 is calibrated on data, .* export the run itself"):
        export_packed(files["float32"], tmp_path / "no", to="packed", activations="int8")
    assert not (tmp_path / "no").exists()


def test_files_without_a_preparation_are_written_too(tmp_path: Path) -> None:
    net = torch.nn.Sequential(torch.nn.Linear(5, 4))
    save_packed(net, torch.randn(1, 5), tmp_path / "net.safetensors")
    assert export_packed(tmp_path / "net.safetensors", tmp_path / "net.c", to="c").difference < 1e-5


def test_other_things_are_refused(files: dict[str, Path], tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="to must be one of 'packed', 'onnx', 'c', got 'tflite'"):
        export_packed(files["int8"], tmp_path / "n", to="tflite")
    with pytest.raises(FileNotFoundError, match="there is no folder"):
        export_packed(files["int8"], tmp_path / "gone/n", to="c")
    (tmp_path / "other").write_bytes(safetensors.numpy.save({"w": np.zeros(3)}))
    with pytest.raises(PackedFileError, match="its format is None"):
        export_packed(tmp_path / "other", tmp_path / "n", to="c")


def test_the_command_takes_a_file(files: dict[str, Path], tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    source = tmp_path / "net.safetensors"
    shutil.copy(files["int8"], source)
    assert main(["export", str(source), "--to", "c"]) == 0
    assert "net_run, int8 activations" in capsys.readouterr().out
    assert {path.name for path in tmp_path.iterdir()} == {"net.safetensors", "net.c", "net.h"}
    assert main(["export", str(source), "--out", str(tmp_path / "f.safetensors"), "--activations", "float32"]) == 0
    assert "float32 activations" in capsys.readouterr().out
    assert main(["export", str(source)]) == 1
    assert "is packed already; name the new file with --out" in capsys.readouterr().err
    old = safetensors.numpy.load_file(source)
    header = json.loads(source.read_bytes()[8:][: int.from_bytes(source.read_bytes()[:8], "little")])
    (tmp_path / "old.safetensors").write_bytes(
        safetensors.numpy.save(old, header["__metadata__"] | {"version": "1"})  # as old files are, in version 1
    )
    assert main(["export", str(tmp_path / "old.safetensors"), "--out", str(tmp_path / "new.safetensors")]) == 0
    assert (tmp_path / "new.safetensors").read_bytes() == source.read_bytes()
