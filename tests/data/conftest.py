"""Each small data set takes the place of the official one."""

import pytest
from layouts import Small, small_cifar10, small_mnist

from lrnets.data.known import DATA_SETS


@pytest.fixture(scope="session")
def small_sets() -> dict[str, Small]:
    pytest.importorskip("PIL")
    return {"mnist": small_mnist(), "cifar10": small_cifar10()}


@pytest.fixture(params=["mnist", "cifar10"])
def small(request, small_sets, monkeypatch) -> Small:
    chosen = small_sets[request.param]
    monkeypatch.setitem(DATA_SETS, request.param, chosen.data_set)
    return chosen
