"""The methods: LR-nets and their rivals, all entered through `lrnets.convert_(model, method=...)`.

This is the list of them; it imports nothing heavy. Each lives in a module of its own (`home`), which has

    LAYERS: tuple of classes with `plain`, the layer of torch's they stand for, and
    from_plain(layer, values, **options), which builds one from a float layer (values None: float weights)

Twins with logits derive from `lrnets.layers.LRLayer`, others from `lrnets.methods.twin.Twin`; what a method wants of a
training loop beside gradients is in `lrnets.methods.harness`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from importlib import import_module
from typing import Any, Literal

Weights = Literal["binary", "ternary", "levels", "float"]
Activations = Literal["unchanged", "signs", "expected signs"]


@dataclass(frozen=True)
class Method:
    """One method: what it can do, where it is, how it is set."""

    name: str
    about: str
    weights: tuple[Weights, ...]  # value sets it can do, the default first; "levels" is any tuple of levels
    home: str | None  # None: nothing is converted
    # "signs": layers take the sign of their input; "expected signs": activations after layers are replaced
    activations: Activations = "unchanged"
    logits: bool = False  # has distributions given by logits: can be sharpened, has entropy, probability decay, beta
    options: Mapping[str, Any] = field(default_factory=dict)  # names and defaults

    @property
    def default_weights(self) -> str:
        return self.weights[0]

    def layers(self) -> Sequence[Any]:
        """The classes that stand for torch's layers."""
        return () if self.home is None else import_module(self.home).LAYERS

    def can(self, values: str | Sequence[float]) -> bool:
        """Whether weights can be of this value set: a name, or levels."""
        return (values if isinstance(values, str) else "levels") in self.weights

    def require(self, values: str | Sequence[float]) -> None:
        """Refuse a value set that the method does not have, with those it has and the methods that have it."""
        if not self.can(values):
            wanted = values if isinstance(values, str) else "(" + ", ".join(f"{v:g}" for v in values) + ")"
            others = [name for name, method in METHODS.items() if method.can(values)]
            has = " or ".join("any levels" if w == "levels" else w for w in self.weights)
            raise ValueError(
                f"method {self.name} has no {wanted} weights, only {has}; "
                f"methods with {wanted} weights: {', '.join(others) or 'none'}"
            )

    def complete(self, options: Mapping[str, Any]) -> dict[str, Any]:
        """The options with defaults filled in; unknown ones are refused."""
        unknown = [name for name in options if name not in self.options]
        if unknown:
            known = ", ".join(f"{name}={value!r}" for name, value in self.options.items())
            raise TypeError(
                f"method {self.name} has no option {', '.join(map(repr, unknown))}; it has {known or 'no options'}"
            )
        return {**self.options, **options}


_START = {"scale": True, "p_min": 0.05, "p_max": 0.95}  # of all methods with logits: see lrnets.convert_
_ALL: tuple[Weights, ...] = ("ternary", "binary", "levels")

METHODS: dict[str, Method] = {
    method.name: method
    for method in (
        Method(
            "lr", "LR-net: samples pre-activations (Shayer et al. 2018)", _ALL, "lrnets.layers", logits=True,
            options=_START,
        ),
        Method("float", "the reference: nothing is converted", ("float",), None),
        Method(
            "binaryconnect", "BinaryConnect: signs, straight through, clipped (Courbariaux et al. 2015)", ("binary",),
            "lrnets.methods.binaryconnect", options={"scale": True, "stochastic": False},
        ),
        Method(
            "bnn", "BNN: signs of weights and of activations (Courbariaux et al. 2016)", ("binary",),
            "lrnets.methods.bnn", "signs", options={"scale": True},
        ),
        Method("bwn", "BWN: signs with a scale a filter (Rastegari et al. 2016)", ("binary",), "lrnets.methods.bwn"),
        Method(
            "xnor", "XNOR-Net: BWN with signs of activations and their scale (Rastegari et al. 2016)", ("binary",),
            "lrnets.methods.xnor", "signs", options={"input_scale": True},
        ),
        Method(
            "twn", "TWN: ternary by a threshold, with a scale (Li et al. 2016)", ("ternary",), "lrnets.methods.twn",
            options={"per": "layer", "threshold": 0.7},
        ),
        Method(
            "ttq", "TTQ: ternary with two learned scales a layer (Zhu et al. 2017)", ("ternary",), "lrnets.methods.ttq",
            options={"threshold": 0.05},
        ),
        Method(
            "gumbel", "Gumbel-softmax: samples relaxed weights (Jang et al. 2017, Maddison et al. 2017)", _ALL,
            "lrnets.methods.gumbel", logits=True, options={**_START, "tau": 0.1, "tau_end": None},
        ),
        Method(
            "logderivative", "the log-derivative estimator with a baseline (Williams 1992)", _ALL,
            "lrnets.methods.log_derivative", logits=True, options={**_START, "decay": 0.9},
        ),
        Method(
            "gaussian", "Gaussian local reparameterisation with its KL term (Kingma et al. 2015)", ("float",),
            "lrnets.methods.gaussian", options={"alpha": 0.1, "kl": 1.0},
        ),
        Method(
            "ebp", "expectation backpropagation: binary weights, expected signs (Soudry et al. 2014)", ("binary",),
            "lrnets.methods.expectation_backprop", "expected signs", logits=True, options=_START,
        ),
        Method(
            "fastdropout", "fast dropout: samples what dropout does to a sum (Wang and Manning 2013)", ("float",),
            "lrnets.methods.fast_dropout", options={"p": 0.2},
        ),
        Method(
            "bitnet", "BitNet b1.58: ternary by the mean size (Ma et al. 2024)", ("ternary",), "lrnets.methods.bitnet"
        ),
    )
}  # fmt: skip


def method_named(name: str) -> Method:
    """The method of that name."""
    if name not in METHODS:
        raise ValueError(f"unknown method {name!r}; there are {', '.join(METHODS)}")
    return METHODS[name]
