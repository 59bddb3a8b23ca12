"""An HTML page taken apart: strict about nesting, with its tables, pictures, references and text."""

import re
from html.parser import HTMLParser
from pathlib import Path

VOID = {"meta", "br", "img", "hr", "link", "input"}


class Page(HTMLParser):
    """What a page has; elements that are not closed in the order they were opened are an error."""

    def __init__(self, html: str) -> None:
        super().__init__(convert_charrefs=True)
        self.open_elements: list[str] = []
        self.elements: list[tuple[str, dict[str, str]]] = []
        self.text = ""
        self.tables: dict[str, list[list[str]]] = {}  # by the label of their region: rows of cells
        self.titles: list[str] = []  # of pictures
        self.pre: list[str] = []
        self.label, self.in_svg_text = "", 0
        self.feed(html)
        self.close()
        assert not self.open_elements, f"not closed: {self.open_elements}"

    def handle_starttag(self, tag: str, attributes: list[tuple[str, str | None]]) -> None:
        own = {name: value or "" for name, value in attributes}
        self.elements.append((tag, own))
        if tag not in VOID:
            self.open_elements.append(tag)
        if own.get("role") == "region":
            self.label = own["aria-label"]
            self.tables[self.label] = []
        if tag == "tr":
            self.tables[self.label].append([])
        if tag in ("td", "th"):
            self.tables[self.label][-1].append("")
        if tag == "title" and "svg" in self.open_elements:
            self.titles.append("")
        if tag == "pre":
            self.pre.append("")

    def handle_startendtag(self, tag: str, attributes: list[tuple[str, str | None]]) -> None:
        self.handle_starttag(tag, attributes)
        if tag not in VOID:
            self.handle_endtag(tag)

    def handle_endtag(self, tag: str) -> None:
        assert self.open_elements, f"</{tag}> without a beginning"
        assert self.open_elements[-1] == tag, f"</{tag}> inside {self.open_elements[-3:]}"
        self.open_elements.pop()

    def handle_data(self, data: str) -> None:
        inside = self.open_elements
        if "style" in inside:
            return
        self.text += data
        if inside and inside[-1] in ("td", "th"):
            self.tables[self.label][-1][-1] += data
        if inside and inside[-1] == "title" and "svg" in inside:
            self.titles[-1] += data
        if "pre" in inside:
            self.pre[-1] += data

    def all(self, tag: str) -> list[dict[str, str]]:
        return [attributes for name, attributes in self.elements if name == tag]

    @property
    def words(self) -> str:
        """The text with single blanks."""
        return " ".join(self.text.split())


def read_page(path: Path) -> Page:
    """A page that passes all that holds for every report."""
    html = path.read_text(encoding="utf-8")
    page = Page(html)
    assert html.startswith("<!DOCTYPE html>")
    assert len(page.all("h1")) == len(page.all("main")) == 1
    assert not page.all("script")
    assert not [name for _, own in page.elements for name in own if name.startswith("on")]
    ids = [own["id"] for _, own in page.elements if "id" in own]
    assert len(ids) == len(set(ids))
    for _, own in page.elements:
        for name in ("href", "src", "xlink:href", "action", "data", "poster", "srcset"):
            target = own.get(name, "#")
            assert target.startswith("data:image/png;base64,") or target == "#" or target[1:] in ids, target
            assert target.startswith(("#", "data:"))
        for value in own.values():
            assert all(name in ids for name in re.findall(r"url\(#([^)]+)\)", value))
            assert not re.search(r"url\((?!#)", value)
    assert "@import" not in html
    assert len(html) < 1_500_000
    pictures = page.all("svg")
    for own in pictures:
        assert own["role"] == "img"
        assert own["aria-labelledby"]
        assert all(name in ids for name in own["aria-labelledby"].split())
    assert len(page.titles) == len(pictures)
    assert all(title.strip() for title in page.titles)
    return page
