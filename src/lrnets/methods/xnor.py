"""XNOR-Net (Rastegari et al. 2016, section 3.2): BWN's weights and the signs of the input, with a scale for each place.

    y = (sign(x) * sign(r)) K alpha + bias
    K = A * k,    A = mean of |x| over the channels,    k = 1 / (width height) at each place of the kernel

where * is the layer's own convolution: K is the mean size of the inputs that each place of the output sees (padding
counts as 0, as it does in the convolution), and for a linear layer the mean size of its inputs. With groups, each group
has its own. `input_scale=False` leaves K out: it costs a second, small convolution, and batch norm makes up for much of
it. Gradients go through the sign where |x| <= 1, and through K as it is computed.

Their block is batch norm - sign - convolution (- pooling). A network of convolution - batch norm - ReLU (- pooling)
blocks becomes that by itself once the sign stands at the input of the next layer: see lrnets.methods.flow.
"""

from __future__ import annotations

import math

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from lrnets.methods.activations import SignConv1d, SignConv2d, SignConv3d, SignInput, SignLinear
from lrnets.methods.bwn import ScaledSign
from lrnets.methods.straight_through import Maker, StraightThrough, makers
from lrnets.weights import ValueSet


class XnorLinear(SignInput, nn.Linear):
    """y = (sign(x) W^T) mean|x| + b."""

    def forward(self, input: Tensor) -> Tensor:
        y = F.linear(self.binarize(input), self.weight) * input.abs().mean(-1, keepdim=True)
        return y if self.bias is None else y + self.bias


class _XnorConv(SignInput, nn.modules.conv._ConvNd):
    """y = (sign(x) * W) K + b; the convolution's settings are K's too."""

    def forward(self, input: Tensor) -> Tensor:
        y = self._conv_forward(self.binarize(input), self.weight, None) * self.scale_map(input)
        return y if self.bias is None else y + self.bias.view(-1, *[1] * len(self.kernel_size))

    def scale_map(self, x: Tensor) -> Tensor:
        """K; x (batch, channels, ...) or (channels, ...), result with a channel, or with as many as the output."""
        channels = x.dim() - len(self.kernel_size) - 1
        sizes = x.abs().unflatten(channels, (self.groups, -1)).mean(channels + 1)  # (..., groups, ...)
        share = 1 / math.prod(self.kernel_size)
        box = torch.full((self.groups, 1, *self.kernel_size), share, dtype=x.dtype, device=x.device)
        scales = self._conv_forward(sizes, box, None)
        return scales if self.groups == 1 else scales.repeat_interleave(self.out_channels // self.groups, channels)


class XnorConv1d(_XnorConv, nn.Conv1d):
    """nn.Conv1d of the signs of its input, times the mean size of what it sees."""


class XnorConv2d(_XnorConv, nn.Conv2d):
    """nn.Conv2d of the signs of its input, times the mean size of what it sees."""


class XnorConv3d(_XnorConv, nn.Conv3d):
    """nn.Conv3d of the signs of its input, times the mean size of what it sees."""


SCALED = {nn.Linear: XnorLinear, nn.Conv1d: XnorConv1d, nn.Conv2d: XnorConv2d, nn.Conv3d: XnorConv3d}
BARE = {nn.Linear: SignLinear, nn.Conv1d: SignConv1d, nn.Conv2d: SignConv2d, nn.Conv3d: SignConv3d}


class XnorMaker(Maker):
    """Builds layers with K or without."""

    def from_plain(
        self, layer: nn.Module, values: ValueSet | None, *, input_scale: bool = True, **options: bool
    ) -> StraightThrough:
        with_signs = (SCALED if input_scale else BARE)[self.plain]
        return Maker(self.plain, self.quantizer, with_signs).from_plain(layer, values, **options)


LAYERS = tuple(XnorMaker(maker.plain, maker.quantizer) for maker in makers(ScaledSign))
