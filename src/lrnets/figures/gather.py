"""All figures that some runs allow."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from fnmatch import fnmatchcase
from functools import partial

from lrnets.data.progress import progress_bars
from lrnets.figures import draws, entropy, kernels, pareto, preactivations, training, zero_probability
from lrnets.figures.figure import Figure
from lrnets.figures.pairs import no_decayed_pair, no_rivals
from lrnets.figures.sources import ImpossibleError, Say, Source, open_sources, without_seeds
from lrnets.figures.task import Task
from lrnets.training.run_folder import RunFolder


def gather(runs: Sequence[RunFolder], layers: Sequence[str], say: Say, only: Sequence[str] = ()) -> list[Figure]:
    """Make each figure whose name begins with, or matches, one of `only`; one that fails is said, the others go on."""
    sources = open_sources(runs, say)
    everything = list(_tasks(sources, layers, say))
    todo = [task for task in everything if not only or any(_matches(task.name, each) for each in only)]
    if everything and not todo:
        names = ", ".join(dict.fromkeys(task.name for task in everything))
        raise ValueError(f"no figure is called {' or '.join(only)}; from these runs there are {names}")
    found = []
    with progress_bars() as report:
        for done, task in enumerate(todo):
            report("figures", done, len(todo))
            try:
                found.append(task.make())
            except (OSError, ValueError, RuntimeError) as error:
                say(f"{task.name}: not made, {error}")
    return found


def _tasks(sources: Sequence[Source], layers: Sequence[str], say: Say) -> Iterator[Task]:
    """In the paper's order, of runs that differ in the seed alone the first; then ours."""
    firsts = [group[0] for group in without_seeds(sources)]
    for source in firsts:
        suffix = f"-{source.slug}" if len(firsts) > 1 else ""
        yield from training.tasks([source], suffix)
        yield from preactivations.tasks([source], layers, suffix)
        yield from kernels.tasks([source], suffix)
        yield from entropy.tasks([source], layers, suffix)
        yield from zero_probability.tasks([source], layers, suffix)
        yield from draws.tasks([source], layers, suffix)
    if len(sources) < 2:
        return
    pairs = [*preactivations.pair_tasks(firsts, layers), *entropy.pair_tasks(firsts, layers)]
    yield from pairs or [Task("with-and-without-decay", partial(_refuse, no_decayed_pair, firsts))]
    yield from kernels.pair_tasks(firsts)
    yield from [*training.rival_tasks(firsts)] or [Task("lr-against-gumbel", partial(_refuse, no_rivals, firsts))]
    yield from pareto.tasks(sources, say)


def _matches(name: str, pattern: str) -> bool:
    return fnmatchcase(name, pattern) or name.startswith(f"{pattern}-")


def _refuse(reason: Callable[[Sequence[Source]], ImpossibleError], sources: Sequence[Source]) -> Figure:
    raise reason(sources)
