"""Of a chosen picture the page takes what `lrnets run` takes."""

import json
import subprocess

import numpy as np
import pytest
from demo_pages import needs_node
from lrnets_runtime import images

from lrnets.demo.wasm import TEMPLATES

SCRIPT = """
const { pictureBox } = new Function(`${require("fs").readFileSync(process.argv[1])}; return { pictureBox };`)();
const cases = JSON.parse(require("fs").readFileSync(0));
console.log(JSON.stringify(cases.map((one) => pictureBox(...one))));
"""


def boxes(*cases):
    """Left, top, width and height for each (size, wanted, shorter side)."""
    command = ["node", "-e", SCRIPT, str(TEMPLATES / "network.js")]
    done = subprocess.run(command, input=json.dumps(cases), capture_output=True, text=True, check=True)
    return json.loads(done.stdout)


@needs_node
def test_the_middle_is_that_of_the_run_time():
    sizes = [(160, 160), (500, 375), (375, 500), (33, 20), (1000, 17)]
    wanted = [((128, 128), 146), ((128, 128), 147), ((31, 20), 32), ((32, 32), 32), ((7, 9), 10)]
    cases = [(size, *rest) for size in sizes for rest in wanted]
    for case, (left, top, width, height) in zip(cases, boxes(*cases)):
        np.testing.assert_allclose((left, top, left + width, top + height), images._middle(*case), err_msg=str(case))


@needs_node
@pytest.mark.parametrize("shorter_side", [None, 0])
def test_without_a_shorter_side_all_of_it_is_stretched(shorter_side):
    assert boxes(((300, 200), (32, 32), shorter_side)) == [[0, 0, 300, 200]]
