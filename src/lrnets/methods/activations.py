"""Binary activations: the sign with a straight-through gradient, and torch's layers that take the sign of their input.

    y = +1 if x >= 0, else -1;    dL/dx = dL/dy 1[|x| <= 1]

(Courbariaux et al. 2016, "Binarized Neural Networks", eq. 4: the gradient of the hard tanh.) The sign stands in the
layer, at its input, and not where a network has its ReLU: max pooling lies between the two in many networks, and of
equal signs it would send the gradient to the first. In front of the pooling or behind it the signs are the same.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn
from torch.autograd.function import once_differentiable


def signs(x: Tensor) -> Tensor:
    """+1 where x >= 0, else -1; shape and format of x."""
    return torch.where(x >= 0, 1.0, -1.0).to(x.dtype)


class _StraightThroughSign(torch.autograd.Function):
    @staticmethod
    def forward(x):
        return signs(x)

    @staticmethod
    def setup_context(ctx, inputs, output):
        ctx.save_for_backward(inputs[0].abs() <= 1)  # a byte an activation, not four

    @staticmethod
    @once_differentiable
    def backward(ctx, grad):
        (inside,) = ctx.saved_tensors
        return grad * inside


class Sign(nn.Module):
    """The sign of x, +1 for 0; gradients pass where |x| <= 1."""

    def forward(self, x: Tensor) -> Tensor:
        return _StraightThroughSign.apply(x) if torch.is_grad_enabled() and x.requires_grad else signs(x)


class SignInput(nn.Module):
    """A layer of torch's that takes the sign of its input first; before a layer's class in the order of bases."""

    binarize: Sign

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.binarize = Sign()

    def forward(self, input: Tensor) -> Tensor:
        return super().forward(self.binarize(input))


class SignLinear(SignInput, nn.Linear):
    """nn.Linear of the signs of its input."""


class SignConv1d(SignInput, nn.Conv1d):
    """nn.Conv1d of the signs of its input; padding stays 0."""


class SignConv2d(SignInput, nn.Conv2d):
    """nn.Conv2d of the signs of its input; padding stays 0."""


class SignConv3d(SignInput, nn.Conv3d):
    """nn.Conv3d of the signs of its input; padding stays 0."""
