"""Networks out of a run's folder, and the packed file of a run."""

import lrnets_runtime
import numpy as np
import pytest
import torch
from digit_runs import TRANSFORMS, digits, network, short, train

from lrnets.data.augment import scale
from lrnets.training.packing import export_run
from lrnets.training.run_folder import RunFolder
from lrnets.training.stored import drawn_network


@pytest.fixture(scope="module")
def finished(tmp_path_factory):
    path = tmp_path_factory.mktemp("runs") / "run"
    return RunFolder(path), train(path, short(epochs=2, scale=True))


def test_the_drawn_network_is_the_one_that_was_chosen(finished):
    folder, results = finished
    net = drawn_network(folder, network())
    data = digits()
    with torch.no_grad():
        wrong = (net(scale(data.test.images)).argmax(1) != data.test.labels).sum().item()
    assert 100 * wrong / len(data.test) == pytest.approx(results["test_error"]["chosen draw"])
    assert not net.training
    assert len(net[5].weight.unique()) <= 3


def test_an_unfinished_run_is_refused(finished, tmp_path):
    folder = RunFolder(tmp_path)
    folder.write_text("recipe.yaml", finished[0].read_recipe().to_yaml())
    with pytest.raises(FileNotFoundError, match="--resume"):
        drawn_network(folder, network())
    with pytest.raises(ValueError, match="does not fit the network"):
        drawn_network(finished[0])


@pytest.mark.parametrize("activations", ["float32", "int8"])
def test_the_packed_file_of_a_run_has_its_errors(finished, tmp_path, activations):
    folder, results = finished
    exported = export_run(
        folder, tmp_path / "net.safetensors", activations=activations, data=digits(), transforms=TRANSFORMS,
        model=network(),
    )  # fmt: skip
    assert exported.torch_error == pytest.approx(results["valid_error"]["chosen draw"])
    allowed = 0 if activations == "float32" else 1
    assert abs(exported.file_error - exported.torch_error) <= allowed
    assert exported.report.bytes == (tmp_path / "net.safetensors").stat().st_size
    assert f"{exported.file_error:.2f} % by the run-time" in str(exported)
    packed = lrnets_runtime.load(tmp_path / "net.safetensors")
    x = scale(digits().test.images)
    with torch.no_grad():
        expected = drawn_network(folder, network())(x).numpy()
    tolerance = 1e-4 if activations == "float32" else 0.1 * np.abs(expected).max()
    np.testing.assert_allclose(packed(x.numpy()), expected, atol=tolerance)


def test_a_run_becomes_c(finished, tmp_path):
    exported = export_run(
        finished[0], tmp_path / "net.c", to="c", data=digits(), transforms=TRANSFORMS, model=network()
    )
    assert exported.file_error is None
    assert (tmp_path / "net.h").exists()
    assert "validation error" in str(exported)
