"""Strokes become images as MNIST's were made: fitted into 20 x 20, centred by mass in 28 x 28, soft at the edges."""

from itertools import pairwise

import numpy as np
import pytest
from demo_pages import digit_net, drawn, needs_clang, needs_node, node, pack

from lrnets.demo import make_demo

PEN, PIXELS = 2.5, 28
SEVEN = [[[0.2, 0.2], [0.7, 0.2], [0.4, 0.8]]]
EIGHT = [[[0.5 + 0.2 * np.sin(2 * t), 0.5 - 0.4 * np.cos(t)] for t in np.linspace(0, 2 * np.pi, 60)]]
CROSS = [[[0.1, 0.5], [0.9, 0.5]], [[0.5, 0.45], [0.5, 0.55]]]


@pytest.fixture(scope="module")
def draw(tmp_path_factory):
    page = make_demo(pack(drawn(digit_net()), (1, 28, 28), tmp_path_factory.mktemp("page") / "net.safetensors")).path
    return lambda *drawings: np.array(node(page, strokes=drawings)["drawn"]).reshape(-1, PIXELS, PIXELS)


def centre(image):
    places = np.arange(PIXELS) + 0.5
    return (image.sum(0) @ places) / image.sum(), (image.sum(1) @ places) / image.sum()


def box(image):
    """First and last row and column with more than half of the ink."""
    rows, columns = (np.flatnonzero((image > 127).any(axis)) for axis in (1, 0))
    return rows[0], rows[-1], columns[0], columns[-1]


def painted(strokes):
    """Each pixel's share of points within half a pen of the line, by 64 points a pixel and 400 points a line."""
    fine = (np.arange(PIXELS * 8) + 0.5) / 8
    x, y = np.meshgrid(fine, fine)
    inside = np.zeros(x.shape, bool)
    for stroke in strokes:
        for a, b in pairwise(stroke):
            for px, py in np.linspace(a, b, 400):
                inside |= (x - px) ** 2 + (y - py) ** 2 <= (PEN / 2) ** 2
    return 255 * inside.reshape(PIXELS, 8, PIXELS, 8).mean((1, 3))


@needs_clang
@needs_node
def test_drawings_fill_the_box_and_are_centred_by_mass(draw):
    for image in draw(SEVEN, EIGHT, CROSS):
        top, bottom, left, right = box(image)
        assert max(bottom - top, right - left) + 1 in (19, 20, 21)  # 20, up to where pixels begin
        np.testing.assert_allclose(centre(image), 14.5, atol=0.1)
        assert image.max() == 255


@needs_clang
@needs_node
def test_the_shape_is_kept_wherever_and_however_large_it_is_drawn(draw):
    small = [[[0.6 + 0.3 * x, 0.05 + 0.3 * y] for x, y in SEVEN[0]]]
    first, second, wide = draw(SEVEN, small, CROSS)
    assert np.abs(first - second).max() <= 1  # rounding
    top, bottom, left, right = box(wide)
    assert right - left > 4 * (bottom - top)  # no stretching


@needs_clang
@needs_node
def test_the_ink_is_that_of_a_round_pen(draw):
    """Against counting points; a soft edge differs from exact shares of a pixel by less than a third of it."""
    (image,) = draw(SEVEN)
    points = np.array(SEVEN[0])
    low, high = points.min(0), points.max(0)
    fitted = (points - (low + high) / 2) * (20 - PEN) / (high - low).max() + 14
    shift = 14.5 - np.array(centre(painted([fitted])))
    wanted = painted([fitted + shift])
    assert np.abs(image - wanted).mean() < 2
    assert np.abs(image - wanted).max() < 85


@needs_clang
@needs_node
def test_nothing_and_a_dot(draw):
    nothing, dot, long = draw([], [[[0.3, 0.9]]], [[[0.5, 0.5], [0.501, 0.5]]])
    assert nothing.max() == 0
    for image in (dot, long):
        top, bottom, left, right = box(image)
        assert bottom - top < 4
        assert right - left < 4
        np.testing.assert_allclose(centre(image), 14.5, atol=0.1)


@needs_clang
@needs_node
def test_a_lopsided_drawing_stays_in_the_image(draw):
    """Most of the ink is at one side: it is moved by what the border allows, so that the other end is not cut off."""
    block = [[0.1 + 0.12 * (i % 2), 0.1 + 0.0125 * i] for i in range(60)]
    (image,) = draw([block, [[0.1, 0.1], [0.9, 0.1]]])
    _, _, left, right = box(image)
    assert centre(image)[0] < 14.3
    assert right - left + 1 in (19, 20, 21)
