"""Which values are nothing but signs, -1 and +1, and which layers may therefore count bits (native/signs.inc)."""

from __future__ import annotations

from collections.abc import Collection

from lrnets_runtime.graph import Activate, AdaptivePool2d, Concat, Conv2d, Graph, Linear, Node, Pool2d, Reshape


def values_of_signs(graph: Graph) -> set[str]:
    """Values held as float32 that a sign made, and those that maxima, reshapes and concatenations make of them."""
    entries, found = graph.quantization or {}, set[str]()
    for node in graph.nodes:
        moves = isinstance(node, (Reshape, Concat)) or (
            isinstance(node, (Pool2d, AdaptivePool2d)) and node.kind == "max"
        )
        made = _takes_sign(node) or (moves and found.issuperset(node.inputs))
        if made and node.output not in entries:
            found.add(node.output)
    return found


def layers_on_signs(graph: Graph) -> set[str]:
    """Outputs of convolutions and linear layers with binary weights and a value of signs to read."""
    signs = values_of_signs(graph)
    return {
        node.output
        for node in graph.nodes
        if isinstance(node, (Conv2d, Linear)) and node.weight.coding == "binary" and node.inputs[0] in signs
    }


def taken_in(graph: Graph, on_signs: Collection[str], flattened: Collection[str]) -> set[str]:
    """Signs that nobody but such layers reads, and flattened vectors of them: the layers take the signs themselves."""
    readers: dict[str, list[Node]] = {graph.output: []}
    for node in graph.nodes:
        for name in node.inputs:
            readers.setdefault(name, []).append(node)

    def only_counted(value: str) -> bool:
        return value != graph.output and all(
            reader.output in on_signs or (reader.output in flattened and only_counted(reader.output))
            for reader in readers.get(value, [])
        )

    signs = [node.output for node in graph.nodes if isinstance(node, Activate) and _takes_sign(node)]
    entries = graph.quantization or {}
    return {value for value in signs if value not in entries and only_counted(value)}


def _takes_sign(node: Node) -> bool:
    activation = getattr(node, "activation", None)
    return activation is not None and activation.kind == "sign"
