"""Mutated and truncated packed files, one after the other, through reading and running; run by test_sanitized.py.

    python hostile.py COUNT SEED

Each must give PackedFileError or a result of the right shape. Flips anywhere, cuts, insertions, header numbers changed,
and (since most flips in the header are caught at once) graphs changed as JSON and sealed again in a valid container.
"""

import json
import sys
import tempfile
from pathlib import Path

import numpy as np
from samples import described, signs

from lrnets_runtime import Network, PackedFileError, file
from lrnets_runtime.images import prepare

NUMBERS = [0, 1, 2, 3, -1, 7, 255, 256, 65_535, 2**28, 2**31 - 1, 2**31, 2**63, 1e-45, 1e300, None, True, "x", [], {}]


def flip(rng, content):
    for _ in range(rng.integers(1, 6)):
        content[rng.integers(len(content))] = rng.integers(256)
    return content


def flip_data(rng, content):
    """Only in the tensors, so that many files are still networks."""
    start = 8 + int.from_bytes(content[:8], "little")
    for _ in range(rng.integers(1, 3)):
        content[rng.integers(start, len(content))] ^= 1 << int(rng.integers(8))
    return content


def cut(rng, content):
    return content[: rng.integers(len(content))]


def insert(rng, content):
    place = rng.integers(len(content))
    return content[:place] + bytes(rng.integers(0, 256, rng.integers(1, 20), dtype=np.uint8)) + content[place:]


def change_graph(rng, content):
    """Another number, name or list somewhere in the graph; lengths of the container put right."""
    length = int.from_bytes(content[:8], "little")
    header = json.loads(content[8 : 8 + length])
    graph = json.loads(header["__metadata__"]["graph"])
    for _ in range(rng.integers(1, 4)):
        places = list(leaves(graph))
        holder, key = places[rng.integers(len(places))]
        if rng.random() < 0.5:
            holder[key] = NUMBERS[rng.integers(len(NUMBERS))]
        else:
            other, name = places[rng.integers(len(places))]
            holder[key] = other[name]
    header["__metadata__"]["graph"] = json.dumps(graph)
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)
    return len(text).to_bytes(8, "little") + text + content[8 + length :]


def leaves(node):
    items = node.items() if isinstance(node, dict) else enumerate(node)
    for key, value in list(items):
        if isinstance(value, (dict, list)) and value:
            yield from leaves(value)
        else:
            yield node, key


def an_input(rng, network):
    """Two images as the file has them prepared, or plain numbers."""
    shape, preparation = (2, *network.input_shape), network.graph.preparation
    if preparation is None:
        return rng.normal(size=shape).astype(np.float32)
    return prepare(rng.integers(0, 256, shape, dtype=np.uint8), preparation)


def main(count, seed):
    rng = np.random.default_rng(seed)
    outcomes = {"refused": 0, "ran": 0}
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "network"
        originals = []
        for sample in (described(quantized=False), described(quantized=True), signs()):
            file.write(path, *sample)
            originals.append(path.read_bytes())
        for _ in range(count):
            mutate = [flip, flip_data, cut, insert, change_graph, change_graph][rng.integers(6)]
            path.write_bytes(bytes(mutate(rng, bytearray(originals[rng.integers(3)]))))
            try:
                network = Network(*file.read(path), threads=1)
                if np.prod(network.input_shape) > 10**6:
                    continue  # an input that nobody would give
                y = network(an_input(rng, network))
                assert y.shape == (2, *network.output_shape)
                outcomes["ran"] += 1
            except PackedFileError:
                outcomes["refused"] += 1
    print(outcomes)


if __name__ == "__main__":
    main(int(sys.argv[1]), int(sys.argv[2]))
