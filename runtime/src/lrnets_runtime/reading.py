"""Untrusted JSON data into a Graph, strictly: no field but those known, exact types, every number within its limits.

A field that is left out has its default (docs/packed-format.md, "Graph"). Shapes of values are not looked at here (see
shapes.py), nor are tensors (see file.py).
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Collection, Mapping
from typing import Any

from lrnets_runtime.checks import (
    MOST_DIMENSIONS,
    choice,
    fields,
    known,
    name,
    name_or_number,
    number,
    optional,
    pair,
    sequence,
    shape,
    truth,
    whole,
)
from lrnets_runtime.errors import refuse, shown
from lrnets_runtime.graph import (
    ACTIVATIONS,
    CODINGS,
    KINDS,
    MOST_NODES,
    Activation,
    AdaptivePool2d,
    Conv2d,
    Graph,
    Linear,
    Node,
    Pool2d,
    Preparation,
    Reshape,
    Shape,
    Weight,
    graph_defaults,
    node_defaults,
    weight_tensor,
)

SMALLEST_STEP, LARGEST_STEP = 2.0**-126, 2.0**126  # steps whose float32 reciprocal is neither infinite nor subnormal
LARGEST_SUM = 2**31 - 1  # of int32, in which quantised values are summed
LARGEST_MAGNITUDE = {"binary": 1, "ternary": 1, "int8": 128}  # of a weight that is summed in int32
MOST_CLASSES = 2**20
LONGEST_SIDE = 2**14  # to which a picture's shorter side is scaled


def graph_from_json(raw: object) -> Graph:
    """The graph that `Graph.to_json` wrote; PackedFileError names node, field, value and limit of what is wrong."""
    stated = fields(raw, "graph", ["input_shape", "nodes"], graph_defaults())
    graph_input = name(stated.get("input", graph_defaults()["input"]), "graph: input")
    nodes = sequence(stated["nodes"], "graph: nodes", most=MOST_NODES)
    made = {graph_input: None}  # values, in the order in which they are made
    read = tuple(_node(node, place, made) for place, node in enumerate(nodes))  # fills `made`
    given = graph_defaults(_last(made)) | dict(stated)
    input_shape = shape(given["input_shape"], "graph: input_shape")
    graph = Graph(
        input=graph_input,
        input_shape=input_shape,
        nodes=read,
        output=known(given["output"], made, "graph: output"),
        quantization=_quantization(given["quantization"], made),
        preparation=_preparation(given["preparation"], input_shape),
        classes=_classes(given["classes"]),
    )
    for node in graph.nodes:
        _check_quantized(node, graph.quantization or {})
    return graph


def _node(raw: object, place: int, made: dict[str, None]) -> Node:
    """One node; its output joins the values that are `made`."""
    where = f"node {place}"
    if not isinstance(raw, Mapping):
        raise refuse(where, f"is {shown(raw)}; must be an object")
    op = choice(raw.get("op"), KINDS, f"{where}: op")
    own = name(raw.get("name"), f"{where}: name")
    where = f"node {place} {own!r}"
    implied = node_defaults(KINDS[op], own, before=_last(made))
    expected = [field.name for field in dataclasses.fields(KINDS[op])]
    given = fields(_filled(raw, op, own), where, ["op", *(key for key in expected if key not in implied)], implied)
    read = implied | {key: _FIELDS[key](given[key], f"{where}: {key}") for key in expected if key in given}

    fewest, most = {"add": (2, 2), "multiply": (2, 2), "concat": (1, MOST_NODES)}.get(op, (1, 1))
    if not fewest <= len(read["inputs"]) <= most:
        needs = fewest if fewest == most else f"{fewest} to {most}"
        raise refuse(f"{where}: inputs", f"{len(read['inputs'])} given; {op} takes {needs}")
    for value in read["inputs"]:
        known(value, made, f"{where}: inputs")
    if read["output"] in made:
        raise refuse(f"{where}: output", f"{shown(read['output'])} is made already; every value is made once")
    if "weight" in read and len(read["weight"].shape) != (dimensions := {"conv2d": 4, "linear": 2}[op]):
        sizes = list(read["weight"].shape)
        raise refuse(f"{where}: weight", f"has {len(sizes)} dimensions {sizes}; {op} takes {dimensions}")
    made[read["output"]] = None
    node: Node = KINDS[op](**read)
    return node


def _filled(raw: Mapping[str, Any], op: str, own: str) -> Mapping[str, Any]:
    """The node with the defaults that depend on its other fields: a pool's stride, the name of a weight's tensor."""
    if op == "pool2d" and "kernel" in raw:
        return {"stride": raw["kernel"], **raw}
    if isinstance(raw.get("weight"), Mapping):
        return {**raw, "weight": {"tensor": weight_tensor(own), **raw["weight"]}}
    return raw


def _last(made: dict[str, None]) -> str:
    return next(reversed(made))


def _check_quantized(node: Node, entries: Mapping[str, tuple[float, int]]) -> None:
    """What quantised values ask of the node that reads them: equal steps where bytes pass, sums that fit int32."""
    entry, made = entries.get(node.inputs[0]), entries.get(node.output)
    passes_bytes = isinstance(node, Reshape) or (isinstance(node, (Pool2d, AdaptivePool2d)) and node.kind == "max")
    if passes_bytes and entry != made:
        raise refuse(
            f"quantization of {shown(node.output)}",
            f"is {shown(made)}, its source {shown(node.inputs[0])} has {shown(entry)}; {node.op} passes bytes on, so "
            "both must be equal",
        )
    if entry is not None and isinstance(node, (Conv2d, Linear)) and node.weight.coding in LARGEST_MAGNITUDE:
        most = LARGEST_SUM // (255 * LARGEST_MAGNITUDE[node.weight.coding])
        depth = node.weight.count // node.weight.shape[0]
        if depth > most:
            raise refuse(
                f"node {shown(node.name)}: weight",
                f"{depth} products in a sum of quantised values, at most {most} fit int32; "
                f"leave {shown(node.inputs[0])} out of the quantization",
            )


def _quantization(raw: object, made: Collection[str]) -> dict[str, tuple[float, int]] | None:
    """Step and zero point of the values that are held as bytes."""
    if raw is None:
        return None
    if not isinstance(raw, Mapping):
        raise refuse("graph: quantization", f"is {shown(raw)}; must be an object or null")
    entries = {}
    for value, entry in raw.items():
        where = f"graph: quantization of {shown(value)}"
        known(value, made, where)
        step, zero = sequence(entry, where, fewest=2, most=2)
        step = number(step, f"{where}: step")
        _check_step(step, f"{where}: step")
        entries[str(value)] = (step, whole(zero, f"{where}: zero point", most=255))
    return entries


def _weight(raw: object, where: str) -> Weight:
    given = fields(raw, where, ["tensor", "coding", "shape"], ["levels"])
    coding = choice(given["coding"], CODINGS, f"{where}: coding")
    return Weight(
        tensor=name(given["tensor"], f"{where}: tensor"),
        coding=coding,  # type: ignore[arg-type]
        shape=shape(given["shape"], f"{where}: shape"),
        levels=_levels(given.get("levels"), coding, f"{where}: levels"),
    )


def _levels(raw: object, coding: str, where: str) -> tuple[float, float] | None:
    """What -1 and +1 stand for; coding levels has them, and no other."""
    if coding != "levels":
        if raw is not None:
            raise refuse(where, f"is {shown(raw)}; {coding} weights take none, leave it out")
        return None
    low, high = (number(level, where) for level in sequence(raw, where, fewest=2, most=2))
    return low, high


def _activation(raw: object, where: str) -> Activation:
    """none, sign and abs take no numbers, clamp at least one bound, leaky a slope."""
    given = fields(raw, where, ["kind"], ["low", "high", "slope"])
    kind = choice(given["kind"], ACTIVATIONS, f"{where}: kind")
    takes = {"clamp": ("low", "high"), "leaky": ("slope",)}.get(kind, ())
    numbers: dict[str, float | None] = {}
    for key in ("low", "high", "slope"):
        numbers[key] = optional(number)(given.get(key), f"{where}: {key}")
        if numbers[key] is not None and key not in takes:
            raise refuse(f"{where}: {key}", f"is {numbers[key]!r}; {kind} takes none, leave it out")
    low, high = numbers["low"], numbers["high"]
    if takes and all(numbers[key] is None for key in takes):
        raise refuse(where, f"{kind} without {' or '.join(takes)}; give a number")
    if low is not None and high is not None and low > high:
        raise refuse(f"{where}: low", f"is {low!r}, above high, which is {high!r}; swap them")
    return Activation(kind=kind, low=low, high=high, slope=numbers["slope"])  # type: ignore[arg-type]


def _preparation(raw: object, input_shape: Shape) -> Preparation | None:
    """fixed may have a mean and a deviation for each channel, each has neither; both may have a shorter side."""
    where = "graph: preparation"
    if raw is None:
        return None
    given = fields(raw, where, ["kind"], ["mean", "deviation", "shorter_side"])
    kind = choice(given["kind"], ("fixed", "each"), f"{where}: kind")
    if len(input_shape) != 3:
        raise refuse(where, f"is for images, channels x height x width; input_shape is {list(input_shape)}")
    numbers: dict[str, tuple[float, ...]] = {}
    for key in ("mean", "deviation"):
        if given.get(key) is not None:
            if kind == "each":
                raise refuse(f"{where}: {key}", f"is {shown(given[key])}; each takes none, leave it out")
            channels = sequence(given[key], f"{where}: {key}", fewest=input_shape[0], most=input_shape[0])
            numbers[key] = tuple(number(channel, f"{where}: {key}") for channel in channels)
    for deviation in numbers.get("deviation", ()):
        _check_step(deviation, f"{where}: deviation")
    shorter_side = given.get("shorter_side")
    if shorter_side is not None:
        shorter_side = whole(shorter_side, f"{where}: shorter_side", least=max(input_shape[1:]), most=LONGEST_SIDE)
    return Preparation(kind, **numbers, shorter_side=shorter_side)  # type: ignore[arg-type]


def _classes(raw: object) -> tuple[str, ...] | None:
    """Names of the outputs; shapes.py compares their number with the output's shape."""
    where = "graph: classes"
    if raw is None:
        return None
    return tuple(name(entry, where) for entry in sequence(raw, where, fewest=1, most=MOST_CLASSES))


def _check_step(step: float, where: str) -> None:
    if not SMALLEST_STEP <= step <= LARGEST_STEP:
        raise refuse(where, f"is {step!r}; must be within {SMALLEST_STEP:g} and {LARGEST_STEP:g}")


_FIELDS: dict[str, Callable[[object, str], Any]] = {
    "name": name,
    "inputs": lambda raw, where: tuple(name(value, where) for value in sequence(raw, where, most=MOST_NODES)),
    "output": name,
    "weight": _weight,
    "scale": optional(name_or_number),
    "bias": optional(name_or_number),
    "stride": pair(1),
    "padding": pair(0),
    "dilation": pair(1),
    "kernel": pair(1),
    "size": pair(1),
    "groups": lambda raw, where: whole(raw, where, least=1),
    "axis": lambda raw, where: whole(raw, where, most=MOST_DIMENSIONS - 1),
    "shape": shape,
    "kind": lambda raw, where: choice(raw, ("max", "average"), where),
    "ceil_mode": truth,
    "count_padding": truth,
    "activation": _activation,
}
