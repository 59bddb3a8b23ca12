"""BinaryConnect (Courbariaux, Bengio and David 2015): binary weights, straight through, clipped.

    deterministic    w = +1 if r >= 0, else -1                                   (their eq. 1)
    stochastic       w = +1 with probability clip((r + 1) / 2, 0, 1), else -1    (eq. 2, 3: the hard sigmoid)

The gradient for w is used for r as it is, and r is clipped to [-1, 1] after each step (algorithm 1), since beyond that
it has no influence. The float start is LR-net's: weights are divided by the deviation of the layer and clipped. With
`scale` that deviation multiplies the discrete weights, as a constant, so that outputs keep their size.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn
from typing_extensions import Self

from lrnets.errors import describe
from lrnets.methods.activations import signs
from lrnets.methods.straight_through import Quantizer, makers, straight_through
from lrnets.noise import check_repeatable
from lrnets.weights import at_least_float32, standardize


def hard_sigmoid(latent: Tensor) -> Tensor:
    """Probability of +1: clip((r + 1) / 2, 0, 1); shape of r."""
    return ((latent + 1) / 2).clamp(0, 1)


def draw_signs(latent: Tensor, generator: torch.Generator | None = None) -> Tensor:
    """+1 with the hard sigmoid's probability, else -1; shape of r."""
    p = hard_sigmoid(at_least_float32(latent.detach()))  # bfloat16 has but 256 uniform numbers
    below = torch.rand(p.shape, generator=generator, dtype=p.dtype, device=p.device) < p
    return torch.where(below, 1.0, -1.0).to(latent.dtype)


class ClippedSign(Quantizer):
    """The sign of weights that are kept in [-1, 1], times a constant scale unless that is None."""

    decayed = False  # clipping keeps the weights small; decay would only make signs turn
    scale: Tensor | None
    generator: torch.Generator | None = None

    def __init__(self, scale: Tensor | None = None, stochastic: bool = False) -> None:
        super().__init__()
        self.register_buffer("scale", scale)
        self.random = stochastic

    @classmethod
    def fit(  # type: ignore[override]
        cls, weight: nn.Parameter, *, scale: bool = True, stochastic: bool = False
    ) -> tuple[Self, nn.Parameter]:
        if not isinstance(scale, bool):  # an LR-net's may be fitted
            raise ValueError(f"scale must be True or False, got {describe(scale)}")
        standard, deviation = standardize(weight)
        latent = nn.Parameter(standard.clamp(-1, 1).to(weight.dtype), requires_grad=weight.requires_grad)
        return cls(deviation.to(weight.dtype) if scale else None, stochastic), latent

    def forward(self, latent: Tensor) -> Tensor:
        drawn = self.random and self.training
        if drawn:
            check_repeatable(self.generator)
        chosen = draw_signs(latent, self.generator) if drawn else signs(latent.detach())
        return self._scaled(straight_through(latent, chosen, self.slope(latent)))

    def slope(self, latent: Tensor) -> Tensor | float:
        """What stands for the sign's derivative."""
        return 1.0

    def draw(self, latent: Tensor, generator: torch.Generator | None) -> Tensor:
        return self._scaled(draw_signs(latent, generator)) if self.random else self(latent)

    def after_step_(self, latent: Tensor) -> None:
        latent.clamp_(-1, 1)

    def _scaled(self, chosen: Tensor) -> Tensor:
        return chosen if self.scale is None else chosen * self.scale

    def extra_repr(self) -> str:
        return f"scale={self.scale is not None}, stochastic={self.random}"


LAYERS = makers(ClippedSign)
