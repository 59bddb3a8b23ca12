"""Layers whose weights are random variables over a few values: torch's signatures plus `values=`.

In `train()` a layer samples its pre-activations; in `eval()` it computes with its most probable weights, so what is
validated is what is deployed. Either way every weight is multiplied by the layer's `scale`, unless that is None.
"""

from __future__ import annotations

import math
import warnings
from collections.abc import Iterator, Sequence
from typing import Any, ClassVar, Literal, cast

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from typing_extensions import Self

from lrnets import functional
from lrnets.errors import describe
from lrnets.noise import check_repeatable
from lrnets.plain import filled, settings_of
from lrnets.weights import P_MAX, P_MIN, ValueSet, as_value_set, standardize

Values = str | Sequence[float] | ValueSet
Scale = bool | Literal["fitted"]  # whether a layer has one, and what it starts from; see LRLayer.from_plain


class LRLayer(nn.Module):
    """What all layers with random discrete weights share: logits, scale, bias, starts and draws.

    `logits` has the weight's dimensions, the first of them once for each logit of a weight, so that a change of memory
    format does to it what it does to torch's weight; `weight_logits` shows one logit after the other. `generator`, if
    set, is where the layer's noise comes from.
    """

    plain: ClassVar[type[nn.Module]]  # torch's layer of the same kind
    logits: nn.Parameter
    bias: nn.Parameter | None
    scale: Tensor | None
    weight_shape: torch.Size
    values: ValueSet
    generator: torch.Generator | None = None
    variance_floor: float = functional.VARIANCE_FLOOR
    local: ClassVar[bool] = True  # whether training samples pre-activations by local reparameterisation
    natural: bool = False  # whether the logits get natural gradients; see set_natural
    gain: nn.Parameter | None  # what has been learnt of the scale, as a factor; see learn_scales_
    sharpness: Tensor | None  # the logits count as multiplied by this; None is 1

    def __init__(self, template: nn.Module, values: Values, scale: bool, device: Any, dtype: Any) -> None:
        """Take shapes and settings from `template`, torch's own layer built on the meta device."""
        super().__init__()
        self.values = as_value_set(values)
        for name in cast(Sequence[str], template.__constants__):
            setattr(self, name, getattr(template, name))
        weight, bias = template.get_parameter("weight"), template._parameters["bias"]
        dtype = dtype or torch.get_default_dtype()
        self.weight_shape = weight.shape
        shape = (self.values.logits_per_weight * weight.shape[0], *weight.shape[1:])
        self.logits = nn.Parameter(torch.empty(shape, device=device, dtype=dtype))
        self.register_buffer("sharpness", None)
        self.register_buffer("scale", torch.ones((), device=device, dtype=dtype) if scale else None)
        self.register_parameter("gain", None)
        self.register_parameter(
            "bias", None if bias is None else nn.Parameter(torch.empty(bias.shape, device=device, dtype=dtype))
        )
        self.reset_parameters()

    def reset_parameters(self) -> None:
        """A random start: weights as if drawn from N(0, 1), scaled to the deviation of torch's own initialisation."""
        fan_in = self.fan_in
        with torch.no_grad():
            start = self.values.random_start(self.weight_shape, device=self.logits.device, dtype=self.logits.dtype)
            self.logits.copy_(start.flatten(0, 1))
            if self.scale is not None:
                self.scale.fill_(1 / math.sqrt(3 * fan_in) if fan_in else 1.0)
            if self.bias is not None:
                bound = 1 / math.sqrt(fan_in) if fan_in else 0.0
                self.bias.uniform_(-bound, bound)

    @property
    def fan_in(self) -> int:
        """Inputs that one output sums over (torch's convention, used for initialisation)."""
        return self.weight_shape[1:].numel()

    @property
    def weight_logits(self) -> Tensor:
        """The logits, sharpened, as (logits a weight, *weight shape): what the distributions are now."""
        return self._raw_logits if self.sharpness is None else self.sharpness * self._raw_logits

    @property
    def _raw_logits(self) -> Tensor:
        return self.logits.unflatten(0, (self.values.logits_per_weight, self.weight_shape[0]))

    @property
    def weight(self) -> Tensor:
        """The most probable weights, scaled: what `eval()` computes with; NaN where the logits are.

        They have no gradient for the logits: nothing that is computed from them in training (a tied decoder, a penalty
        of one's own) teaches the logits anything. Reading them there, with gradients on, is warned of.
        """
        learning = self.training and self.logits.requires_grad and torch.is_grad_enabled()
        if learning and not torch.compiler.is_compiling():
            warnings.warn(
                f"{type(self).__name__}.weight, the most probable weights, has no gradient for the logits; call the "
                "layer itself where they are to learn, and read its weight under torch.no_grad() or in eval mode",
                stacklevel=2,
            )
        logits = self.weight_logits
        return self.scaled(self.values.mode(logits).masked_fill(logits.isnan().any(0), math.nan))

    @property
    def whole_scale(self) -> Tensor | None:
        """The scale times its gain: what every level is multiplied by."""
        return self.scale if self.scale is None or self.gain is None else self.scale * self.gain

    def scaled(self, levels: Tensor) -> Tensor:
        """Levels times the layer's scale."""
        scale = self.whole_scale
        return levels if scale is None else levels * scale

    def _sample(self, x: Tensor, linear_map: functional.LinearMap) -> Tensor:
        functional.check_input(x, self.logits.dtype)
        check_repeatable(self.generator)
        return functional.local_reparameterization(
            x, self._raw_logits, self.bias, self.values, linear_map, scale=self.whole_scale, sharpness=self.sharpness,
            generator=self.generator, variance_floor=self.variance_floor, natural=self.natural,
        )  # fmt: skip

    def _compute(self, *inputs: Any) -> Tensor:
        """Torch's own forward pass; it reads the settings and `weight` of this layer."""
        functional.check_input(inputs[0])
        return self.plain.forward(self, *inputs)

    @classmethod
    @torch.no_grad()
    def from_plain(
        cls, layer: nn.Module, values: Values, scale: Scale, p_min: float = P_MIN, p_max: float = P_MAX
    ) -> Self:
        """The stochastic twin of torch's own layer: distributions started from its weights, its very own bias.

        Its scale is the deviation of these weights, or "fitted": what brings the mean weights nearest to them.
        """
        if not isinstance(scale, bool) and scale != "fitted":
            raise ValueError(f"scale must be True, False or 'fitted', got {describe(scale)}")
        weight, bias = layer.get_parameter("weight"), layer._parameters["bias"]
        twin = cast(Any, cls)(
            **settings_of(cls.plain, layer), bias=bias is not None, device="meta", values=values, scale=bool(scale)
        )
        standard, deviation = standardize(weight)
        start = twin.values.start(standard, p_min, p_max)
        if scale == "fitted":
            mean = twin.values.mean(start)
            largest = max(map(abs, twin.values.levels))
            if not mean.is_meta and mean.abs().amax() <= 4 * torch.finfo(mean.dtype).eps * largest:
                raise ValueError(
                    f"with p_min={p_min} and p_max={p_max} the mean of all {mean.numel()} weights is 0, so no scale "
                    "fits; bring p_min nearer to 0 and p_max nearer to 1, or take scale=True"
                )
            deviation = deviation * (standard * mean).sum() / mean.square().sum()
        logits = start.flatten(0, 1).to(weight.dtype)
        if weight.dim() == 4 and not weight.is_contiguous() and weight.is_contiguous(memory_format=torch.channels_last):
            logits = logits.contiguous(memory_format=torch.channels_last)
        twin.logits = nn.Parameter(logits, requires_grad=weight.requires_grad)
        twin.scale = deviation.to(weight.dtype) if scale else None
        twin.bias = bias
        return twin.train(layer.training)

    @torch.no_grad()
    def to_plain(self, levels: Tensor, bias: nn.Parameter | None) -> nn.Module:
        """Torch's own layer with these settings, these levels times the scale as frozen weights, and this bias."""
        return filled(self.plain, self, self.scaled(levels), bias)

    def _load_from_state_dict(self, state_dict: dict[str, Any], prefix: str, *others: Any) -> None:
        """A layer that was saved sharpened, or with a scale that learns, is so again, whatever it was before."""
        if f"{prefix}logits" in state_dict:  # of a state dict without this layer there is nothing to learn
            saved = state_dict.get(f"{prefix}sharpness")
            self.sharpness = None if saved is None else torch.ones_like(saved, device=self.logits.device)
            if (f"{prefix}gain" in state_dict) != (self.gain is not None):
                self.gain = None if self.gain is not None else nn.Parameter(torch.ones_like(self.logits[:0].sum()))
        super()._load_from_state_dict(state_dict, prefix, *others)

    def extra_repr(self) -> str:
        settings = ", ".join(f"{name}={value}" for name, value in settings_of(self.plain, self).items())
        scale = "learnt" if self.gain is not None else self.scale is not None
        natural = ", natural" if self.natural else ""
        return f"{settings}, bias={self.bias is not None}, values={self.values}, scale={scale}{natural}"


class LRLinear(LRLayer):
    """y = x W^T + b with random discrete W; in training a sample of y (algorithm 1)."""

    plain = nn.Linear

    def __init__(
        self, in_features: int, out_features: int, bias: bool = True, device: Any = None, dtype: Any = None,
        *, values: Values = "ternary", scale: bool = True,
    ) -> None:  # fmt: skip
        super().__init__(nn.Linear(in_features, out_features, bias, device="meta"), values, scale, device, dtype)

    def forward(self, input: Tensor) -> Tensor:
        return self._sample(input, functional.Dense()) if self.training else self._compute(input)


class _LRConv(LRLayer):
    """A convolution with random discrete weights; its arguments are torch's and read by torch's own layer."""

    kernel_size: tuple[int, ...]
    stride: tuple[int, ...]
    padding: Any  # a tuple, or "same" or "valid"
    dilation: tuple[int, ...]
    groups: int
    padding_mode: str
    _reversed_padding_repeated_twice: list[int]

    def __init__(
        self, in_channels: int, out_channels: int, kernel_size: Any, stride: Any = 1, padding: Any = 0,
        dilation: Any = 1, groups: int = 1, bias: bool = True, padding_mode: str = "zeros", device: Any = None,
        dtype: Any = None, *, values: Values = "ternary", scale: bool = True,
    ) -> None:  # fmt: skip
        settings = (in_channels, out_channels, kernel_size, stride, padding, dilation, groups, bias, padding_mode)
        template = self.plain(*settings, device="meta")
        super().__init__(template, values, scale, device, dtype)
        both = cast(list[int], template._reversed_padding_repeated_twice)
        self._reversed_padding_repeated_twice = both  # under torch's name, as torch's forward reads it

    def forward(self, input: Tensor) -> Tensor:
        if not self.training:
            return self._compute(input)
        functional.check_input(input)
        with_batch = input.dim() == len(self.kernel_size) + 2
        x, padding = self._padded(input if with_batch else input.unsqueeze(0))
        z = self._sample(x, functional.Convolution(self.stride, padding, self.dilation, self.groups))
        return z if with_batch else z.squeeze(0)

    def _padded(self, x: Tensor) -> tuple[Tensor, tuple[int, ...]]:
        """The input, padded where the convolution itself cannot do it, and the padding left to the convolution."""
        if self.padding_mode == "zeros" and not isinstance(self.padding, str):
            return x, self.padding
        both = self._reversed_padding_repeated_twice  # last dimension first, before and after
        before, after = tuple(both[-2::-2]), tuple(both[::-2])
        if self.padding_mode == "zeros" and before == after:
            return x, before
        mode = "constant" if self.padding_mode == "zeros" else self.padding_mode
        return F.pad(x, both, mode=mode), (0,) * len(self.kernel_size)


class LRConv1d(_LRConv):
    """nn.Conv1d with random discrete weights."""

    plain = nn.Conv1d
    _conv_forward = nn.Conv1d._conv_forward


class LRConv2d(_LRConv):
    """nn.Conv2d with random discrete weights."""

    plain = nn.Conv2d
    _conv_forward = nn.Conv2d._conv_forward


class LRConv3d(_LRConv):
    """nn.Conv3d with random discrete weights."""

    plain = nn.Conv3d
    _conv_forward = nn.Conv3d._conv_forward


class LRConvTranspose2d(_LRConv):
    """nn.ConvTranspose2d with random discrete weights."""

    plain = nn.ConvTranspose2d
    _output_padding: Any = nn.ConvTranspose2d._output_padding

    def __init__(
        self, in_channels: int, out_channels: int, kernel_size: Any, stride: Any = 1, padding: Any = 0,
        output_padding: Any = 0, groups: int = 1, bias: bool = True, dilation: Any = 1, padding_mode: str = "zeros",
        device: Any = None, dtype: Any = None, *, values: Values = "ternary", scale: bool = True,
    ) -> None:  # fmt: skip
        settings = (in_channels, out_channels, kernel_size, stride, padding, output_padding, groups, bias, dilation)
        LRLayer.__init__(
            self, nn.ConvTranspose2d(*settings, cast(Any, padding_mode), device="meta"), values, scale, device, dtype
        )

    def forward(self, input: Tensor, output_size: list[int] | None = None) -> Tensor:
        if not self.training:
            return self._compute(input, output_size)
        extra = self._output_padding(input, output_size, self.stride, self.padding, self.kernel_size, 2, self.dilation)
        with_batch = input.dim() == 4
        linear_map = functional.Convolution(self.stride, self.padding, self.dilation, self.groups, True, tuple(extra))
        z = self._sample(input if with_batch else input.unsqueeze(0), linear_map)
        return z if with_batch else z.squeeze(0)


LAYERS: tuple[type[LRLayer], ...] = (LRLinear, LRConv1d, LRConv2d, LRConv3d, LRConvTranspose2d)


def lr_layers(model: nn.Module) -> Iterator[tuple[str, LRLayer]]:
    """Each layer with random discrete weights and its name, shared ones once."""
    for name, module in model.named_modules():
        if isinstance(module, LRLayer):
            yield name, module


def set_sharpness(model: nn.Module, factor: float) -> None:
    """Let all of a model's logits count as multiplied by `factor`: above 1, every distribution is more decided."""
    if not 0 < factor < math.inf:
        raise ValueError(f"sharpness must be a finite number above 0, got {factor}; 1 leaves the logits as they are")
    for _, layer in lr_layers(model):
        if layer.sharpness is not None:
            layer.sharpness.fill_(factor)
        elif factor != 1:
            layer.sharpness = torch.tensor(float(factor), device=layer.logits.device)


@torch.no_grad()
def bake_sharpness_(model: nn.Module) -> None:
    """Multiply the logits by the sharpness, once for tied ones, and forget that: the distributions stay the same."""
    factors = {id(layer.logits): (layer.logits, layer.sharpness) for _, layer in lr_layers(model)}
    for logits, factor in factors.values():
        if factor is not None:
            logits.mul_(factor)
    for _, layer in lr_layers(model):
        layer.sharpness = None


def set_natural(model: nn.Module, natural: bool = True) -> None:
    """Let the logits of all LR layers have natural gradients, or the loss's own derivatives again.

    A derivative fades as a weight decides itself, p (1 - p), and faster the more it is sharpened: after some hundred
    steps no weight changes its mind any more. A natural gradient does not fade. Give the logits a decay as well
    (`param_groups`, logit_decay): nothing else calls back a weight that decided long ago.

    Like the optimiser, it belongs to training and is not part of the state dict.
    """
    layers = list(lr_layers(model))
    for name, layer in layers if natural else ():
        if not layer.local:
            raise ValueError(
                f"{name or 'the layer'} is a {type(layer).__name__}, whose method has gradients of its own; natural "
                "gradients are for method 'lr'"
            )
        if type(layer.values).natural_gradient is ValueSet.natural_gradient:
            raise ValueError(
                f"{name or 'the layer'} has {layer.values}, which knows no natural gradient; give its class a "
                "natural_gradient, or train it without"
            )
    for _, layer in layers:
        layer.natural = natural


def learn_scales_(model: nn.Module) -> None:
    """Let the scale of each LR layer learn: a factor of its own, from 1 on, at the rate of biases and norms.

    For layers that no batch norm follows; one that follows makes up for any scale. Make the optimiser afterwards.
    """
    for _, layer in lr_layers(model):
        if layer.scale is not None and layer.gain is None:
            layer.gain = nn.Parameter(torch.ones_like(layer.scale))


def set_generator(model: nn.Module, generator: torch.Generator | None) -> None:
    """Let all of a model's noise come from `generator`, whatever its method; None goes back to torch's own."""
    from lrnets.methods.twin import twins  # which knows this module

    for _, layer in twins(model):
        for part in layer.modules():  # the layer itself, or its quantiser, is what draws
            if hasattr(type(part), "generator"):
                part.generator = generator  # type: ignore[assignment]
