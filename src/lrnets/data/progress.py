"""How far a download has come."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager

Report = Callable[[str, int, int | None], None]
"""`report(what, done, total)`: bytes or files, the total None while nobody knows it."""


def silent(what: str, done: int, total: int | None) -> None:
    """A report to nobody."""


@contextmanager
def progress_bars() -> Iterator[Report]:
    """A bar for each thing reported, on stderr if that is a terminal; without rich, silence."""
    try:
        from rich.console import Console
        from rich.progress import Progress, TaskID
    except ImportError:
        yield silent
        return
    with Progress(console=Console(stderr=True), transient=True, disable=not sys.stderr.isatty()) as bars:
        tasks: dict[str, TaskID] = {}

        def report(what: str, done: int, total: int | None) -> None:
            if what not in tasks:
                tasks[what] = bars.add_task(what, total=total)
            bars.update(tasks[what], completed=done, total=total)

        yield report
