"""A network that has run on several threads, in a child of its process, which has none of them."""

import os
import subprocess
import sys

import pytest

CHILD = """
import os, signal
import numpy as np
from samples import everything
from lrnets_runtime import Network

graph, tensors = everything(quantized=False)
network = Network(graph, tensors, threads=2)
x = np.zeros((3, *network.input_shape), np.float32)
before = network(x)
for what in ("run", "forget"):
    child = os.fork()
    if not child:
        signal.alarm(20)  # instead of hanging for ever
        if what == "run":
            assert np.array_equal(network(x), before)
        del network
        os._exit(0)
    assert os.waitpid(child, 0)[1] == 0, what
assert np.array_equal(network(x), before)  # the parent's threads are still there
"""


@pytest.mark.skipif(not hasattr(os, "fork"), reason="no fork here")
def test_a_child_runs_and_forgets_a_network_of_its_parent():
    here = os.path.dirname(__file__)
    done = subprocess.run(
        [sys.executable, "-c", CHILD], env={**os.environ, "PYTHONPATH": here}, capture_output=True, text=True
    )
    assert (done.returncode, done.stderr) == (0, "")
