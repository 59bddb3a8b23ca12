"""Tar files: the folder's images, each process its own shards, and files that are not as they should be."""

import io
import os
import tarfile
import warnings

import pytest
import torch
from image_files import encoded, make_folder, pixels
from PIL import Image

from lrnets.data import Batches, ImageFolder
from lrnets.data.image_list import class_folders, list_files
from lrnets.data.inspection import inspect_folder
from lrnets.data.progress import silent
from lrnets.data.shards import (
    TOGETHER,
    SortedShardsWarning,
    list_shards,
    order_by_shards,
    read_index,
    write_shards,
)

SMALL = {"size": 8, "resize": 12, "valid_size": 6, "workers": 0}


@pytest.fixture(autouse=True)
def notes(tmp_path, monkeypatch):
    monkeypatch.setenv("LRNETS_DATA", str(tmp_path / "cache"))


def test_shards_give_the_same_images_as_the_folder(tmp_path):
    root, out = make_folder(tmp_path / "images"), tmp_path / "shards"
    lines = list(inspect_folder(root, size=8, resize=12, workers=0, shards=out))
    assert "24 images to train on and 12 to test on, 3 classes" in lines[0]
    assert sorted(file.name for file in out.iterdir()) == ["classes.txt", "train-000000.tar", "val-000000.tar"]
    folder, shards = ImageFolder(root, **SMALL), ImageFolder(out, **SMALL)
    assert shards.classes == folder.classes
    assert shards.transforms == folder.transforms
    for mine, other in ((shards.train, folder.train), (shards.valid, folder.valid), (shards.test, folder.test)):
        for noise in (None, 5):
            (x, y), (u, v) = (next(iter(s.take([torch.arange(len(s))], noise))) for s in (mine, other))
            assert torch.equal(x, u)
            assert torch.equal(y, v)
    with pytest.raises(FileExistsError, match="shards is there already; name another"):
        list(inspect_folder(root, size=8, resize=12, workers=0, shards=out))


def test_shards_are_all_there_or_none(tmp_path, monkeypatch):
    """Half a test set would be looked at without a word."""
    root, out = make_folder(tmp_path / "images"), tmp_path / "shards"

    def interrupted(images, folder, part, *others, **settings):
        if part == "val":
            raise KeyboardInterrupt
        write_shards(images, folder, part, *others, **settings)

    with monkeypatch.context() as patch:
        patch.setattr("lrnets.data.inspection.write_shards", interrupted)
        with pytest.raises(KeyboardInterrupt):
            list(inspect_folder(root, size=8, resize=12, workers=0, shards=out))
    assert not [path for path in tmp_path.iterdir() if "shards" in path.name]
    out.mkdir()  # an empty folder is as good as none
    list(inspect_folder(root, size=8, resize=12, workers=0, shards=out))
    assert len(ImageFolder(out, **SMALL).test) == 12


def test_shrunk_shards_hold_what_training_looks_at(tmp_path):
    root, out = make_folder(tmp_path / "images", side=120), tmp_path / "shards"
    (root / "train/class00/broken.jpg").write_bytes(b"no picture")
    (root / "train/class00/small.png").write_bytes(encoded(pixels(5, 10, 14), "PNG"))
    list(inspect_folder(root, size=32, resize=40, workers=2, shards=out, shrink=True))
    seen = {"size": 32, "resize": 40, "valid_size": 0, "workers": 0, "mean": (0.5,) * 3, "deviation": (0.5,) * 3}
    folder, shards = (ImageFolder(where, **seen, damaged_share=0.1) for where in (root, out))
    for noise in (None, 3):
        every = [torch.arange(12)]
        (mine, label), (other, expected) = (next(iter(data.test.take(every, noise))) for data in (shards, folder))
        assert torch.equal(label, expected)
        assert mine.dtype == torch.uint8
        assert (mine.int() - other.int()).abs().max() <= 6  # JPEG twice
    with tarfile.open(out / "train-000000.tar") as archive:
        stored = {member.name: archive.extractfile(member).read() for member in archive if ".cls" not in member.name}
    assert sum(content == b"no picture" for content in stored.values()) == 1  # for training to report
    assert [name for name in stored if name.endswith(".png")] != []  # small enough as it was
    assert sorted(Image.open(io.BytesIO(c)).size for c in stored.values() if c != b"no picture") == (
        [(14, 10)] + 24 * [(41, 40)]
    )
    with pytest.raises(ValueError, match="say where to: --to-shards OUT"):
        list(inspect_folder(root, shrink=True))


def test_workers_read_shards_too_and_the_index_is_made_once(tmp_path, monkeypatch):
    images = list_files(make_folder(tmp_path / "images") / "train", class_folders(tmp_path / "images/train"))
    for part in ("train", "val"):
        write_shards(images, tmp_path / "out", part, silent, images_each=5)
    alone = ImageFolder(tmp_path / "out", **SMALL)
    assert alone.classes == ("0", "1", "2")  # nobody named them
    assert alone.train.images.shards.bincount().tolist() == [5, 5, 5, 5, 4]
    monkeypatch.setattr("lrnets.data.shards._index", None)
    others = ImageFolder(tmp_path / "out", **SMALL | {"workers": 2})
    for (x, y), (u, v) in zip(Batches(alone.train, 4, shuffle=True), Batches(others.train, 4, shuffle=True)):
        assert torch.equal(x, u)
        assert torch.equal(y, v)
    monkeypatch.undo()
    monkeypatch.setenv("LRNETS_DATA", str(tmp_path / "cache"))
    monkeypatch.setattr("lrnets.data.statistics._measure", None)
    assert ImageFolder(tmp_path / "out", **SMALL).transforms == alone.transforms
    os.utime(tmp_path / "out/train-000004.tar", ns=(0, 0))  # other pictures under the same names, of the same sizes
    with pytest.raises(TypeError):
        ImageFolder(tmp_path / "out", **SMALL)
    monkeypatch.setattr("lrnets.data.shards._index", None)
    (tmp_path / "out/train-000004.tar").unlink()
    with pytest.raises(TypeError):  # another set of files has another index
        list_shards(tmp_path / "out", "train", silent)


@pytest.mark.parametrize("world", [1, 2, 3])
@pytest.mark.parametrize("batch_size", [1, 4, 50])
def test_every_image_once_and_every_process_its_own_shards(world, batch_size):
    shards = torch.arange(12).repeat_interleave(torch.tensor([9, 3, 8, 8, 8, 8, 8, 8, 8, 8, 8, 8]))
    order = order_by_shards(shards, 3, 1, batch_size=batch_size, world=world)
    assert torch.equal(order.sort().values, torch.arange(len(shards)))
    assert torch.equal(order, order_by_shards(shards, 3, 1, batch_size=batch_size, world=world))
    assert not torch.equal(order, order_by_shards(shards, 3, 2, batch_size=batch_size, world=world))
    whole = len(shards) // (world * batch_size)
    read = torch.zeros(12, world)  # images of a shard that a process reads
    for step in range(whole):
        for rank in range(world):
            first = (step * world + rank) * batch_size
            read[:, rank] += shards[order[first : first + batch_size]].bincount(minlength=12)
    # Hands differ by one shard at most, which has 9 images: so many may go from one process to another in the end.
    assert (read.sum(1) - read.max(1).values).sum() <= 9 * (world - 1)


def test_few_shards_are_open_at_a_time_and_their_images_are_mixed():
    shards = torch.arange(20).repeat_interleave(10)
    read = shards[order_by_shards(shards, 0, 0, batch_size=5, world=1)]
    for window in read.split(10 * TOGETHER):
        assert len(window.unique()) == TOGETHER
        assert (window[1:] != window[:-1]).float().mean() > 0.5
    assert not torch.equal(read.unique_consecutive(), read.unique())


def test_more_processes_than_shards_still_share_evenly():
    shards = torch.zeros(24, dtype=torch.long)
    order = order_by_shards(shards, 0, 0, batch_size=2, world=4)
    assert torch.equal(order.sort().values, torch.arange(24))


def tar(path, members: dict[str, bytes]):
    with tarfile.open(path, "w") as archive:
        for name, content in members.items():
            member = tarfile.TarInfo(name)
            member.size = len(content)
            archive.addfile(member, io.BytesIO(content))
    return path


def test_keys_may_have_folders_and_other_files_beside_them(tmp_path):
    picture = encoded(pixels(0))
    members = {"a/1.jpg": picture, "a/1.cls": b"2\n", "a/1.json": b"{}", "b/1.PNG": picture, "b/1.cls": b"0", "x": b""}
    found = read_index(tar(tmp_path / "t.tar", members))
    assert [(key, label, size) for key, label, _, size in found] == [
        (b"a/1", 2, len(picture)), (b"b/1", 0, len(picture)),
    ]  # fmt: skip
    content = (tmp_path / "t.tar").read_bytes()
    assert all(content[offset : offset + size] == picture for _, _, offset, size in found)


@pytest.mark.parametrize(
    ("members", "message"),
    [
        ({"1.jpg": b"x"}, r"1 has no class \(.cls\) beside it"),
        ({"1.cls": b"1"}, "1 has no image beside it"),
        ({"1.jpg": b"x", "1.cls": b"cat"}, "1.cls holds b'cat', expected a class number"),
        ({"1.jpg": b"x", "1.cls": b"-1"}, "expected a class number from 0 on"),
        ({"1.jpg": b"x", "1.png": b"x", "1.cls": b"1"}, "1 is there twice"),
        ({"readme": b"x"}, "no image"),
        ({"1.jpg": b"x", "1.cls": b"1", "a.2.jpg": b"x", "a.2.cls": b"1"}, r"a\.2\.jpg has a dot in its name"),
    ],
)
def test_shards_that_are_not_as_they_should_be_are_refused(tmp_path, members, message):
    with pytest.raises(ValueError, match=message):
        read_index(tar(tmp_path / "t.tar", members))


def test_files_that_are_no_tar_or_cut_short_are_refused(tmp_path):
    (tmp_path / "t.tar").write_bytes(b"no tar file" * 100)
    with pytest.raises(ValueError, match="not a whole, uncompressed tar file"):
        read_index(tmp_path / "t.tar")
    whole = tar(tmp_path / "t.tar", {"1.cls": b"1", "1.jpg": bytes(5000)}).read_bytes()
    (tmp_path / "t.tar").write_bytes(whole[:3000])
    with pytest.raises(ValueError, match=r"cut short|not a whole"):
        read_index(tmp_path / "t.tar")


@pytest.mark.parametrize("order", ["by class", "a class a shard", "at random", "one class", "few"])
def test_shards_whose_images_stand_class_by_class_are_told_of(tmp_path, order):
    """The first images, of which batch norm's statistics are taken, would be of one class."""
    count, classes = (40, 4) if order == "few" else (200, 1 if order == "one class" else 4)
    labels = torch.arange(count) * classes // count
    if order == "at random":
        labels = labels[torch.randperm(count, generator=torch.Generator().manual_seed(0))]
    picture, split = encoded(pixels(0)), count // 4
    for part in ("train", "val"):
        for shard, numbers in enumerate(labels.split(split if order == "a class a shard" else count)):
            members = [(f"{i}.{end}", label) for i, label in enumerate(numbers.tolist()) for end in ("jpg", "cls")]
            tar(
                tmp_path / f"{part}-{shard:06d}.tar",
                {name: picture if name.endswith("jpg") else b"%d" % label for name, label in members},
            )
    settings = SMALL | {"mean": (0.5,) * 3, "deviation": (0.5,) * 3}
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        data = ImageFolder(tmp_path, **settings)
        assert len(data.test) == count
    told = [str(warning.message) for warning in caught if warning.category is SortedShardsWarning]
    if order in ("by class", "a class a shard"):
        assert data.train.labels[:40].eq(0).all()
        assert len(told) == 1
        assert "class by class" in told[0]
        assert "Write them in random order, as `lrnets data FOLDER --to-shards OUT` does" in told[0]
    else:
        assert not told


def test_a_class_number_that_nobody_named_is_refused(tmp_path):
    for part in ("train", "val"):
        tar(tmp_path / f"{part}-000000.tar", {"1.jpg": encoded(pixels(0)), "1.cls": b"7"})
    (tmp_path / "classes.txt").write_text("cat\ndog")  # with or without an end of line
    with pytest.raises(ValueError, match="class 7 among the train shards, and 2 classes"):
        ImageFolder(tmp_path, **SMALL)
    (tmp_path / "val-000000.tar").unlink()
    with pytest.raises(FileNotFoundError, match=r"neither val nor val-\*.tar"):
        ImageFolder(tmp_path, **SMALL)


def test_shards_to_test_on_are_looked_at_before_training(tmp_path):
    for part, label in (("train", b"0"), ("val", b"1")):
        tar(tmp_path / f"{part}-000000.tar", {f"{i}.{end}": content for i in range(20) for end, content in
                                              (("jpg", encoded(pixels(i))), ("cls", label))})  # fmt: skip
    with pytest.raises(ValueError, match="class 1 among the val shards, and 1 classes"):
        ImageFolder(tmp_path, **SMALL)
    (tmp_path / "classes.txt").write_text("cat\ndog")
    content = (tmp_path / "val-000000.tar").read_bytes().rstrip(b"\0")
    blocks = -(-len(content) // tarfile.BLOCKSIZE)  # all images are whole, and no zeros end the file
    (tmp_path / "val-000000.tar").write_bytes(content.ljust(blocks * tarfile.BLOCKSIZE, b"\0"))
    with pytest.raises(ValueError, match=r"val-000000\.tar: the file is cut short"):
        ImageFolder(tmp_path, **SMALL)
