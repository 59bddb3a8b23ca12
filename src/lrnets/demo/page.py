"""The page itself: one HTML file, with style, scripts, facts and WebAssembly inside."""

from __future__ import annotations

import base64
import html
import json
from collections.abc import Mapping
from typing import Any

from lrnets.demo.wasm import TEMPLATES

SCRIPTS = ("network.js", "strokes.js", "page.js")
DIGITS = tuple("0123456789")


def page(wasm: bytes, facts: Mapping[str, Any]) -> str:
    """HTML of a network and what is known of it."""
    kind = "a picture" if facts["shape"][0] == 3 else "a digit" if tuple(facts["classes"]) == DIGITS else "something"
    parts = {
        "title": html.escape(f"Show {kind}" if facts["shape"][0] == 3 else f"Draw {kind}"),
        "css": (TEMPLATES / "page.css").read_text(),
        "facts": json.dumps(facts, separators=(",", ":")).replace("<", "\\u003c"),  # ends no script
        "wasm": base64.b64encode(wasm).decode(),
        "scripts": "\n".join(f'<script id="{name}">\n{(TEMPLATES / name).read_text()}</script>' for name in SCRIPTS),
    }
    text = (TEMPLATES / "page.html").read_text()
    before, *rest = text.split("{{")  # parts are not looked through for names
    return before + "".join(parts[name] + after for name, _, after in (piece.partition("}}") for piece in rest))
