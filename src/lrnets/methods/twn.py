"""TWN, ternary weight networks (Li, Zhang and Liu 2016): a threshold and a scale found from the weights.

    w = +alpha if r > Delta, -alpha if r < -Delta, else 0
    Delta = 0.7 mean |r|,    alpha = mean of |r| over |r| > Delta                (their eq. 3 to 6)

0.7 is close to the least-squares threshold for normal and for uniform weights alike. The gradient for w is used for r
as it is. Both numbers are a layer's by default, as in the authors' own code (caffe-twns takes them over a whole blob),
and so one scale is stored; per="filter" finds them for each output, as BWN does.
"""

from __future__ import annotations

from typing import Literal

import torch
from torch import Tensor

from lrnets.errors import describe
from lrnets.methods.straight_through import Quantizer, filter_dimensions, makers, straight_through

Per = Literal["layer", "filter"]


def ternarize(weight: Tensor, per: Per = "layer", threshold: float = 0.7) -> Tensor:
    """{-alpha, 0, +alpha} with Delta = threshold * mean |r|; shape of the weight (out, ...)."""
    size = weight.abs()
    dimensions = filter_dimensions(weight) if per == "filter" else list(range(weight.dim()))
    above = size > threshold * size.mean(dimensions, keepdim=True)
    count = above.sum(dimensions, keepdim=True).clamp(min=1)  # a filter of zeros has none
    alpha = (size * above).sum(dimensions, keepdim=True) / count
    return torch.where(above, torch.where(weight > 0, alpha, -alpha), torch.zeros_like(alpha))


class TernaryByThreshold(Quantizer):
    """TWN's quantiser."""

    def __init__(self, per: Per = "layer", threshold: float = 0.7) -> None:
        super().__init__()
        if per not in ("layer", "filter"):
            raise ValueError(f"per must be 'layer' or 'filter', got {describe(per)}")
        if not threshold > 0:
            raise ValueError(f"threshold must be above 0, a multiple of mean |w|, got {threshold}; the paper has 0.7")
        self.per, self.threshold = per, threshold

    def forward(self, latent: Tensor) -> Tensor:
        return straight_through(latent, ternarize(latent.detach(), self.per, self.threshold))

    def extra_repr(self) -> str:
        return f"per={self.per}, threshold={self.threshold}"


LAYERS = makers(TernaryByThreshold)
