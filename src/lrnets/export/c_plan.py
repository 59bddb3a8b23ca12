"""Which calls of C functions a graph is, and where its values lie in the arena; the text is c_code's.

Values are in torch's order, channels first. One that is float32 and the network's input or output lies in the caller's
memory. All others share an arena with those that are not needed at the same time, and with room for the decoded weights
of one output channel. A reshape is the same memory under another name. What a convolution gives is never in memory as a
whole if only a pool reads it: that is computed row by row, as the convolution goes.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from enum import Enum
from typing import Any, TypeAlias

from lrnets_runtime.arena import Span, place
from lrnets_runtime.graph import AdaptivePool2d, Conv2d, Graph, Node, Pool2d, Reshape, Shape
from lrnets_runtime.reference import pool_windows

ALIGNMENT = 4


class Outside(Enum):
    """Memory of the caller."""

    INPUT = "input"
    OUTPUT = "output"


Place: TypeAlias = str | Outside  # the value that first lay there, or the caller's memory
Fields: TypeAlias = dict[str, Any]  # a C initialiser: numbers, lists, nested fields, or Name


class Name(str):
    """An identifier of the C source, not a text."""


@dataclass(frozen=True)
class Call:
    """One call of run_<function> with a constant <function>_layer of these fields."""

    function: str
    title: str  # the node's name, as the user has it
    fields: Fields
    inputs: tuple[Place, ...]
    output: Place
    room: int = 0  # bytes that it needs meanwhile
    needs: frozenset[str] = field(default_factory=frozenset)  # sections of the template, without HAS_


@dataclass(frozen=True)
class Arena:
    """Offsets of the values, and of each call's room."""

    values: Mapping[Place, int]
    rooms: Mapping[int, int]  # by place of the call
    bytes: int


def needed(graph: Graph) -> Graph:
    """The graph without nodes that the output does not depend on."""
    wanted, kept = {graph.output}, list[Node]()
    for node in reversed(graph.nodes):
        if node.output in wanted:
            wanted.update(node.inputs)
            kept.append(node)
    entries = {name: entry for name, entry in (graph.quantization or {}).items() if name in wanted}
    return replace(graph, nodes=tuple(reversed(kept)), quantization=entries or None)


@dataclass(frozen=True)
class Pooled:
    """A pool that a convolution takes in, and how many rows of one channel it looks at together."""

    pool: Pool2d | AdaptivePool2d
    band: int


def pooled_convolutions(graph: Graph, shapes: Mapping[str, Shape]) -> dict[str, Pooled]:
    """By a convolution's output: the pool that alone reads it, if its windows and results take less memory."""
    reads = Counter([*(name for node in graph.nodes for name in node.inputs), graph.output])
    convolved = {node.output for node in graph.nodes if isinstance(node, Conv2d)}
    found = dict[str, Pooled]()
    for node in graph.nodes:
        source = node.inputs[0]
        if isinstance(node, (Pool2d, AdaptivePool2d)) and source in convolved and reads[source] == 1:
            channels, height, width = shapes[source]
            band = max(end - first for first, end, _ in pool_windows(node, (height, width))[0])
            bigger = node.output not in (graph.quantization or {}) and source in (graph.quantization or {})
            if band * width + (4 if bigger else 1) * math.prod(shapes[node.output]) < channels * height * width:
                found[source] = Pooled(node, band)
    return found


def places_of(graph: Graph) -> dict[str, Place]:
    """Where each value lies."""
    entries = graph.quantization or {}
    places: dict[str, Place] = {graph.input: graph.input if graph.input in entries else Outside.INPUT}
    for node in graph.nodes:
        places[node.output] = places[node.inputs[0]] if isinstance(node, Reshape) else node.output
    last = places[graph.output]
    if graph.output not in entries and last is not Outside.INPUT:
        places = {name: Outside.OUTPUT if place == last else place for name, place in places.items()}
    return places


def plan_arena(calls: Sequence[Call], sizes: Mapping[Place, int]) -> Arena:
    """A place for each value, and for each call's room."""
    spans: dict[str | int, Span] = {}
    for number, call in enumerate(calls):
        for value in (*call.inputs, call.output):
            if not isinstance(value, Outside):
                first = spans[value].first if value in spans else number
                spans[value] = Span(aligned(sizes[value]), first, number)
        if call.room:
            spans[number] = Span(aligned(call.room), number, number)
    offsets, total = place(list(spans.values()))
    found = dict(zip(spans, offsets))
    return Arena(
        values={key: offset for key, offset in found.items() if isinstance(key, str)},
        rooms={key: offset for key, offset in found.items() if isinstance(key, int)},
        bytes=total,
    )


def aligned(size: int) -> int:
    return -(-size // ALIGNMENT) * ALIGNMENT
