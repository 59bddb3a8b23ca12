"""Image folders: what is found, what is refused, one mean and deviation, and the same bits from any workers."""

import os
import shutil
import time
import warnings
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from image_files import encoded, make_folder, pixels
from PIL import Image

from lrnets.data import Batches, ImageFolder, load, stratified
from lrnets.data.disk_split import PIECE, Damaged, DamagedImageWarning
from lrnets.data.image_folder import images_a_second
from lrnets.data.image_list import FileList
from lrnets.data.once import once

SMALL = {"size": 8, "resize": 12, "valid_size": 6, "workers": 0}


@pytest.fixture(autouse=True)
def notes(tmp_path, monkeypatch):
    monkeypatch.setenv("LRNETS_DATA", str(tmp_path / "cache"))


@pytest.fixture
def root(tmp_path):
    return make_folder(tmp_path / "images")


def everything(split, noise=None):
    return next(iter(split.take([torch.arange(len(split))], noise)))


def test_train_valid_and_test_are_what_the_folders_hold(root):
    data = ImageFolder(root, **SMALL)
    assert data.classes == ("class00", "class01", "class02")
    assert (len(data.train), len(data.valid), data.test_was_read) == (18, 6, False)
    assert data.valid.labels.bincount().tolist() == [2, 2, 2]
    names = {data.train.images.name(int(i)) for split in (data.train, data.valid) for i in split.index}
    assert names == {str(path) for path in root.glob("train/*/*.JPEG")}
    for split in (data.train, data.test):
        images, labels = everything(split)
        assert images.shape == (len(split), *split.shape) == (len(split), 3, 8, 8)
        for image, label, number in zip(images, labels, split.index.tolist()):
            path = split.images.name(number)
            assert f"class{int(label):02d}" in path
            decoded = np.asarray(Image.open(path))[2:10, 4:12]  # 12 x 16 pixels: nothing is scaled
            assert np.array_equal(image.numpy(), decoded.transpose(2, 0, 1))
    assert len(data.test) == 12
    assert all("/val/" in data.test.images.name(i) for i in range(12))


def test_the_first_examples_are_a_fair_sample_and_the_split_is_always_the_same(root):
    data, again = ImageFolder(root, **SMALL), ImageFolder(root, **SMALL)
    labels = data.train.images.labels
    assert set(labels[:8].tolist()) == {0, 1, 2}
    assert torch.equal(data.valid.index, again.valid.index)
    assert torch.equal(data.valid.index, stratified(labels, 6)[1])


def test_mean_and_deviation_are_numpys_and_are_computed_once(root, monkeypatch):
    found = ImageFolder(root, **SMALL).transforms
    squares = [np.asarray(Image.open(path))[2:10, 4:12] for path in root.glob("train/*/*")]
    values = np.stack(squares).reshape(-1, 3) / 255
    assert found.train.mean == pytest.approx(values.mean(0), rel=1e-12)
    assert found.train.deviation == pytest.approx(values.std(0), rel=1e-12)
    assert found.train == found.evaluation
    monkeypatch.setattr("lrnets.data.statistics._measure", None)  # not needed again
    assert ImageFolder(root, **SMALL).transforms == found
    given = ImageFolder(root, **SMALL, mean=(0.4, 0.5, 0.6), deviation=(0.1, 0.2, 0.3)).transforms.train
    x = given(torch.full((1, 3, 1, 1), 51, dtype=torch.uint8)).flatten()
    torch.testing.assert_close(x, torch.tensor([-2.0, -1.5, -4 / 3]))
    with monkeypatch.context() as patched:
        patched.setattr("lrnets.data.statistics.FORMAT", 2)  # images are decoded otherwise
        with pytest.raises(TypeError):
            ImageFolder(root, **SMALL)
    os.utime(root / "train/class00/0.JPEG", ns=(0, 0))  # another picture of the same size
    with pytest.raises(TypeError):
        ImageFolder(root, **SMALL)
    (root / "train/class00/0.JPEG").unlink()  # another list
    with pytest.raises(TypeError):
        ImageFolder(root, **SMALL)
    make_folder(root, side=20)  # the same names again, other pictures
    with pytest.raises(TypeError):
        ImageFolder(root, **SMALL)
    assert not list(root.rglob(".*"))  # nothing is written to the data


def refuse(path, *_):
    raise PermissionError(13, "Permission denied", str(path))


@pytest.mark.parametrize("step", ["pathlib.Path.mkdir", "lrnets.data.once.turn", "lrnets.data.once.write_whole"])
def test_where_notes_cannot_be_kept_they_are_made_each_time(tmp_path, monkeypatch, step):
    monkeypatch.setattr(step, refuse if "mkdir" not in step else lambda path, **_: refuse(path))
    made = []
    for count in (1, 2):
        assert once(tmp_path, "note", lambda: made.append(0) or b"content") == b"content"
        assert len(made) == count


def test_of_many_processes_at_once_one_makes_a_note(tmp_path):
    made = []

    def make() -> bytes:
        time.sleep(0.1)
        made.append(0)
        return b"content"

    with ThreadPoolExecutor(8) as threads:
        assert set(threads.map(lambda _: once(tmp_path, "note", make), range(8))) == {b"content"}
    assert len(made) == 1


def test_workers_change_nothing(root):
    alone, others = ImageFolder(root, **SMALL), ImageFolder(root, **SMALL | {"workers": 2})
    state = torch.get_rng_state()
    for noise in (None, 3):
        for a, b in zip(everything(alone.train, noise), everything(others.train, noise)):
            assert torch.equal(a, b)
    assert torch.equal(torch.get_rng_state(), state)


def test_noise_is_a_function_of_seed_epoch_and_image(root):
    data = ImageFolder(root, **SMALL)
    runs = [Batches(data.train, size, shuffle=True, seed=seed) for size, seed in ((4, 0), (9, 0), (4, 1))]

    def by_label_and_sum(batches, epoch):
        return sorted((int(y), x.numpy().tobytes()) for xs, ys in batches.at(epoch) for x, y in zip(xs, ys))

    assert by_label_and_sum(runs[0], 1) == by_label_and_sum(runs[1], 1)  # whatever batch an image is in
    assert by_label_and_sum(runs[0], 1) != by_label_and_sum(runs[0], 2)
    assert by_label_and_sum(runs[0], 1) != by_label_and_sum(runs[2], 1)
    even = Batches(data.train, 4, augment=False, shuffle=True)
    assert by_label_and_sum(even, 0) == by_label_and_sum(even, 1)


def test_batches_can_be_taken_up_anywhere_and_two_processes_have_each_image_once(root):
    data = ImageFolder(root, **SMALL)
    whole = list(Batches(data.train, 4, shuffle=True).at(2))
    rest = list(Batches(data.train, 4, shuffle=True).at(2, 3))
    assert all(torch.equal(x, u) and torch.equal(y, v) for (x, y), (u, v) in zip(whole[3:], rest, strict=True))
    halves = [list(Batches(data.train, 3, shuffle=True, rank=rank, world=2)) for rank in (0, 1)]
    seen = sorted(x.numpy().tobytes() for half in halves for xs, _ in half for x in xs)
    alone = sorted(x.numpy().tobytes() for xs, _ in Batches(data.train, 6, shuffle=True) for x in xs)
    assert seen == alone
    assert len(set(seen)) == 18


def test_damaged_images_are_named_and_left_out_up_to_a_share(root):
    good = ImageFolder(root, **SMALL)
    bad = root / "train/class01/3.JPEG"
    bad.write_bytes(bad.read_bytes()[:200])
    data = ImageFolder(root, **SMALL, damaged_share=0.05, mean=(0.5,) * 3, deviation=(0.5,) * 3)
    with pytest.warns(DamagedImageWarning, match=str(bad)):
        images, labels = everything(data.train)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        everything(data.train)  # told once
    kept = [i for i, n in enumerate(good.train.index.tolist()) if good.train.images.name(n) != str(bad)]
    assert torch.equal(images, everything(good.train[torch.tensor(kept)])[0])
    assert torch.equal(labels, good.train.labels[kept])
    (root / "train/class02/1.JPEG").write_bytes(b"")
    shutil.rmtree(root.parent / "cache")
    warnings.simplefilter("ignore", DamagedImageWarning)  # pytest restores the filters
    with pytest.raises(ValueError, match=r"(?s)2 of 24 .* more than the 1 %.*JPEG"):
        ImageFolder(root, **SMALL)  # noticed when mean and deviation are computed, before anything is trained


def test_links_count_as_what_they_lead_to_and_as_damaged_if_it_is_gone(root, tmp_path):
    folder = root / "train/class00"
    (tmp_path / "elsewhere").mkdir()
    (folder / "0.JPEG").rename(tmp_path / "elsewhere/0.JPEG")
    (folder / "0.JPEG").symlink_to(tmp_path / "elsewhere/0.JPEG")
    (folder / "gone.JPEG").symlink_to(tmp_path / "elsewhere/gone.JPEG")
    (folder / "folder.JPEG").symlink_to(tmp_path / "elsewhere")
    with pytest.warns(DamagedImageWarning, match=r"class00/gone.JPEG: cannot be read .*No such file"):
        data = ImageFolder(root, **SMALL, damaged_share=0.1)
    assert len(data.train) + len(data.valid) == 25
    with pytest.raises(ValueError, match=r"1 of 25 images cannot be read, .*\n.*class00/gone.JPEG: "):
        everything(replace(data.train, index=torch.arange(25), damaged=Damaged(25, 0.01)))


def test_a_disk_that_fails_is_asked_again_and_is_no_damage(root, monkeypatch):
    data = ImageFolder(root, **SMALL)
    expected, _ = everything(data.train)
    read, failed = FileList.read, set()

    def stumble(images, image):
        if image not in failed:
            failed.add(image)
            raise OSError(5, "Input/output error")
        return read(images, image)

    with monkeypatch.context() as patched:
        patched.setattr(FileList, "read", stumble)
        assert torch.equal(everything(data.train)[0], expected)
    assert not data.train.damaged.reasons
    path = Path(data.train.images.name(int(data.train.index[3])))
    path.unlink()
    with pytest.warns(DamagedImageWarning, match="No such file"):
        everything(replace(data.train, damaged=Damaged(24, 0.5)))
    path.mkdir()  # nobody can read that, whoever they are
    for workers in (0, 2):
        with pytest.raises(OSError, match=rf"^{path} cannot be read, tried twice \(Is a directory\); see to its disk"):
            everything(replace(data.train, workers=workers))


def test_other_files_are_passed_over(root):
    before = ImageFolder(root, **SMALL)
    (root / "train/class00/list.txt").write_text("no image")
    (root / "train/class00/._0.JPEG").write_bytes(b"what another system leaves")
    (root / "train/class00/folder.jpg").mkdir()
    (root / "train/.hidden").mkdir()
    assert np.array_equal(ImageFolder(root, **SMALL).train.images.files, before.train.images.files)
    (root / "train/class00/more.png").write_bytes(encoded(pixels(9), "PNG"))
    assert len(ImageFolder(root, **SMALL).train) == 19


def empty_class(root):
    (root / "train/nothing").mkdir()


def unknown_class(root):
    (root / "val/class77").mkdir()


def flat_val(root):
    shutil.rmtree(root / "val")
    (root / "val").mkdir()
    (root / "val/0.JPEG").write_bytes(b"")


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (empty_class, "train/nothing holds no image .*bring its images, or remove the folder"),
        (unknown_class, "val has 1 classes that train has not, 'class77' first"),
        (flat_val, "val has no class folders; .*move each into its class's folder"),
        (lambda root: shutil.rmtree(root / "val"), "has train and no val"),
        (lambda root: [shutil.rmtree(folder) for folder in (root / "train").iterdir()], "train has no class folders"),
        (lambda root: shutil.rmtree(root / "train"), r"has neither train nor train-\*.tar; expected train/<class>"),
    ],
)
def test_folders_that_cannot_be_meant_are_refused(root, change, message):
    change(root)
    with pytest.raises((ValueError, FileNotFoundError), match=message):
        ImageFolder(root, **SMALL)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"mean": (0.5,) * 3}, "both, or neither"),
        ({"mean": (0.5,), "deviation": (1.0,)}, "mean must be three numbers, one for each colour, got"),
        ({"mean": 0.5, "deviation": 1.0}, r"mean must be three numbers, one for each colour, got 0.5 \(float\)"),
        ({"mean": (0.5,) * 3, "deviation": 1.0}, "deviation must be three numbers"),
        ({"damaged_share": "few"}, "damaged_share must be a number from 0 to below 1, got 'few'"),
        ({"mean": (0.5,) * 3, "deviation": (0.0,) * 3}, "deviations above 0"),
        ({"mean": "abc", "deviation": "abc"}, "give a number a channel"),
        ({"damaged_share": 2}, "damaged_share must be a number from 0 to below 1, got 2"),
        ({"workers": -1}, r"workers must be .* at least 0, got -1"),
        ({"valid_size": 24}, "24 .*validation examples of 24"),
        ({"class_count": 4}, "the data have 3 classes and the network 4; --set classes=3, or name other data"),
    ],
)
def test_impossible_options_are_refused(root, options, message):
    with pytest.raises(ValueError, match=message):
        ImageFolder(root, **SMALL | options)


def test_load_finds_the_folder_and_tells_where_it_looked(root, tmp_path):
    assert load("imagenet", root, **SMALL).classes == ImageFolder(root, **SMALL).classes
    (tmp_path / "all").mkdir()
    root.rename(tmp_path / "all/imagenet")
    assert len(load("imagenet", tmp_path / "all", **SMALL).train) == 18
    with pytest.raises(FileNotFoundError, match=r"no train folder .*--data-dir"):
        load("imagenet", tmp_path, **SMALL)
    with pytest.raises(ValueError, match="mnist is read as it is, and has no option size"):
        load("mnist", tmp_path, size=3)


@dataclass
class Clockwork:
    """A split that takes a second of its own clock for each group."""

    workers: int = 0
    seconds = 0.0

    def __len__(self) -> int:
        return 10

    def take(self, groups, noise):
        for group in groups:
            Clockwork.seconds += 1
            yield torch.empty(len(group)), group % 10


@pytest.mark.parametrize("workers", [1, 170, 200, 1000])
def test_any_number_of_workers_can_be_measured(monkeypatch, workers):
    monkeypatch.setattr("lrnets.data.image_folder.time", SimpleNamespace(perf_counter=lambda: Clockwork.seconds))
    for seconds in (0, 5):
        assert images_a_second(Clockwork(), workers=workers, seconds=seconds) == PIECE


def test_the_pace_of_decoding_is_measured(root):
    data = ImageFolder(root, **SMALL)
    assert images_a_second(data.train, seconds=0.05) > 1
    assert images_a_second(data.train, workers=2, seconds=0.05) > 1
    assert "18 images of 3 classes to train on, 6 to choose on, 8 pixels" in data.about()
