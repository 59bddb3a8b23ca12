"""What stands in the place of torch's own layer while a network is trained, and how to deal with it whatever it is.

An LR layer is one such twin. Layers of other methods that have no logits derive from `Twin`. Both are built by
`from_plain` from torch's layer and end as one again, by `choose` and `to_plain`.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, ClassVar, Literal, TypeAlias

import torch
from torch import Tensor, nn
from typing_extensions import Self

from lrnets.layers import LRLayer
from lrnets.plain import filled
from lrnets.weights import ValueSet

Mode: TypeAlias = Literal["sample", "mode"]


class Twin(nn.Module):
    """A layer in training whose weights are not given by logits. In `eval()` it computes with `choose("mode")`."""

    plain: ClassVar[type[nn.Module]]  # torch's layer of the same kind
    carriers: ClassVar[tuple[str, ...]]  # the attributes that hold the weights; layers with tied weights share them
    own_rate: ClassVar[bool] = True  # do they learn at the logits' rate? Ordinary float weights do not
    bias: nn.Parameter | None

    @property
    def random(self) -> bool:
        """Whether one draw differs from the next."""
        return True

    @classmethod
    def from_plain(cls, layer: nn.Module, values: ValueSet | None, **options: Any) -> Self:
        """A new layer that starts from torch's own, which stays as it was; its very own bias. `values` None: float."""
        raise NotImplementedError

    def choose(self, mode: Mode, generator: torch.Generator | None = None) -> Tensor:
        """The weights of an ordinary layer, scale and all: drawn, or the ones `eval()` computes with."""
        raise NotImplementedError

    def carrying(self) -> list[nn.Parameter]:
        """The parameters among the carriers."""
        return [value for name in self.carriers if isinstance(value := getattr(self, name), nn.Parameter)]

    def decayed(self) -> bool:
        """Whether weight decay is for the parameters that carry the weights."""
        return False

    @torch.no_grad()
    def to_plain(self, weight: Tensor, bias: nn.Parameter | None) -> nn.Module:
        """Torch's own layer with these settings, these weights, frozen, and this bias."""
        return filled(self.plain, self, weight, bias)


AnyTwin: TypeAlias = LRLayer | Twin


def twins(model: nn.Module) -> Iterator[tuple[str, AnyTwin]]:
    """Each layer in training and its name, shared ones once."""
    for name, module in model.named_modules():
        if isinstance(module, (LRLayer, Twin)):
            yield name, module


def is_random(model: nn.Module) -> bool:
    """Whether the model's weights are drawn, so that one drawn network differs from the next."""
    return any(isinstance(layer, LRLayer) or layer.random for _, layer in twins(model))


def carriers_of(layer: AnyTwin) -> tuple[str, ...]:
    """The attributes that hold a layer's weights."""
    return ("logits",) if isinstance(layer, LRLayer) else layer.carriers


def carrying_parameters(layer: AnyTwin) -> list[nn.Parameter]:
    """The parameters a layer's weights come from."""
    return [layer.logits] if isinstance(layer, LRLayer) else layer.carrying()


def tie(layer: AnyTwin, to: AnyTwin) -> None:
    """Let two layers have the same weights, and learn them together."""
    for name in carriers_of(layer):
        setattr(layer, name, getattr(to, name))


def tied_key(layer: AnyTwin) -> tuple[int, ...]:
    """Equal for layers whose weights are tied, and only for those."""
    return tuple(id(getattr(layer, name)) for name in carriers_of(layer))


def choose(layer: AnyTwin, mode: Mode, generator: torch.Generator | None = None) -> Tensor:
    """What `to_plain` takes: levels of an LR layer, or the weights of another twin."""
    if not isinstance(layer, LRLayer):
        return layer.choose(mode, generator)
    logits = layer.weight_logits
    return layer.values.mode(logits) if mode == "mode" else layer.values.draw(logits, generator=generator)
