"""Files are whole or not there."""

import pytest

from lrnets.whole_files import whole_file, write_whole


def test_a_file_takes_the_place_of_another_and_leaves_nothing_beside_it(tmp_path):
    write_whole(tmp_path / "a", b"old")
    write_whole(tmp_path / "a", b"new")
    assert [(path.name, path.read_bytes()) for path in tmp_path.iterdir()] == [("a", b"new")]


def test_what_fails_half_way_leaves_the_old_file_and_nothing_else(tmp_path):
    write_whole(tmp_path / "a", b"old")

    def fail() -> None:
        with whole_file(tmp_path / "a") as temporary:
            temporary.write_bytes(b"half")
            assert (tmp_path / "a").read_bytes() == b"old"
            raise OSError("the disk is full")

    with pytest.raises(OSError, match="the disk is full"):
        fail()
    assert [(path.name, path.read_bytes()) for path in tmp_path.iterdir()] == [("a", b"old")]


def test_long_names_do_not_make_longer_ones(tmp_path):
    write_whole(tmp_path / ("a" * 250), b"x")
    assert [path.name for path in tmp_path.iterdir()] == ["a" * 250]
