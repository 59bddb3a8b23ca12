"""Fast dropout (Wang and Manning 2013): the mask of a layer's inputs is never drawn, its effect on the sum is.

With mask bits z_j ~ Bernoulli(1 - p) and torch's convention of dividing by 1 - p, the pre-activation
u_i = sum_j w_ij z_j h_j / (1 - p) has, exactly,

    E[u_i] = sum_j w_ij h_j                Var[u_i] = p / (1 - p) sum_j w_ij^2 h_j^2

and is nearly Gaussian if no term dominates (their section 2): sample it. A layer of this kind is dropout and linear
map in one, with float weights; the outputs' correlation through the shared mask is left out, as in the paper.
"""

from __future__ import annotations

from typing import Any

from torch import Tensor, nn

from lrnets.methods.gaussian import Convolution, Dense, NoisyLayer

RATE = 0.2  # of input dropped; the paper has 0.5 for hidden layers, and networks here often have dropout besides


class FastDropoutLayer(NoisyLayer):
    """A layer with dropout of rate `p` on its input, by its Gaussian approximation."""

    carriers = ("weight",)

    def __init__(self, *args: Any, p: float = RATE, **settings: Any) -> None:
        super().__init__(*args, **settings)
        if not 0 <= p < 1:
            raise ValueError(f"p must be at least 0 and below 1, got {p}; it is the share of inputs that is dropped")
        self.p = p

    def weight_variance(self) -> Tensor:
        """p / (1 - p) w^2: the masked input's randomness as if it were the weight's."""
        return self.p / (1 - self.p) * self.weight.square()

    def decayed(self) -> bool:
        return True


class FastDropoutLinear(FastDropoutLayer, Dense, nn.Linear):  # type: ignore[misc]
    """nn.Dropout and nn.Linear in one."""

    plain = nn.Linear


class FastDropoutConv1d(FastDropoutLayer, Convolution, nn.Conv1d):  # type: ignore[misc]
    """nn.Dropout and nn.Conv1d in one."""

    plain = nn.Conv1d


class FastDropoutConv2d(FastDropoutLayer, Convolution, nn.Conv2d):  # type: ignore[misc]
    """nn.Dropout and nn.Conv2d in one."""

    plain = nn.Conv2d


class FastDropoutConv3d(FastDropoutLayer, Convolution, nn.Conv3d):  # type: ignore[misc]
    """nn.Dropout and nn.Conv3d in one."""

    plain = nn.Conv3d


LAYERS: tuple[type[FastDropoutLayer], ...] = (
    FastDropoutLinear,
    FastDropoutConv1d,
    FastDropoutConv2d,
    FastDropoutConv3d,
)
