"""A figure as SVG, PNG and CSV, and the house style."""

import csv
import io
import math
import re
from xml.etree import ElementTree

import matplotlib
import pytest
from PIL import Image

from lrnets.figures import Figure
from lrnets.figures.style import house_style, light_grid, new_figure, value_axis

ROWS = (("a", 1, 0.1), ("b, with a comma", 2, 1 / 3))


def figure(name: str = "two-bars") -> Figure:
    def draw():
        picture = new_figure(3, 2)
        axis = picture.add_subplot()
        axis.bar([row[0] for row in ROWS], [row[2] for row in ROWS], hatch="/")
        light_grid(axis)
        return picture

    alt = r"bars <of> 0.1 & \1"
    return Figure(name, "Two <bars>", "A caption.", alt, draw, ("name", "number", "share"), ROWS)


def test_svg_is_well_formed_says_what_it_shows_and_keeps_text_as_text():
    text = figure().svg()
    root = ElementTree.fromstring(text)
    assert root.tag.endswith("svg")
    assert root.get("role") == "img"
    names = [child.tag.rpartition("}")[2] for child in root]
    assert names[:2] == ["title", "desc"]
    assert (root[0].text, root[1].text) == ("Two <bars>", r"bars <of> 0.1 & \1")
    assert "b, with a comma" in [element.text for element in root.iter() if element.tag.endswith("}text")]


def test_svgs_on_one_page_share_no_identifier_and_point_to_their_own():
    texts = [figure("one").svg(), figure("another").svg()]
    ids = [set(re.findall(r'\bid="([^"]+)"', text)) for text in texts]
    assert not ids[0] & ids[1]
    for text, own in zip(texts, ids):
        used = set(re.findall(r"url\(#([^)]+)\)", text)) | set(re.findall(r'href="#([^"]+)"', text))
        assert used
        assert used <= own


def test_the_same_figure_is_the_same_file():
    assert figure().svg() == figure().svg()
    assert figure().png() == figure().png()


def test_png_is_white_behind():
    image = Image.open(io.BytesIO(figure().png())).convert("RGBA")
    assert image.size == (480, 320)
    assert image.getpixel((0, 0)) == (255, 255, 255, 255)


def test_csv_gives_back_every_number():
    header, *rows = csv.reader(io.StringIO(figure().csv()))
    assert header == ["name", "number", "share"]
    assert [(name, int(number), float(share)) for name, number, share in rows] == list(ROWS)


def test_matplotlibs_settings_come_back():
    before = dict(matplotlib.rcParams)
    with house_style():
        assert matplotlib.rcParams["axes.spines.top"] is False
    assert dict(matplotlib.rcParams) == before


@pytest.mark.parametrize(
    ("values", "scale", "shown"),
    [([0.6, 0.55], "linear", [0.0]), ([3.0, 0.2], "log", [0.2, 0.5, 1, 2]), ([3e-3, 2e-8], "log", [1e-7, 1e-5, 1e-3])],
)
def test_values_are_drawn_from_nought_or_on_a_logarithmic_axis(values, scale, shown):
    axis = new_figure(4, 3).add_subplot()
    axis.plot(values)
    value_axis(axis, values)
    low, high = axis.get_ylim()
    ticks = [tick for tick in axis.get_yticks() if low <= tick <= high]
    assert axis.get_yscale() == scale
    assert low < min(values)
    assert high > 1.05 * max(values)  # no marker is cut
    assert all(any(math.isclose(tick, one) for tick in ticks) for one in shown)
    assert len(ticks) < 13
