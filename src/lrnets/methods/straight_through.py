"""The mechanism of all straight-through methods: float weights learn, and a quantised copy of them computes.

    w = q(r),    dL/dr = dL/dw * slope(r)

A method is its quantiser: q, the slope that stands for its derivative, which is 0 almost everywhere, and what it does
to float weights at the start and to r after a step. It is put on the weight of torch's own layer as a parametrisation
(torch.nn.utils.parametrize), so all else of the layer is torch's.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache
from typing import Any, ClassVar, cast

import torch
from torch import Tensor, nn
from torch.nn.utils import parametrize
from typing_extensions import Self

from lrnets.methods.twin import Mode, Twin
from lrnets.plain import filled, settings_of
from lrnets.weights import ValueSet, standardize

KINDS: tuple[type[nn.Module], ...] = (nn.Linear, nn.Conv1d, nn.Conv2d, nn.Conv3d)
Kinds = dict[type[nn.Module], type[nn.Module]]  # torch's layer -> the layer derived from it that computes


def straight_through(latent: Tensor, quantized: Tensor, slope: Tensor | float = 1.0) -> Tensor:
    """`quantized`, exactly; gradients go to `latent` times the slope, and to whatever `quantized` is computed from.

    x - x is 0 for every finite x, so nothing is added but the gradient. All of the shape of the weight.
    """
    return quantized + slope * (latent - latent.detach())


def filter_dimensions(weight: Tensor) -> list[int]:
    """The dimensions that one output's weights extend over: all but the first."""
    return list(range(1, weight.dim()))


class Quantizer(nn.Module):
    """A parametrisation from the float weights that learn to the discrete ones that compute."""

    decayed: bool = True  # is weight decay for the float weights?
    random: bool = False  # are weights drawn in training?

    @classmethod
    def fit(cls, weight: nn.Parameter, **options: Any) -> tuple[Self, nn.Parameter]:
        """The quantiser for a trained float layer, and the weights it starts from: most take them as they are.

        Subclasses name the options they have.
        """
        return cls(**options), weight

    def forward(self, latent: Tensor) -> Tensor:
        """Discrete weights, with the method's gradient; in `eval()` the most probable ones."""
        raise NotImplementedError

    def draw(self, latent: Tensor, generator: torch.Generator | None) -> Tensor:
        """Discrete weights as training draws them; the only ones there are unless the quantiser is random."""
        return self(latent)

    def after_step_(self, latent: Tensor) -> None:
        """What becomes of the float weights, in place, after a step of the optimiser."""


class StraightThrough(Twin):
    """A layer of torch's whose weight is quantised; before that layer's class in the order of bases."""

    carriers = ("parametrizations",)
    computes: ClassVar[type[nn.Module]]  # torch's layer, or one derived from it that looks at its input as well
    parametrizations: nn.ModuleDict

    @property
    def latent(self) -> nn.Parameter:
        """The float weights."""
        return cast(nn.Parameter, cast(Any, self.parametrizations).weight.original)

    @property
    def quantizer(self) -> Quantizer:
        return cast(Any, self.parametrizations).weight[0]

    @property
    def random(self) -> bool:
        return self.quantizer.random

    def carrying(self) -> list[nn.Parameter]:
        return [self.latent]

    def decayed(self) -> bool:
        return self.quantizer.decayed

    @torch.no_grad()
    def choose(self, mode: Mode, generator: torch.Generator | None = None) -> Tensor:
        quantizer = self.quantizer
        if mode == "sample":
            return quantizer.draw(self.latent, generator)
        training = quantizer.training
        try:
            return quantizer.eval()(self.latent)
        finally:
            quantizer.train(training)

    @torch.no_grad()
    def to_plain(self, weight: Tensor, bias: nn.Parameter | None) -> nn.Module:
        return filled(self.computes, self, weight, bias)

    @torch.no_grad()
    def after_step(self) -> None:
        self.quantizer.after_step_(self.latent)


@cache
def _twin_class(plain: type[nn.Module], computes: type[nn.Module]) -> type[StraightThrough]:
    name = f"Quantized{computes.__name__}"
    return type(name, (StraightThrough, computes), {"plain": plain, "computes": computes, "__doc__": computes.__doc__})


@dataclass(frozen=True)
class Maker:
    """Builds the twins of one kind of layer for one method, as a layer class does for LR-nets."""

    plain: type[nn.Module]
    quantizer: type[Quantizer]
    with_signs: type[nn.Module] | None = None  # the layer that takes signs, of methods with binary activations

    def from_plain(
        self, layer: nn.Module, values: ValueSet | None, *, binary_input: bool = False, **options: Any
    ) -> StraightThrough:
        """The layer with quantised weights: started from those of `layer`, its very own bias.

        `values` goes without saying, since a quantiser has but one value set.
        """
        weight, bias = layer.get_parameter("weight"), layer._parameters["bias"]
        standardize(weight)  # refuses weights that nothing can start from
        with torch.no_grad():
            quantizer, latent = self.quantizer.fit(weight, **options)
        computes = self.with_signs if binary_input and self.with_signs is not None else self.plain
        kind = _twin_class(self.plain, computes)  # type: ignore[arg-type]  # mypy doubts that classes can be hashed
        twin = kind(**settings_of(self.plain, layer), bias=bias is not None, device="meta")
        twin.weight = latent
        twin.register_parameter("bias", bias)
        # "unsafe" spares a first pass, which would draw numbers; shape and format stay by construction.
        parametrize.register_parametrization(twin, "weight", quantizer, unsafe=True)
        return twin.train(layer.training)


def makers(quantizer: type[Quantizer], with_signs: Kinds | None = None) -> tuple[Maker, ...]:
    """The layers of a method: one for each kind that straight-through methods know."""
    return tuple(Maker(kind, quantizer, (with_signs or {}).get(kind)) for kind in KINDS)
