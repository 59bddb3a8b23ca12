"""Files are whole or not there."""

import pytest

from lrnets.whole_files import whole_file, whole_folder, write_whole


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


def test_a_folder_is_whole_or_not_there(tmp_path):
    def fill(target, *, fails=False):
        with whole_folder(target) as temporary:
            (temporary / "a").write_text("x")
            assert not target.exists() or not any(target.iterdir())
            if fails:
                raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        fill(tmp_path / "deep/new", fails=True)
    assert list((tmp_path / "deep").iterdir()) == []
    (tmp_path / "deep/new").mkdir()
    fill(tmp_path / "deep/new")
    assert [path.name for path in (tmp_path / "deep").rglob("*")] == ["new", "a"]
    with pytest.raises(FileExistsError, match="new is there already; name another folder, or remove it"):
        fill(tmp_path / "deep/new")
