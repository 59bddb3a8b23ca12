"""The local folder: every official layout is understood, every file verified, none half-written."""

import gzip
from pathlib import Path

import numpy as np
import pytest
from layouts import md5, place

from lrnets.data import load
from lrnets.data.folder import data_folder, read_file, store, verified, workshop

PLAIN = ["", "mnist", "cifar10", "MNIST/raw", "mnist/MNIST/raw", "cifar-10-batches-bin", "cifar10/cifar-10-batches-bin"]
OTHER = ["", "mnist", "cifar10", "MNIST/raw", "cifar-10-batches-py", "cifar10/cifar-10-batches-py"]


def understood(where: str, small) -> bool:
    return where in ("", small.data_set.name) or any(where.endswith(known) for known in small.data_set.folders)


@pytest.mark.parametrize(("form", "where"), [("plain", w) for w in PLAIN] + [("other", w) for w in OTHER])
def test_official_files_are_found_wherever_tools_put_them(small, tmp_path, form, where):
    place(getattr(small, form), tmp_path / where)
    if not understood(where, small):
        with pytest.raises(FileNotFoundError, match=f"lrnets data {small.data_set.name}"):
            load(small.data_set.name, tmp_path, valid_size=0)
        return
    data = load(small.data_set.name, tmp_path, valid_size=0)
    for split, (images, labels) in ((data.train, small.examples["train"]), (data.test, small.examples["test"])):
        assert np.array_equal(split.images.numpy(), images)
        assert np.array_equal(split.labels.numpy(), labels)


def test_a_damaged_file_is_refused_with_its_name_and_both_checksums(small, tmp_path):
    place(small.plain, tmp_path)
    file = small.data_set.train[0]
    damaged = bytes([small.plain[file.name][0] ^ 1]) + small.plain[file.name][1:]
    (tmp_path / file.name).write_bytes(damaged)
    with pytest.raises(ValueError, match="fetch it again") as error:
        load(small.data_set.name, tmp_path, valid_size=0)
    for part in (str(tmp_path / file.name), md5(damaged)[4:], file.checksum[4:], f"{len(damaged)} bytes"):
        assert part in str(error.value)


def test_a_damaged_file_is_passed_over_for_a_good_copy(small, tmp_path):
    file = small.data_set.train[0]
    place({file.name: b"damaged"}, tmp_path / small.data_set.name)
    place(small.other, tmp_path)
    assert read_file(small.data_set, file, tmp_path) == small.plain[file.name]


def test_a_file_is_verified_before_it_is_parsed(small, tmp_path, monkeypatch):
    file = small.data_set.train[0]
    form = file.others[0]._replace(decode=lambda content, name: pytest.fail("parsed an unverified file"))
    place({form.name: gzip.compress(b"something else")}, tmp_path)
    with pytest.raises(ValueError, match="expected"):
        read_file(small.data_set, file._replace(others=(form,)), tmp_path)


def test_checksums_name_their_algorithm():
    empty = "sha256:e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855"
    assert verified(b"", empty, "file") == b""
    with pytest.raises(ValueError, match=r"file: sha256 .* of 1 bytes, expected e3b0c"):
        verified(b"x", empty, "file")


def test_the_folder_is_the_argument_or_the_variable_or_the_cache(monkeypatch, tmp_path):
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.delenv("LRNETS_DATA", raising=False)
    assert data_folder() == tmp_path / ".cache/lrnets"
    monkeypatch.setenv("LRNETS_DATA", "~/mine")
    assert data_folder() == tmp_path / "mine"
    assert data_folder("elsewhere") == Path("elsewhere")
    monkeypatch.setenv("LRNETS_DATA", "")
    assert data_folder() == tmp_path / ".cache/lrnets"


def test_a_file_appears_whole_or_not_at_all(tmp_path, monkeypatch):
    target = tmp_path / "data" / "file"
    with workshop(target.parent) as shop:
        store(b"whole", target, shop)
    assert [path.name for path in target.parent.iterdir()] == ["file"]
    monkeypatch.setattr(Path, "replace", lambda *_: (_ for _ in ()).throw(KeyboardInterrupt))
    with pytest.raises(KeyboardInterrupt), workshop(target.parent) as shop:
        store(b"other", target, shop)
    assert [path.name for path in target.parent.iterdir()] == ["file"]
    assert target.read_bytes() == b"whole"


def test_folders_that_were_made_and_stayed_empty_go_away_and_others_stay(tmp_path):
    (tmp_path / "old").mkdir()
    with workshop(tmp_path / "old" / "new" / "newer") as shop:
        (shop / "rubbish").write_bytes(b"x")
    assert list(tmp_path.rglob("*")) == [tmp_path / "old"]
