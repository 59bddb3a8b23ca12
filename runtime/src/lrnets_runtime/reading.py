"""Untrusted JSON data into a Graph, strictly: exact keys, exact types, every number within its limits.

Shapes are not looked at here (see shapes.py), nor are tensors (see file.py).
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Collection, Mapping
from typing import Any, TypeVar

from lrnets_runtime.errors import refuse, shown
from lrnets_runtime.graph import (
    CODINGS,
    KINDS,
    LARGEST,
    MOST_NODES,
    Activation,
    AdaptivePool2d,
    Conv2d,
    Graph,
    Linear,
    Node,
    Pool2d,
    Reshape,
    Shape,
    Weight,
)

LONGEST_NAME = 200
MOST_DIMENSIONS = 8  # of a value, without the batch
LARGEST_FLOAT = float.fromhex("0x1.fffffep+127")  # float32's
SMALLEST_STEP, LARGEST_STEP = 2.0**-126, 2.0**126  # steps whose float32 reciprocal is neither infinite nor subnormal
LARGEST_SUM = 2**31 - 1  # of int32, in which quantised values are summed
LARGEST_MAGNITUDE = {"binary": 1, "ternary": 1, "int8": 128}  # of a weight that is summed in int32

T = TypeVar("T")


def graph_from_json(raw: object) -> Graph:
    """The graph that `Graph.to_json` wrote; PackedFileError names node, field, value and limit of what is wrong."""
    fields = _object(raw, [field.name for field in dataclasses.fields(Graph)], "graph")
    graph_input = _name(fields["input"], "graph: input")
    nodes = _sequence(fields["nodes"], "graph: nodes", most=MOST_NODES)
    made = {graph_input}
    read = tuple(_node(node, place, made) for place, node in enumerate(nodes))  # fills `made`
    graph = Graph(
        input=graph_input,
        input_shape=_shape(fields["input_shape"], "graph: input_shape"),
        nodes=read,
        output=_known(fields["output"], made, "graph: output"),
        quantization=_quantization(fields["quantization"], made),
    )
    for node in graph.nodes:
        _check_quantized(node, graph.quantization or {})
    return graph


def _node(raw: object, place: int, made: set[str]) -> Node:
    """One node; its output joins the values that are `made`."""
    where = f"node {place}"
    if not isinstance(raw, Mapping):
        raise refuse(where, f"is {shown(raw)}; must be an object")
    op = _choice(raw.get("op"), KINDS, f"{where}: op")
    kind = KINDS[op]
    names = [field.name for field in dataclasses.fields(kind)]
    fields = _object(raw, ["op", *names], where)
    where = f"node {place} {_name(fields['name'], f'{where}: name')!r}"
    read = {name: _FIELDS[name](fields[name], f"{where}: {name}") for name in names}

    fewest, most = {"add": (2, 2), "concat": (1, MOST_NODES)}.get(op, (1, 1))
    if not fewest <= len(read["inputs"]) <= most:
        needs = fewest if fewest == most else f"{fewest} to {most}"
        raise refuse(f"{where}: inputs", f"{len(read['inputs'])} given; {op} takes {needs}")
    for value in read["inputs"]:
        _known(value, made, f"{where}: inputs")
    if read["output"] in made:
        raise refuse(f"{where}: output", f"{shown(read['output'])} is made already; every value is made once")
    if "weight" in read and len(read["weight"].shape) != (dimensions := {"conv2d": 4, "linear": 2}[op]):
        shape = list(read["weight"].shape)
        raise refuse(f"{where}: weight", f"has {len(shape)} dimensions {shape}; {op} takes {dimensions}")
    made.add(read["output"])
    node: Node = kind(**read)
    return node


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
    for name, entry in raw.items():
        where = f"graph: quantization of {shown(name)}"
        _known(name, made, where)
        step, zero = _sequence(entry, where, fewest=2, most=2)
        step = _number(step, f"{where}: step")
        if not SMALLEST_STEP <= step <= LARGEST_STEP:
            raise refuse(f"{where}: step", f"is {step!r}; must be within {SMALLEST_STEP:g} and {LARGEST_STEP:g}")
        entries[str(name)] = (step, _whole(zero, f"{where}: zero point", most=255))
    return entries


def _weight(raw: object, where: str) -> Weight:
    fields = _object(raw, ["tensor", "coding", "shape"], where)
    return Weight(
        tensor=_name(fields["tensor"], f"{where}: tensor"),
        coding=_choice(fields["coding"], CODINGS, f"{where}: coding"),  # type: ignore[arg-type]
        shape=_shape(fields["shape"], f"{where}: shape"),
    )


def _activation(raw: object, where: str) -> Activation:
    """none takes no numbers, clamp at least one bound, leaky a slope."""
    fields = _object(raw, ["kind", "low", "high", "slope"], where)
    kind = _choice(fields["kind"], ("none", "clamp", "leaky"), f"{where}: kind")
    takes = {"none": (), "clamp": ("low", "high"), "leaky": ("slope",)}[kind]
    numbers: dict[str, float | None] = {}
    for name in ("low", "high", "slope"):
        numbers[name] = None if fields[name] is None else _number(fields[name], f"{where}: {name}")
        if numbers[name] is not None and name not in takes:
            raise refuse(f"{where}: {name}", f"is {numbers[name]!r}; {kind} takes none, write null")
    low, high = numbers["low"], numbers["high"]
    if takes and all(numbers[name] is None for name in takes):
        raise refuse(where, f"{kind} without {' or '.join(takes)}; give a number")
    if low is not None and high is not None and low > high:
        raise refuse(f"{where}: low", f"is {low!r}, above high, which is {high!r}; swap them")
    return Activation(kind=kind, low=low, high=high, slope=numbers["slope"])  # type: ignore[arg-type]


def _object(raw: object, keys: Collection[str], where: str) -> Mapping[str, Any]:
    """A JSON object with exactly these keys."""
    if not isinstance(raw, Mapping):
        raise refuse(where, f"is {shown(raw)}; must be an object with {', '.join(keys)}")
    for key in keys:
        if key not in raw:
            raise refuse(f"{where}: {key}", f"is missing; must have {', '.join(keys)}")
    for key in raw:
        if key not in keys:
            raise refuse(where, f"unknown field {shown(key)}; may have only {', '.join(keys)}")
    return raw


def _sequence(raw: object, where: str, *, fewest: int = 0, most: int) -> list[Any]:
    if not isinstance(raw, list) or not fewest <= len(raw) <= most:
        found = f"has {len(raw)} entries" if isinstance(raw, list) else f"is {shown(raw)}"
        raise refuse(where, f"{found}; must be a list of {fewest if fewest == most else f'{fewest} to {most}'}")
    return raw


def _whole(raw: object, where: str, *, least: int = 0, most: int = LARGEST) -> int:
    if type(raw) is not int or not least <= raw <= most:  # a bool is an int to isinstance
        raise refuse(where, f"is {shown(raw)}; must be a whole number of {least} to {most}")
    return raw


def _number(raw: object, where: str) -> float:
    """A finite number that float32 can hold, near enough; JSON writers may leave the point out of 1.0."""
    if not isinstance(raw, (int, float)) or isinstance(raw, bool) or not -LARGEST_FLOAT <= raw <= LARGEST_FLOAT:
        raise refuse(where, f"is {shown(raw)}; must be a number of at most {LARGEST_FLOAT:g} either side of 0")
    return float(raw)


def _truth(raw: object, where: str) -> bool:
    if not isinstance(raw, bool):
        raise refuse(where, f"is {shown(raw)}; must be true or false")
    return raw


def _choice(raw: object, choices: Collection[str], where: str) -> str:
    if not isinstance(raw, str) or raw not in choices:
        raise refuse(where, f"is {shown(raw)}; this version knows {', '.join(choices)}; update lrnets-runtime")
    return raw


def _name(raw: object, where: str) -> str:
    """A name that can be printed; `__metadata__` is safetensors' own."""
    if not isinstance(raw, str) or not 0 < len(raw) <= LONGEST_NAME or not raw.isprintable() or raw == "__metadata__":
        found = f"is {shown(raw)}" + (f" of {len(raw)} characters" if isinstance(raw, str) else "")
        raise refuse(where, f"{found}; must be a name of 1 to {LONGEST_NAME} printable characters, not __metadata__")
    return raw


def _known(raw: object, made: Collection[str], where: str) -> str:
    if not isinstance(raw, str) or raw not in made:
        raise refuse(where, f"{shown(raw)} is not made before; nodes must be in the order of execution")
    return raw


def _shape(raw: object, where: str) -> Shape:
    """At most MOST_DIMENSIONS sizes from 1 with a product of at most LARGEST."""
    shape = tuple(_whole(size, where, least=1) for size in _sequence(raw, where, most=MOST_DIMENSIONS))
    count = 1
    for size in shape:
        count *= size
    if count > LARGEST:
        raise refuse(where, f"{list(shape)} has {count} elements; at most {LARGEST} are allowed")
    return shape


def _pair(least: int) -> Callable[[object, str], tuple[int, ...]]:
    return lambda raw, where: tuple(
        _whole(size, where, least=least) for size in _sequence(raw, where, fewest=2, most=2)
    )


def _optional(read: Callable[[object, str], T]) -> Callable[[object, str], T | None]:
    return lambda raw, where: None if raw is None else read(raw, where)


_FIELDS: dict[str, Callable[[object, str], Any]] = {
    "name": _name,
    "inputs": lambda raw, where: tuple(_name(value, where) for value in _sequence(raw, where, most=MOST_NODES)),
    "output": _name,
    "weight": _weight,
    "scale": _optional(_name),
    "bias": _optional(_name),
    "stride": _pair(1),
    "padding": _pair(0),
    "dilation": _pair(1),
    "kernel": _pair(1),
    "size": _pair(1),
    "groups": lambda raw, where: _whole(raw, where, least=1),
    "axis": lambda raw, where: _whole(raw, where, most=MOST_DIMENSIONS - 1),
    "shape": _shape,
    "kind": lambda raw, where: _choice(raw, ("max", "average"), where),
    "ceil_mode": _truth,
    "count_padding": _truth,
    "activation": _activation,
}
