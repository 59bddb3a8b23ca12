"""The local reparameterisation of linear maps: sample the pre-activation, not the weights.

For z_i = sum_j w_ij h_j with independent random w_ij the central limit theorem gives z ~ N(m, v^2) with
m = sum_j mu_ij h_j and v^2 = sum_j sigma^2_ij h_j^2 (eq. 4), so z = m + v * eps, eps ~ N(0, 1) (algorithm 1).

Forward and backward are one autograd function that keeps the input, the logits (a parameter anyway) and eps / v:
nothing of the weight's size and one tensor of the output's size. Moments are computed again in the backward pass, and
on a CPU block by block: there, touching fresh memory costs more than the arithmetic.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import nullcontext
from dataclasses import dataclass, replace
from typing import Any, Protocol

import torch
import torch.nn.functional as F
from torch import Tensor

from lrnets.blocks import BLOCK, in_blocks, works_in_blocks
from lrnets.noise import is_long, noise_blocks, standard_normal_like
from lrnets.weights import ValueSet, at_least_float32

MANY_ROWS = 64  # of input: from here on the products cost more than the moments
VARIANCE_FLOOR = 1e-8  # added to v^2 under the root; the authors' code has 1e-3, which is noise of its own

Gradients = Sequence[Any]  # for input, weight and bias: a tensor, or None where it is not wanted
Wanted = tuple[bool, bool, bool]


class LinearMap(Protocol):
    """A map that is linear in input and weight, with its gradients: all the reparameterisation has to know."""

    def __call__(self, x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor: ...

    def backward(self, grad: Tensor, x: Tensor, weight: Tensor, wanted: Wanted) -> Gradients: ...

    def blocks(self, x: Tensor, weight_shape: torch.Size) -> list[slice]:
        """Parts of the weight's first dimension to be worked on one after the other."""

    def outputs(self, z: Tensor, block: slice) -> Tensor:
        """The part of the output, or of its gradient, that a block of the weight computes: a view."""


@dataclass(frozen=True)
class Dense:
    """x W^T + bias; x (..., in), weight (out, in)."""

    def __call__(self, x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
        return F.linear(x, weight, bias)

    def backward(self, grad: Tensor, x: Tensor, weight: Tensor, wanted: Wanted) -> Gradients:
        rows = grad.reshape(-1, grad.shape[-1])  # (batch, out)
        return (
            grad @ weight if wanted[0] else None,
            rows.T @ x.reshape(rows.shape[0], x.shape[-1]) if wanted[1] else None,
            rows.sum(0) if wanted[2] else None,
        )

    def blocks(self, x: Tensor, weight_shape: torch.Size) -> list[slice]:
        out, fan_in = weight_shape
        if out * fan_in <= 2 * BLOCK or x.numel() > MANY_ROWS * fan_in or not works_in_blocks(x):
            return [slice(0, out)]
        rows = max(1, BLOCK // fan_in)
        return [slice(row, min(row + rows, out)) for row in range(0, out, rows)]

    def outputs(self, z: Tensor, block: slice) -> Tensor:
        return z[..., block]


@dataclass(frozen=True)
class Convolution:
    """A convolution, or a transposed one, of one to three dimensions, as aten has it; x (batch, channels, ...)."""

    stride: tuple[int, ...]
    padding: tuple[int, ...]
    dilation: tuple[int, ...]
    groups: int = 1
    transposed: bool = False
    output_padding: tuple[int, ...] | None = None

    def __call__(self, x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
        return torch.ops.aten.convolution(x, weight, bias, *self._settings())

    def backward(self, grad: Tensor, x: Tensor, weight: Tensor, wanted: Wanted) -> Gradients:
        bias_size = [grad.shape[1]] if wanted[2] else None
        return torch.ops.aten.convolution_backward(grad, x, weight, bias_size, *self._settings(), list(wanted))

    def _settings(self) -> tuple[Any, ...]:
        output_padding = self.output_padding or (0,) * len(self.stride)
        return self.stride, self.padding, self.dilation, self.transposed, output_padding, self.groups

    def blocks(self, x: Tensor, weight_shape: torch.Size) -> list[slice]:
        return [slice(0, weight_shape[0])]

    def outputs(self, z: Tensor, block: slice) -> Tensor:
        return z


def local_reparameterization(
    x: Tensor,
    logits: Tensor,
    bias: Tensor | None,
    values: ValueSet,
    linear_map: LinearMap,
    *,
    scale: Tensor | None = None,
    sharpness: Tensor | None = None,
    noise: Tensor | None = None,
    generator: torch.Generator | None = None,
    variance_floor: float = VARIANCE_FLOOR,
    natural: bool = False,
) -> Tensor:
    """A sample of the pre-activation m + v * eps of a layer whose weights are distributed as `logits` say.

    `logits` is (logits a weight, *weight shape); `sharpness` multiplies them, `scale` every weight. `noise` fixes eps
    (of the output's shape); otherwise it is drawn from `generator`, or from torch's own. Under autocast the mean is
    computed in the lower precision and the variance in float32. With `natural` the logits get natural gradients, which
    are no derivatives: those of other things in the loss, such as a penalty, are not to be added to them.
    """
    check_input(x)
    device, dtype = x.device.type, x.dtype
    if _autocasts(device) and dtype != torch.float64:  # as torch's layers do
        dtype = torch.get_autocast_dtype(device)
    with torch.autocast(device, enabled=False) if torch.amp.is_autocast_available(device) else nullcontext():
        return _Sample.apply(
            x, logits, bias, scale, sharpness, noise, generator, values, linear_map, dtype, variance_floor, natural
        )[0]


def check_input(x: Tensor, dtype: torch.dtype | None = None) -> None:
    """Refuse what no layer with real weights can take; with `dtype`, all but that, unless autocast makes up for it."""
    if not x.is_floating_point():
        raise TypeError(
            f"the input is {x.dtype}; a layer with discrete weights takes floating point, so pass x.float()"
        )
    if dtype not in (None, x.dtype) and not _autocasts(x.device.type):
        raise RuntimeError(
            f"the input is {x.dtype}, the layer's logits are {dtype}; pass x.to({dtype}), or take the model .to() the "
            "input's, or train under torch.autocast"
        )


def _autocasts(device: str) -> bool:
    """Whether autocast is on; not on the meta device, for one."""
    return torch.amp.is_autocast_available(device) and torch.is_autocast_enabled(device)


@dataclass(frozen=True)
class ScaledWeights:
    """The weights a layer computes with: logits times `sharpness`, levels times `scale`."""

    values: ValueSet
    sharpness: Tensor | None
    scale: Tensor | None
    natural: bool = False

    def moments(self, logits: Tensor) -> tuple[Tensor, Tensor]:
        """Mean and variance of the scaled weights."""
        mean, variance = self.values.moments(self._sharpened(logits))
        if self.scale is not None:
            scale = at_least_float32(self.scale)
            mean, variance = mean.mul_(scale), variance.mul_(scale * scale)
        return mean, variance

    def moments_backward(self, logits: Tensor, grad_mean: Tensor, grad_deviation: Tensor) -> Tensor:
        """The logits' gradient from that of the mean and twice that of the variance: eq. 5's h eps / v, not halved."""
        factor: float | Tensor = 0.5
        if self.scale is not None:
            scale = at_least_float32(self.scale)
            grad_mean, factor = grad_mean * scale, 0.5 * scale * scale
        backward = self.values.natural_gradient if self.natural else self.values.moments_backward
        grad = backward(self._sharpened(logits), grad_mean, grad_deviation * factor)
        if self.sharpness is None:
            return grad
        # Logits times s have s times the derivative, and s^2 times the information.
        return grad.div_(self.sharpness) if self.natural else grad.mul_(self.sharpness)

    def _sharpened(self, logits: Tensor) -> Tensor:
        return logits if self.sharpness is None else logits * self.sharpness


class _Sample(torch.autograd.Function):
    """z = m + v * eps and, for the backward pass, eps / v."""

    @staticmethod
    def forward(x, logits, bias, scale, sharpness, noise, generator, values, linear_map, dtype, floor, _):
        weights = ScaledWeights(values, sharpness, scale)
        inputs, squares = x.to(dtype), _square(at_least_float32(x))
        parts = []
        for block in linear_map.blocks(x, logits.shape[1:]):
            mean, variance = in_blocks(weights.moments, at_least_float32(logits[:, block]))
            part_of_bias = None if bias is None else linear_map.outputs(bias, block).to(dtype)
            m = linear_map(inputs, mean.to(dtype), part_of_bias)
            parts.append((m, linear_map(squares, variance.to(squares.dtype), None)))
        m, v2 = parts[0] if len(parts) == 1 else (torch.cat(part, -1) for part in zip(*parts))
        return _add_noise(m, v2, noise, generator, floor)

    @staticmethod
    def setup_context(ctx, inputs, output):
        x, logits, bias, scale, sharpness, _, _, values, linear_map, dtype, _, ctx.natural = inputs
        ctx.save_for_backward(x, logits, scale, sharpness, output[1])
        ctx.mark_non_differentiable(output[1])
        ctx.set_materialize_grads(False)
        ctx.values, ctx.linear_map, ctx.dtype = values, linear_map, dtype
        ctx.bias_dtype = None if bias is None else bias.dtype

    @staticmethod
    def backward(ctx, grad, _):
        if grad is None:
            return (None,) * 12
        gradients = _Sample.gradients(ctx, grad)
        if not torch.is_grad_enabled() or torch.compiler.is_compiling():
            return gradients
        # A graph of the backward pass is wanted, as torch.func.grad always does: it may be had, but not followed.
        return tuple(None if g is None else _FirstOrder.apply(g, grad, *ctx.saved_tensors) for g in gradients)

    @staticmethod
    @torch.no_grad()
    def gradients(ctx, grad):
        """Eq. 5: dL/dmu = dL/dz dm/dmu and dL/dsigma^2 = dL/dz eps / (2 v) dv^2/dsigma^2; dL/dh by way of both."""
        x, logits, scale, sharpness, eps_by_v = ctx.saved_tensors
        weights = ScaledWeights(ctx.values, sharpness, scale, ctx.natural)
        unscaled = replace(weights, scale=None)
        linear_map, dtype, exact = ctx.linear_map, ctx.dtype, eps_by_v.dtype
        for_x, for_logits, for_bias, for_scale = ctx.needs_input_grad[:4]
        for_weights = for_logits or for_scale
        inputs, squares, grad_v = x.to(dtype), _square(x.to(exact)), grad.to(exact) * eps_by_v
        blocks = linear_map.blocks(x, logits.shape[1:])
        grad_x: Any = None
        grad_squares: Any = None
        grad_logits: Any = None
        grad_scale: Any = 0.0 if for_scale else None
        grad_bias = []
        for block in blocks:
            wide = at_least_float32(logits[:, block])
            mean, variance = in_blocks(weights.moments, wide)
            by_x, by_mean, by_bias = linear_map.backward(
                linear_map.outputs(grad, block), inputs, mean.to(dtype), (for_x, for_weights, for_bias)
            )
            by_squares, by_variance, _ = linear_map.backward(
                linear_map.outputs(grad_v, block), squares, variance.to(exact), (for_x, for_weights, False)
            )
            if for_x:
                grad_x = by_x if grad_x is None else grad_x.add_(by_x)
                grad_squares = by_squares if grad_squares is None else grad_squares.add_(by_squares)
            if for_logits:
                by_both = by_mean.to(wide.dtype), by_variance.to(wide.dtype)
                part = in_blocks(weights.moments_backward, wide, *by_both).to(logits.dtype)
                if len(blocks) == 1:
                    grad_logits = part
                else:
                    grad_logits = torch.empty_like(logits) if grad_logits is None else grad_logits
                    grad_logits[:, block] = part
            if for_scale:  # m = scale * mu and v^2 = scale^2 * sigma^2, of which by_variance is twice the derivative
                mu, sigma2 = in_blocks(unscaled.moments, wide)
                grad_scale = grad_scale + (by_mean * mu).sum() + at_least_float32(scale) * (by_variance * sigma2).sum()
            if for_bias:
                grad_bias.append(by_bias)
        if for_x:  # dv^2/dh = 2 h sigma^2: the 2 cancels the half of the root's derivative
            grad_x = grad_x.to(exact).addcmul_(x.to(exact), grad_squares).to(x.dtype)
        if for_scale:
            grad_scale = grad_scale.to(scale.dtype)
        grad_of_bias = torch.cat(grad_bias).to(ctx.bias_dtype) if for_bias else None
        return (grad_x, grad_logits, grad_of_bias, grad_scale, *(None,) * 8)


class _FirstOrder(torch.autograd.Function):
    """A gradient as it is, and an error where it is differentiated again, by any of the tensors it depends on.

    (Torch's once_differentiable takes a gradient for a constant wherever that of the output is one.)
    """

    generate_vmap_rule = True

    @staticmethod
    def forward(gradient, *depends_on):
        return gradient.clone()

    @staticmethod
    def setup_context(ctx, inputs, output):
        pass

    @staticmethod
    def backward(ctx, _):
        raise RuntimeError(
            "layers with random weights have no second derivatives; put the model into eval mode for a loss that "
            "needs those of its input, or leave out create_graph=True"
        )


def _add_noise(
    m: Tensor, v2: Tensor, noise: Tensor | None, generator: torch.Generator | None, floor: float
) -> tuple[Tensor, Tensor]:
    """m + v * eps and eps / v, in the memory of m and v^2 where that is possible."""
    if noise is None and works_in_blocks(v2) and is_long(v2) and (m.dtype, m.stride()) == (v2.dtype, v2.stride()):
        flat_m, flat_v = (t.as_strided((t.numel(),), (1,)) for t in (m, v2))
        for mean, v, eps in zip(flat_m.split(BLOCK), flat_v.split(BLOCK), noise_blocks(v2.numel(), BLOCK, generator)):
            _root_(v, floor)
            mean.addcmul_(v, eps.to(v.dtype))
            torch.div(eps, v, out=v)
        return m, v2
    eps = standard_normal_like(v2, generator) if noise is None else noise.to(v2, copy=True)
    v = _root_(v2, floor)
    z = m.addcmul_(v, eps) if m.dtype == v.dtype else torch.addcmul(m.to(v.dtype), v, eps).to(m.dtype)
    return z, eps.div_(v)


def _root_(v2: Tensor, floor: float) -> Tensor:
    """v, in place. All terms of v^2 are non-negative, yet a Winograd convolution may round to below zero."""
    return v2.clamp_(min=0).add_(floor).sqrt_()


def _square(x: Tensor) -> Tensor:
    """x^2 with the strides of x, those of dimensions of size 1 too.

    They are all that tells a channels-last image of one channel from a contiguous one, and the convolution looks.
    """
    squared = x * x
    if torch.compiler.is_compiling() or any(
        a != b and n != 1 for a, b, n in zip(x.stride(), squared.stride(), x.shape)
    ):
        return squared
    return squared.as_strided(x.shape, x.stride())
