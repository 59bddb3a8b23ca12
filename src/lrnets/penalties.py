"""What keeps the weights' entropy right, and parameter groups for an optimiser."""

from __future__ import annotations

from numbers import Real
from typing import Any

import torch
from torch import Tensor, nn

from lrnets.errors import describe
from lrnets.layers import lr_layers
from lrnets.methods.twin import AnyTwin, Twin, carrying_parameters, twins
from lrnets.weights import at_least_float32


def penalty(model: nn.Module, *, probability_decay: float = 0.0, beta: float = 0.0) -> Tensor:
    """A scalar to add to the loss; both terms are sums over all random weights.

    Probability decay (section 4.2) raises entropy: probability_decay * 1/2 sum theta^2. It belongs in the loss, where
    Adam sees its gradient; it is not the decoupled decay of AdamW. The beta regulariser (section 4.3) lowers entropy:
    beta * sum p (1 - p), which for more than two values is beta * sum 1/2 sum_k p_k (1 - p_k).
    """
    for name, weight in (("probability_decay", probability_decay), ("beta", beta)):
        _check(name, weight, "the paper uses 1e-11 and 1e-6")
    if (probability_decay or beta) and any(layer.natural for _, layer in lr_layers(model)):
        raise ValueError(
            "the model has natural gradients (set_natural), to which the derivatives of probability_decay and beta "
            "cannot be added; leave these out, and use param_groups(logit_decay=...)"
        )
    first = next(model.parameters(), None)
    total = torch.zeros((), device=None if first is None else first.device)
    seen: set[int] = set()
    for _, layer in lr_layers(model):
        if id(layer.logits) in seen:  # tied weights count once
            continue
        seen.add(id(layer.logits))
        if probability_decay:
            flat = at_least_float32(layer.logits).flatten()  # sums over a layer are beyond float16
            total = total + 0.5 * probability_decay * torch.dot(flat, flat)
        if beta:
            p = layer.values.probabilities(at_least_float32(layer.weight_logits))
            total = total + 0.5 * beta * (p * (1 - p)).sum()
    return total


def param_groups(
    model: nn.Module, *, lr: float, weight_decay: float = 0.0, logit_lr: float | None = None, logit_decay: float = 0.0
) -> list[dict[str, Any]]:
    """Groups for a torch optimiser: logits (own learning rate and decay), float weights, and the rest.

    Weight decay is for the float weights (two or more dimensions); biases and norms, in the rest, go without. The float
    weights behind quantised ones (latents, of straight-through methods) learn at the logits' rate, and are decayed if
    that is part of the method. `logit_decay` takes logits towards 0 beside the gradient, as AdamW does: logits times
    1 - lr * logit_decay each step. Adam, NAdam and RAdam do so by a group's `decoupled_weight_decay`, AdamW always; SGD
    and others add it to the gradient, as they do with any weight decay.
    """
    _check("lr", lr, "0.01 is one to try")
    _check("logit_lr", lr if logit_lr is None else logit_lr, "None takes lr")
    _check("weight_decay", weight_decay, "0 is none")
    _check("logit_decay", logit_decay, "0.05 is one to try")
    carrying = {id(p): layer for _, layer in twins(model) for p in carrying_parameters(layer)}
    carrying_lr = lr if logit_lr is None else logit_lr
    groups: dict[str, dict[str, Any]] = {
        "logits": {"params": [], "lr": carrying_lr, "weight_decay": logit_decay},
        "latents": {"params": [], "lr": carrying_lr, "weight_decay": weight_decay},
        "weights": {"params": [], "lr": lr, "weight_decay": weight_decay},
        "rest": {"params": [], "lr": lr, "weight_decay": 0.0},
    }
    for parameter in model.parameters():
        if parameter.requires_grad:
            groups[_group(parameter, carrying.get(id(parameter)))]["params"].append(parameter)
    if logit_decay:
        groups["logits"]["decoupled_weight_decay"] = True
    return [{"name": name, **group} for name, group in groups.items() if group["params"]]


def _check(name: str, number: Any, example: str) -> None:
    """Refuse what is no rate; a learning rate may be a tensor, as torch's optimisers take one."""
    is_number = isinstance(number, (Real, Tensor)) and not isinstance(number, bool)
    if not is_number:
        raise TypeError(f"{name} must be a number, got {describe(number)}; {example}")
    if not 0 <= number < float("inf"):
        raise ValueError(f"{name} must be a finite number of at least 0, got {number}; {example}")


def _group(parameter: nn.Parameter, layer: AnyTwin | None) -> str:
    """The group of a parameter; `layer` is the one whose weights it carries, if any."""
    if layer is None:
        return "weights" if parameter.dim() >= 2 else "rest"
    if isinstance(layer, Twin) and layer.decayed():
        return "latents" if layer.own_rate else "weights"
    return "logits" if not isinstance(layer, Twin) or layer.own_rate else "rest"
