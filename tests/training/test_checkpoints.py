"""Checkpoints are replaced whole, whatever disk temporary files are on, and damaged ones are named."""

import pytest
import torch

from lrnets.training import checkpoints
from lrnets.training.checkpoints import WholeCheckpoints


def test_a_checkpoint_is_written_read_and_replaced(tmp_path):
    file = tmp_path / "stage" / "last.ckpt"
    for number in (1, 2):
        WholeCheckpoints().save_checkpoint({"weights": torch.full((3,), float(number)), "epoch": number}, file)
    found = WholeCheckpoints().load_checkpoint(file)
    assert found["epoch"] == 2
    assert (found["weights"] == 2).all()
    assert list(file.parent.iterdir()) == [file]


def test_a_failure_while_writing_leaves_the_old_checkpoint(tmp_path, monkeypatch):
    file = tmp_path / "last.ckpt"
    WholeCheckpoints().save_checkpoint({"epoch": 1}, file)

    def half(_, target):
        target.write_bytes(b"half of it")
        raise OSError("no space left")

    monkeypatch.setattr(checkpoints.torch, "save", half)
    with pytest.raises(OSError, match="no space left"):
        WholeCheckpoints().save_checkpoint({"epoch": 2}, file)
    monkeypatch.undo()
    assert WholeCheckpoints().load_checkpoint(file) == {"epoch": 1}
    assert list(tmp_path.iterdir()) == [file]


@pytest.mark.parametrize("content", [b"", b"PK", b"no checkpoint at all"])
def test_a_damaged_checkpoint_is_named_with_the_remedy(tmp_path, content):
    file = tmp_path / "last.ckpt"
    file.write_bytes(content)
    with pytest.raises(ValueError, match=r"last\.ckpt is damaged .*remove it"):
        WholeCheckpoints().load_checkpoint(file)
