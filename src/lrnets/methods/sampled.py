"""Layers that sample their weights in training, where an LR-net samples its pre-activations.

Gumbel-softmax (gumbel.py) and the log-derivative estimator (log_derivative.py) share this: one sample of the weights
for the whole batch, in the place of one number a pre-activation.
"""

from __future__ import annotations

from abc import abstractmethod

import torch
import torch.nn.functional as F
from torch import Tensor

from lrnets import functional
from lrnets.layers import LRLayer
from lrnets.noise import check_repeatable
from lrnets.weights import Binary, Levels, Ternary, ValueSet


class SampledWeights(LRLayer):
    """An LR layer whose training pass is z = W h + b with sampled W; all else is as in LRLayer."""

    local = False

    @abstractmethod
    def sample_weight(self) -> Tensor:
        """The weights of one training pass, before the layer's scale; shape of the weight."""

    def _sample(self, x: Tensor, linear_map: functional.LinearMap) -> Tensor:
        functional.check_input(x)
        check_repeatable(self.generator)
        weight = self.scaled(self.sample_weight())
        bias: Tensor | None = self.bias
        device = x.device.type
        if torch.amp.is_autocast_available(device) and torch.is_autocast_enabled(device) and x.dtype != torch.float64:
            dtype = torch.get_autocast_dtype(device)  # aten's convolution does not look at autocast by itself
            x, weight, bias = x.to(dtype), weight.to(dtype), None if bias is None else bias.to(dtype)
        return linear_map(x, weight, bias)


def log_probabilities(values: ValueSet, logits: Tensor) -> Tensor:
    """ln p_k of each level, finite for all finite logits; (levels, *weight shape).

    The logarithm of `values.probabilities` has no gradient where a probability has underflowed to 0.
    """
    if isinstance(values, Binary):
        return torch.cat([F.logsigmoid(-logits), F.logsigmoid(logits)])
    if isinstance(values, Ternary):
        a, b = logits.unbind(0)
        some = F.logsigmoid(-a)
        return torch.stack([some + F.logsigmoid(-b), F.logsigmoid(a), some + F.logsigmoid(b)])
    if isinstance(values, Levels):
        return torch.log_softmax(logits, 0)
    p = values.probabilities(logits)
    return p.clamp_min(torch.finfo(p.dtype).tiny).log()
