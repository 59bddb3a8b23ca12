"""The paper's figures and ours, from run folders alone: nothing is trained, and no data set is read."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from lrnets.figures.figure import Figure
from lrnets.training.run_folder import RunFolder

__all__ = ["Figure", "figures_of"]


def figures_of(
    runs: Sequence[RunFolder], *, layers: Sequence[str] = (), say: Callable[[str], None] = print
) -> list[Figure]:
    """Every figure that these runs allow; one that is impossible is said, with the reason and the remedy.

    `layers` (names or patterns such as "conv*") narrows those that show all layers.
    """
    from lrnets.figures.gather import gather

    return gather(runs, layers, say)
