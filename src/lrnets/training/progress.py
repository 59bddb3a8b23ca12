"""What a person sees while a stage trains: a bar on a terminal, a line an epoch in any case."""

from __future__ import annotations

import logging
import sys
import warnings
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

SHOWN = {"loss": "loss {:.4f}", "valid_error": "validation error {:.2f} %", "valid_error_draw": "of a draw {:.2f} %"}


def epoch_line(stage: str, epochs: int, figures: Mapping[str, float]) -> str:
    """An epoch in a line: its losses and errors, and how long it took."""
    parts = [text.format(figures[name]) for name, text in SHOWN.items() if name in figures]
    return f"{stage} epoch {figures['epoch']:.0f}/{epochs}: {', '.join(parts)}, {figures['seconds']:.0f} s"


def bars() -> list[Any]:
    """Lightning's progress bar by rich, if a person may be watching."""
    if not sys.stdout.isatty():
        return []
    from lightning.pytorch.callbacks import RichProgressBar

    class Bar(RichProgressBar):
        """Without Lightning's version number, which says nothing here."""

        def get_metrics(self, trainer: Any, pl_module: Any) -> Any:
            return {name: value for name, value in super().get_metrics(trainer, pl_module).items() if name != "v_num"}

    return [Bar()]


@contextmanager
def quiet_lightning() -> Iterator[None]:
    """Leave out what Lightning says about itself: hints, the hardware it did not find, its dependencies' changes."""
    logger = logging.getLogger("lightning.pytorch")
    level = logger.level
    logger.setLevel(logging.WARNING)
    try:
        with warnings.catch_warnings():
            warnings.filterwarnings("ignore", module="lightning")
            warnings.filterwarnings("ignore", message=".*LeafSpec")
            yield
    finally:
        logger.setLevel(level)
