"""Elementwise functions of a layer's weights, computed block by block on a CPU.

Fresh large tensors cost a CPU more than the arithmetic on them (every page is faulted in and cleared): the moments of
8.4 million ternary weights take 125 ms in one go and 45 ms in blocks whose temporaries stay in the cache.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

BLOCK = 1 << 18  # weights at a time; smaller is a little faster on a quiet machine and far slower on a busy one


def works_in_blocks(tensor: Tensor) -> bool:
    """Whether blocks pay: on a CPU, unless a compiler fuses the arithmetic anyway."""
    return tensor.device.type == "cpu" and not torch.compiler.is_compiling()


def in_blocks(function: Callable[..., Any], logits: Tensor, *others: Tensor) -> Any:
    """`function` of logits (k, *shape) and of tensors of `shape`; it must be elementwise in the weight.

    It may return one tensor (n, *shape) or a tuple of tensors of `shape`.
    """
    count = logits[0].numel()
    if count <= 2 * BLOCK or not works_in_blocks(logits):
        return function(logits, *others)
    # Flatten in the order of memory, which a channels-last layer has of its own.
    order = sorted(range(logits.dim() - 1), key=lambda d: -logits.stride(d + 1))
    flat_logits = logits.permute(0, *(d + 1 for d in order)).reshape(-1, count)
    flat_others = [other.permute(order).reshape(count) for other in others]
    whole: list[Tensor] = []
    for start in range(0, count, BLOCK):
        block = slice(start, min(start + BLOCK, count))
        part = function(flat_logits[:, block], *(other[block] for other in flat_others))
        parts = part if isinstance(part, tuple) else (part,)
        whole = whole or [piece.new_empty((*piece.shape[:-1], count)) for piece in parts]
        for full, piece in zip(whole, parts):
            full[..., block] = piece
    shape, back = [logits.shape[d + 1] for d in order], sorted(range(len(order)), key=order.__getitem__)
    shaped = [full.reshape(-1, *shape).permute(0, *(d + 1 for d in back)) for full in whole]
    return tuple(full[0] for full in shaped) if isinstance(part, tuple) else shaped[0]
