"""The bytes that a network takes in a packed file, without writing one."""

from __future__ import annotations

from typing import NamedTuple

import torch
from lrnets_runtime import file
from torch import Tensor, nn

from lrnets.discretize import discretize
from lrnets.export.fold import fold
from lrnets.export.packed import PackedLayer, packed_layers
from lrnets.export.trace import trace
from lrnets.layers import lr_layers


class PackedSizes(NamedTuple):
    """What save_packed would report."""

    layers: tuple[PackedLayer, ...]
    header_bytes: int


def packed_sizes(model: nn.Module, example_input: Tensor) -> PackedSizes:
    """Bytes of the layers and the header of the file that save_packed writes; a stochastic network counts as drawn."""
    if example_input.is_meta:
        raise ValueError("the network is on the meta device and has no numbers yet; load some to count a file's bytes")
    if next(lr_layers(model), None) is not None:
        model = discretize(model, generator=torch.Generator(example_input.device).manual_seed(0))
    graph, tensors = fold(trace(model, example_input))
    layers = packed_layers(graph, tensors)
    return PackedSizes(layers, file.size(graph, tensors) - sum(layer.bytes for layer in layers))
