"""A network saved whole gives its state dict, and nothing in the file is run."""

import os
import pickle
from pathlib import Path

import pytest
import torch
from torch import nn

from lrnets.training.weight_files import read_weights


class Elsewhere(nn.Module):
    """A class that a reader may not have."""

    def __init__(self) -> None:
        super().__init__()
        self.body = nn.Sequential(nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4), nn.ReLU())
        self.head = nn.Linear(4, 2, bias=False)
        self.missing = None
        self.register_buffer("passing", torch.ones(3), persistent=False)
        self.extra = nn.Parameter(torch.randn(2).half())

    def __setstate__(self, state: object) -> None:
        raise AssertionError("the class in the file was used")


def make(path: str) -> None:
    Path(path).mkdir()


class Evil:
    """Has a function called when it is unpickled."""

    def __init__(self, function: object, path: Path) -> None:
        self.call = function, (str(path),)

    def __reduce__(self) -> object:
        return self.call


def test_the_state_dict_of_a_whole_network(tmp_path):
    net = Elsewhere()
    torch.save(net, tmp_path / "net.pth")
    state = read_weights(tmp_path / "net.pth")
    assert list(state) == list(net.state_dict())
    torch.testing.assert_close(state, dict(net.state_dict()), rtol=0, atol=0)
    assert not any(tensor.requires_grad for tensor in state.values())


@pytest.mark.parametrize("function", [make, os.mkdir])
def test_nothing_that_a_file_asks_for_is_run(tmp_path, function):
    evil = Evil(function, tmp_path / "made")
    torch.save(evil, tmp_path / "evil.pth")
    with pytest.raises(ValueError, match=r"evil.pth (holds neither|cannot be read)"):
        read_weights(tmp_path / "evil.pth")
    assert not (tmp_path / "made").exists()
    with open(tmp_path / "evil.pkl", "wb") as stream:
        pickle.dump(evil, stream)
    pickle.loads((tmp_path / "evil.pkl").read_bytes())
    assert (tmp_path / "made").exists()  # as it would have been


def test_a_call_inside_a_network_leaves_nothing_but_an_inert_object(tmp_path):
    net = nn.Linear(2, 2)
    net.evil = Evil(make, tmp_path / "made")
    torch.save(net, tmp_path / "net.pth")
    torch.testing.assert_close(read_weights(tmp_path / "net.pth"), {k: v.detach() for k, v in net.state_dict().items()})
    assert not (tmp_path / "made").exists()


def test_what_is_no_network_is_refused(tmp_path):
    torch.save({"a": nn.Linear(2, 2)}, tmp_path / "dict.pth")
    with pytest.raises(ValueError, match=r"dict.pth holds neither .*torch.save"):
        read_weights(tmp_path / "dict.pth")
    net = nn.Sequential(nn.Linear(2, 2))
    net._modules["0"] = 3
    torch.save(net, tmp_path / "broken.pth")
    with pytest.raises(ValueError, match=r"broken.pth cannot be read .*0 is no torch.nn.Module"):
        read_weights(tmp_path / "broken.pth")
    loop = nn.Sequential()
    loop._modules["again"] = loop
    torch.save(loop, tmp_path / "loop.pth")
    with pytest.raises(ValueError, match="modules in more than 100 modules"):
        read_weights(tmp_path / "loop.pth")
