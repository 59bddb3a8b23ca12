"""Neural networks with binary, ternary or few-level weights, trained with the local reparameterisation trick.

    report = lrnets.convert_(model)            # float network -> stochastic twin
    loss = criterion(model(x), y) + lrnets.penalty(model, probability_decay=1e-11)
    net = lrnets.discretize(model)             # ordinary network with weights -1, 0, +1

Names are imported when they are first used: `lrnets --help` need not wait for torch.
"""

import sys
from importlib import import_module
from types import ModuleType
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from lrnets.convert import ConversionReport, convert_
    from lrnets.diagnostics import diagnose, entropy
    from lrnets.discretize import discretize, select_best, update_bn
    from lrnets.ensemble import Ensemble
    from lrnets.foreign import register_layer
    from lrnets.layers import LRConv1d, LRConv2d, LRConv3d, LRConvTranspose2d, LRLinear
    from lrnets.penalties import param_groups, penalty
    from lrnets.summary import summary
    from lrnets.weights import Binary, Levels, Ternary, ValueSet

__version__ = "0.1.0.dev0"

__all__ = [
    "Binary",
    "ConversionReport",
    "Ensemble",
    "LRConv1d",
    "LRConv2d",
    "LRConv3d",
    "LRConvTranspose2d",
    "LRLinear",
    "Levels",
    "Ternary",
    "ValueSet",
    "convert_",
    "diagnose",
    "discretize",
    "entropy",
    "param_groups",
    "penalty",
    "register_layer",
    "select_best",
    "summary",
    "update_bn",
]

_HOMES = {
    "convert": ("ConversionReport", "convert_"),
    "diagnostics": ("diagnose", "entropy"),
    "discretize": ("discretize", "select_best", "update_bn"),
    "ensemble": ("Ensemble",),
    "foreign": ("register_layer",),
    "layers": ("LRConv1d", "LRConv2d", "LRConv3d", "LRConvTranspose2d", "LRLinear"),
    "penalties": ("param_groups", "penalty"),
    "summary": ("summary",),
    "weights": ("Binary", "Levels", "Ternary", "ValueSet"),
}
_HOME_OF = {name: module for module, names in _HOMES.items() for name in names}


class _Package(ModuleType):
    def __getattr__(self, name: str) -> Any:
        if name in _HOME_OF:
            value = getattr(import_module(f"lrnets.{_HOME_OF[name]}"), name)
        else:
            try:
                value = import_module(f"lrnets.{name}")
            except ModuleNotFoundError as error:
                if error.name != f"lrnets.{name}":
                    raise
                raise AttributeError(f"module 'lrnets' has no attribute {name!r}") from None
        setattr(self, name, value)
        return value

    def __setattr__(self, name: str, value: Any) -> None:
        # Importing the module lrnets.summary would otherwise hide the function lrnets.summary behind it.
        if not (name in _HOME_OF and isinstance(value, ModuleType)):
            super().__setattr__(name, value)

    def __dir__(self) -> list[str]:
        return sorted({*super().__dir__(), *__all__})


sys.modules[__name__].__class__ = _Package
