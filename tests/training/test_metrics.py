"""Figures of epochs: kept, continued after an interruption, added up."""

import csv

from lrnets.training.metrics import metrics_file, note_epoch, read_epochs, seconds_of
from lrnets.training.run_folder import RunFolder


def test_rows_are_kept_in_a_file_that_others_can_read(tmp_path):
    folder = RunFolder(tmp_path)
    note_epoch(folder, "float", {"epoch": 1, "loss": 0.125, "seconds": 2.5})
    note_epoch(folder, "float", {"epoch": 2, "loss": 1e-9, "seconds": 2.0})
    with metrics_file(folder, "float").open() as file:
        assert list(csv.DictReader(file)) == [
            {"epoch": "1", "loss": "0.125", "seconds": "2.5"},
            {"epoch": "2", "loss": "1e-09", "seconds": "2"},
        ]
    assert seconds_of(folder, "float") == 4.5
    assert not list(tmp_path.rglob(".*"))


def test_an_epoch_that_is_run_again_replaces_itself_and_what_followed(tmp_path):
    folder = RunFolder(tmp_path)
    for epoch in (1, 2, 3):
        note_epoch(folder, "stochastic", {"epoch": epoch, "seconds": 1})
    note_epoch(folder, "stochastic", {"epoch": 2, "seconds": 10})
    assert read_epochs(folder, "stochastic") == [{"epoch": 1, "seconds": 1}, {"epoch": 2, "seconds": 10}]


def test_a_figure_that_appears_later_has_a_column_with_gaps(tmp_path):
    folder = RunFolder(tmp_path)
    note_epoch(folder, "float", {"epoch": 1})
    note_epoch(folder, "float", {"epoch": 2, "extra": 5})
    assert read_epochs(folder, "float") == [{"epoch": 1}, {"epoch": 2, "extra": 5}]


def test_a_stage_without_epochs_has_no_rows_and_took_no_time(tmp_path):
    assert read_epochs(RunFolder(tmp_path), "float") == []
    assert seconds_of(RunFolder(tmp_path), "float") == 0
