"""What a person sees while a stage trains."""

import logging
import sys
import warnings

import pytest

from lrnets.training.progress import bars, epoch_line, quiet_lightning


def test_a_line_tells_what_an_epoch_brought():
    float_figures = {"epoch": 3, "loss": 0.12345, "valid_error": 0.6, "lr": 0.1, "seconds": 12.4}
    assert epoch_line("float", 8, float_figures) == "float epoch 3/8: loss 0.1235, validation error 0.60 %, 12 s"
    stochastic = float_figures | {"valid_error_draw": 0.75, "entropy/0": 0.3}
    assert epoch_line("stochastic", 8, stochastic).endswith("validation error 0.60 %, of a draw 0.75 %, 12 s")


def test_a_bar_is_for_terminals(monkeypatch):
    monkeypatch.setattr(sys.stdout, "isatty", lambda: False, raising=False)
    assert bars() == []
    monkeypatch.setattr(sys.stdout, "isatty", lambda: True, raising=False)
    assert len(bars()) == 1


def test_lightning_is_quiet_inside_and_as_before_outside():
    logger = logging.getLogger("lightning.pytorch")
    before = logger.level
    with quiet_lightning():
        assert not logger.isEnabledFor(logging.INFO)
    assert logger.level == before
    with quiet_lightning(), pytest.warns(UserWarning, match="ours"):
        warnings.warn("ours", stacklevel=1)
