"""Examples of self-tests: no sign of theirs hangs on the order in which floats are summed."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from c_programs import needs_gcc, normal, self_test, write
from lrnets_runtime import reference
from lrnets_runtime.graph import Activate, Activation, Graph, Linear, Weight

from lrnets.export import c_self_test
from lrnets.export.c_code import c_source
from lrnets.export.c_self_test import NUDGE, sure_example

SIGN = Activation("sign")


def on_the_edge(*, separate: bool) -> tuple[Graph, dict[str, np.ndarray], np.ndarray]:
    """64 sums of 300 floats that are 0 for the example but for rounding, their signs, and a sum of those."""
    x, first = normal(300, seed=2), normal(64, 300, seed=3)
    for row in first:
        row[-1] = -(row[:-1].astype(np.float64) @ x[:-1]) / x[-1]
    tensors = {"first": first, "last": normal(2, 64, seed=4)}
    shape = Weight("first", "float32", (64, 300)), Weight("last", "float32", (2, 64))
    nodes = [
        Linear("a", ("x",), "sums", shape[0], None, None, SIGN),
        Linear("b", ("sums",), "y", shape[1], None, None),
    ]
    if separate:
        nodes[0] = Linear("a", ("x",), "floats", shape[0], None, None)
        nodes.insert(1, Activate("s", ("floats",), "sums", SIGN))
    return Graph("x", (300,), "y", tuple(nodes)), tensors, x


@needs_gcc
@pytest.mark.parametrize("separate", [False, True])
def test_a_correct_network_passes_whatever_the_example(
    separate: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    graph, tensors, x = on_the_edge(separate=separate)
    test = self_test(write(c_source(graph, tensors, name="net", example=x), tmp_path), "net", "-O1")
    assert (test.returncode, test.stdout[:7]) == (0, "net: OK")
    nudged = sure_example(graph, tensors, x)
    assert 0 < np.abs(nudged / x - 1).max() <= 1.01 * NUDGE
    monkeypatch.setattr(c_self_test, "TRIES", 1)  # with the example as it is, the signs fall as they may
    test = self_test(write(c_source(graph, tensors, name="net", example=x), tmp_path), "net", "-O1")
    assert test.returncode == 1


def test_sure_examples_are_left_alone() -> None:
    graph, tensors, _ = on_the_edge(separate=False)
    x = normal(300, seed=9)
    assert np.array_equal(sure_example(graph, tensors, x), x)
    without = Graph("x", (300,), "y", (Linear("a", ("x",), "y", graph.nodes[0].weight, None, None),))
    assert np.array_equal(sure_example(without, tensors, np.zeros(300, np.float32)), np.zeros(300))


def test_whole_sums_of_signs_are_sure_even_at_0() -> None:
    """Binary weights on signs: 4 equal and 4 different signs sum to 0 in any order."""
    weights = np.array([0b00001111, 0b11111111], np.uint8)
    nodes = (
        Activate("s", ("x",), "v", SIGN),
        Linear("a", ("v",), "sums", Weight("w", "binary", (2, 8)), None, None, SIGN),
        Linear("b", ("sums",), "y", Weight("u", "float32", (1, 2)), None, None),
    )
    tensors = {"w": weights, "u": np.ones((1, 2), np.float32)}
    x = np.ones(8, np.float32)
    graph = Graph("x", (8,), "y", nodes)
    assert reference.run(graph, tensors, x[None]).tolist() == [[2.0]]
    assert np.array_equal(sure_example(graph, tensors, x), x)
