"""Torch's own layers: what they are built from, and one with given weights in it."""

from __future__ import annotations

from typing import Any

from torch import Tensor, nn

_CONVOLUTION = (
    "in_channels", "out_channels", "kernel_size", "stride", "padding", "dilation", "groups", "padding_mode",
)  # fmt: skip
ARGUMENTS: dict[type[nn.Module], tuple[str, ...]] = {
    nn.Linear: ("in_features", "out_features"),
    nn.Conv1d: _CONVOLUTION,
    nn.Conv2d: _CONVOLUTION,
    nn.Conv3d: _CONVOLUTION,
    nn.ConvTranspose2d: (*_CONVOLUTION, "output_padding"),
}


def first_of(inputs: tuple[Tensor, ...], named: dict[str, Tensor]) -> Tensor:
    """What a hook finds as a layer's input, by place or, as torch calls it, by name."""
    return inputs[0] if inputs else named["input"]


def settings_of(kind: type[nn.Module], layer: nn.Module) -> dict[str, Any]:
    """The arguments that build a layer of torch's `kind`, or of one derived from it, like this one, bias apart."""
    known = next(plain for plain in ARGUMENTS if issubclass(kind, plain))
    return {name: getattr(layer, name) for name in ARGUMENTS[known]}


def filled(kind: type[nn.Module], like: nn.Module, weight: Tensor, bias: nn.Parameter | None) -> nn.Module:
    """A layer of torch's `kind`, or of one derived from it, with the settings of `like` and these frozen weights."""
    layer = kind(**settings_of(kind, like), bias=bias is not None, device="meta")
    layer.weight = nn.Parameter(weight, requires_grad=False)
    layer.register_parameter("bias", bias)
    return layer.train(like.training)
