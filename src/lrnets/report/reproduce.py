"""Where a run came from, and the commands that give it again."""

from __future__ import annotations

import shlex
from dataclasses import dataclass

from lrnets.report.found import STAGES, Found, numbers

FACTS = {
    "started": "started", "lrnets": "lrnets", "commit": "commit", "python": "Python", "torch": "PyTorch",
    "processor": "processor", "machine": "machine", "threads": "threads", "cuda": "CUDA", "seed": "seed",
}  # fmt: skip


@dataclass(frozen=True)
class Step:
    """What to do, and how."""

    what: str
    command: str


def facts_of(found: Found) -> list[tuple[str, str]]:
    """The environment in words, and how long training took."""
    known = ((word, found.environment.get(key)) for key, word in FACTS.items())
    facts = [(word, str(value)) for word, value in known if value is not None]
    seconds = {name: s for name, s in numbers(found.results.get("seconds")).items() if s}
    seconds = seconds or {name: s for name in STAGES if (s := sum(r.get("seconds", 0.0) for r in found.epochs[name]))}
    if seconds:
        facts.insert(0, ("training took", " + ".join(f"{_time(s)} ({name})" for name, s in seconds.items())))
    return facts


def steps_of(found: Found) -> list[Step]:
    """From the same code to the same run; the recipe in the folder holds every setting, the seed too."""
    steps = []
    commit = str(found.environment.get("commit") or "")
    if commit:
        clean, dirty = commit.removesuffix("-dirty"), commit.endswith("-dirty")
        changed = ", which had changes that were not committed: they are not in it" if dirty else ""
        steps.append(Step(f"The code as it was{changed}", f"git checkout {shlex.quote(clean)} && make setup"))
    if found.recipe is not None:
        recipe, weights, again = (
            shlex.quote(str(path))
            for path in (found.folder.recipe_file, found.folder.weights_file("float"), f"{found.path}-again")
        )
        init, given = "", ""
        if found.given_start:
            init, given = f" --init {weights}", ", from the float network that it was given"
        train = f"lrnets train {recipe}{init} --out {again}"
        steps.append(Step(f"The same training into a new folder{given}", train))
        if found.state != "finished":
            steps.append(Step("Or go on with this one", found.resume_command))
    if found.command:
        steps.append(Step("The command that this run was started or resumed with, as the system saw it", found.command))
    return steps


def _time(seconds: float) -> str:
    minutes, rest = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours} h {minutes} min" if hours else f"{minutes} min {rest} s" if minutes else f"{rest} s"
