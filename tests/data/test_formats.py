"""Official layouts: what is read, and how broken files are refused."""

import gzip
import io
import tarfile

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from layouts import cifar_binary, cifar_python, idx, png_sheet, tar_gz

from lrnets.data import formats

RNG = np.random.default_rng(0)
IMAGES = RNG.integers(256, size=(7, 3, 32, 32), dtype=np.uint8)
LABELS = np.array([3, 1, 4, 1, 5, 9, 2], dtype=np.uint8)
DIGITS = RNG.integers(256, size=(7, 28, 28), dtype=np.uint8)


def same(examples, images, labels) -> bool:
    found, found_labels = examples
    assert found.dtype == torch.uint8
    assert found_labels.dtype == torch.int64
    return np.array_equal(found.numpy(), images) and np.array_equal(found_labels.numpy(), labels)


def test_idx_pairs_become_images_with_one_channel():
    assert same(formats.read_mnist(idx(DIGITS), idx(LABELS), "digits"), DIGITS[:, None], LABELS)


def test_cifar_binary_records_become_planes():
    assert same(formats.read_cifar_binary(cifar_binary(IMAGES, LABELS), "batch"), IMAGES, LABELS)


def test_python_batches_are_the_binary_ones_in_other_clothes():
    assert formats.cifar_python_to_binary(cifar_python(IMAGES, LABELS), "batch") == cifar_binary(IMAGES, LABELS)


def test_png_sheets_become_the_binary_batches():
    pytest.importorskip("PIL")
    names = [f"data_batch_{i}" for i in range(1, 6)] + ["test_batch"]
    members = {f"{name}.png": png_sheet(np.roll(IMAGES, i, axis=0)) for i, name in enumerate(names)}
    members["train_lables.json"] = str(LABELS.tolist() * 5).encode()
    members["test_lables.json"] = str(LABELS.tolist()).encode()
    batches = list(formats.cifar_sheets_to_binary(members, "sheets"))
    assert batches == [
        (f"{name}.bin", cifar_binary(np.roll(IMAGES, i, axis=0), LABELS)) for i, name in enumerate(names)
    ]
    members["test_lables.json"] = b"[1, 2]"
    with pytest.raises(ValueError, match=r"test_batch.png: not a sheet of 2 images \(RGB of \(1024, 7\) pixels"):
        list(formats.cifar_sheets_to_binary(members, "sheets"))
    for broken in (b"{", b'{"a": 1}', b"[[1]]", b"[1000]"):
        members["test_lables.json"] = broken
        with pytest.raises(ValueError, match=r"test_lables\.json: "):
            list(formats.cifar_sheets_to_binary(members, "sheets"))


def test_what_was_read_may_be_written_to():
    content = cifar_binary(IMAGES, LABELS)
    images, _ = formats.read_cifar_binary(content, "batch")
    images.zero_()
    assert content == cifar_binary(IMAGES, LABELS)


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"", r"digits: begins with 0x\(nothing\), expected 0x00000803"),
        (gzip.compress(idx(DIGITS)), "begins with 0x1f8b.*expected 0x00000803"),
        (idx(LABELS), "begins with 0x00000801, expected 0x00000803"),
        (idx(DIGITS)[:10], "0x00000803.*16 bytes of header"),
        (idx(DIGITS)[:-1], r"digits: 5503 bytes, 5504 expected for 7 x 28 x 28 values"),
        (idx(DIGITS) + b"\0", "5505 bytes, 5504 expected"),
        (idx(DIGITS)[:4] + b"\xff" * 12 + b"\0" * 100, "116 bytes, 79228162458924105385300197391 expected"),
    ],
)
def test_broken_idx_files_are_refused_with_what_was_found_and_expected(content, message):
    with pytest.raises(ValueError, match=message) as error:
        formats.read_idx(content, "digits", 3)
    assert "fetch it again" in str(error.value)


def test_images_and_labels_must_be_equally_many_and_labels_below_ten():
    with pytest.raises(ValueError, match="digits: 7 images and 6 labels"):
        formats.read_mnist(idx(DIGITS), idx(LABELS[:6]), "digits")
    with pytest.raises(ValueError, match="digits: label 10, expected 0 to 9"):
        formats.read_mnist(idx(DIGITS), idx(LABELS + np.uint8(1)), "digits")


@pytest.mark.parametrize("length", [0, 1, 3072, 3074, 3073 * 7 - 1])
def test_a_binary_batch_of_no_whole_records_is_refused(length):
    with pytest.raises(ValueError, match=f"batch: {length} bytes, expected a multiple of 3073"):
        formats.read_cifar_binary(cifar_binary(IMAGES, LABELS)[:length], "batch")


def test_cut_or_bloated_gzip_files_are_refused(monkeypatch):
    packed = gzip.compress(bytes(5000))
    assert formats.gunzip(packed, "file") == bytes(5000)
    for broken in (packed[:-4], packed[:20], b"plain", packed[:15] + b"\xff\xff" + packed[17:]):
        with pytest.raises(ValueError, match="file: not a whole gzip file"):
            formats.gunzip(broken, "file")
    monkeypatch.setattr(formats, "MEMBER_LIMIT", 4999)
    with pytest.raises(ValueError, match="more than 4999 bytes"):
        formats.gunzip(packed, "file")


def test_only_the_named_members_of_an_archive_are_read(monkeypatch):
    archive = tar_gz({"package/index.js": b"evil", "../../escape": b"evil", "package/data": b"good"})
    assert formats.read_members(archive, ["package/data"], "archive") == {"package/data": b"good"}
    with pytest.raises(ValueError, match="archive: package/labels not in the archive, expected 2 files"):
        formats.read_members(archive, ["package/data", "package/labels"], "archive")
    with pytest.raises(ValueError, match=r"archive: not a whole \.tar\.gz"):
        formats.read_members(archive[:-30], ["package/data"], "archive")
    monkeypatch.setattr(formats, "MEMBER_LIMIT", 3)
    with pytest.raises(ValueError, match="package/data is no ordinary file of at most 3 bytes"):
        formats.read_members(archive, ["package/data"], "archive")


@pytest.mark.parametrize("kind", [tarfile.SYMTYPE, tarfile.LNKTYPE, tarfile.DIRTYPE, tarfile.FIFOTYPE])
def test_links_and_other_oddities_in_an_archive_are_refused(kind):
    stream = io.BytesIO()
    with tarfile.open(fileobj=stream, mode="w:gz") as archive:
        member = tarfile.TarInfo("data")
        member.type, member.linkname = kind, "/etc/passwd"
        archive.addfile(member)
    with pytest.raises(ValueError, match="data is no ordinary file"):
        formats.read_members(stream.getvalue(), ["data"], "archive")


@given(st.binary(max_size=200))
def test_no_bytes_raise_anything_but_a_value_error_that_names_the_file(content):
    refusals = []
    for read in (
        lambda: formats.read_idx(content, "file", 3),
        lambda: formats.read_idx(b"\0\0\x08\x01" + content, "file", 1),
        lambda: formats.read_cifar_binary(content, "file"),
        lambda: formats.gunzip(content, "file"),
        lambda: formats.gunzip(b"\x1f\x8b\x08\0" + content, "file"),
        lambda: formats.read_members(gzip.compress(content), ["data"], "file"),
    ):
        try:
            read()
        except ValueError as error:
            refusals.append(str(error))
    assert all(refusal.startswith("file: ") for refusal in refusals)
