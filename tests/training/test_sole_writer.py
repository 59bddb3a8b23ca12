"""Two processes and one folder."""

import subprocess
import sys

import pytest

from lrnets.training import sole_writer as module
from lrnets.training.sole_writer import BusyFolderError, sole_writer

pytestmark = pytest.mark.skipif(module.fcntl is None, reason="no locks on this system")

HOLD = """
import sys, time
from pathlib import Path
from lrnets.training.sole_writer import sole_writer

with sole_writer(Path(sys.argv[1])):
    print("held", flush=True)
    time.sleep(60)
"""


def test_a_second_process_is_kept_out_until_the_first_is_gone_however_it_ends(tmp_path, monkeypatch):
    (tmp_path / "recipe.yaml").touch()
    first = subprocess.Popen([sys.executable, "-c", HOLD, str(tmp_path)], stdout=subprocess.PIPE, text=True)
    try:
        assert first.stdout.readline() == "held\n"
        monkeypatch.setattr(module, "PATIENCE", 0.2)
        with pytest.raises(BusyFolderError, match=r"another process is training in .*--out"), sole_writer(tmp_path):
            pass
    finally:
        first.kill()
        first.communicate()
    with sole_writer(tmp_path):
        pass
    assert (tmp_path / "recipe.yaml").exists()


def test_a_folder_that_stays_empty_is_not_left_behind(tmp_path):
    with pytest.raises(KeyError), sole_writer(tmp_path / "new"):
        raise KeyError
    assert not (tmp_path / "new").exists()


def test_the_same_process_may_come_back_after_an_error(tmp_path):
    (tmp_path / "recipe.yaml").touch()
    for _ in range(2):
        with pytest.raises(KeyError), sole_writer(tmp_path):
            raise KeyError
