"""Neural networks with binary, ternary or few-level weights, trained with the local reparameterisation trick.

report = lrnets.convert_(model)            # float network -> stochastic twin
loss = criterion(model(x), y) + lrnets.penalty(model, probability_decay=1e-11)
net = lrnets.discretize(model)             # ordinary network with weights -1, 0, +1
"""

from lrnets.convert import ConversionReport, convert_
from lrnets.diagnostics import diagnose, entropy
from lrnets.discretize import discretize, select_best, update_bn
from lrnets.ensemble import Ensemble
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
    "select_best",
    "summary",
    "update_bn",
]
