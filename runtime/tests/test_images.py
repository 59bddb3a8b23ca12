"""Images as a network's input, against loops in plain Python; pictures against pixels set by hand."""

import math
import sys

import numpy as np
import pytest

from lrnets_runtime.graph import Preparation
from lrnets_runtime.images import prepare, read_image


@pytest.fixture
def images():
    return np.random.default_rng(0).integers(0, 256, (3, 2, 4, 5), dtype=np.uint8)


def test_fixed_numbers(images):
    f = np.float32
    mean, deviation = (0.3, -0.1), (0.7, 3.0)
    prepared = prepare(images, Preparation("fixed", mean, deviation))
    assert prepared.dtype == np.float32
    for (_, channel, _, _), byte, x in zip(np.ndindex(images.shape), images.flat, prepared.flat):
        assert x == (f(byte) / f(255) - f(mean[channel])) / f(deviation[channel])
    np.testing.assert_array_equal(prepare(images, Preparation("fixed")), images.astype(f) / f(255))
    only_mean = prepare(images, Preparation("fixed", mean))
    np.testing.assert_array_equal(only_mean[:, 1], images[:, 1].astype(f) / f(255) - f(-0.1))


def test_each_by_itself(images):
    prepared = prepare(images, Preparation("each"))
    for image, x in zip(images, prepared):
        values = [float(np.float32(byte) / np.float32(255)) for byte in image.flat]
        mean = math.fsum(values) / len(values)
        deviation = math.sqrt(math.fsum((v - mean) ** 2 for v in values) / len(values))
        expected = [(v - mean) / deviation for v in values]
        np.testing.assert_allclose(x.reshape(-1), expected, rtol=2**-23, atol=1e-12)
    alone = prepare(images[1:2], Preparation("each"))
    np.testing.assert_array_equal(alone, prepared[1:2])  # no image minds the others


def test_an_image_of_one_grey_is_zero_and_a_speck_is_bounded():
    flat = np.full((1, 1, 4, 4), 77, np.uint8)
    assert not prepare(flat, Preparation("each")).any()
    speck = flat.copy()
    speck[0, 0, 0, 0] += 1
    # In grey levels: 15/16 above the mean, over a deviation of sqrt(15)/16, which counts as the least, 1/4.
    assert math.sqrt(15) / 16 < 1 / 4
    assert prepare(speck, Preparation("each")).max() == pytest.approx(15 / 16 / (1 / 4), rel=1e-4)


def test_other_numbers_are_refused(images):
    for wrong in (images.astype(np.float32), images[0], images.astype(np.int8)):
        with pytest.raises(ValueError, match=r"give bytes \(uint8, 0 to 255\) of \[batch, channels, height, width\]"):
            prepare(wrong, Preparation("fixed"))
    assert prepare(images[:0], Preparation("each")).shape == (0, 2, 4, 5)


@pytest.fixture
def pillow():
    return pytest.importorskip("PIL.Image")


def test_pictures_keep_their_pixels(tmp_path, pillow):
    pixels = np.random.default_rng(1).integers(0, 256, (4, 6, 3), dtype=np.uint8)
    pillow.fromarray(pixels).save(tmp_path / "a.png")
    np.testing.assert_array_equal(read_image(tmp_path / "a.png", (3, 4, 6)), pixels.transpose(2, 0, 1))
    pillow.fromarray(pixels[..., 0]).save(tmp_path / "grey.png")
    np.testing.assert_array_equal(read_image(str(tmp_path / "grey.png"), (1, 4, 6)), pixels[None, ..., 0])
    np.testing.assert_array_equal(read_image(tmp_path / "grey.png", (3, 4, 6)), [pixels[..., 0]] * 3)


def test_colours_become_grey_and_sizes_fit(tmp_path, pillow):
    colours = np.zeros((2, 3, 3), np.uint8)
    colours[:, 0, 0], colours[:, 1, 1], colours[:, 2, 2] = 255, 255, 255  # red, green, blue columns
    pillow.fromarray(colours).save(tmp_path / "c.png")
    grey = read_image(tmp_path / "c.png", (1, 2, 3))
    assert [round(255 * share) for share in (0.299, 0.587, 0.114)] == grey[0, 0].tolist()
    halves = np.zeros((8, 8), np.uint8)
    halves[4:] = 200
    pillow.fromarray(halves).save(tmp_path / "h.png")
    small = read_image(tmp_path / "h.png", (1, 2, 2))
    assert small[0, 0].max() < 40 < 160 < small[0, 1].min()
    large = read_image(tmp_path / "h.png", (1, 16, 24))
    assert large.shape == (1, 16, 24)
    assert (large[0, 0] == 0).all()
    assert (large[0, -1] == 200).all()


def test_the_middle_is_cut_out_of_a_picture_whose_shorter_side_is_scaled(tmp_path, pillow):
    pixels = np.random.default_rng(2).integers(0, 256, (6, 11), dtype=np.uint8)
    pillow.fromarray(pixels).save(tmp_path / "wide.png")
    same = read_image(tmp_path / "wide.png", (1, 4, 4), shorter_side=6)  # nothing to scale: rows 1 to 4, columns 4 to 7
    np.testing.assert_array_equal(same[0], pixels[1:5, 4:8])
    tall = np.repeat(np.repeat(np.arange(0, 250, 10, dtype=np.uint8)[:, None], 6, 1), 6, 0)  # 150 x 6: bands of 6 rows
    pillow.fromarray(tall).save(tmp_path / "tall.png")
    doubled = read_image(tmp_path / "tall.png", (1, 4, 12), shorter_side=12)  # 300 x 12: rows 148 to 151 are in band 12
    np.testing.assert_array_equal(doubled, np.full((1, 4, 12), 120))
    stretched = read_image(tmp_path / "tall.png", (1, 4, 12))
    assert stretched[0, 0].max() < 60 < 180 < stretched[0, 3].min()


def test_jpegs_are_turned_upright(tmp_path, pillow):
    picture = pillow.fromarray(np.repeat(np.array([[0, 255]], np.uint8), 16, 0).repeat(8, 1))  # right half white
    exif = pillow.Exif()
    exif[0x0112] = 6  # to be turned a quarter clockwise
    picture.save(tmp_path / "p.jpg", exif=exif, quality=95)
    upright = read_image(tmp_path / "p.jpg", (1, 16, 16))
    assert upright[0, :6].max() < 30
    assert upright[0, 10:].min() > 225


def test_what_is_no_picture_is_refused(tmp_path, pillow):
    with pytest.raises(FileNotFoundError, match=r"there is no picture at .*gone.png"):
        read_image(tmp_path / "gone.png", (1, 4, 4))
    (tmp_path / "text.png").write_text("not a picture")
    with pytest.raises(ValueError, match=r"text.png: is no picture that can be read \(.*; give PNG, JPEG or .npy"):
        read_image(tmp_path / "text.png", (1, 4, 4))
    pillow.fromarray(np.zeros((4, 4), np.uint8)).save(tmp_path / "whole.png")
    (tmp_path / "cut.png").write_bytes((tmp_path / "whole.png").read_bytes()[:45])
    with pytest.raises(ValueError, match="is no picture"):
        read_image(tmp_path / "cut.png", (1, 4, 4))
    pillow.fromarray(np.zeros((4, 4), np.uint8)).save(tmp_path / "other.png", format="BMP")
    with pytest.raises(ValueError, match="is no picture"):
        read_image(tmp_path / "other.png", (1, 4, 4))
    pillow.fromarray(np.zeros((4, 4), np.uint16)).save(tmp_path / "deep.png")
    with pytest.raises(ValueError, match="not 8 bits a channel"):
        read_image(tmp_path / "deep.png", (1, 4, 4))
    with pytest.raises(ValueError, match="the network takes 2 channels, a picture has 1 or 3"):
        read_image(tmp_path / "whole.png", (2, 4, 4))


def test_a_picture_that_would_fill_the_memory_is_refused(tmp_path, pillow, monkeypatch):
    pillow.fromarray(np.zeros((40, 40), np.uint8)).save(tmp_path / "bomb.png")
    monkeypatch.setattr(pillow, "MAX_IMAGE_PIXELS", 700)  # Pillow refuses from twice that on
    with pytest.raises(ValueError, match=r"is no picture that can be read \(Image size .1600 pixels. exceeds"):
        read_image(tmp_path / "bomb.png", (1, 4, 4))


def test_a_missing_pillow_is_named(tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "PIL", None)
    with pytest.raises(
        ModuleNotFoundError, match="needs Pillow to be read, which is not installed; pip install pillow"
    ):
        read_image(tmp_path / "a.png", (1, 4, 4))
