"""All figures that some runs allow."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence

from lrnets.data.progress import progress_bars
from lrnets.figures import entropy
from lrnets.figures.figure import Figure
from lrnets.figures.sources import Source, open_sources, without_seeds
from lrnets.figures.task import Task
from lrnets.training.run_folder import RunFolder


def gather(runs: Sequence[RunFolder], layers: Sequence[str], say: Callable[[str], None]) -> list[Figure]:
    """Make each figure; one that fails is said, and the others go on."""
    sources = open_sources(runs, say)
    todo = list(_tasks(sources, layers))
    found = []
    with progress_bars() as report:
        for done, task in enumerate(todo):
            report("figures", done, len(todo))
            try:
                found.append(task.make())
            except (OSError, ValueError, RuntimeError) as error:
                say(f"{task.name}: not made, {error}")
    return found


def _tasks(sources: Sequence[Source], layers: Sequence[str]) -> Iterator[Task]:
    firsts = [group[0] for group in without_seeds(sources)]
    for source in firsts:
        suffix = f"-{source.slug}" if len(firsts) > 1 else ""
        yield from entropy.tasks([source], layers, suffix)
    yield from entropy.pair_tasks(firsts, layers)
