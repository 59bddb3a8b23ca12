"""TTQ, trained ternary quantisation (Zhu, Han, Mao and Dally 2017): two scales a layer, which learn.

    w = +p if r > Delta, -n if r < -Delta, else 0,    Delta = t max |r|          (their eq. 6 and 9)
    dL/dp = sum of dL/dw over r > Delta,    dL/dn = -sum of dL/dw over r < -Delta               (eq. 7)
    dL/dr = dL/dw * (p if r > Delta, n if r < -Delta, else 1)                                   (eq. 8)

Eq. 7 prints the second sum without its sign, which then would make the loss grow. t = 0.05 is theirs. The scales start
as the means of |r| above and below the thresholds: the least-squares fit of the float layer.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn
from typing_extensions import Self

from lrnets.methods.straight_through import Quantizer, makers, straight_through


def regions(weight: Tensor, threshold: float) -> tuple[Tensor, Tensor]:
    """Where r > Delta and where r < -Delta, Delta = threshold * max |r|; booleans of the weight's shape."""
    delta = threshold * weight.abs().max()
    return weight > delta, weight < -delta


class TrainedTernary(Quantizer):
    """TTQ's quantiser; both scales are parameters, a number each."""

    def __init__(self, positive: Tensor, negative: Tensor, threshold: float = 0.05) -> None:
        super().__init__()
        self.positive, self.negative = nn.Parameter(positive), nn.Parameter(negative)
        self.threshold = threshold

    @classmethod
    def fit(  # type: ignore[override]
        cls, weight: nn.Parameter, *, threshold: float = 0.05
    ) -> tuple[Self, nn.Parameter]:
        if not 0 <= threshold < 1:
            raise ValueError(f"threshold must be from 0 to below 1, a share of max |w|, got {threshold}; try 0.05")
        above, below = regions(weight, threshold)
        positive, negative = ((weight.abs() * part).sum() / part.sum().clamp(min=1) for part in (above, below))
        return cls(positive, negative, threshold), weight

    def forward(self, latent: Tensor) -> Tensor:
        above, below = regions(latent.detach(), self.threshold)
        zero = latent.new_zeros(())
        quantized = torch.where(above, self.positive, torch.where(below, -self.negative, zero))
        slope = torch.where(above, self.positive.detach(), torch.where(below, self.negative.detach(), zero + 1))
        return straight_through(latent, quantized, slope)

    def extra_repr(self) -> str:
        return f"threshold={self.threshold}"


LAYERS = makers(TrainedTernary)
