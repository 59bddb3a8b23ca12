"""Drawn networks for other places: a packed file for lrnets_runtime, ONNX, C."""

try:
    import lrnets_runtime  # noqa: F401
except ModuleNotFoundError as error:
    raise ModuleNotFoundError(
        "lrnets.export writes files for lrnets_runtime, which is not installed; pip install lrnets-runtime",
        name="lrnets_runtime",
    ) from error

from lrnets_runtime.graph import Preparation

from lrnets.export.builder import UnsupportedError
from lrnets.export.c_file import CReport, save_c
from lrnets.export.from_packed import export_packed
from lrnets.export.onnx_file import OnnxReport, save_onnx
from lrnets.export.packed import PackedReport, save_packed

__all__ = [
    "CReport",
    "OnnxReport",
    "PackedReport",
    "Preparation",
    "UnsupportedError",
    "export_packed",
    "save_c",
    "save_onnx",
    "save_packed",
]
