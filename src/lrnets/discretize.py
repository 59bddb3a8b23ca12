"""From distributions to an ordinary network with discrete weights: draw, re-estimate batch norm, keep the best."""

from __future__ import annotations

import copy
import math
from collections.abc import Callable, Iterable
from itertools import compress, islice
from typing import Any, Literal, NamedTuple

import torch
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm

from lrnets.convert import HOOKS
from lrnets.errors import describe
from lrnets.layers import LRLayer
from lrnets.methods.twin import choose, is_random, tied_key, twins
from lrnets.modes import evaluating


@torch.no_grad()
def discretize(
    model: nn.Module, mode: Literal["sample", "mode"] = "sample", *, generator: torch.Generator | None = None
) -> nn.Module:
    """A new, ordinary network in eval mode whose weights are drawn ("sample") or the most probable ones ("mode").

    Its layers are torch's own; each discrete weight is a level of its value set times the layer's scale, and frozen.
    (With binary activations, layers derived from torch's that take the sign of their input.) Everything else is a copy,
    so the network holds nothing of the stochastic one, which is left as it was. Batch norm statistics were gathered
    under noise: re-estimate them with `update_bn` before judging the network. A method without randomness has but one
    network, whatever the mode: `lrnets.methods.twin.is_random` tells.
    """
    if mode not in ("sample", "mode"):
        raise ValueError(f"mode must be 'sample' or 'mode', got {describe(mode)}")
    # The copy finds each layer in training already "copied": as a plain layer. Logits are never duplicated.
    memo: dict[int, Any] = {}
    chosen: dict[tuple[int, ...], Tensor] = {}
    weights: dict[tuple[tuple[int, ...], float | None], nn.Parameter] = {}
    for _, layer in twins(model):
        key = tied_key(layer)
        if key not in chosen:  # tied weights are one draw
            chosen[key] = choose(layer, mode, generator)
        plain = layer.to_plain(chosen[key], copy.deepcopy(layer.bias, memo))
        whole = layer.whole_scale if isinstance(layer, LRLayer) else None
        scale = None if whole is None or whole.is_meta else float(whole)  # tied layers may have scales of their own
        plain.weight = weights.setdefault((key, scale), plain.get_parameter("weight"))
        memo[id(layer)] = plain
    for _, layer in twins(model):
        for hooks in HOOKS:
            setattr(memo[id(layer)], hooks, copy.deepcopy(getattr(layer, hooks), memo))
    return copy.deepcopy(model, memo).eval()


@torch.no_grad()
def update_bn(net: nn.Module, loader: Iterable[Any], *, batches: int | None = None) -> nn.Module:
    """Re-estimate, in place, batch-norm statistics on the (first) batches of `loader`; returns the network.

    Statistics are the plain average over batches. Only batch norm is in training mode meanwhile: dropout stays off,
    and a stochastic layer computes with its most probable weights. Batches are inputs, or tuples and lists that begin
    with them. A norm that no batch reaches keeps its statistics; if anything fails all old ones come back.
    """
    if batches is not None and batches < 1:
        raise ValueError(f"batches must be at least 1, got {batches}; None takes all")
    norms = [module for module in net.modules() if isinstance(module, _BatchNorm) and module.running_mean is not None]
    if not norms:
        return net
    device = next((tensor.device for tensor in (*net.parameters(), *net.buffers())), None)
    momenta = [norm.momentum for norm in norms]
    statistics = [{name: buffer.clone() for name, buffer in norm.named_buffers()} for norm in norms]
    try:
        with evaluating(net):
            for norm in norms:
                norm.train()
                norm.reset_running_stats()
                norm.momentum = None  # cumulative average
            seen = 0
            for batch in islice(loader, batches):
                net((batch[0] if isinstance(batch, (list, tuple)) else batch).to(device))
                seen += 1
            if not seen:
                raise ValueError(
                    "the loader gave no batch, so batch norm has no statistics; is it an exhausted iterator?"
                )
            unreached = [norm.num_batches_tracked == 0 for norm in norms]
        _restore(compress(norms, unreached), compress(statistics, unreached))
    except BaseException:
        _restore(norms, statistics)
        raise
    finally:
        for norm, momentum in zip(norms, momenta):
            norm.momentum = momentum
    return net


def _restore(norms: Iterable[_BatchNorm], statistics: Iterable[dict[str, Tensor]]) -> None:
    for norm, old in zip(norms, statistics):
        for name, buffer in old.items():
            norm.get_buffer(name).copy_(buffer)


class Selection(NamedTuple):
    """The best of several drawn networks, and the scores of all."""

    net: nn.Module
    scores: list[float]


def select_best(
    model: nn.Module, score: Callable[[nn.Module], float], *, draws: int, generator: torch.Generator | None = None
) -> Selection:
    """Draw networks and keep the one with the highest score (section 4.4).

    `score(net)` must use VALIDATION data. It may also change the network, so this is the place for `update_bn`. Of a
    method without randomness all draws would be the same: there is one, and one score.
    """
    if isinstance(draws, bool) or not isinstance(draws, int) or draws < 1:
        raise ValueError(f"draws must be a whole number of at least 1, got {describe(draws)}")
    best: nn.Module | None = None
    scores: list[float] = []
    for draw in range(draws if is_random(model) else 1):
        net = discretize(model, generator=generator)
        with torch.no_grad():
            value = float(score(net))
        if math.isnan(value):
            raise ValueError(
                f"the score of draw {draw + 1} of {draws} is NaN; let score(net) return a number, higher for better"
            )
        if best is None or value > max(scores):
            best = net
        scores.append(value)
    assert best is not None
    return Selection(best.eval(), scores)
