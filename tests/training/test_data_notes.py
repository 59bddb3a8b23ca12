"""What a run keeps about images on disk: colours and classes it goes on with, and which images were left out."""

import sys
from pathlib import Path

import pytest
import torch
from digit_runs import TRANSFORMS, digits

sys.path.append(str(Path(__file__).parents[1] / "data"))
from image_files import make_folder

from lrnets.data import ImageFolder
from lrnets.data.disk_split import DamagedImageWarning
from lrnets.training import load_recipe
from lrnets.training.data_notes import DAMAGED, FILE, keep_data, kept_colours, left_out, require_kept
from lrnets.training.pipeline import load_by
from lrnets.training.run_folder import RunFolder

SMALL = {"size": 8, "resize": 12, "valid_size": 6, "workers": 0, "damaged_share": 0.2}


@pytest.fixture(autouse=True)
def notes(tmp_path, monkeypatch):
    monkeypatch.setenv("LRNETS_DATA", str(tmp_path / "cache"))


@pytest.fixture
def folder(tmp_path) -> RunFolder:
    """A run on pictures of three classes."""
    run = RunFolder(tmp_path / "run")
    data = ImageFolder(make_folder(tmp_path / "images"), **SMALL)
    keep_data(run, data, data.transforms)
    return run


def test_other_images_have_the_colours_of_the_run(folder, tmp_path, monkeypatch):
    others = make_folder(tmp_path / "others", side=20)
    settings = ["data_options={size: 8, resize: 12}", "classes=3", "valid_size=6"]
    recipe = load_recipe("imagenette-float", settings)
    own = load_by(recipe, str(others)).transforms.evaluation
    monkeypatch.setattr("lrnets.data.statistics._measure", None)
    data = load_by(recipe, str(others), folder=folder)
    found = data.transforms.evaluation
    assert {"mean": found.mean, "deviation": found.deviation} == kept_colours(folder)
    assert found.mean != own.mean
    require_kept(folder, data, data.transforms)


def test_own_data_of_other_colours_or_classes_are_refused(folder, tmp_path):
    data = ImageFolder(make_folder(tmp_path / "others", side=20), **SMALL)
    with pytest.raises(ValueError, match=r"was trained with mean \(.* and the data come with \(.*data.json"):
        require_kept(folder, data, data.transforms)
    data = ImageFolder(make_folder(tmp_path / "more", classes=4), **SMALL, **kept_colours(folder))
    with pytest.raises(
        ValueError, match=r"on 3 classes \(class00, .*\), and the data have 4 classes .*class02, \.\.\.\)"
    ):
        require_kept(folder, data, data.transforms)


def test_runs_that_kept_nothing_go_on_and_a_damaged_note_is_named(folder, tmp_path):
    older = RunFolder(tmp_path / "older")
    assert kept_colours(older) == {}
    require_kept(older, digits(), TRANSFORMS)
    keep_data(older, digits(), TRANSFORMS)  # nothing of images in memory
    assert not older.path.exists()
    (folder.path / FILE).write_text('{"mean": [')
    with pytest.raises(ValueError, match=r"data\.json is damaged .*remove it"):
        kept_colours(folder)


def test_images_that_were_left_out_are_counted_and_named(folder, tmp_path):
    data = ImageFolder(tmp_path / "images", **SMALL)
    assert left_out(folder, data) == {"left_out": {"train": 0, "valid": 0, "test": 0}}
    assert not (folder.path / DAMAGED).exists()
    bad = [
        Path(split.images.name(int(split.index[i]))) for split, i in ((data.train, 1), (data.train, 5), (data.valid, 2))
    ]
    bad.append(Path(data.test.images.name(0)))
    for path in bad:
        path.write_bytes(b"no picture")
    for split in (data.train, data.valid, data.test):
        with pytest.warns(DamagedImageWarning):
            next(iter(split.take([torch.arange(len(split))])))
    counted = {"left_out": {"train": 2, "valid": 1, "test": 1}}
    assert left_out(folder, data) == counted
    lines = [line.split("\t") for line in (folder.path / DAMAGED).read_text().splitlines()]
    assert {(part, name) for part, name, _ in lines} == set(zip(("train", "train", "valid", "test"), map(str, bad)))
    assert {reason for *_, reason in lines} == {"neither JPEG nor PNG, of 10 bytes"}
    colours = kept_colours(folder)
    assert left_out(folder, ImageFolder(tmp_path / "images", **SMALL, **colours)) == counted  # a later sitting
    assert left_out(folder, digits()) == {}
