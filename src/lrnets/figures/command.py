"""`lrnets figures`: from folders to files."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from lrnets.data.progress import progress_bars
from lrnets.figures.figure import Figure
from lrnets.figures.gather import gather
from lrnets.figures.sources import Say, found_runs
from lrnets.figures.style import require_matplotlib
from lrnets.whole_files import write_whole
from lrnets.words import counted

CAPTIONS = "captions.md"


def make_figures(
    folders: Sequence[Path], out: Path, *, layers: Sequence[str] = (), only: Sequence[str] = (), say: Say = print
) -> list[Path]:
    """Every figure that the runs in these folders allow, written to `out`; returns the pictures (SVG)."""
    require_matplotlib()
    runs = list(found_runs(folders))
    try:
        out.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise OSError(f"{out} cannot be made a folder ({error.strerror}); name another with --out") from error
    say(f"{counted(len(runs), 'run')} found")
    figures = gather(runs, layers, say, only)
    if not figures:
        raise RuntimeError("no figure could be made; the reasons stand above")
    with progress_bars() as report:
        for done, figure in enumerate(figures):
            report("pictures", done, len(figures))
            write_figure(figure, out)
            say(f"{figure.name}: {figure.title}")
    write_whole(
        out / CAPTIONS,
        "".join(f"## {f.title}\n\n![{f.alt}]({f.name}.svg)\n\n{f.caption}\n\n" for f in figures).encode(),
    )
    return [out / f"{figure.name}.svg" for figure in figures]


def write_figure(figure: Figure, out: Path) -> None:
    """The picture twice and its numbers, each file whole or not there."""
    for ending, content in (("svg", figure.svg().encode()), ("png", figure.png()), ("csv", figure.csv().encode())):
        write_whole(out / f"{figure.name}.{ending}", content)
