"""Files of a run: they compute what its network computes, and know what it was trained on."""

import lrnets_runtime
import numpy as np
import pytest
import torch
from digit_runs import TRANSFORMS, digits, network, short, train
from lrnets_runtime.graph import Preparation
from lrnets_runtime.images import prepare

from lrnets.data.augment import TRANSFORMS as OUR_TRANSFORMS
from lrnets.data.augment import Transforms, scale
from lrnets.training.packing import PREPARATIONS, export_run
from lrnets.training.run_folder import RunFolder
from lrnets.training.stored import drawn_network


@pytest.fixture(scope="module")
def finished(tmp_path_factory):
    path = tmp_path_factory.mktemp("runs") / "run"
    return RunFolder(path), train(path, short(epochs=2, scale=True))


def exported(finished, path, **choices):
    settings = {"data": digits(), "transforms": TRANSFORMS, "model": network()} | choices
    return export_run(finished[0], path, **settings)


@pytest.mark.parametrize("activations", ["float32", "int8"])
def test_the_packed_file_of_a_run_has_its_errors(finished, tmp_path, activations):
    results = finished[1]
    report = exported(finished, tmp_path / "net.safetensors", activations=activations)
    assert report.torch_error == pytest.approx(results["valid_error"]["chosen"])
    allowed = 0 if activations == "float32" else 1
    assert abs(report.file_error - report.torch_error) <= allowed
    assert report.report.bytes == (tmp_path / "net.safetensors").stat().st_size
    assert f"{report.file_error:.2f} % by the run-time" in str(report)


def test_the_test_error_through_the_runtime_is_that_of_torch(finished, tmp_path):
    """Image by image, in float32 and in int8, from raw bytes on: nothing of torch is used but for the comparison."""
    folder, results = finished
    test = digits().test
    with torch.no_grad():
        expected = drawn_network(folder, network())(scale(test.images)).numpy()
    labels = test.labels.numpy()
    for activations, most_others, tolerance in (("float32", 0, 1e-5), ("int8", 3, 0.1)):
        exported(finished, tmp_path / "net", activations=activations)
        packed = lrnets_runtime.load(tmp_path / "net")
        outputs = packed(prepare(test.images.numpy(), packed.graph.preparation))
        np.testing.assert_allclose(outputs, expected, atol=tolerance * np.abs(expected).max())
        assert np.sum(outputs.argmax(1) != expected.argmax(1)) <= most_others
        if activations == "float32":
            error = 100 * np.mean(outputs.argmax(1) != labels)
            assert error == pytest.approx(results["test_error"]["chosen"])


def test_the_file_names_the_classes_and_prepares_images(finished, tmp_path):
    exported(finished, tmp_path / "net")
    graph = lrnets_runtime.load(tmp_path / "net").graph
    assert graph.classes == tuple("0123456789")
    assert graph.preparation == Preparation("fixed")


def test_transforms_that_are_not_ours_are_not_told(finished, tmp_path):
    def halved(x, generator=None):
        return scale(x) / 2

    exported(finished, tmp_path / "net", transforms=Transforms(halved, halved))
    graph = lrnets_runtime.load(tmp_path / "net").graph
    assert graph.preparation is None
    assert graph.classes == tuple("0123456789")


@pytest.mark.parametrize("name", OUR_TRANSFORMS)
def test_every_data_set_is_prepared_as_its_transform_does(name):
    images = np.random.default_rng(0).integers(0, 256, (5, 3, 32, 32), dtype=np.uint8)
    images[0] = 200  # a single grey level
    transform = OUR_TRANSFORMS[name].evaluation
    prepared = prepare(images, Preparation(PREPARATIONS[transform]))
    expected = transform(torch.from_numpy(images)).numpy()
    # A mean in float32 is a few 2^-24 off; the deviation is about 0.3, and for a single grey level 1 / 14,133.
    off = 4 * 2**-24 if name == "cifar10" else 0
    np.testing.assert_allclose(prepared[1:], expected[1:], atol=off / 0.2)
    np.testing.assert_allclose(prepared[0], expected[0], atol=off * 14_134)


def test_a_run_becomes_c(finished, tmp_path):
    report = exported(finished, tmp_path / "net.c", to="c")
    assert report.file_error is None
    assert (tmp_path / "net.h").exists()
    assert "validation error" in str(report)
