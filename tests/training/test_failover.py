"""A process is killed in the middle of a run of two: torchrun starts all anew, and the run ends as if nothing were."""

import json
import os
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
from safetensors.torch import load_file

sys.path.append(str(Path(__file__).parents[1] / "data"))
from image_files import make_folder

from lrnets.training.metrics import read_epochs
from lrnets.training.run_folder import RunFolder

# Both runs in one launch, to import everything twice and not thrice. After the restart the second process is late:
# whatever the first one knows of the second by then is about a dead process.
SCRIPT = """
import os, signal, sys, time
import torch
torch.set_num_threads(1)
from lrnets.cli import main
from lrnets.training.module import Stage

second, restarted = os.environ["RANK"] == "1", os.environ["TORCHELASTIC_RESTART_COUNT"] != "0"
begin, folder = Stage.on_train_batch_start, ""

def fall(stage, batch, number):
    if folder == "fallen" and second and not restarted and (stage.current_epoch, number) == (1, 1):
        os.kill(os.getpid(), signal.SIGKILL)
    begin(stage, batch, number)

Stage.on_train_batch_start = fall
if second and restarted:
    time.sleep(2)
for folder in ("calm", "fallen"):
    if code := main([*sys.argv[1:], "--out", folder]):
        sys.exit(code)
"""

SETTINGS = [
    "classes=4", "width=0.125", "batch_size=8", "valid_size=4", "norm_batches=1", "draws=1",
    "data_options={size: 32, resize: 36}", "float_stage.epochs=0", "discrete_stage.epochs=3",
    "discrete_stage.learn_scale=true",
]  # fmt: skip
ONE_TASK = {"SLURM_JOB_ID": "7", "SLURM_JOB_NAME": "imagenet", "SLURM_NTASKS": "1", "SLURM_PROCID": "0"}


def test_a_killed_process_costs_no_more_than_its_epoch(tmp_path):
    images = make_folder(tmp_path / "images", classes=4, train=7, val=2, side=36)
    (tmp_path / "script.py").write_text(SCRIPT)
    launcher = ["-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2", "--max-restarts", "1"]
    command = ["train", "imagenette-ternary", "--data-dir", str(images), "--workers", "0", "--start-or-resume"]
    outcome = subprocess.run(
        [sys.executable, *launcher, "script.py", *command, "--set", *SETTINGS],
        capture_output=True, text=True, timeout=400, check=False, cwd=tmp_path,
        env={
            **os.environ, **ONE_TASK, "OMP_NUM_THREADS": "1", "LRNETS_DATA": str(tmp_path / "cache"),
            "TORCH_DISABLE_SHARE_RDZV_TCP_STORE": "1",
        },
    )  # fmt: skip
    assert outcome.returncode == 0, outcome.stderr[-3000:]
    assert "exitcode: -9" in outcome.stderr
    assert "restarts may fail" not in outcome.stdout
    calm, fallen = RunFolder(tmp_path / "calm"), RunFolder(tmp_path / "fallen")
    whole, mended = (load_file(run.weights_file("stochastic")) for run in (calm, fallen))
    assert all(torch.equal(whole[name], mended[name]) for name in whole)
    results = [json.loads((run.path / "results.json").read_text()) | {"seconds": 0} for run in (calm, fallen)]
    assert results[0] == results[1]
    epochs = [[row | {"seconds": 0} for row in read_epochs(run, "stochastic")] for run in (calm, fallen)]
    assert epochs[0] == epochs[1]
    assert len(epochs[0]) == 3
    told = [line.split(":")[0] for line in outcome.stdout.splitlines() if " epoch " in line]
    assert told == [f"stochastic epoch {epoch}/3" for epoch in (1, 2, 3, 1, 2, 3)]  # none was repeated


def test_a_process_that_would_begin_elsewhere_than_the_first_is_refused(tmp_path):
    from lrnets.training.same_start import SameStart

    def begin(own: SameStart, first: SameStart) -> None:
        strategy = SimpleNamespace(broadcast=lambda place: first.place)
        own.setup(SimpleNamespace(strategy=strategy, global_rank=3), None, "fit")

    checkpoint = tmp_path / "last.ckpt"
    begin(SameStart("float", checkpoint, tmp_path), SameStart("float", checkpoint, tmp_path))
    with pytest.raises(RuntimeError, match=r"process 3 on .* finds the float stage, from the start in .*--out"):
        begin(SameStart("float", None, tmp_path), SameStart("float", checkpoint, tmp_path))
    with pytest.raises(RuntimeError, match="the first process the stochastic stage"):
        begin(SameStart("float", None, tmp_path), SameStart("stochastic", None, tmp_path))
