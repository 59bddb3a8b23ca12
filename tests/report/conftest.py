"""Runs that all tests of reports share, read only."""

import pytest
from report_runs import train

from lrnets.training.run_folder import RunFolder

NOT_STOCHASTIC = ("discrete_stage.sharpen=null", "discrete_stage.probability_decay=0", "discrete_stage.scale=false")


@pytest.fixture(scope="session")
def ternary(tmp_path_factory) -> RunFolder:
    """An LR-net, finished."""
    return train(tmp_path_factory.mktemp("runs") / "ternary/0", "mnist-ternary-quick", "discrete_stage.epochs=2")


@pytest.fixture(scope="session")
def twn(tmp_path_factory, ternary) -> RunFolder:
    """A rival without randomness, from the same float network."""
    settings = ("method=twn", "discrete_stage.epochs=1", *NOT_STOCHASTIC)
    init = ternary.weights_file("float")
    return train(tmp_path_factory.mktemp("runs") / "twn", "mnist-ternary-quick", *settings, init=init)


@pytest.fixture(scope="session")
def in_float(tmp_path_factory) -> RunFolder:
    return train(tmp_path_factory.mktemp("runs") / "float", "mnist-float-quick")


@pytest.fixture
def without_figures(monkeypatch):
    """For tests of other parts: figures have their own, and the fit of one neuron is quicker than of eight."""
    monkeypatch.setattr("lrnets.figures.figures_of", lambda runs, say: [])
    monkeypatch.setattr("lrnets.report.layers.NEURONS", 1)
    monkeypatch.setattr("lrnets.report.layers.DRAWS", 50)
