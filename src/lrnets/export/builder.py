"""A run-time graph as it grows, call by call."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, NoReturn

import torch
from lrnets_runtime.graph import Node, Reshape, Shape, Weight
from torch import Tensor

from lrnets.export.coding import Array, Tensors, pack, recognise


class UnsupportedError(ValueError):
    """The network has something that the packed format does not know."""


def fresh_name(name: str, taken: set[str]) -> str:
    """The name, with a number after it if it is taken; it is taken then."""
    number, fresh = 1, name
    while fresh in taken:
        number += 1
        fresh = f"{name}_{number}"
    taken.add(fresh)
    return fresh


@dataclass(frozen=True)
class Value:
    """A value of the graph; its shape goes without the batch."""

    name: str
    shape: Shape


@dataclass(frozen=True)
class Condition:
    """Where a value is at least 0."""

    value: Value


@dataclass(frozen=True)
class Call:
    """One call of an ATen operator: arguments by their names, and what it is in the network."""

    operator: str  # conv2d
    arguments: dict[str, Any]  # values, constant tensors, numbers
    shape: Shape  # of the (first) result
    name: str  # of the layer
    where: str  # "of module 'conv1' (Conv2d)"

    def __getitem__(self, argument: str) -> Any:
        return self.arguments[argument]

    def value(self, argument: str) -> Value:
        """An argument that must depend on the network's input."""
        found = self[argument]
        if isinstance(found, Condition):
            self.refuse(f"whose '{argument}' is a comparison", "use it in torch.where(x >= 0, 1.0, -1.0) only")
        return found if isinstance(found, Value) else self.refuse(f"with a constant '{argument}'")

    def constant(self, argument: str) -> Tensor:
        """An argument that must not."""
        found = self[argument]
        return found if isinstance(found, Tensor) else self.refuse(f"whose '{argument}' depends on the network's input")

    def refuse(self, problem: str = "", remedy: str = "replace it, or compute it outside the network") -> NoReturn:
        name = f"aten.{self.operator}" if self.operator.isidentifier() else self.operator  # my_library::its_operator
        text = f"operator {name} {self.where} {problem}".rstrip()
        raise UnsupportedError(f"{text} is not supported; {remedy}")


@dataclass
class Builder:
    """Nodes and tensors so far. Scales and biases are float64: they are rounded once, when all folding is done."""

    nodes: list[Node] = field(default_factory=list)
    tensors: Tensors = field(default_factory=dict)
    names: set[str] = field(default_factory=set)
    packed: dict[Any, tuple[Weight, Array | None, Tensor]] = field(default_factory=dict)

    def fresh(self, name: str) -> str:
        """The name, with a number after it if it is taken."""
        return fresh_name(name, self.names)

    def emit(self, kind: Any, name: str, inputs: Sequence[Value], shape: Sequence[int], /, **settings: Any) -> Value:
        return self.place(kind, self.fresh(name), inputs, shape, **settings)

    def place(self, kind: Any, name: str, inputs: Sequence[Value], shape: Sequence[int], /, **settings: Any) -> Value:
        """Emit a node under a name that is fresh already; its output bears the same."""
        self.nodes.append(kind(name=name, inputs=tuple(x.name for x in inputs), output=name, **settings))
        return Value(name, tuple(shape))

    def reshape(self, x: Value, shape: Sequence[int], name: str) -> Value:
        return x if x.shape == tuple(shape) else self.emit(Reshape, name, (x,), shape, shape=tuple(shape))

    def vector(self, name: str, numbers: Tensor | Array | None) -> str | None:
        """Store a scale or a bias, a number for each channel."""
        if numbers is None:
            return None
        tensor = torch.as_tensor(numbers).detach().double().cpu()
        _check_finite(name, tensor)
        self.tensors[name] = tensor.numpy()
        return name

    def weighted(
        self, kind: Any, call: Call, x: Value, weight: Tensor, bias: Tensor | None, shape: Sequence[int], /,
        **settings: Any,
    ) -> Value:  # fmt: skip
        """Emit a convolution or linear layer; tied weights are stored once."""
        name = self.fresh(call.name)
        key = (weight.data_ptr(), weight.shape, weight.stride(), weight.dtype)
        if key not in self.packed:
            _check_finite(f"{name}.weight", weight)
            coded = recognise(weight)
            self.tensors[f"{name}.weight"] = pack(coded)
            # The tensor is kept, lest another come to lie at its address.
            stored = Weight(f"{name}.weight", coded.coding, tuple(weight.shape), coded.levels)
            self.packed[key] = stored, coded.scale, weight
        stored, scale, _ = self.packed[key]
        vectors = {"scale": self.vector(f"{name}.scale", scale), "bias": self.vector(f"{name}.bias", bias)}
        return self.place(kind, name, (x,), shape, weight=stored, **vectors, **settings)


def _check_finite(name: str, tensor: Tensor) -> None:
    bad = int((~torch.isfinite(tensor)).sum())
    if bad:
        raise UnsupportedError(
            f"{name}: {bad} of {tensor.numel()} numbers are NaN or infinite; repair or reload the network first"
        )
