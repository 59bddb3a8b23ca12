"""BNN (Courbariaux et al. 2016, "Binarized Neural Networks"): binary weights and binary activations.

    w = sign(r), dL/dr = dL/dw 1[|r| <= 1], r clipped to [-1, 1] after each step
    y = layer(sign(x)), dL/dx = dL/dsign(x) 1[|x| <= 1]                          (their eq. 4, algorithm 1)

Batch norm and Adam are the ordinary ones, not their shift-based twins. A layer that reads the network's own input takes
it as it is (their section 1.5 feeds it in 8 bits). What becomes of a network's ReLUs is told in lrnets.methods.flow.
"""

from __future__ import annotations

from torch import Tensor, nn

from lrnets.methods.activations import SignConv1d, SignConv2d, SignConv3d, SignLinear
from lrnets.methods.binaryconnect import ClippedSign
from lrnets.methods.straight_through import makers


class WindowedSign(ClippedSign):
    """BinaryConnect's deterministic sign; a gradient passes where |r| <= 1."""

    def slope(self, latent: Tensor) -> Tensor:
        return (latent.detach().abs() <= 1).to(latent.dtype)


LAYERS = makers(
    WindowedSign, {nn.Linear: SignLinear, nn.Conv1d: SignConv1d, nn.Conv2d: SignConv2d, nn.Conv3d: SignConv3d}
)
