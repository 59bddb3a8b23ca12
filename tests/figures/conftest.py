"""Runs that the tests of figures share; who damages one copies it first."""

import pytest
from fabricated_runs import fabricate, recipe


@pytest.fixture(scope="session")
def house(tmp_path_factory):
    """A folder of runs, as `lrnets table` leaves them: ROW/SEED, and a recipe beside the seeds."""
    root = tmp_path_factory.mktemp("runs")
    runs = {
        "decay/0": (recipe(name="t-decay"), 1.5, 0.7),
        "decay/1": (recipe(name="t-decay", seed=1), 1.5, 0.9),
        "no-decay/0": (recipe(name="t-no-decay", discrete={"probability_decay": 0.0}), 6.0, 1.1),
        "gumbel/0": (recipe(name="t-gumbel", method="gumbel"), 2.0, 1.5),
        "binary/0": (recipe(name="t-binary", weights="binary"), 2.0, 1.0),
        "float/0": (recipe(name="t-float", weights="float", discrete_stage=None), 1.0, 0.5),
    }
    for name, (made, decided, error) in runs.items():
        fabricate(root / name, made, decided=decided, error=error)
        (root / name).parent.joinpath("recipe.yaml").write_text(made.to_yaml())
    return root


@pytest.fixture(autouse=True)
def few_draws(monkeypatch):
    """Neurons are drawn a few hundred times only."""
    monkeypatch.setattr("lrnets.figures.preactivations.DRAWN_WEIGHTS", 400_000)
    monkeypatch.setattr("lrnets.figures.preactivations.FEWER_DRAWS", 300)
    monkeypatch.setattr("lrnets.figures.preactivations.DRAWS", 2000)
