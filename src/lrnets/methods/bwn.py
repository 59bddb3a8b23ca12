"""BWN, binary weight networks (Rastegari et al. 2016, "XNOR-Net", section 3.1): signs with a scale for each filter.

    w = alpha sign(r),    alpha = mean of |r| over the n weights of an output's filter             (their eq. 6)
    dL/dr = dL/dw (1 / n + alpha 1[|r| <= 1])                                                      (section 3.1)

alpha and the signs are the least-squares fit of the filter. The gradient is theirs, weight by weight; the exact
derivative of alpha would add to each weight the mean over its filter of dL/dw times sign, in the place of dL/dw / n.
"""

from __future__ import annotations

import torch
from torch import Tensor

from lrnets.methods.straight_through import Quantizer, filter_dimensions, makers, straight_through


def filter_scale(weight: Tensor) -> Tensor:
    """alpha = mean |r| of each filter; weight (out, ...), result (out, 1, ...)."""
    return weight.abs().mean(filter_dimensions(weight), keepdim=True)


class ScaledSign(Quantizer):
    """alpha sign(r), with alpha for each filter."""

    def forward(self, latent: Tensor) -> Tensor:
        weight = latent.detach()
        alpha = filter_scale(weight)
        slope = 1 / weight[0].numel() + alpha * (weight.abs() <= 1)
        return straight_through(latent, torch.where(weight >= 0, alpha, -alpha), slope)


LAYERS = makers(ScaledSign)
