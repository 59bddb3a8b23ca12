"""All parts of a report, put into the page's template."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import datetime, timezone
from functools import partial
from importlib import resources
from pathlib import Path
from typing import TYPE_CHECKING, Any

import lrnets
from lrnets.report.curves import curves, epoch_table
from lrnets.report.files import files_of
from lrnets.report.found import Found, Note, attempt
from lrnets.report.inline import inline_svg
from lrnets.report.layers import DRAWS, NEURONS, TEXTS, layer_table
from lrnets.report.reproduce import facts_of, steps_of
from lrnets.report.seeds import SEEDS_HEADER, seed_rows
from lrnets.report.verdict import verdict_of
from lrnets.training.evaluate import evaluation_header, evaluation_remark, evaluation_rows
from lrnets.training.results import results_header, results_rows

if TYPE_CHECKING:
    from torch import Tensor, nn

    from lrnets.figures.figure import Figure

Say = Callable[[str], None]


@dataclass(frozen=True)
class Table:
    """A table as the template takes it: cells are text, numbers stand right of `texts` columns of words."""

    header: Sequence[str]
    rows: Sequence[Sequence[str]]
    texts: int = 1
    foot: Sequence[Sequence[str]] = ()


@dataclass(frozen=True)
class Drawing:
    """A figure on the page; `wide` ones have a line of their own."""

    title: str
    caption: str
    svg: str
    width: int

    @property
    def wide(self) -> bool:
        return self.width > 680


def render(
    found: Sequence[Found], *, model: nn.Module | None = None, inputs: Tensor | None = None, out: Path | None = None,
    say: Say = print,
) -> str:  # fmt: skip
    """The page of one run, or of several seeds of a recipe; parts that fail are left out and noted."""
    lead = next((one for one in found if one.state == "finished"), found[0])
    notes = [note for one in found for note in _told(one, len(found) > 1)]
    before = len(lead.notes)
    layers = layer_table(lead, model, inputs)
    results = attempt(lead.notes, "results.json", lambda: results_rows(lead.results) if lead.results else [], [])
    evaluated = attempt(lead.notes, "evaluation.json", lambda: _evaluation(lead), None)
    drawn = {"curves": _drawings(lead.notes, lambda: curves(found))}
    say("drawing the figures ...")
    undrawn: list[str] = []
    drawn["figures"] = _drawings(lead.notes, lambda: _figures(lead, undrawn.append))
    notes += lead.notes[before:]
    several = len(found) > 1
    parts: dict[str, Any] = {
        "lead": lead,
        "about": lead.recipe.about if lead.recipe else "",
        "seeds": Table(SEEDS_HEADER, seed_rows(found), texts=2) if several else None,
        "notes": notes,
        "undrawn": undrawn,
        "verdict": verdict_of(found),
        "results": Table(results_header(lead.results), results) if results and lead.results else None,
        "evaluated": evaluated,
        "epochs": Table(*epoch_table(lead), texts=1) if any(lead.epochs.values()) else None,
        "layers": layers,
        "layer_cells": Table(layers.header, layers.rows, TEXTS, layers.foot) if layers else None,
        "neurons": NEURONS,
        "fit_draws": f"{DRAWS:,}",
        "facts": facts_of(lead),
        "steps": steps_of(lead),
        "files": Table(("file", "what it is", "bytes"), files_of(lead.path, out), texts=2),
        "version": lrnets.__version__,
        "today": datetime.now(timezone.utc).strftime("%Y-%m-%d %H:%M UTC"),
        **drawn,
    }
    return _template().render(parts, css=_own("style.css"))


def _told(found: Found, several: bool) -> list[Note]:
    if not several:
        return [*found.notes]
    return [Note(f"Seed {found.seed}: {note.text}", note.command) for note in found.notes]


def _figures(found: Found, say: Say) -> list[Figure]:
    """All that this run allows but its training curves, which the page has larger."""
    from lrnets.figures import figures_of

    return [figure for figure in figures_of([found.folder], say=say) if figure.name != "training"]


def _drawings(notes: list[Note], figures: Callable[[], Sequence[Figure]]) -> list[Drawing]:
    """Each figure that can be drawn."""
    made = []
    for figure in attempt(notes, "figures", figures, ()):
        drawn = attempt(notes, f"the figure {figure.title!r}", partial(inline_svg, figure), None)
        if drawn is not None:
            made.append(Drawing(figure.title, figure.caption, *drawn))
    return made


def _evaluation(found: Found) -> tuple[Table, str] | None:
    if not found.evaluation:
        return None
    told = found.evaluation
    return Table(evaluation_header(told), evaluation_rows(told)), evaluation_remark(told)


def _template() -> Any:
    try:
        from jinja2 import Environment, StrictUndefined
    except ImportError as error:
        raise ImportError("reports need jinja2: pip install 'lrnets[report]'") from error
    house = Environment(autoescape=True, undefined=StrictUndefined, trim_blocks=True, lstrip_blocks=True)
    return house.from_string(_own("page.html"))


def _own(name: str) -> str:
    return resources.files("lrnets.report").joinpath(name).read_text(encoding="utf-8")
