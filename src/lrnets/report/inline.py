"""A figure's SVG as part of an HTML page: in the page's colours and letters, with nothing that is for files alone."""

from __future__ import annotations

import re
from xml.etree import ElementTree

from lrnets.figures.figure import Figure
from lrnets.figures.style import GRID, INK, SOFT

SVG, XLINK = "http://www.w3.org/2000/svg", "http://www.w3.org/1999/xlink"
LOST = {"metadata", "style", "script"}  # the page has its own style, and nothing else is wanted
POINT = 4 / 3  # pixels
LEAST, MOST = 0.75, 1.25  # how far a picture shrinks and grows; letters must stay readable on a phone
# Light and dark pages name these themselves. Colours of data stay as they are.
NAMES = {INK: "var(--ink)", SOFT: "var(--muted)", GRID: "var(--faint)", "#ffffff": "var(--paper)"}


def inline_svg(figure: Figure) -> tuple[str, int]:
    """The SVG element, labelled by its own title and description, and its natural width in pixels.

    Text and lines take the page's colours, so that they follow light and dark; a picture with pixels in it, which
    cannot follow, keeps its white ground.
    """
    root = ElementTree.fromstring(figure.svg())
    _, _, width, height = (float(number) for number in root.attrib["viewBox"].replace(",", " ").split())
    for element in [*root.iter()]:
        for child in [*element]:
            if _local(child.tag) in LOST:
                element.remove(child)
    follows = not any(_local(element.tag) == "image" for element in root.iter())
    for element in root.iter():
        target = element.attrib.pop(f"{{{XLINK}}}href", None)
        if target is not None:
            element.set("href", target)
        if follows and "style" in element.attrib:
            element.set("style", _renamed(element.attrib["style"]))
    words = {_local(child.tag): child for child in root if _local(child.tag) in ("title", "desc")}
    for kind, child in words.items():
        child.set("id", f"{figure.name}-{kind}")
    least, most = (round(share * width * POINT) for share in (LEAST, MOST))
    root.attrib = {
        "viewBox": f"0 0 {width:g} {height:g}",
        "role": "img",
        "style": f"min-width: {least}px; max-width: {most}px",
        "aria-labelledby": " ".join(child.attrib["id"] for child in words.values()),
    }
    ElementTree.register_namespace("", SVG)
    return ElementTree.tostring(root, encoding="unicode", short_empty_elements=False), round(width * POINT)


def _renamed(style: str) -> str:
    for colour, name in NAMES.items():
        style = re.sub(rf"{colour}\b", name, style, flags=re.IGNORECASE)
    return style


def _local(tag: object) -> str:
    return str(tag).rpartition("}")[2]
