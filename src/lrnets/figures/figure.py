"""A picture with what it says in words and the numbers behind it."""

from __future__ import annotations

import csv
import io
import re
from collections.abc import Callable
from dataclasses import dataclass, field
from html import escape
from typing import TYPE_CHECKING, Any

from lrnets.figures.style import house_style

if TYPE_CHECKING:
    import matplotlib.figure


@dataclass(frozen=True)
class Figure:
    """One figure: drawn when asked for, in the house style, from `rows`, which are also its CSV file."""

    name: str  # file name without ending
    title: str
    caption: str  # one or two sentences, with the numbers
    alt: str  # what is to be seen, for those who cannot see it
    draw: Callable[[], matplotlib.figure.Figure] = field(repr=False)
    columns: tuple[str, ...]
    rows: tuple[tuple[Any, ...], ...] = field(repr=False)

    def svg(self) -> str:
        """The picture with its title and description inside; several can stand on one page."""
        with house_style():
            text = self._saved("svg", metadata={"Date": None, "Creator": None}).decode()
        return _described(text, self.name, self.title, self.alt)

    def png(self) -> bytes:
        with house_style():
            return self._saved("png", metadata={"Software": None})

    def csv(self) -> str:
        """A header and a line a row; numbers as they are, so that nothing is lost."""
        text = io.StringIO()
        writer = csv.writer(text, lineterminator="\n")
        writer.writerow(self.columns)
        writer.writerows(self.rows)
        return text.getvalue()

    def _saved(self, form: str, **settings: Any) -> bytes:
        stream = io.BytesIO()
        self.draw().savefig(stream, format=form, **settings)
        return stream.getvalue()


def _described(svg: str, name: str, title: str, alt: str) -> str:
    """Words for readers of the screen, and identifiers that no other figure on the page has."""
    prefix = re.sub(r"[^A-Za-z0-9]+", "-", name)
    svg = re.sub(r'\bid="([^"]+)"', rf'id="{prefix}-\1"', svg)
    svg = re.sub(r'((?:xlink:)?href="#|url\(#)', rf"\1{prefix}-", svg)
    words = f"<title>{escape(title)}</title>\n <desc>{escape(alt)}</desc>"
    return re.sub(r"(<svg\b[^>]*?)>", rf'\1 role="img">\n {_literal(words)}', svg, count=1)


def _literal(text: str) -> str:
    return text.replace("\\", r"\\")
