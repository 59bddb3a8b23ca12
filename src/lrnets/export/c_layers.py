"""Nodes of a graph as calls of the functions in templates/network.c, each with the fields of its constant."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from typing import Any

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
    Node,
    Pool2d,
    Reshape,
    Shape,
    Softmax,
)
from lrnets_runtime.shapes import infer_shapes

from lrnets.export.c_plan import Call, Fields, Name, Outside, Place, Pooled, aligned

LARGEST_INT32 = 2**31 - 1
ONE = [1, 1]


def calls_of(
    graph: Graph, places: Mapping[str, Place], names: Mapping[str, Name], pooled: Mapping[str, Pooled]
) -> list[Call]:
    """All calls in order, with the first and last where input and output are not held as the caller has them.

    `names` has the identifiers of the tensors, `pooled` the convolutions that take a pool in.
    """
    lower = _Lowering(graph, places, names)
    calls = list[Call]()
    if places[graph.input] is not Outside.INPUT:
        calls.append(lower.whole_copy("input", Outside.INPUT, None, places[graph.input], graph.input))
    taken_in = {pool.pool.output for pool in pooled.values()}
    for node in graph.nodes:
        if isinstance(node, Conv2d) and node.output in pooled:
            calls.append(lower.conv_pool(node, pooled[node.output]))
        elif node.output not in taken_in:
            calls.extend(lower(node))
    if places[graph.output] is not Outside.OUTPUT:
        calls.append(lower.whole_copy("output", places[graph.output], graph.output, Outside.OUTPUT, None))
    return calls


class _Lowering:
    def __init__(self, graph: Graph, places: Mapping[str, Place], names: Mapping[str, Name]) -> None:
        self.graph, self.places, self.names = graph, places, names
        self.shapes, self.entries = infer_shapes(graph), graph.quantization or {}

    def __call__(self, node: Node) -> Iterator[Call]:
        source = self.shapes[node.inputs[0]]
        match node:
            case Conv2d():
                yield self.conv2d(node)
            case Linear():
                out, features = node.weight.shape
                rows = math.prod(source[:-1])
                fields: Fields = {
                    "channels": out, "groups": 1, "depth": 1, "size": [rows, features], "places": [rows, 1],
                    "kernel": [1, features], "stride": ONE, "padding": [0, 0], "dilation": ONE, "channel_step": 1,
                    "place_step": out,
                }  # fmt: skip
                yield self.conv(node, fields)
            case Pool2d() | AdaptivePool2d():
                yield self.pool(node, source)
            case Affine() | Activate():
                channels = source[0] if source else 1
                fields = {"channels": channels, "count": math.prod(source) // channels}
                if isinstance(node, Affine):
                    fields |= self.vectors(node)
                yield self.call("affine", node, fields | {"from": self.held(node.inputs[0])})
            case Add():
                held = [self.held(name) for name in node.inputs]
                yield self.call("add", node, {"count": math.prod(source), "from": held})
            case Multiply():
                yield self.call("multiply", node, self.spread(node))
            case Concat():
                made = self.shapes[node.output]
                first = 0
                for name in node.inputs:
                    count = math.prod(self.shapes[name][node.axis :])
                    fields = {
                        "times": math.prod(made[: node.axis]), "count": count, "first": first,
                        "step": math.prod(made[node.axis :]), "from": self.held(name),
                    }  # fmt: skip
                    yield self.call("copy", node, fields, inputs=(name,))
                    first += count
            case Softmax():
                fields = {
                    "times": math.prod(source[: node.axis]), "count": source[node.axis],
                    "step": math.prod(source[node.axis + 1 :]), "from": self.held(node.inputs[0]),
                }  # fmt: skip
                yield self.call("softmax", node, fields)
            case Reshape():
                pass

    def conv2d(self, node: Conv2d) -> Call:
        channels, height, width = self.shapes[node.inputs[0]]
        fields: Fields = {
            "channels": node.weight.shape[0], "groups": node.groups, "depth": channels // node.groups,
            "size": [height, width], "places": list(self.shapes[node.output][1:]),
            "kernel": list(node.weight.shape[2:]), "stride": list(node.stride), "padding": list(node.padding),
            "dilation": list(node.dilation), "channel_step": math.prod(self.shapes[node.output][1:]), "place_step": 1,
        }  # fmt: skip
        return self.conv(node, fields)

    def conv_pool(self, node: Conv2d, pooled: Pooled) -> Call:
        """Both in one; the room holds the rows that a row of windows looks at, then the decoded weights."""
        conv, pool = self.conv2d(node), self.pool(pooled.pool, self.shapes[node.output], pooled.band)
        numbers = pooled.band * self.shapes[node.output][2]
        band = aligned(numbers if node.output in self.entries else 4 * numbers)
        return Call(
            "conv_pool", f"{node.name}, {pooled.pool.name}",
            {"conv": conv.fields, "pool": pool.fields, "band_bytes": band}, conv.inputs, pool.output, band + conv.room,
            conv.needs - {"CONV"} | pool.needs - {"POOL"} | {"CONV_POOL"},
        )  # fmt: skip

    def conv(self, node: Conv2d | Linear, fields: Fields) -> Call:
        weight, entry = node.weight, self.entries.get(node.inputs[0])
        whole = weight.coding not in ("float32", "levels")
        kinds = ("FLOATS", "FLOAT_WEIGHTS") if entry is None else ("BYTES", "DEQUANTIZED")
        kind = "LEVELS" if weight.levels is not None else kinds[0 if whole else 1]
        fields = {
            "coding": Name(weight.coding.upper()), "sum": Name(kind), "weights": self.names[weight.tensor],
            **self.vectors(node), "factor": self.factor(node, entry if whole else None), **fields,
            "from": self.held(node.inputs[0]),
        }  # fmt: skip
        needs = {weight.coding.upper(), f"SUM_{kind}"} | ({"GET"} if kind in ("DEQUANTIZED", "LEVELS") else set())
        if weight.levels is not None:
            fields |= {"coding": Name("TERNARY"), "levels": [np.float32(level) for level in weight.levels]}
            needs.add("TERNARY")
        room = weight.count // weight.shape[0] if weight.packed else 0
        return self.call("conv", node, fields, room=room, needs=needs)

    def spread(self, node: Multiply) -> Fields:
        """How far apart the numbers of the second input lie, in three dimensions: 0 along one that it has not."""
        large, small = ((1,) * (3 - len(shape)) + shape for shape in map(self.shapes.__getitem__, node.inputs))
        if len(large) > 3:
            raise ValueError(f"layer {node.name!r} (multiply) has {len(large)} dimensions; C export knows up to 3")
        steps = [math.prod(small[i + 1 :]) if size > 1 else 0 for i, size in enumerate(small)]
        return {"size": list(large), "steps": steps, "from": [self.held(name) for name in node.inputs]}

    def pool(self, node: Pool2d | AdaptivePool2d, source: Shape, band: int | None = None) -> Call:
        """`band` rows are in memory; all, unless said otherwise."""
        sides, needs = [], set[str]()
        made = self.shapes[node.output]
        for i, (size, places) in enumerate(zip(source[1:], made[1:])):
            side = {"size": size, "places": places}
            if isinstance(node, Pool2d):
                side |= {"kernel": node.kernel[i], "stride": node.stride[i], "padding": node.padding[i]}
                side |= {"count_padding": int(node.count_padding)}
            elif size % places == 0:  # windows of one size, side by side
                side |= {"kernel": size // places, "stride": size // places}
            else:
                needs.add("ADAPTIVE")
                _check_int32(node, (places + 1) * size + places)
            sides.append(side)
        if isinstance(node, Pool2d):
            _check_int32(node, math.prod(size + 2 * side for size, side in zip(source[1:], node.padding)))
        held = "FLOATS" if node.inputs[0] not in self.entries else "BYTES"
        kind = f"{node.kind.upper()}_{held}"
        fields = {
            "kind": Name(kind), "channels": source[0], "band": band or source[1], "sides": sides,
            "from": self.held(node.inputs[0]),
        }  # fmt: skip
        return self.call("pool", node, fields, needs=needs | {kind})

    def whole_copy(self, title: str, source: Place, held: str | None, target: Place, made: str | None) -> Call:
        """A value on its way from or to the caller; None is float32."""
        count = math.prod(self.shapes[held or made or self.graph.output])
        fields = {"times": 1, "count": count, "from": self.held(held), "made": self.made(None, made)}
        return Call("copy", title, fields, (source,), target, needs=_needs("copy", set()))

    def call(
        self, function: str, node: Any, fields: Fields, *, inputs: tuple[str, ...] | None = None, room: int = 0,
        needs: set[str] | None = None,
    ) -> Call:  # fmt: skip
        fields = fields | {"made": self.made(getattr(node, "activation", None), node.output)}
        sources = tuple(self.places[name] for name in inputs or node.inputs)
        return Call(
            function, node.name, fields, sources, self.places[node.output], room, _needs(function, needs or set())
        )

    def factor(self, node: Conv2d | Linear, entry: tuple[float, int] | None) -> np.float32:
        """The step of bytes, times a scale that is the same for all channels, rounded as the reference has it."""
        scale = np.float32(node.scale if isinstance(node.scale, float) else 1)
        return np.float32(scale if entry is None else np.float32(entry[0]) * scale)

    def vectors(self, node: Any) -> Fields:
        return {part: self.names[name] for part in ("scale", "bias") if isinstance(name := getattr(node, part), str)}

    def held(self, value: str | None) -> Fields:
        """How a value is held; nothing for float32."""
        entry = None if value is None else self.entries.get(value)
        if entry is None:
            return {}
        step = np.float32(entry[0])
        return {"step": step, "inverse": np.float32(1) / step, "zero": entry[1]}

    def made(self, activation: Activation | None, value: str | None) -> Fields:
        fields: Fields = {"as": self.held(value)}
        if activation is None or activation.kind == "none":
            return fields
        if activation.kind == "leaky" and activation.slope is not None:
            return {"activation": Name("LEAKY"), "slope": np.float32(activation.slope)} | fields
        if activation.kind in ("sign", "abs"):
            return {"activation": Name(activation.kind.upper())} | fields
        bounds = {side: limit for side in ("low", "high") if (limit := getattr(activation, side)) is not None}
        flags = Name(" | ".join(side.upper() for side in bounds))
        return {"activation": flags, **{side: np.float32(limit) for side, limit in bounds.items()}} | fields


def _needs(function: str, others: set[str]) -> frozenset[str]:
    """Sections of the template for a call: its function, and how it reads and writes."""
    reads = {"GET"} if function in ("affine", "add", "multiply", "copy", "softmax") else set()
    writes = set() if others & {"MAX_BYTES", "MAX_FLOATS"} else {"PUT"}
    return frozenset({function.upper(), *others, *reads, *writes})


def _check_int32(node: Node, number: int) -> None:
    if number > LARGEST_INT32:
        raise ValueError(
            f"layer {node.name!r} ({node.op}) counts to {number}, C export to {LARGEST_INT32}; use smaller windows"
        )
