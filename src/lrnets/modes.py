"""Evaluation mode for a while."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from torch import nn


@contextmanager
def evaluating(model: nn.Module) -> Iterator[None]:
    """Put a model into eval mode; each module's own mode comes back, whatever happens."""
    training = {module: module.training for module in model.modules()}
    try:
        model.eval()
        yield
    finally:
        for module, mode in training.items():
            module.training = mode
