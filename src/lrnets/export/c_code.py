"""A graph as C99 for a microcontroller: constants, a few small functions, and one that calls them layer by layer.

Weights stay packed as in the file (docs/packed-format.md), and those of one output channel at a time are decoded to a
few bytes of the arena. Nothing is allocated and nothing but <stdint.h> is needed, save expf for a softmax. Values held
as bytes are those of lrnets_runtime.reference bit for bit, if nothing summed in float32 lies before them.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from lrnets_runtime.graph import Affine, Conv2d, Graph, Linear, Shape, Vector
from lrnets_runtime.packing import decode
from lrnets_runtime.reading import graph_from_json
from lrnets_runtime.shapes import infer_shapes

from lrnets.export.c_layers import calls_of
from lrnets.export.c_plan import (
    ALIGNMENT,
    Arena,
    Call,
    Name,
    Outside,
    Place,
    needed,
    places_of,
    plan_arena,
    pooled_convolutions,
)
from lrnets.export.c_self_test import self_test, test_code
from lrnets.export.c_text import (
    check_header_name,
    check_name,
    comment,
    constant,
    filled,
    identifier,
    initializer,
    select,
)
from lrnets.export.coding import Array
from lrnets.export.fold import with_tensors
from lrnets.export.trace import Traced

TEMPLATE = Path(__file__).with_name("templates") / "network.c"
DIMENSIONS = {1: "features", 2: "channels, length", 3: "channels, height, width"}


@dataclass(frozen=True)
class CLayer:
    """Constants and memory of one layer. Tied tensors count with the first layer that has them."""

    name: str
    kind: str
    coding: str
    shape: Shape  # of its output
    weight_bytes: int
    other_bytes: int  # scales and biases
    output_bytes: int
    room_bytes: int  # while it runs: for decoded weights, and rows of its result that a pool takes in


@dataclass(frozen=True)
class CSource:
    """The text of a .c and its .h, and what they need; the size of the code itself depends on the compiler."""

    code: str
    header: str
    layers: tuple[CLayer, ...]
    arena_bytes: int
    input_bytes: int
    output_bytes: int
    tolerance: float | None  # of the self-test: 0 is to the bit, None is no test

    @property
    def flash_bytes(self) -> int:
        """Of the constants: weights, scales and biases."""
        return sum(layer.weight_bytes + layer.other_bytes for layer in self.layers)

    @property
    def ram_bytes(self) -> int:
        """Of the arena and the caller's input and output."""
        return self.arena_bytes + self.input_bytes + self.output_bytes


def c_source(
    graph: Graph,
    tensors: Mapping[str, Array],
    *,
    name: str = "network",
    example: Array | None = None,
    header_name: str | None = None,
) -> CSource:
    """C99 for a graph and its tensors, as lrnets_runtime.file.read returns them.

    `name` begins all that is public: name_run, NAME_ARENA_BYTES. `example` (*input_shape) is the input of the self-test
    that -DNAME_TEST compiles, or near it (c_self_test.py). The source includes `header_name`, name.h unless said
    otherwise.
    """
    check_name(name)
    header_name = header_name or f"{name}.h"
    check_header_name(header_name)
    graph = needed(graph_from_json(graph.to_json()))
    graph, tensors = with_tensors(Traced(graph, dict(tensors)), layer_scales=False)  # a layer's is in its factor
    shapes = infer_shapes(graph)
    used = _used_tensors(graph, tensors, shapes)
    names = {tensor: Name(identifier("tensor", i, tensor)) for i, tensor in enumerate(used)}
    places = places_of(graph)
    pooled = pooled_convolutions(graph, shapes)
    calls = calls_of(graph, places, names, pooled)
    arena = plan_arena(calls, _sizes(graph, shapes))
    arena_bytes = max(arena.bytes, ALIGNMENT)  # C has no array of nothing
    test = None if example is None else self_test(graph, used, example)

    template = select(TEMPLATE.read_text(), {f"HAS_{need}" for call in calls for need in call.needs})
    parts = [
        f"/* Written by lrnets.export, not by hand; {header_name} says how to use it. */\n"
        f'#include "{header_name}"\n\n{template}',
        *(constant(names[tensor], array) for tensor, array in used.items()),
        *(_layer(call, step) for step, call in enumerate(calls)),
        _run(name, calls, arena),
    ]
    if test is not None:
        parts.append(test_code(name, test))
    input_shape, output_shape = shapes[graph.input], shapes[graph.output]
    shown = places | {name: places[taken.pool.output] for name, taken in pooled.items()}
    return CSource(
        code="\n".join(parts),
        header=_header(name, header_name, input_shape, output_shape, arena_bytes, tested=test is not None),
        layers=tuple(_rows(graph, used, shapes, calls, shown)),
        arena_bytes=arena_bytes,
        input_bytes=4 * math.prod(input_shape),
        output_bytes=4 * math.prod(output_shape),
        tolerance=None if test is None else test.tolerance,
    )


def _used_tensors(graph: Graph, tensors: Mapping[str, Array], shapes: Mapping[str, Shape]) -> dict[str, Array]:
    """The tensors that the nodes name, each once, in order of use; their sizes are those the nodes ask for."""
    used: dict[str, Array] = {}
    for node in graph.nodes:
        if isinstance(node, (Conv2d, Linear)):
            used[node.weight.tensor] = tensors[node.weight.tensor]
            decode(tensors[node.weight.tensor], node.weight)
            channels = node.weight.shape[0]
        elif isinstance(node, Affine):
            channels = shapes[node.inputs[0]][0]
        else:
            continue
        for name in (node.scale, node.bias):
            if isinstance(name, str):
                used[name] = tensors[name].astype(np.float32).reshape(channels)
    return used


def _sizes(graph: Graph, shapes: Mapping[str, Shape]) -> dict[Place, int]:
    entries = graph.quantization or {}
    return {name: math.prod(shape) * (1 if name in entries else 4) for name, shape in shapes.items()}


def _rows(
    graph: Graph, used: Mapping[str, Array], shapes: Mapping[str, Shape], calls: Sequence[Call],
    places: Mapping[str, Place],
) -> Iterator[CLayer]:  # fmt: skip
    sizes, counted = _sizes(graph, shapes), set[str]()
    rooms = {call.output: call.room for call in calls}

    def first_time(tensor: Vector) -> int:
        if not isinstance(tensor, str) or tensor in counted:
            return 0
        counted.add(tensor)
        return used[tensor].nbytes

    if places[graph.input] is not Outside.INPUT:
        yield CLayer("input", "quantize", "", shapes[graph.input], 0, 0, sizes[graph.input], 0)
    for node in graph.nodes:
        weight = node.weight if isinstance(node, (Conv2d, Linear)) else None
        vectors = (node.scale, node.bias) if isinstance(node, (Conv2d, Linear, Affine)) else ()
        own = places[node.output] == node.output  # neither a reshape, nor taken in by a pool, nor the caller's memory
        yield CLayer(
            name=node.name,
            kind=node.op,
            coding="" if weight is None else weight.coding,
            shape=shapes[node.output],
            weight_bytes=0 if weight is None else first_time(weight.tensor),
            other_bytes=sum(map(first_time, vectors)),
            output_bytes=sizes[node.output] if own else 0,
            room_bytes=rooms.get(places[node.output], 0) if weight is not None else 0,
        )


def _layer_name(call: Call, step: int) -> str:
    return identifier("layer", step, call.title)


def _layer(call: Call, step: int) -> str:
    fields = [f".{key} = {initializer(value)}" for key, value in call.fields.items() if value != {}]
    return (
        f"/* {comment(call.title)} */\n"
        f"static const {call.function}_layer {_layer_name(call, step)} = {{\n{filled(fields)}}};\n"
    )


def _run(name: str, calls: Sequence[Call], arena: Arena) -> str:
    def where(place: Place) -> str:
        return place.value if isinstance(place, Outside) else f"base + {arena.values[place]}"

    lines = []
    for step, call in enumerate(calls):
        arguments = [f"&{_layer_name(call, step)}", *map(where, call.inputs), where(call.output)]
        if call.function in ("conv", "conv_pool"):
            arguments.append(f"base + {arena.rooms[step]}" if call.room else "0")
        lines.append(f"    run_{call.function}({', '.join(arguments)});\n")
    body = "".join(lines)
    unused = "" if "base + " in body else "    (void)base;\n"
    macro = name.upper()
    return (
        f"void {name}_run(const float *input, float *output, void *arena) {{\n"
        "    uint8_t *base = arena;\n"
        f"#ifdef {macro}_STATIC_ARENA\n"
        f"    static float own[{macro}_ARENA_BYTES / sizeof(float)];\n"
        "    if (!base) base = (uint8_t *)own;\n"
        f"#endif\n{unused}{body}}}\n"
    )


def _header(
    name: str, header_name: str, input_shape: Shape, output_shape: Shape, arena_bytes: int, *, tested: bool
) -> str:
    macro = name.upper()
    source = header_name.removesuffix(".h") + ".c"
    test = f" * Self-test, on an example: cc -std=c99 -D{macro}_TEST {source} -lm && ./a.out\n *\n" if tested else ""
    return f"""/* Written by lrnets.export, not by hand.
 *
 * {macro}_INPUT_SIZE   {_described(input_shape)}
 * {macro}_OUTPUT_SIZE  {_described(output_shape)}
 * {macro}_ARENA_BYTES  of memory for a run, aligned as floats are: static float arena[{macro}_ARENA_BYTES / 4];
 *
 * {name}_run uses nothing else, keeps nothing there, and may run twice at once on two arenas. Input, output and arena
 * must not overlap. Compiled with -D{macro}_STATIC_ARENA, the source has an arena of its own for calls with arena = 0.
 *
{test} * Compile with -std=c99, or -ffp-contract=off, and without -ffast-math, for the same bits everywhere.
 */
#ifndef {macro}_H
#define {macro}_H

#define {macro}_INPUT_SIZE {math.prod(input_shape)}
#define {macro}_OUTPUT_SIZE {math.prod(output_shape)}
#define {macro}_ARENA_BYTES {arena_bytes}

#ifdef __cplusplus
extern "C" {{
#endif

void {name}_run(const float *input, float *output, void *arena);

#ifdef __cplusplus
}}
#endif

#endif
"""


def _described(shape: Shape) -> str:
    sizes = " x ".join(map(str, shape)) or "1"
    return f"floats: {sizes} ({DIMENSIONS[len(shape)]})" if len(shape) in DIMENSIONS else f"floats: {sizes}"
