"""Formulas as MathML, which browsers draw by themselves: no script, no font, nothing from the web."""

from __future__ import annotations

import html
import re
from typing import Any

# What pymdownx.arithmatex leaves behind (generic: true): \(...\) in a line, \[...\] on lines of its own.
FORMULA = re.compile(
    r'<(span|div) class="arithmatex">\s*\\(?P<open>[(\[])(?P<latex>.*?)\\[)\]]\s*</\1>', re.DOTALL
)  # fmt: skip


def on_page_content(content: str, **_: Any) -> str:
    """Turn every formula of a page into MathML."""
    return FORMULA.sub(_as_mathml, content)


def _as_mathml(formula: re.Match[str]) -> str:
    from latex2mathml.converter import convert

    display = "block" if formula["open"] == "[" else "inline"
    mathml = convert(html.unescape(formula["latex"]).strip(), display=display)
    return f'<{formula[1]} class="formula">{mathml}</{formula[1]}>'
