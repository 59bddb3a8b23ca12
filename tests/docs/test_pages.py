"""The pages, without the tools that build them: links lead somewhere, and what is named is there."""

import ast
import importlib
import re
from functools import cache
from pathlib import Path
from typing import Any

import lrnets_runtime
import pytest
import yaml

import lrnets
import lrnets.export

ROOT = Path(__file__).parents[2]
DOCS = ROOT / "docs"
PAGES = sorted(DOCS.rglob("*.md"))
every_page = pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(DOCS)))

FENCE = re.compile(r"^```.*?^```$", re.MULTILINE | re.DOTALL)
LINK = re.compile(r"(?<!\\)\[(?:[^\[\]]|\[[^\]]*\])*\]\(([^)\s]+)\)")
ENTRY = re.compile(r"^::: (\S+)$", re.MULTILINE)


def prose(page: Path) -> str:
    return FENCE.sub("", page.read_text())


def entries(page: Path) -> list[str]:
    """What a page has from docstrings."""
    return ENTRY.findall(page.read_text())


def find(name: str) -> Any:
    """The object of a dotted name; AttributeError or ImportError if it is not there."""
    parts = name.split(".")
    for count in range(len(parts), 0, -1):
        try:
            found: Any = importlib.import_module(".".join(parts[:count]))
        except ModuleNotFoundError as error:
            if error.name is None or not name.startswith(error.name):
                raise
            continue
        for part in parts[count:]:
            fields = getattr(found, "__dataclass_fields__", {})
            found = fields[part] if part in fields else getattr(found, part)
        return found
    raise ModuleNotFoundError(name)


@cache
def functions_in(module: str) -> set[str]:
    """Names of the functions in a file of tests."""
    (file,) = (ROOT / "tests").rglob(f"{module}.py")
    return {node.name for node in ast.parse(file.read_text()).body if isinstance(node, ast.FunctionDef)}


def exists(name: str) -> bool:
    module, _, rest = name.partition(".")
    if module.startswith("test_"):
        return rest in functions_in(module)
    try:
        find(name)
    except (AttributeError, ImportError):
        return False
    return True


def anchors(page: Path) -> set[str]:
    """Headings, as the builder writes them into addresses, and names from docstrings."""
    headings = re.findall(r"^#+ (.+)$", FENCE.sub("", page.read_text()), re.MULTILINE)
    slugs = {re.sub(r"[\s-]+", "-", re.sub(r"[^\w\s-]", "", heading).strip().lower()) for heading in headings}
    return slugs | set(entries(page))


def has_anchor(page: Path, anchor: str) -> bool:
    known = anchors(page)
    return anchor in known or any(anchor.startswith(f"{name}.") and exists(anchor) for name in entries(page))


@every_page
def test_links_lead_to_pages_and_anchors_that_are_there(page):
    broken = []
    for target in LINK.findall(prose(page)):
        if re.match(r"https?:", target):
            continue
        path, _, anchor = target.partition("#")
        other = (page.parent / path).resolve() if path else page
        if not other.is_file() or (anchor and not has_anchor(other, anchor)):
            broken.append(target)
    assert not broken


@every_page
def test_names_of_the_library_are_there(page):
    names = {name for code in re.findall(r"`([^`\n]+)`", prose(page)) for name in _names_in(code)}
    for block in FENCE.findall(page.read_text()):
        if block.startswith("```python"):
            names |= set(_names_in(block))
    assert not [name for name in sorted({*names, *entries(page)}) if not exists(name)]


def _names_in(code: str) -> list[str]:
    return [name for name, _ in re.findall(r"(?<![\w./-])(lrnets(_runtime)?(?:\.[A-Za-z_]\w*)+)(?![\w/-])", code)]


@every_page
def test_files_of_the_repository_are_there(page):
    paths = re.findall(r"`((?:src|tests|docs|examples|experiments|benchmarks|runtime)/[\w./-]+)`", prose(page))
    paths += re.findall(r"<!-- the script (\S+) -->", page.read_text())
    assert not [path for path in paths if not (ROOT / path).exists()]


def test_a_wrong_name_and_a_wrong_link_would_be_found():
    assert exists("lrnets.convert_")
    assert exists("lrnets.weights.Ternary.moments")
    assert exists("lrnets_runtime.load")
    assert exists("test_weights.test_probabilities_equal_enumerated_ones")
    assert not exists("lrnets.weights.Quaternary")
    assert not exists("test_weights.test_nothing")
    method, layers = DOCS / "method.md", DOCS / "reference/layers.md"
    assert has_anchor(method, "5-backward")
    assert has_anchor(layers, "lrnets.weights.Ternary.moments")
    assert not has_anchor(method, "50-forward")
    assert not has_anchor(layers, "lrnets.penalties.penalty")
    assert LINK.findall("[`a[0]`](x.md#y) and [b](z.md)") == ["x.md#y", "z.md"]
    assert _names_in("lrnets.convert_(model, lrnets/x.y, my.lrnets.z)") == ["lrnets.convert_"]


def test_every_public_name_has_its_place_in_the_reference():
    described = {name.rsplit(".", 1)[-1] for page in (DOCS / "reference").glob("*.md") for name in entries(page)}
    public = {*lrnets.__all__, *lrnets.export.__all__, *lrnets_runtime.__all__} - {"__version__"}
    assert public <= described


def test_the_contents_list_every_page_once():
    def files(entry: Any) -> list[str]:
        inside = entry.values() if isinstance(entry, dict) else entry
        return [entry] if isinstance(entry, str) else [file for part in inside for file in files(part)]

    settings = yaml.safe_load((ROOT / "mkdocs.yml").read_text())
    assert sorted(files(settings["nav"])) == sorted(str(page.relative_to(DOCS)) for page in PAGES)
    assert all((ROOT / hook).is_file() for hook in settings["hooks"])


def test_nothing_comes_from_the_web():
    """Pages are read offline: links may lead out, but no picture, script, style or font."""
    settings = yaml.safe_load((ROOT / "mkdocs.yml").read_text())
    assert settings["theme"]["font"] is False
    texts = [page.read_text() for page in PAGES] + [(DOCS / "style.css").read_text()]
    assert not [text for text in texts if re.search(r"!\[[^\]]*\]\(https?:|(src|href)=\"https?:|url\(|@import", text)]
