"""One picture: the square that is cut out, every kind of file that ImageNet is known to hold, and damaged ones."""

import io
import zlib

import numpy as np
import pytest
from image_files import encoded, pixels
from lrnets_runtime.images import read_image
from PIL import Image

from lrnets.data.pictures import DamagedImageError, View


def test_without_scaling_the_square_is_a_slice_from_the_middle():
    picture = pixels(0, 20, 31)
    found = View(size=14, resize=20).of(encoded(picture, "PNG"))
    assert found.shape == (3, 14, 14)
    assert found.dtype == np.uint8
    assert np.array_equal(found, picture[3:17, 8:22].transpose(2, 0, 1))  # (31 - 14) / 2 = 8.5, rounded to even


def test_noise_cuts_out_every_slice_and_mirrors_half_of_them():
    picture = np.arange(6 * 5 * 3, dtype=np.uint8).reshape(6, 5, 3)
    content, view = encoded(picture, "PNG"), View(size=4, resize=5)
    slices = {
        (mirrored, top, left): np.ascontiguousarray(
            picture[top : top + 4, left : left + 4][:, :: -1 if mirrored else 1].transpose(2, 0, 1)
        ).tobytes()
        for mirrored in (False, True) for top in range(3) for left in range(2)
    }  # fmt: skip
    places = {cut: place for place, cut in slices.items()}
    assert len(places) == 12
    seen = [places[np.ascontiguousarray(view.of(content, noise)).tobytes()] for noise in range(240)]
    counts = [seen.count(place) for place in slices]
    # 240 throws among 12 places: 20 each, deviation 4.3; five of them.
    assert all(abs(count - 20) < 22 for count in counts)
    assert min(counts) > 0
    assert np.array_equal(view.of(content, 7), view.of(content, 7))


def test_the_shorter_side_is_scaled():
    picture = np.zeros((40, 80, 3), np.uint8)
    picture[:, 40:] = 200
    found = View(size=20, resize=20).of(encoded(picture, "PNG"))  # the middle half of the width
    assert (found[:, :, :9] == 0).all()
    assert (found[:, :, 11:] == 200).all()


def test_a_large_jpeg_is_decoded_at_less_than_its_size_and_looks_the_same():
    picture = pixels(1, 480, 640)
    found = View(size=48, resize=56).of(encoded(picture))
    whole = Image.fromarray(picture).resize((74, 56), Image.Resampling.BILINEAR)
    expected = np.asarray(whole)[4:52, 13:61].transpose(2, 0, 1)
    assert np.abs(found.astype(int) - expected.astype(int)).max() <= 4


@pytest.mark.parametrize(("height", "width", "resize"), [(203, 317, 56), (640, 130, 48), (48, 48, 64)])
def test_the_run_time_sees_the_same_pixels_in_the_middle(tmp_path, height, width, resize):
    picture = np.random.default_rng(3).integers(0, 256, (height // 8 + 1, width // 8 + 1, 3), dtype=np.uint8)
    whole = np.asarray(Image.fromarray(picture).resize((width, height)))
    (tmp_path / "a.jpg").write_bytes(encoded(whole))
    seen = View(size=40, resize=resize).of((tmp_path / "a.jpg").read_bytes())
    np.testing.assert_array_equal(read_image(tmp_path / "a.jpg", (3, 40, 40), shorter_side=resize), seen)


def test_grey_cmyk_alpha_and_palettes_become_rgb():
    picture = pixels(2, 10, 10)
    rgb, view = Image.fromarray(picture), View(size=10, resize=10)
    grey = np.asarray(rgb.convert("L"))
    assert np.array_equal(view.of(encoded(rgb.convert("L"), "PNG")), np.stack([grey] * 3))
    assert np.abs(view.of(encoded(rgb.convert("L"))).astype(int) - grey).max() <= 4
    alpha = np.concatenate([picture, np.zeros((10, 10, 1), np.uint8)], 2)
    assert np.array_equal(view.of(encoded(alpha, "PNG")), picture.transpose(2, 0, 1))
    cmyk = view.of(encoded(rgb.convert("CMYK")))
    assert np.abs(cmyk.astype(int) - picture.transpose(2, 0, 1)).max() <= 12
    palette = rgb.convert("P", palette=Image.Palette.ADAPTIVE)
    expected = np.asarray(palette.convert("RGB")).transpose(2, 0, 1)
    assert np.array_equal(view.of(encoded(palette, "PNG", transparency=bytes([0, 100]))), expected)


@pytest.mark.parametrize("orientation", range(1, 9))
def test_pictures_stand_upright_however_the_camera_was_held(orientation):
    picture = pixels(3, 10, 10)
    # What a viewer does with the stored picture, by EXIF's definition of rows and columns.
    upright = {
        1: picture, 2: picture[:, ::-1], 3: picture[::-1, ::-1], 4: picture[::-1], 5: picture.transpose(1, 0, 2),
        6: np.rot90(picture, -1), 7: np.rot90(picture, 2).transpose(1, 0, 2), 8: np.rot90(picture, 1),
    }[orientation]  # fmt: skip
    exif = Image.Exif()
    exif[0x0112] = orientation
    found = View(size=10, resize=10).of(encoded(picture, "PNG", exif=exif))
    assert np.array_equal(found, upright.transpose(2, 0, 1))


def test_broken_exif_data_and_a_png_called_jpeg_do_not_matter():
    picture = pixels(4, 10, 10)
    view = View(size=10, resize=10)
    plain = view.of(encoded(picture))
    assert np.array_equal(view.of(encoded(picture, exif=b"Exif\0\0MM\0*\0\0\0\x08\xff\xff nonsense")), plain)
    assert np.array_equal(view.of(encoded(picture, exif=b"Exif\0\0 no such thing")), plain)


def test_a_ribbon_is_not_blown_up():
    ribbon = np.zeros((1, 30_000, 3), np.uint8)  # scaled as a whole it would have 1.5 thousand million pixels
    assert View(size=224, resize=224).of(encoded(ribbon, "PNG")).shape == (3, 224, 224)


def gif() -> bytes:
    content = io.BytesIO()
    Image.fromarray(pixels(0)).save(content, "GIF")
    return content.getvalue()


def without_palette() -> bytes:
    """A PNG with a transparent colour, whose palette is a chunk of a name that nobody knows. Pillow asserts one."""
    content = io.BytesIO()
    Image.fromarray(pixels(0)).convert("P").save(content, "PNG", transparency=3)
    whole = content.getvalue()
    start = whole.index(b"PLTE")
    end = start + 4 + int.from_bytes(whole[start - 4 : start], "big")
    renamed = b"pLTE" + whole[start + 4 : end]
    return whole[:start] + renamed + zlib.crc32(renamed).to_bytes(4, "big") + whole[end + 4 :]


@pytest.mark.parametrize(
    "content",
    [
        b"", b"no picture at all", encoded(pixels(0, 64, 64))[:400], encoded(pixels(0, 64, 64), "PNG")[:100], gif(),
        encoded(Image.fromarray(np.zeros((8, 8), np.uint16)), "PNG"), without_palette(),
    ],
    ids=["empty", "text", "half a JPEG", "half a PNG", "GIF", "16 bits", "no palette"],
)  # fmt: skip
def test_what_is_no_picture_or_not_whole_is_called_damaged(content):
    with pytest.raises(DamagedImageError, match=r"."):  # with a reason
        View(8, 8).of(content)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"size": 0}, r"size must be a whole number of at least 1 pixel, got 0"),
        ({"size": "big"}, r"got 'big' \(str\)"),
        ({"size": 300}, "300 pixels cannot be cut out of a shorter side of 256; raise resize"),
    ],
)
def test_impossible_views_are_refused(arguments, message):
    with pytest.raises(ValueError, match=message):
        View(**arguments)
