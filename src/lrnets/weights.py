"""The values a weight may take, and a distribution over them held as logits.

A value set is stateless: it turns logits of shape (`logits_per_weight`, *weight shape) into probabilities, moments,
entropy and draws, and float weights into the logits training starts from. Notation follows the paper's sections 3
and 4: mu and sigma^2 are the mean and variance of one weight, theta its logits.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import torch
from torch import Tensor

from lrnets.errors import describe

P_MIN, P_MAX = 0.05, 0.95  # the paper's, section 4.1
MULTIPLES = 127  # of a unit, that a byte holds on either side of 0
FLOAT32_EPS = torch.finfo(torch.float32).eps


class ValueSet(ABC):
    """What a discrete weight can be. Subclasses say how logits become probabilities; the rest follows from those."""

    @property
    @abstractmethod
    def levels(self) -> tuple[float, ...]:
        """The values, in rising order."""

    @property
    @abstractmethod
    def name(self) -> str:
        """What users call it."""

    @property
    def logits_per_weight(self) -> int:
        """How many logits describe the distribution of one weight."""
        return len(self.levels)

    @abstractmethod
    def probabilities(self, logits: Tensor) -> Tensor:
        """Probability of each level, in the order of `levels`; shape (levels, *weight shape)."""

    @abstractmethod
    def moments(self, logits: Tensor) -> tuple[Tensor, Tensor]:
        """Mean and variance of each weight, the variance as a sum of non-negative terms; both of the weight's shape."""

    @abstractmethod
    def moments_backward(self, logits: Tensor, grad_mean: Tensor, grad_variance: Tensor) -> Tensor:
        """Gradient for the logits: grad_mean * dmu/dtheta + grad_variance * dsigma^2/dtheta (eq. 5, last factor)."""

    def natural_gradient(self, logits: Tensor, grad_mean: Tensor, grad_variance: Tensor) -> Tensor:
        """`moments_backward` divided by the Fisher information of the logits: it does not fade as weights decide.

        The change of the distribution, not of the logits, is what a step of a given length then limits (Amari 1998).
        """
        raise NotImplementedError(f"{self} has no natural gradient; train it without")

    @abstractmethod
    def start(self, weight: Tensor, p_min: float = P_MIN, p_max: float = P_MAX) -> Tensor:
        """Logits whose mean is `weight` (already divided by the layer's deviation) wherever it is not clipped."""

    def mean(self, logits: Tensor) -> Tensor:
        """Mean of each weight; shape of the weight."""
        return self.moments(logits)[0]

    def variance(self, logits: Tensor) -> Tensor:
        """Variance of each weight; shape of the weight."""
        return self.moments(logits)[1]

    def entropy(self, logits: Tensor) -> Tensor:
        """Entropy of each weight in bits, -sum_k p_k log2 p_k; shape of the weight."""
        return torch.special.entr(self.probabilities(logits)).sum(0) / math.log(2)

    def draw(self, logits: Tensor, *, generator: torch.Generator | None = None) -> Tensor:
        """One level for each weight, drawn from its distribution; shape of the weight."""
        p = self.probabilities(at_least_float32(logits.detach()))
        choice = torch.multinomial(p.flatten(1).T, 1, generator=generator)  # never takes a level of probability 0
        return self._pick(choice.view(p.shape[1:]), logits)

    def mode(self, logits: Tensor) -> Tensor:
        """The most probable level of each weight; shape of the weight."""
        return self._pick(self.probabilities(at_least_float32(logits.detach())).argmax(0), logits)

    def random_start(
        self, shape: Sequence[int], *, generator: torch.Generator | None = None, device: Any = None, dtype: Any = None
    ) -> Tensor:
        """Logits for training without pretrained weights: the start from weights drawn from N(0, 1)."""
        return self.start(torch.randn(tuple(shape), generator=generator, device=device, dtype=dtype))

    def packed_bytes(self, count: int) -> int:
        """Bytes that `count` weights take in a packed file.

        A bit each for -s and +s, a fifth of a byte for up to one level on each side of 0, a byte for whole multiples of
        a unit, else four.
        """
        if self.levels[0] == -self.levels[-1] and len(self.levels) == 2:
            return -(-count // 8)
        if sum(level < 0 for level in self.levels) <= 1 and sum(level > 0 for level in self.levels) <= 1:
            return -(-count // 5)  # 3^5 = 243
        return count if unit_of(self.levels) is not None else 4 * count

    def _pick(self, index: Tensor, like: Tensor) -> Tensor:
        return torch.tensor(self.levels, dtype=like.dtype, device=like.device)[index]

    def __str__(self) -> str:
        return self.name


@dataclass(frozen=True)
class Binary(ValueSet):
    """-1 or +1 with one logit a: p(+1) = sigmoid(a)."""

    levels = (-1.0, 1.0)
    logits_per_weight = 1
    name = "binary"

    def probabilities(self, logits: Tensor) -> Tensor:
        return torch.cat([torch.sigmoid(-logits), torch.sigmoid(logits)])

    def moments(self, logits: Tensor) -> tuple[Tensor, Tensor]:
        """mu = p - (1 - p); sigma^2 = 4 p (1 - p)."""
        plus = torch.sigmoid(logits[0])
        return 2 * plus - 1, 4 * plus * (1 - plus)

    def moments_backward(self, logits: Tensor, grad_mean: Tensor, grad_variance: Tensor) -> Tensor:
        """dmu/da = 2 p (1 - p); dsigma^2/da = -2 mu * 2 p (1 - p)."""
        mean, variance = self.moments(logits)
        return (0.5 * variance * (grad_mean - 2 * mean * grad_variance)).unsqueeze(0)

    def natural_gradient(self, logits: Tensor, grad_mean: Tensor, grad_variance: Tensor) -> Tensor:
        """The information of a is p (1 - p): what is left is 2 (dL/dmu - 2 mu dL/dsigma^2)."""
        return torch.addcmul(grad_mean, self.mean(logits), grad_variance, value=-2).mul_(2).unsqueeze(0)

    def start(self, weight: Tensor, p_min: float = P_MIN, p_max: float = P_MAX) -> Tensor:
        """p(+1) = (1 + w) / 2, clipped to [p_min, p_max]."""
        _check_probability_limits(p_min, p_max)
        return torch.logit((0.5 * (1 + weight)).clamp(p_min, p_max)).unsqueeze(0)

    def draw(self, logits: Tensor, *, generator: torch.Generator | None = None) -> Tensor:
        below = _below(torch.sigmoid(at_least_float32(logits.detach())), generator)[0]
        return torch.where(below, 1.0, -1.0).to(logits.dtype)

    def mode(self, logits: Tensor) -> Tensor:
        return torch.where(logits.detach()[0] >= 0, 1.0, -1.0).to(logits.dtype)


@dataclass(frozen=True)
class Ternary(ValueSet):
    """-1, 0 or +1 with the paper's two logits: p(0) = sigmoid(a), p(+1 | not 0) = sigmoid(b)."""

    levels = (-1.0, 0.0, 1.0)
    logits_per_weight = 2
    name = "ternary"

    def probabilities(self, logits: Tensor) -> Tensor:
        a, b = logits.unbind(0)
        some = torch.sigmoid(-a)
        return torch.stack([some * torch.sigmoid(-b), torch.sigmoid(a), some * torch.sigmoid(b)])

    def moments(self, logits: Tensor) -> tuple[Tensor, Tensor]:
        """mu = n t; sigma^2 = n (p0 + 4 n q r), with n = 1 - p0, q = p(+1 | not 0), r = 1 - q and t = q - r.

        Equal to p+(1-p+) + p-(1-p-) + 2 p+ p-; no factor can be negative in floating point either.
        """
        zero, plus = p = torch.sigmoid(logits)
        some, minus = 1 - p
        return some * (plus - minus), torch.addcmul(zero, some, plus * minus, value=4).mul_(some)

    def moments_backward(self, logits: Tensor, grad_mean: Tensor, grad_variance: Tensor) -> Tensor:
        """With h = dL/dmu - 2 mu dL/dsigma^2: dL/da = -n p0 (t h + dL/dsigma^2), dL/db = 2 n q r h.

        From dmu/da = -n p0 t, dsigma^2/da = -n p0 (1 - 2 mu t), dmu/db = 2 n q r and dsigma^2/db = -4 mu n q r.
        """
        zero, plus = p = torch.sigmoid(logits)
        some, minus = 1 - p
        sign = plus - minus
        h = torch.addcmul(grad_mean, some * sign, grad_variance, value=-2)
        grad_a = torch.addcmul(grad_variance, sign, h).mul_(zero).mul_(some).neg_()
        return torch.stack([grad_a, h.mul_(plus).mul_(minus).mul_(some).mul_(2)])

    def natural_gradient(self, logits: Tensor, grad_mean: Tensor, grad_variance: Tensor) -> Tensor:
        """The information is n p0 of a and n q r of b, and none of both: what is left is -(t h + dL/dsigma^2), 2 h."""
        plus = torch.sigmoid(logits[1])
        sign = 2 * plus - 1
        h = torch.addcmul(grad_mean, torch.sigmoid(-logits[0]).mul_(sign), grad_variance, value=-2)
        return torch.stack([torch.addcmul(grad_variance, sign, h).neg_(), h.mul_(2)])

    def start(self, weight: Tensor, p_min: float = P_MIN, p_max: float = P_MAX) -> Tensor:
        """p0 = p_max - (p_max - p_min) |w| (eq. 6); p(+1 | not 0) = (1 + w / (1 - p0)) / 2 (eq. 8); both clipped."""
        _check_probability_limits(p_min, p_max)
        zero = (p_max - (p_max - p_min) * weight.abs()).clamp(p_min, p_max)
        positive = (0.5 * (1 + weight / (1 - zero))).clamp(p_min, p_max)
        return torch.stack([torch.logit(zero), torch.logit(positive)])

    def draw(self, logits: Tensor, *, generator: torch.Generator | None = None) -> Tensor:
        zero, plus = _below(torch.sigmoid(at_least_float32(logits.detach())), generator)
        return torch.where(zero, 0.0, torch.where(plus, 1.0, -1.0)).to(logits.dtype)

    def mode(self, logits: Tensor) -> Tensor:
        a, b = at_least_float32(logits.detach()).unbind(0)
        likelier_sign = torch.sigmoid(-a) * torch.sigmoid(b.abs())
        return torch.where(torch.sigmoid(a) >= likelier_sign, 0.0, torch.where(b >= 0, 1.0, -1.0)).to(logits.dtype)


@dataclass(frozen=True)
class Levels(ValueSet):
    """Any few levels, with one softmax logit each: p_k = softmax(theta)_k."""

    levels: tuple[float, ...] = ()

    def __post_init__(self) -> None:
        try:
            levels = tuple(float(level) for level in self.levels)
        except (TypeError, ValueError, OverflowError):
            raise TypeError(
                f"levels must be numbers, got {describe(self.levels)}; for example (-2, -1, 0, 1, 2)"
            ) from None
        if len(levels) < 2 or any(a >= b for a, b in pairwise(levels)) or not all(map(math.isfinite, levels)):
            raise ValueError(
                f"levels must be two or more finite numbers in rising order, got {levels}; sort them and drop repeats"
            )
        object.__setattr__(self, "levels", levels)

    @property
    def name(self) -> str:
        return "(" + ", ".join(f"{level:g}" for level in self.levels) + ")"

    def probabilities(self, logits: Tensor) -> Tensor:
        return torch.softmax(logits, 0)

    def moments(self, logits: Tensor) -> tuple[Tensor, Tensor]:
        """mu = sum_k p_k l_k; sigma^2 = sum_k p_k (l_k - mu)^2."""
        p, offset, mean = self._offsets(logits)
        return mean, (p * offset.square()).sum(0)

    def moments_backward(self, logits: Tensor, grad_mean: Tensor, grad_variance: Tensor) -> Tensor:
        """dmu/dtheta_k = p_k (l_k - mu); dsigma^2/dtheta_k = p_k ((l_k - mu)^2 - sigma^2)."""
        return torch.softmax(logits, 0) * self.natural_gradient(logits, grad_mean, grad_variance)

    def natural_gradient(self, logits: Tensor, grad_mean: Tensor, grad_variance: Tensor) -> Tensor:
        """The information is diag(p) - p p^T, which maps any c of mean sum_k p_k c_k = 0 to p_k c_k."""
        p, offset, _ = self._offsets(logits)
        variance = (p * offset.square()).sum(0)
        return grad_mean * offset + grad_variance * (offset.square() - variance)

    def start(self, weight: Tensor, p_min: float = P_MIN, p_max: float = P_MAX) -> Tensor:
        """The two levels around the weight share what a uniform floor leaves over.

        Two neighbouring levels are the least variance a given mean allows; mixing in a uniform share e keeps every
        level possible, and aiming the pair at (w - e u) / (1 - e), u the mean level, keeps the mean at w. The share
        e = K / (K - 1) max(p_min, 1 - p_max) leaves no probability above p_max; for two levels and p_min = 1 - p_max
        this is the binary start.
        """
        _check_probability_limits(p_min, p_max)
        levels = weight.new_tensor(self.levels)
        count = len(self.levels)
        floor = min(1.0, count / (count - 1) * max(p_min, 1 - p_max))
        target = ((weight - floor * levels.mean()) / (1 - floor)) if floor < 1 else torch.zeros_like(weight)
        target = target.clamp(self.levels[0], self.levels[-1])
        below = (torch.searchsorted(levels, target.contiguous(), right=True) - 1).clamp_(0, count - 2)
        share = (target - levels[below]) / (levels[below + 1] - levels[below])
        index = torch.arange(count, device=weight.device).view(-1, *[1] * weight.dim())
        pair = torch.where(index == below, 1 - share, torch.where(index == below + 1, share, 0.0))
        return torch.log(pair * (1 - floor) + floor / count).to(weight.dtype)

    def _offsets(self, logits: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        p = torch.softmax(logits, 0)
        levels = logits.new_tensor(self.levels).view(-1, *[1] * (logits.dim() - 1))
        mean = (p * levels).sum(0)
        return p, levels - mean, mean


BINARY, TERNARY = Binary(), Ternary()


def as_value_set(values: str | Sequence[float] | ValueSet) -> ValueSet:
    """The value set a user means by "binary", "ternary", a tuple of levels or a ValueSet."""
    if isinstance(values, ValueSet):
        return values
    if isinstance(values, str):
        known = {"binary": BINARY, "ternary": TERNARY}
        if values not in known:
            raise ValueError(
                f"unknown value set {values!r}; use 'binary', 'ternary' or a tuple of levels such as (-2, -1, 0, 1, 2)"
            )
        return known[values]
    if not isinstance(values, Sequence) or isinstance(values, (bytes, bytearray)):
        raise TypeError(f"values must be 'binary', 'ternary' or a tuple of levels, got {describe(values)}")
    chosen = Levels(tuple(values))  # type: ignore[arg-type]
    return {BINARY.levels: BINARY, TERNARY.levels: TERNARY}.get(chosen.levels, chosen)


def standardize(weight: Tensor) -> tuple[Tensor, Tensor]:
    """Divide a layer's weights by their standard deviation (section 4.1); returns both.

    The deviation is the population's, over the whole layer, and the weights are not centred.
    """
    weight = at_least_float32(weight.detach())
    deviation = weight.std(correction=0)
    if not weight.is_meta:
        if weight.numel() == 0:
            raise ValueError(f"there are no weights to start from (shape {tuple(weight.shape)})")
        if not torch.isfinite(weight).all():
            bad = int((~torch.isfinite(weight)).sum())
            raise ValueError(
                f"{bad} of {weight.numel()} weights are NaN or infinite; repair or reload the float network first"
            )
        if not deviation > 0 or weight.amin() == weight.amax():  # rounding can leave equal weights a deviation
            raise ValueError(
                f"all {weight.numel()} weights are {weight.flatten()[0].item():g}, so their standard deviation is 0 "
                "and they cannot be normalised; initialise or train the layer first, or keep it in float"
            )
    return weight / deviation, deviation


def _below(p: Tensor, generator: torch.Generator | None) -> Tensor:
    """Events of probability p, elementwise: always at p = 1, never at p = 0."""
    return torch.rand(p.shape, generator=generator, dtype=p.dtype, device=p.device) < p


def at_least_float32(tensor: Tensor) -> Tensor:
    """Half-precision tensors as float32, others as they are."""
    return tensor.float() if tensor.dtype in (torch.float16, torch.bfloat16) else tensor


def _check_probability_limits(p_min: float, p_max: float) -> None:
    if not 0 < p_min < p_max < 1:
        raise ValueError(
            f"p_min and p_max must satisfy 0 < p_min < p_max < 1, got {p_min} and {p_max}; the paper uses 0.05 and 0.95"
        )


def levels_of(weight: Tensor, most: int = 2 * MULTIPLES + 1) -> tuple[float, ...] | None:
    """The few values a layer's weights take, in rising order, or None if there are more than `most`.

    A layer so small that its weights could not repeat each value twice is no discrete layer.
    """
    flat = weight.detach().flatten()
    if flat.is_meta or flat.numel() < 4:
        return None
    found = flat[: 64 * most].unique()
    if found.numel() <= most and not torch.isin(flat, found).all():
        found = flat.unique()  # a rare level was not in the first part
    if not 2 <= found.numel() <= min(most, flat.numel() // 2) or not torch.isfinite(found).all():
        return None
    return tuple(found.tolist())


def unit_of(levels: Sequence[float], precision: float = FLOAT32_EPS) -> float | None:
    """The largest u for which all levels are whole multiples k u with |k| up to 127, or None.

    A level l times a scale was rounded once, and so was the largest, from which u is found: hence the tolerance.
    """
    exact = torch.tensor(levels, dtype=torch.float64)
    units = exact.abs().max() / torch.arange(1, MULTIPLES + 1)
    off = (exact[:, None] / units).round().mul_(units).sub_(exact[:, None]).abs_()  # (levels, units)
    fitting = (off <= precision * exact.abs()[:, None]).all(0)
    return float(units[fitting][0]) if fitting.any() else None


def signs_by_channel(weight: Tensor) -> ValueSet | None:
    """BINARY or TERNARY if the weights are that times a scale for each output, else None; weight (out, ...)."""
    if weight.is_meta or weight.dim() < 2 or weight.shape[1:].numel() < 2 or not weight.numel():
        return None
    size = weight.detach().abs().flatten(1)
    if not torch.isfinite(size).all() or not ((size == 0) | (size == size.amax(1, keepdim=True))).all():
        return None
    return BINARY if size.all() else TERNARY
