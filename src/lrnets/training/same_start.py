"""Several processes begin a stage at the same place, or not at all."""

from __future__ import annotations

import platform
from pathlib import Path

from lightning.pytorch import Callback, LightningModule, Trainer


class SameStart(Callback):
    """Refuses to begin a stage elsewhere than the first process does, which would end in a deadlock or in nonsense.

    So it comes if a run is resumed whose folder is on one machine's own disk: only the first process writes there.
    """

    def __init__(self, stage: str, checkpoint: Path | None, folder: Path) -> None:
        self.place = f"the {stage} stage, {'from the start' if checkpoint is None else 'from its last checkpoint'}"
        self.folder = folder

    def setup(self, trainer: Trainer, pl_module: LightningModule, stage: str) -> None:
        """Lightning calls it when processes are connected and networks are not yet wrapped."""
        first = trainer.strategy.broadcast(self.place)
        if self.place != first:
            raise RuntimeError(
                f"process {trainer.global_rank} on {platform.node()} finds {self.place} in {self.folder}, and the "
                f"first process {first}; put the run folder (--out) on a disk that all machines share"
            )
