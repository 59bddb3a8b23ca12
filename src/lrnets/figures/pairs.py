"""Runs that belong together: the same but for one thing."""

from __future__ import annotations

from collections.abc import Sequence

from lrnets.figures.sources import ImpossibleError, Source, difference


def decay_of(source: Source) -> float:
    """The run's probability decay."""
    return 0.0 if source.recipe.discrete_stage is None else source.recipe.discrete_stage.probability_decay


def decay_text(source: Source) -> str:
    """How the decay is called in legends and captions."""
    return f"with probability decay {decay_of(source):g}"


def decayed_pairs(sources: Sequence[Source]) -> list[tuple[Source, Source, str]]:
    """(without, with, suffix of a file's name): LR-nets that differ in the probability decay alone."""
    with_logits = [source for source in sources if source.has_logits]
    pairs = [
        (one, other)
        for one in with_logits if decay_of(one) == 0
        for other in with_logits if decay_of(other) > 0 and not difference(one, other, "probability_decay")
    ]  # fmt: skip
    return [(one, other, f"-{other.slug}" if len(pairs) > 1 else "") for one, other in pairs]


def no_decayed_pair(sources: Sequence[Source]) -> ImpossibleError:
    """Why there is no such pair, and what to do about it."""
    discrete = [source for source in sources if source.has_logits]
    if not discrete:
        return ImpossibleError("it compares two runs with logits, and none is given; name them")
    one = discrete[0]
    wanted = 0 if decay_of(one) else 1e-11
    others = [source for source in discrete if bool(decay_of(source)) != bool(decay_of(one))]
    why = "all runs given have it" if decay_of(one) else "no run given has it"
    if others:
        why = f"{one.label} and {others[0].label} differ in more ({difference(one, others[0], 'probability_decay')})"
    return ImpossibleError(
        f"it compares two runs that differ in probability decay alone; {why}. `lrnets train {one.folder.recipe_file} "
        f"--init {one.folder.weights_file('float')} --set discrete_stage.probability_decay={wanted:g} --out OTHER` "
        "makes the other"
    )


def no_rivals(sources: Sequence[Source]) -> ImpossibleError:
    """Why LR-net and Gumbel-softmax cannot be set side by side, and what to do about it."""
    by_method = {method: [s for s in sources if s.recipe.method == method] for method in ("lr", "gumbel")}
    missing = [method for method, found in by_method.items() if not found]
    if len(missing) == 2:
        return ImpossibleError("it compares runs of the methods lr and gumbel, and none is given; name them")
    one = next(found[0] for found in by_method.values() if found)
    if missing:
        why, wanted = f"no run of {missing[0]} is given", missing[0]
    else:
        other = by_method["gumbel"][0]
        differ = difference(one, other, "method", "method_options")
        why, wanted = f"{one.label} and {other.label} differ in more ({differ})", "gumbel"
    return ImpossibleError(
        f"it compares runs of lr and gumbel with the same start and settings; {why}. `lrnets train "
        f"{one.folder.recipe_file} --init {one.folder.weights_file('float')} --set method={wanted} --out OTHER` makes "
        "the other"
    )
