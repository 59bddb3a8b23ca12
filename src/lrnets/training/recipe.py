"""An experiment as data: one readable YAML file, validated into a typed Recipe."""

from __future__ import annotations

import math
import os
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from functools import cache
from importlib import resources
from threading import Lock
from typing import TYPE_CHECKING, Any, Literal

import yaml

from lrnets.methods import METHODS, method_named
from lrnets.training.recipe_refusals import forgotten, in_short
from lrnets.training.settings_file import read_settings, shipped
from lrnets.weights import as_value_set

if TYPE_CHECKING:
    from jsonargparse import ArgumentParser

_FOLDER = resources.files("lrnets").joinpath("recipes")
_PARSING = Lock()  # the threads of `lrnets table` share one parser

DATA_OPTIONS = {"imagenet": ("size", "resize", "mean", "deviation", "damaged_share")}
STAGE_OPTIONS = ("scale", "p_min", "p_max")  # options of methods that have their place in the stage


@dataclass(frozen=True)
class Sharpen:
    """The logits count as multiplied by a factor that grows from `first` at `start` (a share of training) to `factor`.

    It grows linearly, or by the same ratio in each step. That is 1 / temperature: {start: 0, shape: exponential} is how
    SLB anneals (Yang et al. 2020, "Searching for low-bit weights in quantized neural networks"), who also give
    batch norm statistics of the discrete weights; here they are re-estimated on each discrete network that is judged.
    """

    start: float = 0.4
    factor: float = 10.0
    shape: Literal["linear", "exponential"] = "linear"
    first: float = 1.0

    def __post_init__(self) -> None:
        _require("sharpen.start", self.start, 0 <= self.start < 1, "from 0 to below 1")
        _require("sharpen.first", self.first, self.first > 0, "above 0")
        _require("sharpen.factor", self.factor, self.factor >= self.first, f"at least sharpen.first, {self.first:g}")

    def at(self, progress: float) -> float:
        """The factor when this share of training is done."""
        share = max(0.0, progress - self.start) / (1 - self.start)
        if self.shape == "exponential":
            return self.first * (self.factor / self.first) ** share
        return self.first + (self.factor - self.first) * share


@dataclass(frozen=True)
class FloatStage:
    """Training of the float network: Adam; the learning rate divided by 10 at `milestones` (epochs), or one cycle."""

    epochs: int
    lr: float = 0.01
    schedule: Literal["step", "one-cycle"] = "step"
    milestones: tuple[int, ...] = ()
    weight_decay: float = 1e-4
    label_smoothing: float = 0.0

    def __post_init__(self) -> None:
        _require("label_smoothing", self.label_smoothing, 0 <= self.label_smoothing < 1, "from 0 to below 1")
        _require("epochs", self.epochs, self.epochs >= 0, "at least 0")
        _require("lr", self.lr, self.lr > 0, "above 0")
        _require("weight_decay", self.weight_decay, self.weight_decay >= 0, "at least 0")
        _require("milestones", self.milestones, all(m > 0 for m in self.milestones), "epochs above 0")
        if self.schedule == "one-cycle" and self.milestones:
            raise ValueError("milestones belong to the step schedule; leave them out, or use schedule: step")


@dataclass(frozen=True)
class DiscreteStage(FloatStage):
    """Training of the discrete weights; the names are those of lrnets.convert_, param_groups and penalty.

    `logit_lr` is for what the weights come from: logits, or the float weights behind quantised ones. `scale`, `p_min`
    and `p_max` are for the methods that have them as options. `natural` and `learn_scale` call
    lrnets.layers.set_natural and learn_scales_. After each step logits are clamped to +-`logit_limit`, if it is given.
    """

    start: Literal["pretrained", "random"] = "pretrained"
    logit_lr: float | None = None
    logit_decay: float = 0.0
    logit_limit: float | None = None
    natural: bool = False
    probability_decay: float = 0.0
    beta: float = 0.0
    sharpen: Sharpen | None = None
    scale: bool | Literal["fitted"] = False
    learn_scale: bool = False
    keep_first: bool = False
    p_min: float = 0.05
    p_max: float = 0.95
    variance_floor: float = 1e-8

    def __post_init__(self) -> None:
        super().__post_init__()
        _require("logit_lr", self.logit_lr, self.logit_lr is None or self.logit_lr > 0, "above 0")
        _require("logit_decay", self.logit_decay, self.logit_decay >= 0, "at least 0")
        _require("logit_limit", self.logit_limit, self.logit_limit is None or self.logit_limit > 0, "above 0")
        if self.learn_scale and not self.scale:
            raise ValueError("learn_scale needs a scale to begin with; set scale: true as well")
        if self.natural and (self.probability_decay or self.beta):
            raise ValueError(
                "natural gradients are no derivatives, so that those of probability_decay and beta cannot be added; "
                "leave these out, and use logit_decay"
            )
        _require("probability_decay", self.probability_decay, self.probability_decay >= 0, "at least 0")
        _require("beta", self.beta, self.beta >= 0, "at least 0")
        _require("variance_floor", self.variance_floor, self.variance_floor >= 0, "at least 0")
        _require("p_min, p_max", (self.p_min, self.p_max), 0 < self.p_min < self.p_max < 1, "0 < p_min < p_max < 1")


@dataclass(frozen=True)
class Recipe:
    """One experiment: data, network, what its weights may be, and how it is trained and chosen.

    `method` is one of lrnets.methods; by default "lr", or "float" for float weights without a discrete stage.
    `data: imagenet` is any folder of images; its options are those of lrnets.data.ImageFolder.
    """

    about: str
    data: Literal["mnist", "cifar10", "imagenet"]
    network: Literal["mnist_net", "cifar10_vgg", "resnet18"]
    weights: Literal["float", "binary", "ternary"] | tuple[float, ...]
    float_stage: FloatStage
    discrete_stage: DiscreteStage | None = None
    method: str | None = None
    method_options: dict[str, Any] = field(default_factory=dict)
    name: str = "own"
    cost: str = ""
    data_options: dict[str, Any] = field(default_factory=dict)
    classes: int = 10
    width: float = 1.0
    dropout: float = 0.5
    batch_size: int = 256
    valid_size: int = 5000
    draws: int = 10
    norm_batches: int = 20
    seed: int = 0

    def __post_init__(self) -> None:
        object.__setattr__(self, "method", self.method or ("float" if self.weights == "float" else "lr"))
        self._check_method()
        _require("width", self.width, self.width > 0, "above 0")
        _require("dropout", self.dropout, 0 <= self.dropout < 1, "from 0 to below 1")
        for name in ("batch_size", "draws", "norm_batches", "valid_size", "classes"):
            _require(name, getattr(self, name), getattr(self, name) >= 1, "at least 1")
        _require("seed", self.seed, 0 <= self.seed < 2**63, "from 0 to 2^63 - 1")
        allowed = DATA_OPTIONS.get(self.data, ())
        for name in self.data_options:
            if name not in allowed:
                raise ValueError(f"data {self.data} has no option {name!r}, only {', '.join(allowed) or 'none at all'}")

    def _check_method(self) -> None:
        """Refuse a method that cannot do what is asked, and settings that would do nothing."""
        method, stage = method_named(str(self.method)), self.discrete_stage
        if self.weights != "float":
            as_value_set(self.weights)
        method.require(self.weights)
        if method.name == "float" and stage is not None:
            raise ValueError("weights: float has no discrete_stage; leave it out, or choose binary or ternary")
        if method.name != "float" and stage is None:
            raise ValueError(
                f"weights: {self.weights} by method: {method.name} needs a discrete_stage, with its epochs at least"
            )
        for name in STAGE_OPTIONS:
            if name in self.method_options:
                raise ValueError(f"method_options.{name} stands in the stage; write discrete_stage.{name}")
        try:
            method.complete(self.method_options)
        except TypeError as error:
            raise ValueError(f"method_options: {error}") from error
        if stage is not None and stage.natural and method.name != "lr":
            raise ValueError(f"discrete_stage.natural is for method lr; leave it out for {method.name}")
        if stage is not None and not method.logits:
            if stage.scale == "fitted":
                raise ValueError(f"discrete_stage.scale: fitted is for methods with logits; use true for {method.name}")
            for name in ("sharpen", "logit_decay", "logit_limit", "learn_scale", "probability_decay", "beta"):
                if getattr(stage, name):
                    having = [other.name for other in METHODS.values() if other.logits]
                    raise ValueError(
                        f"discrete_stage.{name} is for methods with logits ({', '.join(having)}); leave it out "
                        f"for {method.name}"
                    )

    def to_yaml(self) -> str:
        """The recipe as the file it could have come from, defaults written out."""
        return yaml.safe_dump(_plain(asdict(self)), sort_keys=False, allow_unicode=True)


def recipe_names() -> list[str]:
    """Names of the recipes that come with lrnets."""
    return shipped(_FOLDER)


def load_recipe(source: str | os.PathLike[str], settings: Sequence[str] = ()) -> Recipe:
    """A recipe by name or from a YAML file, with settings such as "discrete_stage.epochs=5" on top."""
    raw, name = read_settings("recipe", source, _FOLDER)
    if not isinstance(raw, dict):
        raise ValueError(f"recipe {str(source)!r} must be a mapping of settings, got {type(raw).__name__}")
    raw.setdefault("name", name)
    for setting in settings:
        _apply(raw, setting)
    return recipe_from(raw, f"recipe {str(source)!r}")


def recipe_from(raw: Mapping[str, Any], where: str = "recipe") -> Recipe:
    """Validate a mapping; unknown names, wrong types and impossible values are refused by name."""
    from jsonargparse import ArgumentError

    if name := forgotten(raw, Recipe):
        raise ValueError(f"{where}: {name} has no value; give it one, or leave it out")
    try:
        with _PARSING:
            parser = _parser()
            return Recipe(**vars(parser.instantiate(parser.parse_object(dict(raw)))))
    except (ArgumentError, ValueError, TypeError) as error:
        raise ValueError(f"{where}: {in_short(str(error), Recipe)}") from error


@cache
def _parser() -> ArgumentParser:
    """Building it takes longer than using it, and a table has dozens of recipes."""
    from jsonargparse import ArgumentParser

    parser = ArgumentParser(exit_on_error=False)
    parser.add_class_arguments(Recipe)
    return parser


def _apply(raw: dict[str, Any], setting: str) -> None:
    key, equals, value = setting.partition("=")
    if not equals or not key:
        raise ValueError(f"{setting!r} is no setting; write KEY=VALUE, for example discrete_stage.epochs=5")
    *path, last = key.split(".")
    for part in path:
        raw = raw.setdefault(part, {})
        if not isinstance(raw, dict):
            raise ValueError(f"{setting!r}: {part} is not a group of settings")
    try:
        raw[last] = yaml.safe_load(value)
    except yaml.YAMLError as error:
        raise ValueError(f"{setting!r}: {value!r} is no value ({' '.join(str(error).split())}); quote texts") from error


def _require(name: str, value: object, holds: bool, limit: str) -> None:
    finite = not isinstance(value, float) or math.isfinite(value)
    if not holds or not finite:
        raise ValueError(f"{name} must be {limit}{'' if finite else ' and finite'}, got {value}")


def _plain(value: Any) -> Any:
    """Tuples as lists, for YAML."""
    if isinstance(value, dict):
        return {key: _plain(item) for key, item in value.items()}
    return [_plain(item) for item in value] if isinstance(value, (list, tuple)) else value
