"""What a person sees while a stage trains."""

from __future__ import annotations

import sys
from typing import Any

from lightning.pytorch.callbacks import Callback


class EpochLines(Callback):
    """One line an epoch, for output that is not a terminal."""

    def __init__(self, stage: str) -> None:
        self.stage = stage

    def on_train_epoch_start(self, trainer: Any, pl_module: Any) -> None:
        self._tell(trainer, trainer.current_epoch)  # of the epoch before, whose validation is done only now

    def on_train_end(self, trainer: Any, pl_module: Any) -> None:
        self._tell(trainer, trainer.current_epoch)

    def _tell(self, trainer: Any, done: int) -> None:
        shown = {k: float(v) for k, v in trainer.callback_metrics.items() if k == "loss" or k.startswith("valid")}
        if shown and trainer.is_global_zero:
            figures = "  ".join(f"{name} {value:.4g}" for name, value in shown.items())
            print(f"{self.stage} epoch {done}/{trainer.max_epochs}  {figures}", flush=True)


def on_a_terminal() -> bool:
    """Whether a person may be watching: then Lightning's own bar is shown, otherwise lines."""
    return sys.stdout.isatty()
