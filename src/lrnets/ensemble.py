"""Several drawn networks as one."""

from __future__ import annotations

import math
from collections.abc import Iterable
from typing import Literal, NamedTuple

import torch
from torch import Tensor, nn

from lrnets.errors import describe


class Uncertainty(NamedTuple):
    """What an ensemble knows about its own doubt; entropies in bits, one for each example."""

    probabilities: Tensor  # averaged over the networks
    predictive_entropy: Tensor  # all doubt: H(mean_n p_n)
    mutual_information: Tensor  # doubt from the networks' disagreement: H(mean_n p_n) - mean_n H(p_n)


class Ensemble(nn.Module):
    """The average of several networks: of their class probabilities, or of their logits.

    Networks return logits with classes in dimension `class_dim`; the ensemble returns averaged probabilities, or
    averaged logits with `average="logits"`.
    """

    def __init__(
        self,
        nets: Iterable[nn.Module],
        *,
        average: Literal["probabilities", "logits"] = "probabilities",
        class_dim: int = 1,
    ) -> None:
        super().__init__()
        if average not in ("probabilities", "logits"):
            raise ValueError(f"average must be 'probabilities' or 'logits', got {describe(average)}")
        if not isinstance(nets, nn.ModuleList) and isinstance(nets, nn.Module):  # nn.Sequential gives its layers
            raise TypeError(
                f"an ensemble takes several networks, got one {type(nets).__name__}; pass a list of networks"
            )
        self.nets = nn.ModuleList(nets)
        if not len(self.nets):
            raise ValueError(
                "an ensemble needs at least one network, got none; draw some with lrnets.discretize(model)"
            )
        self.average = average
        self.class_dim = class_dim

    def forward(self, x: Tensor) -> Tensor:
        total: Tensor | None = None
        for net in self.nets:
            out = net(x) if self.average == "logits" else net(x).softmax(self.class_dim)
            total = out if total is None else total + out
        assert total is not None
        return total / len(self.nets)

    @torch.no_grad()
    def uncertainty(self, x: Tensor) -> Uncertainty:
        """Averaged probabilities, predictive entropy and mutual information."""
        p = torch.stack([net(x).softmax(self.class_dim) for net in self.nets])  # (nets, batch, classes, ...)
        mean = p.mean(0)
        predictive = self._entropy(mean, self.class_dim)
        expected = self._entropy(p, self.class_dim + 1 if self.class_dim >= 0 else self.class_dim).mean(0)
        return Uncertainty(mean, predictive, (predictive - expected).clamp_(min=0))

    @staticmethod
    def _entropy(p: Tensor, dim: int) -> Tensor:
        return torch.special.entr(p).sum(dim) / math.log(2)
