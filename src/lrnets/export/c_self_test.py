"""The self-test of exported C: an example, what the network makes of it, and how far the C may be off."""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

import numpy as np
from lrnets_runtime import reference
from lrnets_runtime.graph import AdaptivePool2d, Conv2d, Graph, Linear, Node, Pool2d, Softmax

from lrnets.export.c_text import constant, number
from lrnets.export.calibrate import UNCHANGED, float_values
from lrnets.export.coding import Array

ROUNDING = 1e-4  # of the largest output: what sums in float32 may differ from exact ones
REQUANTIZED = 0.05  # the same if such a sum becomes a byte, which may be the next one
TRIES = 8  # examples
NUDGE = 0.02  # of an example's numbers, at most
COPIES = 8  # of each, with numbers so much larger or smaller at every step as sums of thousands in float32 are off
NOISE = 1e-5


class SelfTest(NamedTuple):
    """Input and output without a batch; how far an output may be off: 0 is to the bit."""

    example: Array
    expected: Array
    tolerance: float


def self_test(graph: Graph, tensors: Mapping[str, Array], example: Array) -> SelfTest:
    """Of an example (*input_shape), or of one near it where no sign hangs on rounding; see `sure_example`."""
    example = np.asarray(example, np.float32).reshape(graph.input_shape)
    if np.isfinite(example).all():
        example = sure_example(graph, tensors, example)
    expected = reference.run(graph, tensors, example[None])[0]
    if not (np.isfinite(example).all() and np.isfinite(expected).all()):
        raise ValueError("the example or the network's output for it is NaN or infinite; give another example")
    return SelfTest(example, expected, _tolerance(graph, expected))


def sure_example(graph: Graph, tensors: Mapping[str, Array], example: Array) -> Array:
    """The example, or one near it, whose output is the same within the tolerance however floats are rounded.

    A sum that is nearly 0 may get either sign, both right; all that follows would be far off the expected output.
    """
    signs = {node.output for node in graph.nodes if getattr(node, "activation", UNCHANGED).kind == "sign"}
    if not signs or graph.quantization:  # a sum that is rounded to the next byte is within the tolerance of int8
        return example
    random, found, least = np.random.default_rng(0), example, np.inf
    for attempt in range(TRIES):
        nudged = (example * (1 + NUDGE * random.uniform(-1, 1, example.shape) * bool(attempt))).astype(np.float32)
        copies = np.repeat(nudged[None], 1 + COPIES, 0)
        for name, value in float_values(graph, dict(tensors), copies):
            if name not in signs:  # of the copies but the first, in the very array that the next nodes read
                value[1:] *= (1 + NOISE * random.standard_normal(value[1:].shape)).astype(np.float32)
            if name == graph.output:
                expected, *others = value
        beyond = max(np.abs(other - expected).max() for other in others) - _tolerance(graph, expected)
        if beyond < least:
            found, least = nudged, beyond
        if beyond <= 0:
            break
    return found


def test_code(name: str, test: SelfTest) -> str:
    """A program that says OK, or what is wrong."""
    macro = name.upper()
    return f"""#ifdef {macro}_TEST
#include <stdio.h>

{constant("test_input", test.example)}
{constant("test_expected", test.expected)}
int main(void) {{
    static float arena[{macro}_ARENA_BYTES / sizeof(float)], output[{macro}_OUTPUT_SIZE];
    const float tolerance = {number(test.tolerance)};
    float largest = 0.0f;
    int32_t i, wrong = 0;
    {name}_run(test_input, output, arena);
    for (i = 0; i < {macro}_OUTPUT_SIZE; i++) {{
        float difference = output[i] - test_expected[i];
        if (difference < 0.0f) difference = -difference;
        if (!(difference <= tolerance)) wrong++; /* NaN too */
        if (difference > largest) largest = difference;
    }}
    printf("{name}: %s, largest difference %g, tolerance %g, %ld of %ld outputs wrong\\n", wrong ? "FAILED" : "OK",
           (double)largest, (double)tolerance, (long)wrong, (long){macro}_OUTPUT_SIZE);
    return wrong > 0;
}}
#endif
"""


def _tolerance(graph: Graph, expected: Array) -> float:
    """How far an output may be off: not at all, unless something is summed in float32 on its way."""
    entries, share = graph.quantization or {}, 0.0
    rounded = set[str]()
    for node in graph.nodes:
        if _sums_floats(node, node.inputs[0] in entries) or not rounded.isdisjoint(node.inputs):
            rounded.add(node.output)
            share = max(share, REQUANTIZED if node.output in entries else ROUNDING)
    if graph.output not in rounded:
        return 0.0
    return float(np.float32(share * np.abs(expected).max() + 1e-6))


def _sums_floats(node: Node, quantized: bool) -> bool:
    if isinstance(node, (Conv2d, Linear)):
        return not quantized or node.weight.coding in ("float32", "levels")
    if isinstance(node, (Pool2d, AdaptivePool2d)):
        return node.kind == "average" and not quantized
    return isinstance(node, Softmax)
