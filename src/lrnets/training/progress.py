"""What a person sees while a stage trains."""

from __future__ import annotations

import sys
from typing import Any

from lightning.pytorch.callbacks import Callback, TQDMProgressBar


class EpochLines(Callback):
    """One line an epoch, for output that is not a terminal."""

    def __init__(self, stage: str) -> None:
        self.stage = stage

    def on_train_epoch_end(self, trainer: Any, pl_module: Any) -> None:
        if trainer.is_global_zero:
            shown = {k: float(v) for k, v in trainer.callback_metrics.items() if k == "loss" or k.startswith("valid")}
            figures = "  ".join(f"{name} {value:.4g}" for name, value in shown.items())
            print(f"{self.stage} epoch {trainer.current_epoch + 1}/{trainer.max_epochs}  {figures}", flush=True)


def progress_bar(stage: str) -> Callback:
    """A bar on a terminal, lines elsewhere."""
    return TQDMProgressBar(refresh_rate=5) if sys.stderr.isatty() else EpochLines(stage)
