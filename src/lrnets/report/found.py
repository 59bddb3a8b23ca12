"""What there is in a run's folder, whatever state it is in, and what is missing or damaged."""

from __future__ import annotations

import shlex
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal, TypeVar

from lrnets.training.metrics import metrics_file, read_epochs
from lrnets.training.recipe import Recipe
from lrnets.training.run_folder import RunFolder

STAGES = ("float", "stochastic")
SIGNS = ("recipe.yaml", "results.json", "environment.json", "metrics", "checkpoints")  # one of them makes a run folder

State = Literal["finished", "training the float network", "training the discrete weights", "choosing", "unknown"]
T = TypeVar("T")
D = TypeVar("D")


@dataclass(frozen=True)
class Note:
    """Something a reader must know, and the command that mends it, if there is one."""

    text: str
    command: str | None = None


@dataclass(frozen=True)
class Found:
    """A folder's content. What could not be read is empty or None here, and `notes` say why."""

    folder: RunFolder
    recipe: Recipe | None
    recipe_text: str
    results: dict[str, Any]
    evaluation: dict[str, Any]
    environment: dict[str, Any]
    epochs: Mapping[str, list[dict[str, float]]]  # by stage
    notes: list[Note] = field(default_factory=list)

    @property
    def path(self) -> Path:
        return self.folder.path

    @property
    def name(self) -> str:
        """The recipe's name, or whatever stands for it."""
        return self.recipe.name if self.recipe else str(self.results.get("recipe") or self.path.resolve().name)

    @property
    def seed(self) -> int | None:
        if self.recipe is not None:
            return self.recipe.seed
        seed = self.results.get("seed", self.environment.get("seed"))
        return seed if isinstance(seed, int) else None

    @property
    def method(self) -> str:
        return str((self.recipe.method if self.recipe else self.results.get("method")) or "unknown")

    @property
    def command(self) -> str:
        """As the run was started or resumed last, blanks in paths unquoted."""
        return str(self.environment.get("command") or "")

    @property
    def resume_command(self) -> str:
        recipe, out = shlex.quote(str(self.folder.recipe_file)), shlex.quote(str(self.path))
        return f"lrnets train {recipe} --out {out} --resume"

    @property
    def given_start(self) -> bool:
        """Whether the float network was brought from elsewhere (--init)."""
        return self.folder.weights_file("float").exists() and not self.epochs["float"]

    @property
    def trained_start(self) -> bool:
        """Whether the discrete weights began from a float network that had learnt something."""
        if self.recipe is None or self.recipe.discrete_stage is None:
            return bool(self.epochs["float"])
        by_recipe = self.recipe.float_stage.epochs > 0 or "--init" in self.command
        return bool(self.epochs["float"]) or (self.given_start and by_recipe)

    @property
    def state(self) -> State:
        if self.results:
            return "finished"
        if self.recipe is None:
            return "unknown"
        stage = self.recipe.discrete_stage
        begun = self.folder.weights_file("float").exists() or self.epochs["stochastic"]
        if not begun and (stage is None or stage.start == "pretrained"):
            return "training the float network"
        if stage is None or self.folder.weights_file("stochastic").exists():
            return "choosing"
        return "training the discrete weights"

    def planned(self, stage: str) -> int | None:
        """Epochs by the recipe; None if it is unknown or has no such stage."""
        if self.recipe is None:
            return None
        settings = self.recipe.float_stage if stage == "float" else self.recipe.discrete_stage
        return None if settings is None else settings.epochs


def look_into(folder: RunFolder) -> Found:
    """Read all that can be read; only a folder without any trace of a run is refused."""
    if not any((folder.path / sign).exists() for sign in SIGNS):
        raise FileNotFoundError(
            f"{folder.path} is no run folder: it has none of {', '.join(SIGNS)}; name one that `lrnets train` wrote"
        )
    notes: list[Note] = []
    text = attempt(notes, "recipe.yaml", lambda: folder.recipe_file.read_text(errors="replace"), "")
    found = Found(
        folder,
        recipe=attempt(notes, "recipe.yaml", folder.read_recipe, None) if text else None,
        recipe_text=text,
        results=_read_json(notes, folder, "results.json"),
        evaluation=_read_json(notes, folder, "evaluation.json"),
        environment=_read_json(notes, folder, "environment.json"),
        epochs={stage: _read_epochs(notes, folder, stage) for stage in STAGES},
        notes=notes,
    )
    _say_what_is_missing(found)
    return found


def attempt(notes: list[Note], what: str, read: Callable[[], T], otherwise: D) -> T | D:
    """The result, or a note of why there is none: a damaged folder gives less, never nothing."""
    try:
        return read()
    except Exception as error:
        reason = " ".join((str(error) or type(error).__name__).split())
        notes.append(Note(f"{what} cannot be used: {reason}"))
        return otherwise


def numbers(value: object) -> dict[str, float]:
    """The entries of a mapping that are numbers, of whatever a file holds."""
    if not isinstance(value, Mapping):
        return {}
    return {str(k): v for k, v in value.items() if isinstance(v, (int, float)) and not isinstance(v, bool)}


def _read_json(notes: list[Note], folder: RunFolder, name: str) -> dict[str, Any]:
    if not (folder.path / name).exists():
        return {}

    def read() -> dict[str, Any]:
        content: Any = folder.read_json(name)
        if not isinstance(content, dict):
            raise ValueError(f"it holds {type(content).__name__}, expected a mapping")
        return content

    return attempt(notes, name, read, {})


def _read_epochs(notes: list[Note], folder: RunFolder, stage: str) -> list[dict[str, float]]:
    def read() -> list[dict[str, float]]:
        rows = read_epochs(folder, stage)
        if not all("epoch" in row for row in rows):
            raise ValueError("a row has no epoch")
        return rows

    return attempt(notes, str(metrics_file(folder, stage).relative_to(folder.path)), read, [])


def _say_what_is_missing(found: Found) -> None:
    if found.state not in ("finished", "unknown"):
        found.notes.insert(0, Note(f"The run is not finished: {_where(found)}.", found.resume_command))
    if found.recipe is None:
        found.notes.append(Note("Without a recipe nobody can tell what was planned, nor rebuild the network."))
    if not found.environment and not any(note.text.startswith("environment.json") for note in found.notes):
        found.notes.append(Note("There is no environment.json: versions, machine and commit are unknown."))
    if found.state == "finished":
        for stage, planned in ((stage, found.planned(stage)) for stage in STAGES):
            given = stage == "float" and (found.given_start or not found.trained_start)
            if planned and not found.epochs[stage] and not given:
                found.notes.append(Note(f"There is no metrics/{stage}.csv: the curves of that stage are left out."))


def _where(found: Found) -> str:
    if found.state == "choosing":
        return "training is done, and the network is still to be chosen and tested"
    stage = "float" if found.state == "training the float network" else "stochastic"
    done, planned = len(found.epochs[stage]), found.planned(stage)
    return f"it stopped, or still is, in {found.state}, with {done} of {planned} epochs done"
