"""Runs packed networks with binary and ternary weights: NumPy and safetensors, never torch."""

from lrnets_runtime.errors import PackedFileError
from lrnets_runtime.network import Network, load

__version__ = "0.1.0.dev0"

__all__ = ["Network", "PackedFileError", "__version__", "load"]
