"""Per-seed differences against numbers worked out by hand, and Student's t against scipy's."""

import pytest

from lrnets.comparison.differences import Difference, T


def test_three_seeds_by_hand():
    found = Difference("a", "b", {0: (0.50, 0.60), 1: (0.52, 0.70), 2: (0.48, 0.62)})  # -0.10, -0.18, -0.14
    assert found.mean == pytest.approx(-0.14)
    assert found.standard_error == pytest.approx(0.04 / 3**0.5)
    assert found.interval == pytest.approx((-0.14 - 4.303 * 0.04 / 3**0.5, -0.14 + 4.303 * 0.04 / 3**0.5))
    assert found.verdict().startswith("3 seeds: a has the lower error (95 % interval -0.239 to -0.041)")
    assert "mean difference -0.140, standard error 0.023, 3 seeds" in str(found)
    assert found.to_json()["errors"] == {"0": [0.5, 0.6], "1": [0.52, 0.7], "2": [0.48, 0.62]}


def test_a_difference_that_is_not_clear_is_not_called_one():
    found = Difference("a", "b", {0: (0.5, 0.6), 1: (0.6, 0.5), 2: (0.5, 0.55)})
    assert "3 seeds: too few to tell a from b" in found.verdict()


@pytest.mark.parametrize("count", [0, 1, 2])
def test_below_three_seeds_nothing_is_concluded_however_large_the_difference(count):
    found = Difference("a", "b", dict.fromkeys(range(count), (0.5, 90.0)))
    assert "too few to conclude anything, at least 3 are needed" in str(found)
    assert (found.standard_error is None) == (count < 2)
    assert (found.mean is None) == (count == 0)


def test_students_t_is_scipys():
    stats = pytest.importorskip("scipy.stats")
    assert pytest.approx([stats.t.ppf(0.975, n + 1) for n in range(len(T))], abs=6e-4) == list(T)
