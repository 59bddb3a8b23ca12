"""Drawn networks for other places: a packed file for lrnets_runtime."""

try:
    import lrnets_runtime  # noqa: F401
except ModuleNotFoundError as error:
    raise ModuleNotFoundError(
        "lrnets.export writes files for lrnets_runtime, which is not installed; pip install lrnets-runtime",
        name="lrnets_runtime",
    ) from error

from lrnets.export.builder import UnsupportedError
from lrnets.export.packed import PackedReport, save_packed

__all__ = ["PackedReport", "UnsupportedError", "save_packed"]
