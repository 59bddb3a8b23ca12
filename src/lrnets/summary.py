"""What a network costs: weights, bits, bytes and operations, layer by layer."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from lrnets.errors import describe
from lrnets.layers import LRLayer
from lrnets.modes import evaluating
from lrnets.tables import table
from lrnets.weights import Levels, ValueSet, as_value_set, levels_of

Kinds = (nn.Linear, nn.Conv1d, nn.Conv2d, nn.Conv3d, nn.ConvTranspose1d, nn.ConvTranspose2d, nn.ConvTranspose3d)


@dataclass(frozen=True)
class LayerSummary:
    """One layer. `bytes` counts its packed weights and its other numbers."""

    name: str
    kind: str
    values: str  # the value set, or "float"
    weights: int
    bits: float  # a weight
    others: int  # biases, scales, batch norm: float32 all of them
    bytes: int
    additions: int
    multiplications: int


@dataclass(frozen=True)
class Summary:
    """All layers with parameters; prints as a table with totals."""

    layers: tuple[LayerSummary, ...]
    float_bytes: int  # the same network with float32 weights

    @property
    def bytes(self) -> int:
        return sum(layer.bytes for layer in self.layers)

    @property
    def weights(self) -> int:
        return sum(layer.weights for layer in self.layers)

    @property
    def additions(self) -> int:
        return sum(layer.additions for layer in self.layers)

    @property
    def multiplications(self) -> int:
        return sum(layer.multiplications for layer in self.layers)

    def __str__(self) -> str:
        header = ("layer", "kind", "values", "weights", "bits", "others", "bytes", "additions", "multiplications")
        rows = [
            (
                r.name,
                r.kind,
                r.values,
                f"{r.weights:,}",
                f"{r.bits:.2f}" if r.weights else "",
                *map("{:,}".format, rest),
            )
            for r in self.layers
            for rest in [(r.others, r.bytes, r.additions, r.multiplications)]
        ]
        others = sum(layer.others for layer in self.layers)
        totals = [f"{n:,}" for n in (self.weights, others, self.bytes, self.additions, self.multiplications)]
        rows.append(("total", "", "", totals[0], "", *totals[1:]))
        ratio = self.float_bytes / max(1, self.bytes)
        last = f"{self.bytes:,} bytes; {self.float_bytes:,} in float32: {ratio:.1f} times smaller"
        return table(header, rows, right=range(3, 9)) + "\n" + last


def summary(model: nn.Module, input_size: Sequence[int] | Tensor) -> Summary:
    """Weights, bits, bytes and operations of each layer for one input.

    `input_size` is the input's shape, with or without the batch dimension, or an input itself (token indices, say).
    Stochastic layers count as what they become; layers whose weights take few values count as packed. Operations are
    those of linear and convolution layers: a discrete weight costs an addition, a float weight a multiplication too.
    """
    if not isinstance(model, nn.Module):
        raise TypeError(f"summary takes a torch.nn.Module, got {describe(model)}")
    products = _count_products(model, input_size)
    rows, float_bytes = [], 0
    seen: set[int] = set()
    for name, module in model.named_modules():
        own = [t for t in (*module._parameters.values(), *module._buffers.values()) if t is not None]
        new = [t for t in own if t.is_floating_point() and id(t) not in seen]
        seen.update(id(t) for t in new)
        if new or id(module) in products:
            row, scales = _summarise(name or type(module).__name__, module, new, *products.get(id(module), (0, 0)))
            rows.append(row)
            float_bytes += 4 * (row.weights + row.others - scales)
    return Summary(tuple(rows), float_bytes)


def _summarise(
    name: str, module: nn.Module, new: list[Tensor], products: int, outputs: int
) -> tuple[LayerSummary, int]:
    """A layer's row, and how many scales it has that a float layer would not. `new`: not counted with another layer."""
    values, weight, scaled = _weights_of(module)
    others = sum(t.numel() for t in new if t is not weight)
    tied = not any(t is weight for t in new)
    count = (
        0 if weight is None or tied else (module.weight_shape if isinstance(module, LRLayer) else weight.shape).numel()
    )
    scales = int(scaled)
    if scaled and not isinstance(module, LRLayer):
        others += 1  # stands in the weights now, beside them in a packed file
    stored = 4 * count if values is None else values.packed_bytes(count)
    plain_sum = values is not None and set(values.levels) <= {-1.0, 0.0, 1.0}
    multiplications = (outputs if scaled else 0) if plain_sum else products
    bits = 8 * stored / count if count else 0.0
    kind, label = type(module).__name__, "float" if values is None else str(values)
    return LayerSummary(name, kind, label, count, bits, others, stored + 4 * others, products, multiplications), scales


def _weights_of(module: nn.Module) -> tuple[ValueSet | None, Tensor | None, bool]:
    """A layer's value set (None: float), the tensor that holds its weights, and whether a scale multiplies them."""
    if isinstance(module, LRLayer):
        return module.values, module.logits, module.scale is not None
    weight = module._parameters.get("weight") if isinstance(module, Kinds) else None
    levels = None if weight is None else levels_of(weight)
    if levels is None:
        return None, weight, False
    largest = max(map(abs, levels))
    relative = as_value_set([level / largest for level in levels])
    return (Levels(levels), weight, False) if isinstance(relative, Levels) else (relative, weight, largest != 1)


def _count_products(model: nn.Module, input_size: Sequence[int] | Tensor) -> dict[int, tuple[int, int]]:
    """For each linear and convolution layer: products of a weight and an input, and outputs, in one pass."""
    counts: dict[int, tuple[int, int]] = {}

    def count(module: nn.Module, inputs: tuple[Tensor, ...], output: Tensor) -> None:
        shape = module.weight_shape if isinstance(module, LRLayer) else module.get_parameter("weight").shape
        transposed = "Transpose" in type(module).__name__
        # A weight's row meets each output once; a transposed convolution's meets each input once.
        products = (inputs[0] if transposed else output).numel() * shape[1:].numel()
        before = counts.get(id(module), (0, 0))
        counts[id(module)] = (before[0] + products, before[1] + output.numel())

    hooks = [m.register_forward_hook(count) for m in model.modules() if isinstance(m, (LRLayer, *Kinds))]
    try:
        with evaluating(model):
            _run(model, input_size, counts)
    finally:
        for hook in hooks:
            hook.remove()
    return counts


@torch.no_grad()
def _run(model: nn.Module, input_size: Sequence[int] | Tensor, counts: dict[int, tuple[int, int]]) -> None:
    if isinstance(input_size, Tensor):
        model(input_size)
        return
    shape = tuple(input_size)
    if not shape or not all(isinstance(n, int) and n > 0 for n in shape):
        raise ValueError(
            f"input_size must be positive whole numbers, got {describe(input_size)}; for example (1, 28, 28)"
        )
    like = next((t for t in (*model.parameters(), *model.buffers()) if t.is_floating_point()), torch.zeros(()))
    try:
        model(like.new_zeros(shape))
    except (RuntimeError, ValueError, IndexError) as as_given:
        counts.clear()
        try:
            model(like.new_zeros((1, *shape)))
        except (RuntimeError, ValueError, IndexError):
            raise ValueError(
                f"the model takes no input of shape {shape}, nor of {(1, *shape)}: {as_given}"
            ) from as_given
