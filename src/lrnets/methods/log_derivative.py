"""The log-derivative estimator (REINFORCE; Williams 1992): the paper's eq. 2, with a baseline.

Weights are really drawn in each training pass, so the loss has no gradient for the logits. What it has is

    grad E[L] = E[(L - c) grad ln P(W)]

for any c that does not depend on W: since E[grad ln P(W)] = 0 the baseline c costs no bias, and c near E[L] takes away
much of the variance. The loss is known only to the training loop, which therefore has one more line:

    loss = surrogate_loss(model, criterion(model(x), y))
    loss.backward()
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor, nn
from typing_extensions import Self

from lrnets.layers import LRConv1d, LRConv2d, LRConv3d, LRConvTranspose2d, LRLinear, Scale, Values
from lrnets.methods.sampled import SampledWeights, log_probabilities
from lrnets.noise import recomputing
from lrnets.weights import P_MAX, P_MIN, ValueSet, at_least_float32

BASELINE_DECAY = 0.9
MOST_PENDING = 64  # draws a layer keeps, each as large as its weights, while no loss comes


def log_likelihood(logits: Tensor, values: ValueSet, weight: Tensor) -> Tensor:
    """ln P(W) = sum of ln p(w_ij), a scalar; logits (logits a weight, *weight shape), `weight` levels of its shape."""
    levels = weight.new_tensor(values.levels)
    index = torch.bucketize(weight.detach().contiguous(), (levels[1:] + levels[:-1]) / 2)  # nearest level
    chosen = log_probabilities(values, at_least_float32(logits)).gather(0, index.unsqueeze(0))
    return chosen.sum()


class LogDerivativeLayer(SampledWeights):
    """A layer that draws its weights in each training pass and remembers them for `surrogate_loss`.

    `baseline` is the running mean of former losses, b <- decay b + (1 - decay) loss, and None before the first.
    """

    baseline: Tensor | None
    decay: float = BASELINE_DECAY

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.register_buffer("baseline", None)
        self.pending: list[Tensor] = []

    def sample_weight(self) -> Tensor:
        drawn = self.values.draw(self.weight_logits, generator=self.generator)
        # (What activation checkpointing computes again was remembered the first time.)
        if torch.is_grad_enabled() and self.logits.requires_grad and not recomputing():
            if len(self.pending) == MOST_PENDING:
                raise RuntimeError(
                    f"{MOST_PENDING} training passes have drawn weights and no loss has come back for them; call "
                    "surrogate_loss(model, loss) after each pass, or run the model in eval mode or without gradients"
                )
            self.pending.append(drawn)
        return drawn

    def extra_loss(self, loss: Tensor, examples: int = 0, *, baseline: Tensor | float | None = None) -> Tensor:
        """(loss - c) (ln P(W) - its own value): a zero whose gradient is the estimator; `loss` is taken as a number.

        c is `baseline`, or the running mean, or 0 for the first loss: the present loss is no part of c, which would
        bias the estimator.
        """
        former, reward = self.baseline, loss.detach()
        c = baseline if baseline is not None else 0.0 if former is None else former
        logits, draws, self.pending = self.weight_logits, self.pending, []
        self.baseline = reward.clone() if former is None else torch.lerp(reward, former, self.decay)
        log_p = sum((log_likelihood(logits, self.values, drawn) for drawn in draws), torch.zeros_like(reward))
        return (reward - c) * (log_p - log_p.detach())

    @classmethod
    def from_plain(
        cls, layer: nn.Module, values: Values, scale: Scale, p_min: float = P_MIN, p_max: float = P_MAX,
        decay: float = BASELINE_DECAY,
    ) -> Self:  # fmt: skip
        """The twin of torch's own layer, started as an LR layer is."""
        if not 0 <= decay < 1:
            raise ValueError(
                f"decay must be at least 0 and below 1, got {decay}; {BASELINE_DECAY} forgets in ten steps"
            )
        twin = super().from_plain(layer, values, scale, p_min, p_max)
        twin.decay = decay
        return twin

    def _load_from_state_dict(self, state_dict: dict[str, Any], prefix: str, *others: Any) -> None:
        saved = state_dict.get(f"{prefix}baseline")
        self.baseline = None if saved is None else torch.zeros_like(saved, device=self.logits.device)
        super()._load_from_state_dict(state_dict, prefix, *others)


class LogDerivativeLinear(LogDerivativeLayer, LRLinear):
    """nn.Linear with weights that are drawn in training."""


class LogDerivativeConv1d(LogDerivativeLayer, LRConv1d):
    """nn.Conv1d with weights that are drawn in training."""


class LogDerivativeConv2d(LogDerivativeLayer, LRConv2d):
    """nn.Conv2d with weights that are drawn in training."""


class LogDerivativeConv3d(LogDerivativeLayer, LRConv3d):
    """nn.Conv3d with weights that are drawn in training."""


class LogDerivativeConvTranspose2d(LogDerivativeLayer, LRConvTranspose2d):
    """nn.ConvTranspose2d with weights that are drawn in training."""


LAYERS: tuple[type[LogDerivativeLayer], ...] = (
    LogDerivativeLinear,
    LogDerivativeConv1d,
    LogDerivativeConv2d,
    LogDerivativeConv3d,
    LogDerivativeConvTranspose2d,
)


def log_derivative_layers(model: nn.Module) -> Iterator[LogDerivativeLayer]:
    """Each layer that learns by the log-derivative estimator."""
    return (module for module in model.modules() if isinstance(module, LogDerivativeLayer))


def surrogate_loss(model: nn.Module, loss: Tensor, *, baseline: Tensor | float | None = None) -> Tensor:
    """A scalar with the value of `loss` and, for the logits, the gradient (loss - c) grad ln P(W).

    Call it once after each training pass, with what depends on the draw: add penalties to the result. All other
    parameters keep the loss's own gradient. c is each layer's running mean; `baseline` takes its place: any control
    variate that does not depend on the draw, such as the loss of the most probable network.
    """
    if loss.dim():
        raise ValueError(f"surrogate_loss takes a scalar, got shape {tuple(loss.shape)}; average over the batch first")
    layers = [layer for layer in log_derivative_layers(model) if layer.pending]
    if not layers:
        raise RuntimeError(
            "no layer has drawn weights since the last surrogate loss; convert the model with "
            "method='logderivative' and run it in train mode, with gradients, before each call"
        )
    for layer in layers:
        loss = loss + layer.extra_loss(loss.detach(), baseline=baseline)
    return loss
