"""From distributions to an ordinary network with discrete weights: draw, re-estimate batch norm, keep the best."""

from __future__ import annotations

import copy
import math
from collections.abc import Callable, Iterable
from itertools import compress, islice
from typing import Any, Literal, NamedTuple, cast

import torch
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm

from lrnets.convert import HOOKS
from lrnets.errors import describe
from lrnets.layers import LRLayer
from lrnets.methods.twin import AnyTwin, carrying_parameters, choose, is_random, tied_key, twins
from lrnets.modes import evaluating

COMPUTING = ("forward", "_compute", "_conv_forward")  # of a layer: what a class may have in its own way


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
    _check_arguments("discretize", model, generator)
    if mode not in ("sample", "mode"):
        raise ValueError(f"mode must be 'sample' or 'mode', got {describe(mode)}")
    for name, layer in twins(model):
        _check_layer(f"layer {name!r}" if name else "the layer", layer)
    # The copy finds each layer in training already "copied": as a plain layer. Logits are never duplicated.
    memo: dict[int, Any] = {}
    for module in model.modules():  # what was kept of a forward pass; torch copies no tensor that has a history
        kept = (*vars(module).values(), *module._buffers.values())
        memo.update({id(t): t.detach().clone() for t in kept if isinstance(t, Tensor) and not t.is_leaf})
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


def _check_arguments(name: str, model: nn.Module, generator: torch.Generator | None) -> None:
    if not isinstance(model, nn.Module):
        raise TypeError(f"{name} takes a torch.nn.Module, got {describe(model)}")
    if generator is not None and not isinstance(generator, torch.Generator):
        raise TypeError(
            f"generator must be a torch.Generator or None, got {describe(generator)}; "
            "torch.Generator().manual_seed(0) is one"
        )


def _check_layer(name: str, layer: AnyTwin) -> None:
    """Refuse a layer whose weights are not known, or that computes what no layer of torch's own would."""
    carriers = [parameter for parameter in carrying_parameters(layer) if not parameter.is_meta]
    bad, total = sum(int(p.isnan().sum()) for p in carriers), sum(p.numel() for p in carriers)
    if bad:
        what = "logits" if isinstance(layer, LRLayer) else "weights in training"
        raise ValueError(
            f"{name}: {bad} of {total} {what} are NaN, so there is nothing to draw from; go back to an earlier "
            "checkpoint and lower the learning rate"
        )
    kind: Any = type(layer)
    # The class that names torch's layer answers for what it computes; one derived from it may compute something else.
    known: Any = next((k for k in kind.__mro__ if "plain" in vars(k)), kind)
    own = [m for m in COMPUTING if getattr(kind, m, None) is not getattr(known, m, None)]
    if own and known.forward is not nn.Module.forward and kind.to_plain is known.to_plain:
        raise ValueError(
            f"{name}: {kind.__name__} has a {own[0]} of its own, which the drawn {known.plain.__name__} would not "
            f"compute; give {kind.__name__} a to_plain(levels, bias) that builds a layer which does"
        )


@torch.no_grad()
def update_bn(net: nn.Module, loader: Iterable[Any], *, batches: int | None = None) -> nn.Module:
    """Re-estimate, in place, batch-norm statistics on the (first) batches of `loader`; returns the network.

    Statistics are the plain average over batches. Only batch norm is in training mode meanwhile: dropout stays off,
    and a stochastic layer computes with its most probable weights. Batches are inputs, or tuples and lists that begin
    with them. A norm that no batch reaches keeps its statistics; if anything fails, or statistics are not finite, all
    old ones come back.
    """
    if batches is not None and (isinstance(batches, bool) or not isinstance(batches, int) or batches < 1):
        raise ValueError(f"batches must be a whole number of at least 1, got {describe(batches)}; None takes all")
    if isinstance(loader, Tensor):
        raise TypeError(f"the loader gives batches, got a tensor of shape {tuple(loader.shape)}; pass [tensor]")
    named = {name: m for name, m in net.named_modules() if isinstance(m, _BatchNorm) and m.running_mean is not None}
    norms = list(named.values())
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
                net(_inputs_of(batch, seen).to(device))
                seen += 1
            if not seen:
                raise ValueError(
                    "the loader gave no batch, so batch norm has no statistics; is it an exhausted iterator?"
                )
            unreached = [norm.num_batches_tracked == 0 for norm in norms]
            for (name, norm), spared in zip(named.items(), unreached):
                finite = cast(Tensor, norm.running_mean).isfinite() & cast(Tensor, norm.running_var).isfinite()
                if not spared and not finite.all():
                    raise ValueError(
                        f"norm {name!r}: the statistics of {int((~finite).sum())} of {finite.numel()} channels are NaN "
                        f"or infinite after {seen} batches, the old ones are back; look for such numbers in the inputs "
                        "and in the network's weights"
                    )
        _restore(compress(norms, unreached), compress(statistics, unreached))
    except BaseException:
        _restore(norms, statistics)
        raise
    finally:
        for norm, momentum in zip(norms, momenta):
            norm.momentum = momentum
    return net


def _inputs_of(batch: Any, number: int) -> Tensor:
    """The inputs of a batch of a loader."""
    within = isinstance(batch, (list, tuple)) and len(batch) > 0
    inputs = batch[0] if within else batch
    if not isinstance(inputs, Tensor):
        what = f"{type(batch).__name__} that begins with {type(inputs).__name__}" if within else type(batch).__name__
        raise TypeError(
            f"batch {number + 1} of the loader is a {what}; give tensors, or tuples and lists that begin with one, as "
            "(batch['x'] for batch in loader) does"
        )
    return inputs


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
    _check_arguments("select_best", model, generator)
    best: nn.Module | None = None
    scores: list[float] = []
    for draw in range(draws if is_random(model) else 1):
        net = discretize(model, generator=generator)
        with torch.no_grad():
            returned = score(net)
        try:
            value = float(returned)
        except (TypeError, ValueError, RuntimeError):  # of None, of text, of a tensor with several numbers
            raise TypeError(f"score(net) must return a number, higher for better, got {describe(returned)}") from None
        if math.isnan(value):
            raise ValueError(
                f"the score of draw {draw + 1} of {draws} is NaN; let score(net) return a number, higher for better"
            )
        if best is None or value > max(scores):
            best = net
        scores.append(value)
    assert best is not None
    return Selection(best.eval(), scores)
