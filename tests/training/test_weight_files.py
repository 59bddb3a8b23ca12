"""Weights from files as others save them, and files that do not fit."""

import argparse

import numpy as np
import pytest
import torch
from torch import nn

from lrnets.training.weight_files import load_init, read_weights


def network(classes: int = 3) -> nn.Module:
    return nn.Sequential(nn.Conv2d(1, 2, 3), nn.BatchNorm2d(2), nn.Flatten(), nn.Linear(8, classes))


def wrapped(state: dict, prefix: str) -> dict:
    return {f"{prefix}{name}": tensor for name, tensor in state.items()}


@pytest.mark.parametrize(
    "checkpoint",
    [
        lambda net: net.state_dict(),
        lambda net: net,
        lambda net: nn.DataParallel(net),
        lambda net: {"state_dict": nn.DataParallel(net).state_dict(), "epoch": 3, "best": np.float64(0.5)},
        lambda net: {"model": net.state_dict(), "args": argparse.Namespace(lr=0.1), "optimizer": {"state": {}}},
        lambda net: {"model_state_dict": torch.compile(net).state_dict()},
        lambda net: {"model": net, "epoch": 3},
        lambda net: {"state_dict": wrapped(net.state_dict(), "model."), "pytorch-lightning_version": "2.6"},
        lambda net: wrapped(net.state_dict(), "_orig_mod.module."),
    ],
)
def test_checkpoints_as_training_scripts_write_them(tmp_path, checkpoint):
    source, net = network(), network()
    torch.save(checkpoint(source), tmp_path / "net.pth")
    load_init(net, tmp_path / "net.pth")
    torch.testing.assert_close(dict(net.state_dict()), dict(source.state_dict()), rtol=0, atol=0)


def test_a_prefix_that_is_part_of_the_network_stays(tmp_path):
    source, net = (nn.ModuleDict({"model": network()}) for _ in range(2))
    torch.save(source.state_dict(), tmp_path / "net.pth")
    load_init(net, tmp_path / "net.pth")
    torch.testing.assert_close(dict(net.state_dict()), dict(source.state_dict()), rtol=0, atol=0)


def test_files_from_before_batch_norm_counted_its_batches(tmp_path):
    source, net = network(), network()
    torch.save({k: v for k, v in source.state_dict().items() if "num_batches" not in k}, tmp_path / "net.pth")
    load_init(net, tmp_path / "net.pth")
    torch.testing.assert_close(net[3].weight, source[3].weight, rtol=0, atol=0)


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"", "cannot be read as a file of torch.save"),
        (b"hello, I am text and nothing else", "cannot be read as a file of torch.save"),
        (b"PK\x03\x04" + bytes(100), "cannot be read as a file of torch.save"),
    ],
)
def test_files_of_another_kind_are_named_with_a_remedy(tmp_path, content, message):
    (tmp_path / "net.pth").write_bytes(content)
    with pytest.raises(ValueError, match=rf"net.pth {message}.*torch.save\(net.state_dict"):
        read_weights(tmp_path / "net.pth")


@pytest.mark.parametrize("new_format", [True, False])
def test_files_that_are_cut_short_are_named(tmp_path, new_format):
    torch.save(network().state_dict(), tmp_path / "net.pth", _use_new_zipfile_serialization=new_format)
    whole = (tmp_path / "net.pth").read_bytes()
    for length in (20, len(whole) // 2, len(whole) - 1):
        (tmp_path / "net.pth").write_bytes(whole[:length])
        with pytest.raises(ValueError, match=r"net.pth cannot be read"):
            read_weights(tmp_path / "net.pth")


@pytest.mark.parametrize("content", [[1, 2], {"epoch": 3}, {}, {"state_dict": {"a": 1}}, torch.ones(2)])
def test_what_holds_no_network_is_refused(tmp_path, content):
    torch.save(content, tmp_path / "net.pth")
    with pytest.raises(ValueError, match=r"net.pth holds neither a state dict .* nor a whole network"):
        read_weights(tmp_path / "net.pth")


def test_another_number_of_classes_is_named(tmp_path):
    torch.save(network(classes=1000).state_dict(), tmp_path / "net.pth")
    with pytest.raises(ValueError, match=r"net.pth does not fit .*3.weight is 1000x8 there and 3x8 here.*set classes"):
        load_init(network(), tmp_path / "net.pth")


@pytest.mark.parametrize(("name", "value"), [("0.weight", float("nan")), ("1.running_var", float("inf"))])
def test_a_network_that_diverged_is_refused(tmp_path, name, value):
    state = network().state_dict()
    state[name].view(-1)[0] = value
    torch.save(state, tmp_path / "net.pth")
    message = rf"net.pth: 1 of the {state[name].numel()} numbers of {name} are NaN or infinite.*; name an earlier"
    with pytest.raises(ValueError, match=message):
        load_init(network(), tmp_path / "net.pth")


def test_another_network_is_named(tmp_path):
    torch.save(nn.Sequential(*(nn.Linear(2, 2) for _ in range(4))).state_dict(), tmp_path / "net.pth")
    shapes, lacks = "0.weight is 2x2 there and 2x1x3x3 here, .*", "lacks 1.num_batches_tracked, .*"
    with pytest.raises(ValueError, match=rf"{shapes}; {lacks}; has besides 2.bias, 2.weight; name the network"):
        load_init(network(), tmp_path / "net.pth")
