"""Batch norm over the batches of all processes, on CPUs too."""

from __future__ import annotations

import copy
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import Tensor, nn
from torch.autograd.function import once_differentiable
from torch.nn.modules.batchnorm import _BatchNorm

PLAIN = (nn.BatchNorm1d, nn.BatchNorm2d, nn.BatchNorm3d)


class SyncNorm(_BatchNorm):
    """nn.SyncBatchNorm that also works on CPUs: in training, mean and variance are those of all processes' batches.

    Inputs are (batch, channels, ...); processes may hold different numbers of them. In eval mode, or if there is one
    process only, it is plain batch norm. It does not inherit from nn.SyncBatchNorm, as DistributedDataParallel refuses
    that class on CPUs, but borrows its forward elsewhere.
    """

    process_group: Any = None  # None: all processes
    stands_in_for: type[_BatchNorm] | None = None  # set by synced_norms

    _check_non_zero_input_channels = nn.SyncBatchNorm._check_non_zero_input_channels

    def _check_input_dim(self, input: Tensor) -> None:
        (self.stands_in_for or nn.SyncBatchNorm)._check_input_dim(self, input)

    def forward(self, input: Tensor) -> Tensor:
        if input.device.type != "cpu":
            return nn.SyncBatchNorm.forward(self, input)  # type: ignore[arg-type]
        if not (self.training and _processes(self.process_group) > 1):
            return super().forward(input)
        self._check_input_dim(input)
        count, mean, var = gathered_moments(input, self.process_group)
        if count < 2:
            raise ValueError(
                f"batch norm needs 2 values a channel or more in training, all processes together have {count}; "
                "take a larger batch, or eval mode"
            )
        output = sync_norm(input, count, mean, var, self.weight, self.bias, self.eps, self.process_group)
        self._track(mean, var * (count / (count - 1)))
        return output

    @torch.no_grad()
    def _track(self, mean: Tensor, unbiased_var: Tensor) -> None:
        """Move the running statistics as plain batch norm does."""
        if not self.track_running_stats:
            return
        share = self.momentum
        if self.num_batches_tracked is not None:
            self.num_batches_tracked.add_(1)
            if share is None:  # the average of all batches
                share = 1 / self.num_batches_tracked.item()
        for running, now in ((self.running_mean, mean), (self.running_var, unbiased_var)):
            if running is not None and share is not None:
                running.mul_(1 - share).add_(now, alpha=share)

    def __deepcopy__(self, memo: dict[int, Any]) -> _BatchNorm:
        """A copy; of a norm that `synced_norms` swapped, a copy of what it was.

        A network is copied during training to be judged: each process does it alone, or the first one only, so a copy
        must not wait for others. It also keeps the plain unbiased variance if all processes show it the same batch.
        """
        memo[id(self.process_group)] = self.process_group  # a group cannot be copied
        twin: _BatchNorm = type(self).__new__(type(self))
        memo[id(self)] = twin
        twin.__setstate__(copy.deepcopy(self.__dict__, memo))
        if self.stands_in_for is not None:
            _restore(twin)
        return twin


@contextmanager
def synced_norms(model: nn.Module) -> Iterator[nn.Module]:
    """Turn the BatchNorm1d/2d/3d of a model into SyncNorms for a while; they are plain again at the end.

    The modules change their class and nothing else, so whoever holds one of them, its parameters or buffers still does.
    Subclasses stay as they are, since their forward is their own. Deep copies made meanwhile are plain.
    """
    norms = [module for module in model.modules() if type(module) in PLAIN]
    try:
        for norm in norms:
            norm.stands_in_for = type(norm)  # type: ignore[assignment]
            norm.__class__ = SyncNorm
        yield model
    finally:
        for norm in norms:
            _restore(norm)


def _restore(norm: nn.Module) -> None:
    norm.__class__ = norm.__dict__.pop("stands_in_for", type(norm))


def _processes(group: Any) -> int:
    return dist.get_world_size(group) if dist.is_available() and dist.is_initialized() else 1


@torch.no_grad()
def gathered_moments(x: Tensor, group: Any = None) -> tuple[int, Tensor, Tensor]:
    """Values a channel, their mean and biased variance over all processes' x; (channels,), float32 or finer.

    Deviations are taken from each process's own mean, then merged in float64 (Chan, Golub & LeVeque, 1979):
    n = sum n_r, mean = sum n_r mean_r / n, var = sum n_r (var_r + (mean_r - mean)^2) / n.
    """
    x = x.to(_precision(x))
    axes, channels = _all_but_channels(x), x.shape[1]
    own = torch.zeros(2 * channels + 1, dtype=torch.float64, device=x.device)  # without values: no weight, and no NaN
    if x.numel():
        mean = x.mean(axes, keepdim=True)
        own[0] = x.numel() // channels
        own[1 : channels + 1] = mean.flatten()
        own[channels + 1 :] = (x - mean).square_().mean(axes)
    parts = [torch.empty_like(own) for _ in range(_processes(group))]
    dist.all_gather(parts, own, group=group)
    counts, means, variances = torch.stack(parts).split([1, channels, channels], 1)  # (processes, 1 or channels)
    count = counts.sum()
    mean = (counts * means).sum(0) / count
    var = (counts * (variances + (means - mean).square())).sum(0) / count
    return int(count), mean.to(x.dtype), var.to(x.dtype)


def sync_norm(
    x: Tensor, count: int, mean: Tensor, var: Tensor, weight: Tensor | None, bias: Tensor | None, eps: float,
    group: Any = None,
) -> Tensor:  # fmt: skip
    """Batch norm with the moments of `gathered_moments`; gradients pass through these too, to every process's x."""
    weight, bias = (None if tensor is None else tensor.to(mean.dtype) for tensor in (weight, bias))
    x = _ThroughMoments.apply(x, mean, var + eps, count, group)
    return F.batch_norm(x, mean, var, weight, bias, training=False, eps=eps)


class _ThroughMoments(torch.autograd.Function):
    """The identity; backward adds the gradient by way of the moments to g, that of batch norm with fixed moments.

    dx = g - sum(g) / n - (x - mean) sum(g (x - mean)) / (n (var + eps)), with sums over all processes' values.
    """

    @staticmethod
    def forward(ctx: Any, x: Tensor, mean: Tensor, var_eps: Tensor, count: int, group: Any) -> Tensor:
        ctx.save_for_backward(x, mean, var_eps)
        ctx.count, ctx.group = count, group
        return x.view_as(x)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, g: Tensor) -> tuple[Tensor | None, ...]:
        x, mean, var_eps = ctx.saved_tensors
        axes, across = _all_but_channels(x), (-1, *[1] * (x.dim() - 2))
        g = g.to(mean.dtype)
        centred = x - mean.view(across)
        sums = torch.stack([g.sum(axes), (g * centred).sum(axes)])  # (2, channels)
        dist.all_reduce(sums, group=ctx.group)
        by_mean, by_var = sums / ctx.count
        # Not addcmul: with broadcast operands it is many times slower on CPUs.
        dx = (g - by_mean.view(across)).sub_(centred.mul_((by_var / var_eps).view(across)))
        return dx.to(x.dtype), None, None, None, None


def _all_but_channels(x: Tensor) -> tuple[int, ...]:
    return (0, *range(2, x.dim()))


def _precision(x: Tensor) -> torch.dtype:
    """What moments are computed in: half precision is too coarse."""
    return torch.promote_types(x.dtype, torch.float32)
