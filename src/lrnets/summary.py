"""What a network costs: weights, bits, bytes and operations, layer by layer."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, cast

import torch
from torch import Tensor, nn

from lrnets.errors import describe
from lrnets.layers import LRLayer
from lrnets.modes import evaluating
from lrnets.plain import first_of
from lrnets.tables import table
from lrnets.weights import Levels, ValueSet, as_value_set, levels_of, signs_by_channel

if TYPE_CHECKING:
    from lrnets.export.packed import PackedLayer

MOST_SHOWN = 16  # levels
Kinds = (nn.Linear, nn.Conv1d, nn.Conv2d, nn.Conv3d, nn.ConvTranspose1d, nn.ConvTranspose2d, nn.ConvTranspose3d)


@dataclass(frozen=True)
class LayerSummary:
    """One layer. `bytes` counts its packed weights and its other numbers, with those of batch norm folded into it."""

    name: str
    kind: str
    values: str  # the value set, or "float"
    weights: int
    bits: float  # a weight
    others: int  # biases and scales: float32 all of them
    bytes: int
    additions: int
    multiplications: int


@dataclass(frozen=True)
class Summary:
    """All layers with parameters; prints as a table with totals.

    `bytes` is the size of the file that lrnets.export.save_packed writes. A network that cannot be written so has no
    header, and `problem` says why: then each layer counts as packed by itself, and batch norm as a layer of its own.
    """

    layers: tuple[LayerSummary, ...]
    float_bytes: int  # the same network with float32 weights
    header_bytes: int = 0
    problem: str | None = None

    @property
    def bytes(self) -> int:
        return self.header_bytes + sum(layer.bytes for layer in self.layers)

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
        if self.problem is None:
            rows.append(("header", "", "", "", "", "", f"{self.header_bytes:,}", "", ""))
        others = sum(layer.others for layer in self.layers)
        totals = [f"{n:,}" for n in (self.weights, others, self.bytes, self.additions, self.multiplications)]
        rows.append(("total", "", "", totals[0], "", *totals[1:]))
        ratio = self.float_bytes / max(1, self.bytes)
        last = f"{self.bytes:,} bytes; {self.float_bytes:,} in float32: {ratio:.1f} times smaller"
        if self.problem is not None:
            last += f"\nweights and numbers alone, since it cannot be written as a packed file: {self.problem}"
        return table(header, rows, right=range(3, 9)) + "\n" + last


def summary(model: nn.Module, input_size: Sequence[int] | Tensor) -> Summary:
    """Weights, bits, bytes and operations of each layer for one input.

    `input_size` is the input's shape, with or without the batch dimension, or an input itself (token indices, say).
    Stochastic layers count as what they become; layers whose weights take few values count as packed. Bytes are those
    of the file that lrnets.export.save_packed writes, header included; see Summary where it cannot. Operations are
    those of linear and convolution layers: a discrete weight costs an addition, a float weight a multiplication too.
    """
    if not isinstance(model, nn.Module):
        raise TypeError(f"summary takes a torch.nn.Module, got {describe(model)}")
    model = _as_discrete(model)
    products, example = _count_products(model, input_size)
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
    # Linear layers and convolutions of torch take an input without a batch as well; a packed file is for batches.
    written = _written(model, example)
    if isinstance(written, str) and not isinstance(input_size, Tensor) and _takes(model, example[None]):
        written = _written(model, example[None])
    if isinstance(written, str):
        return Summary(tuple(rows), float_bytes, problem=written)
    layers, header = written
    return Summary(_as_written(rows, layers), float_bytes, header)


def _takes(model: nn.Module, example: Tensor) -> bool:
    """Whether the model computes something from it."""
    try:
        with evaluating(model), torch.no_grad():
            model(example)
    except (RuntimeError, ValueError, IndexError):
        return False
    return True


def _written(model: nn.Module, example: Tensor) -> tuple[Sequence[PackedLayer], int] | str:
    """The layers and the header of the packed file; or why there is none."""
    try:
        from lrnets.export.sizes import packed_sizes

        return packed_sizes(model, example)
    except (ImportError, RuntimeError, TypeError, ValueError) as error:  # all that tracing and writing refuse
        return str(error)


def _as_written(rows: Sequence[LayerSummary], layers: Sequence[PackedLayer]) -> tuple[LayerSummary, ...]:
    """The layers of a file, with the operations of the modules that they come from; what is folded away has no row."""
    modules = {row.name: row for row in rows}
    whole = rows[0].name if len(rows) == 1 else ""  # a model that is itself a layer has no name in the file
    written = []
    for layer in layers:
        own = layer.name if layer.name in modules else whole
        # A module that is used again has a row there as well, without the operations, which were counted together.
        again = LayerSummary(layer.name, layer.kind, layer.coding, 0, 0, 0, 0, 0, 0)
        row = modules.pop(own, again)
        others = layer.other_bytes // 4
        written.append(replace(row, weights=layer.weights, bits=layer.bits, others=others, bytes=layer.bytes))
    # What computes under another name in the file, or for nothing.
    rest = [replace(row, weights=0, bits=0.0, others=0, bytes=0) for row in modules.values() if row.additions]
    return (*written, *rest)


def _summarise(
    name: str, module: nn.Module, new: list[Tensor], products: int, outputs: int
) -> tuple[LayerSummary, int]:
    """A layer's row, and how many scales it has that a float layer would not. `new`: not counted with another layer."""
    values, weight, scales = _weights_of(module)
    passing = (module.sharpness, module.gain) if isinstance(module, LRLayer) else ()  # gone when weights are drawn
    others = sum(t.numel() for t in new if t is not weight and not any(t is part for part in passing))
    tied = not any(t is weight for t in new)
    count = (
        0 if weight is None or tied else (module.weight_shape if isinstance(module, LRLayer) else weight.shape).numel()
    )
    if scales and not isinstance(module, LRLayer):
        others += scales  # stand in the weights now, beside them in a packed file
    stored = 4 * count if values is None else values.packed_bytes(count)
    plain_sum = values is not None and set(values.levels) <= {-1.0, 0.0, 1.0}
    multiplications = (outputs if scales else 0) if plain_sum else products
    bits = 8 * stored / count if count else 0.0
    kind, label = type(module).__name__, "float" if values is None else _label(values)
    return LayerSummary(name, kind, label, count, bits, others, stored + 4 * others, products, multiplications), scales


def _label(values: ValueSet) -> str:
    return str(values) if len(values.levels) <= MOST_SHOWN else f"{len(values.levels)} levels"


def _weights_of(module: nn.Module) -> tuple[ValueSet | None, Tensor | None, int]:
    """A layer's value set (None: float), the tensor that holds its weights, and how many scales multiply them."""
    if isinstance(module, LRLayer):
        return module.values, module.logits, int(module.scale is not None)
    weight = module._parameters.get("weight") if isinstance(module, Kinds) else None
    if weight is None:
        return None, None, 0
    levels = levels_of(weight)
    if levels is not None:
        largest = max(map(abs, levels))
        relative = as_value_set([level / largest for level in levels])
        if not isinstance(relative, Levels):
            return relative, weight, int(largest != 1)
    by_channel = signs_by_channel(weight)
    if by_channel is not None:
        return by_channel, weight, weight.shape[0]
    return None if levels is None else Levels(levels), weight, 0


def _as_discrete(model: nn.Module) -> nn.Module:
    """The model, or what it becomes if it has layers in training other than LR layers."""
    from lrnets.discretize import discretize
    from lrnets.methods.twin import Twin

    return discretize(model, "mode") if any(isinstance(module, Twin) for module in model.modules()) else model


def _count_products(model: nn.Module, input_size: Sequence[int] | Tensor) -> tuple[dict[int, tuple[int, int]], Tensor]:
    """For each linear and convolution layer: products of a weight and an input, and outputs, in one pass; the input."""
    counts: dict[int, tuple[int, int]] = {}

    def count(module: nn.Module, inputs: tuple[Tensor, ...], named: dict[str, Tensor], output: Tensor) -> None:
        # (Not the parameter: weight norm and pruning compute the weight from others.)
        shape = module.weight_shape if isinstance(module, LRLayer) else cast(Tensor, module.weight).shape
        transposed = "Transpose" in type(module).__name__
        # A weight's row meets each output once; a transposed convolution's meets each input once.
        products = (first_of(inputs, named) if transposed else output).numel() * shape[1:].numel()
        before = counts.get(id(module), (0, 0))
        counts[id(module)] = (before[0] + products, before[1] + output.numel())

    layers = [m for m in model.modules() if isinstance(m, (LRLayer, *Kinds))]
    hooks = [layer.register_forward_hook(count, with_kwargs=True) for layer in layers]
    try:
        with evaluating(model):
            example = _run(model, input_size, counts)
    finally:
        for hook in hooks:
            hook.remove()
    return counts, example


@torch.no_grad()
def _run(model: nn.Module, input_size: Sequence[int] | Tensor, counts: dict[int, tuple[int, int]]) -> Tensor:
    """Run the model once; the input that it took."""
    if isinstance(input_size, Tensor):
        model(input_size)
        return input_size
    shape = tuple(input_size) if isinstance(input_size, Iterable) else ()
    if not shape or not all(isinstance(n, int) and n > 0 for n in shape):
        raise ValueError(
            f"input_size must be positive whole numbers, got {describe(input_size)}; for example (1, 28, 28)"
        )
    like = next((t for t in (*model.parameters(), *model.buffers()) if t.is_floating_point()), torch.zeros(()))
    example = like.new_zeros(shape)
    try:
        model(example)
    except (RuntimeError, ValueError, IndexError) as as_given:
        counts.clear()
        try:
            model(example[None])
        except (RuntimeError, ValueError, IndexError):
            raise ValueError(
                f"the model takes no input of shape {shape}, nor of {(1, *shape)}: {as_given}"
            ) from as_given
        return example[None]
    return example
