"""Processes: how many, which one this is, and what each takes of a batch."""

import pytest
import torch

from lrnets.training.hardware import Hardware, is_first_process, restart_advice

NAMES = (
    "RANK", "LOCAL_RANK", "NODE_RANK", "SLURM_PROCID", "WORLD_SIZE", "LOCAL_WORLD_SIZE", "TORCHELASTIC_MAX_RESTARTS",
)  # fmt: skip


@pytest.fixture(autouse=True)
def _no_launcher(monkeypatch):
    for name in NAMES:
        monkeypatch.delenv(name, raising=False)


def test_alone_it_is_one_process_and_writes():
    assert Hardware.here() == Hardware(devices=1, nodes=1)
    assert Hardware.here(4, 2).processes == 8
    assert is_first_process()


def test_torchrun_tells_devices_and_nodes_unless_asked_otherwise(monkeypatch):
    monkeypatch.setenv("WORLD_SIZE", "16")
    monkeypatch.setenv("LOCAL_WORLD_SIZE", "8")
    assert (Hardware.here().devices, Hardware.here().nodes) == (8, 2)
    assert (Hardware.here(4, 1).devices, Hardware.here(4, 1).nodes) == (4, 1)


@pytest.mark.parametrize(
    ("environment", "first"),
    [
        ({"RANK": "0", "LOCAL_RANK": "0"}, True),
        ({"RANK": "8", "LOCAL_RANK": "0"}, False),  # the first of a second machine
        ({"SLURM_PROCID": "3", "LOCAL_RANK": "0"}, False),
        ({"SLURM_PROCID": "0", "LOCAL_RANK": "1"}, False),  # Lightning's own, in a shell that SLURM gave
        ({"SLURM_PROCID": "1", "RANK": "0"}, True),  # torchrun's, which SLURM started on another machine
        ({"LOCAL_RANK": "1"}, False),  # Lightning's own children
        ({"NODE_RANK": "1"}, False),
        ({"NODE_RANK": "0", "LOCAL_RANK": "0"}, True),
    ],
)
def test_one_process_of_all_writes(monkeypatch, environment, first):
    for name, value in environment.items():
        monkeypatch.setenv(name, value)
    assert is_first_process() is first


def test_a_batch_is_shared_evenly_or_refused_with_a_remedy():
    assert Hardware(devices=2, nodes=2).share_of(256) == 64
    with pytest.raises(ValueError, match=r"batch of 256 .* 3 processes.*batch_size=255"):
        Hardware(devices=3).share_of(256)
    with pytest.raises(ValueError, match=r"batch of 2 .*batch_size=4"):
        Hardware(devices=4).share_of(2)
    with pytest.raises(ValueError, match="devices must be at least 1, got 0"):
        Hardware(devices=0)


def test_restarts_that_may_fail_are_told_of(monkeypatch):
    assert restart_advice() == ""
    monkeypatch.setenv("TORCHELASTIC_MAX_RESTARTS", "3")
    monkeypatch.setenv("TORCHELASTIC_USE_AGENT_STORE", "True")
    assert "TORCH_DISABLE_SHARE_RDZV_TCP_STORE=1" in restart_advice()
    monkeypatch.setenv("TORCHELASTIC_USE_AGENT_STORE", "False")  # what torchrun says if it was told
    assert restart_advice() == ""


def test_none_at_all_and_unknown_precisions_are_refused():
    with pytest.raises(ValueError, match="devices must be at least 1, got 0"):
        Hardware.here(devices=0)
    with pytest.raises(ValueError, match="nodes must be at least 1, got 0"):
        Hardware.here(nodes=0)
    with pytest.raises(ValueError, match=r"32-true, bf16-mixed, .* got 'fp16'"):
        Hardware(precision="fp16")


def test_networks_go_to_the_accelerator_if_there_is_one():
    assert Hardware(accelerator="cpu").device == torch.device("cpu")
    there = torch.accelerator.current_accelerator() if torch.accelerator.is_available() else torch.device("cpu")
    assert Hardware().device == there
