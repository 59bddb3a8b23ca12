"""Networks out of a run's folder."""

import pytest
import torch
from digit_runs import digits, network, short, train

from lrnets.data.augment import scale
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
    assert 100 * wrong / len(data.test) == pytest.approx(results["test_error"]["chosen"])
    assert not net.training
    assert len(net[5].weight.unique()) <= 3


def test_others_may_read_weights_as_they_may_the_rest(finished):
    folder, _ = finished
    modes = {file.name: file.stat().st_mode for file in folder.path.iterdir() if file.is_file()}
    assert {modes[f"{name}.safetensors"] for name in ("float", "drawn", "examples")} == {modes["recipe.yaml"]}


def test_an_unfinished_run_is_refused(finished, tmp_path):
    folder = RunFolder(tmp_path)
    folder.write_text("recipe.yaml", finished[0].read_recipe().to_yaml())
    with pytest.raises(FileNotFoundError, match="--resume"):
        drawn_network(folder, network())
    with pytest.raises(ValueError, match="does not fit the network"):
        drawn_network(finished[0])
