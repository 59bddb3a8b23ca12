"""BitNet b1.58's weights (Ma et al. 2024, "The era of 1-bit LLMs"): ternary by the mean size.

    w = gamma clip(round(r / gamma), -1, 1),    gamma = mean |r| of the layer    (their eq. 1-3)

with the gradient for w used for r as it is. Rounding puts the threshold at half of gamma, and gamma is the scale, too.
Only the weights are theirs here: activations stay as they are, where theirs have 8 bits (export offers that for any
method).
"""

from __future__ import annotations

from torch import Tensor

from lrnets.methods.straight_through import Quantizer, makers, straight_through

SMALLEST = 1e-5  # least gamma, as in the authors' training code


def absmean_ternary(weight: Tensor) -> Tensor:
    """gamma clip(round(r / gamma), -1, 1); shape of the weight."""
    gamma = weight.abs().mean().clamp(min=SMALLEST)
    return (weight / gamma).round().clamp(-1, 1) * gamma


class AbsmeanTernary(Quantizer):
    """BitNet b1.58's quantiser."""

    def forward(self, latent: Tensor) -> Tensor:
        return straight_through(latent, absmean_ternary(latent.detach()))


LAYERS = makers(AbsmeanTernary)
