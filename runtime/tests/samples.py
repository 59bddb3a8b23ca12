"""Networks to test with."""

import dataclasses
import json

import numpy as np

from lrnets_runtime.graph import (
    Activate,
    Activation,
    AdaptivePool2d,
    Add,
    Affine,
    Concat,
    Conv2d,
    Graph,
    Linear,
    Multiply,
    Pool2d,
    Preparation,
    Reshape,
    Softmax,
    Weight,
)
from lrnets_runtime.packing import pack

LEVELS = (-0.7, 0.3)
SIGN = Activation("sign")
RELU = Activation("clamp", low=0.0)


def small():
    """The example of docs/packed-format.md: a file of few bytes with a packed weight, a scale and a bias."""
    node = Linear("layer", ("x",), "y", Weight("w", "ternary", (2, 3)), "s", "b")
    tensors = {
        "w": np.array([194, 122], np.uint8),
        "s": np.array([0.5, 0.25], np.float32),
        "b": np.array([0, -1], np.float32),
    }
    return Graph("x", (3,), "y", (node,), {"x": (0.5, 3)}), tensors


def random_weights(rng, coding, shape):
    """A weight tensor as its file holds it, and as plain numbers."""
    if coding == "float32":
        values = rng.normal(size=shape).astype(np.float32)
        return values, values
    if coding == "int8":
        values = rng.integers(-128, 128, shape, dtype=np.int8)
        return values, values
    if coding == "levels":
        values = rng.integers(-1, 2, shape)
        return pack(values, "ternary"), np.where(values < 0, LEVELS[0], values * LEVELS[1]).astype(np.float32)
    values = rng.integers(-1, 2, shape) if coding == "ternary" else rng.integers(0, 2, shape) * 2 - 1
    return pack(values.astype(np.int8), coding), values


def everything(*, quantized: bool, seed: int = 0) -> tuple[Graph, dict[str, np.ndarray]]:
    """A small network with every kind of node, every coding and every activation."""
    rng = np.random.default_rng(seed)
    weights = {
        "conv.w": Weight("conv.w", "ternary", (4, 2, 3, 3)),
        "grouped.w": Weight("grouped.w", "binary", (4, 2, 1, 1)),
        "hidden.w": Weight("hidden.w", "int8", (5, 24)),
        "last.w": Weight("last.w", "float32", (3, 5)),
    }
    tensors = {name: random_weights(rng, weight.coding, weight.shape)[0] for name, weight in weights.items()}
    for name, size in {"conv": 4, "affine": 4, "hidden": 5, "last": 3}.items():
        tensors[f"{name}.s"] = rng.uniform(0.2, 0.6, size).astype(np.float32)
        tensors[f"{name}.b"] = rng.uniform(-0.1, 0.1, size).astype(np.float32)
    tensors["hidden.s"] /= np.float32(100)
    del tensors["hidden.b"], tensors["last.s"]
    nodes = (
        Conv2d("conv", ("x",), "a", weights["conv.w"], "conv.s", "conv.b", padding=(1, 1), activation=RELU),
        Pool2d("pool", ("a",), "b", "max", (2, 2), (2, 2), ceil_mode=True),
        Conv2d("grouped", ("b",), "c", weights["grouped.w"], None, None, groups=2),
        Add("add", ("b", "c"), "d", Activation("leaky", slope=0.1)),
        Affine("affine", ("d",), "e", "affine.s", "affine.b", Activation("clamp", -1.0, 1.0)),
        Pool2d("mean", ("e",), "f", "average", (2, 2), (1, 1), (1, 1), count_padding=False),
        AdaptivePool2d("adaptive", ("f",), "g", "average", (2, 2)),
        AdaptivePool2d("largest", ("e",), "h", "max", (1, 2)),
        Concat("concat", ("g", "h"), "i", 1),
        Reshape("flatten", ("i",), "j", (24,)),
        Linear("hidden", ("j",), "k", weights["hidden.w"], "hidden.s", None, RELU),
        Linear("last", ("k",), "l", weights["last.w"], None, "last.b"),
        Activate("limit", ("l",), "m", Activation("clamp", high=6.0)),
        Softmax("softmax", ("m",), "y", 0),
    )
    entries = None
    if quantized:
        steps = {"x": 0.02, "a": 0.02, "c": 0.04, "d": 0.04, "e": 0.005, "f": 0.005, "g": 0.006, "i": 0.005, "k": 0.008}
        zeros = {"x": 128, "c": 128, "d": 12}
        entries = {name: (step, zeros.get(name, 51)) for name, step in steps.items()}
        for source, made in (("a", "b"), ("e", "h"), ("i", "j")):
            entries[made] = entries[source]
    return Graph("x", (2, 5, 5), "y", nodes, entries), tensors


def signs(*, seed: int = 0) -> tuple[Graph, dict[str, np.ndarray]]:
    """A small network with all that came with version 3: signs, sizes, products and two levels."""
    rng = np.random.default_rng(seed)
    weights = {
        "first.w": Weight("first.w", "levels", (6, 2, 3, 3), LEVELS),
        "conv.w": Weight("conv.w", "binary", (4, 6, 3, 3)),
        "mean.w": Weight("mean.w", "binary", (1, 6, 1, 1)),
        "hidden.w": Weight("hidden.w", "binary", (7, 24)),
        "last.w": Weight("last.w", "binary", (3, 7)),
    }
    tensors = {name: random_weights(rng, weight.coding, weight.shape)[0] for name, weight in weights.items()}
    for name, size in {"first": 6, "norm": 4, "hidden": 7}.items():
        tensors[f"{name}.s"] = rng.uniform(0.2, 0.6, size).astype(np.float32)
        tensors[f"{name}.b"] = rng.uniform(-0.1, 0.1, size).astype(np.float32)
    nodes = (
        Conv2d("first", ("x",), "a", weights["first.w"], "first.s", "first.b", padding=(1, 1)),
        Activate("sign", ("a",), "b", SIGN),
        Activate("size", ("a",), "c", Activation("abs")),
        Conv2d("mean", ("c",), "d", weights["mean.w"], None, None),
        Conv2d("conv", ("b",), "e", weights["conv.w"], None, None, padding=(1, 1)),
        Multiply("product", ("e", "d"), "f"),
        Affine("norm", ("f",), "g", "norm.s", "norm.b", SIGN),
        Pool2d("pool", ("g",), "h", "max", (2, 2), (2, 2), ceil_mode=True),
        Pool2d("fewer", ("h",), "i", "max", (1, 2), (1, 1)),
        Reshape("flatten", ("i",), "j", (24,)),
        Linear("hidden", ("j",), "k", weights["hidden.w"], "hidden.s", "hidden.b", SIGN),
        Linear("last", ("k",), "y", weights["last.w"], None, None),
    )
    return Graph("x", (2, 5, 5), "y", nodes), tensors


def described(*, quantized: bool, seed: int = 0) -> tuple[Graph, dict[str, np.ndarray]]:
    """The same, with what tells people of it."""
    graph, tensors = everything(quantized=quantized, seed=seed)
    preparation = Preparation("fixed", (0.25, 0.5), (0.5, 2.0))
    return dataclasses.replace(graph, preparation=preparation, classes=("cat", "dog", "1 % other")), tensors


def spelled_out(graph: Graph) -> dict:
    """A graph as JSON with every field of it, the way version 1 had it, and slowly."""
    raw = json.loads(json.dumps(dataclasses.asdict(graph)))
    for node, plain in zip(graph.nodes, raw["nodes"]):
        plain["op"] = node.op
    return raw
