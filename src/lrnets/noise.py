"""Standard normal noise, fast on a CPU too."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from functools import cache

import torch
from torch import Tensor

CHUNK = 1 << 18  # numbers from one generator; fixed, so that noise does not depend on the number of threads


def standard_normal_like(like: Tensor, generator: torch.Generator | None = None) -> Tensor:
    """Noise with the shape, dtype, device and memory layout of `like`, from `generator` or torch's own.

    Memory is filled in its own order: torch's `randn_like` is many times slower for channels-last tensors. On a CPU,
    where torch draws in one thread, long noise is drawn in chunks by as many threads as torch may use, each chunk from
    a generator seeded by the given one.
    """
    if torch.compiler.is_compiling():
        return torch.randn_like(like)
    noise = torch.empty_like(like)
    flat = noise.as_strided((noise.numel(),), (1,))
    if flat.device.type != "cpu" or flat.numel() <= CHUNK:
        flat.normal_(generator=generator)
        return noise
    chunks = flat.split(CHUNK)
    seeds = torch.randint(2**32, (len(chunks),), generator=generator).tolist()
    fill = _threads(torch.get_num_threads()).map if torch.get_num_threads() > 1 else map
    list(fill(_fill, chunks, seeds))
    return noise


def _fill(chunk: Tensor, seed: int) -> None:
    chunk.normal_(generator=torch.Generator().manual_seed(seed))


@cache
def _threads(count: int) -> ThreadPoolExecutor:
    return ThreadPoolExecutor(count, thread_name_prefix="lrnets-noise")
