"""Checkpoints that are whole or not there, wherever the system keeps its temporary files."""

from __future__ import annotations

import pickle
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from lightning.fabric.plugins import TorchCheckpointIO

from lrnets.whole_files import whole_file


class WholeCheckpoints(TorchCheckpointIO):
    """Writes beside the old checkpoint and renames.

    Lightning's own writes into the folder of temporary files and moves: on another disk that is a copy over the old
    checkpoint, of which a process that is killed meanwhile leaves nothing.
    """

    def save_checkpoint(self, checkpoint: dict[str, Any], path: Any, storage_options: Any = None) -> None:
        target = Path(path)
        target.parent.mkdir(parents=True, exist_ok=True)
        with whole_file(target) as temporary:
            torch.save(checkpoint, temporary)

    def load_checkpoint(
        self, path: Any, map_location: Callable[..., Any] | None = None, weights_only: bool | None = True
    ) -> dict[str, Any]:
        """Read without unpickling anything but tensors and plain values; a damaged file is named with the remedy."""
        try:
            return super().load_checkpoint(path, map_location=map_location, weights_only=weights_only)
        except (RuntimeError, EOFError, pickle.UnpicklingError) as error:
            raise ValueError(
                f"the checkpoint {path} is damaged ({' '.join(str(error).split())[:200]}); remove it, and --resume "
                "begins its stage anew"
            ) from error
