"""A run's folder: runs/<recipe>/<seed>/, with all that is needed to trust it, resume it and look at it."""

from __future__ import annotations

import json
import platform
import shutil
import subprocess
import sys
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from datetime import datetime, timezone
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

import lrnets
from lrnets.training.recipe import Recipe, recipe_from
from lrnets.training.recipe_difference import settings_difference
from lrnets.training.sole_writer import BusyFolderError, sole_writer
from lrnets.training.weight_files import read_weights
from lrnets.whole_files import write_whole

ENVIRONMENT = "environment.json"


@dataclass(frozen=True)
class RunFolder:
    """Paths of a run, and atomic reading and writing of what is in it."""

    path: Path

    @property
    def recipe_file(self) -> Path:
        return self.path / "recipe.yaml"

    def checkpoints(self, stage: str) -> Path:
        return self.path / "checkpoints" / stage

    def weights_file(self, name: str) -> Path:
        """Where the state of a network is kept: "float", "stochastic" or "drawn"."""
        return self.path / f"{name}.safetensors"

    def require(self, recipe: Recipe, resume: bool) -> None:
        """Refuse a folder that holds another run, or none to resume; nothing is written."""
        if self.recipe_file.exists():
            if not resume:
                raise FileExistsError(
                    f"{self.path} holds a run already; --resume goes on with it (--start-or-resume in jobs that are "
                    "restarted), --out names another folder"
                )
            difference = settings_difference(self.read_recipe(), recipe)
            if difference:
                raise ValueError(f"{self.path} holds a run of another recipe ({difference}); name another folder")
        elif resume:
            raise FileNotFoundError(f"there is no run in {self.path} to resume; leave --resume out to start one")

    def prepare(self, recipe: Recipe, resume: bool, needed_bytes: int = 0) -> None:
        """Make the folder, or check that it belongs to the recipe; complain before hours are spent."""
        self.require(recipe, resume)
        with self._named_in_errors():
            self.path.mkdir(parents=True, exist_ok=True)
            self.write_json(ENVIRONMENT, self._environment(recipe.seed))
            self.write_text("recipe.yaml", recipe.to_yaml())
        free = shutil.disk_usage(self.path).free
        if free < needed_bytes:
            raise OSError(
                f"{self.path}: {free / 1e6:.0f} MB free, checkpoints need up to {needed_bytes / 1e6:.0f} MB; "
                "make room, or name another folder with --out"
            )

    def _environment(self, seed: int) -> dict[str, Any]:
        """Where the run began; where it went on, what differs from that."""
        now = environment(seed)
        try:
            first = self.read_json(ENVIRONMENT)
            before = list(first.get("resumed", ()))
        except (OSError, ValueError, AttributeError, TypeError):  # none, or a damaged one
            return now
        different = {key: value for key, value in now.items() if value != first.get(key)}
        return {**first, "resumed": [*before, different]}

    @contextmanager
    def held(self) -> Iterator[None]:
        """Keep other processes from training in the folder meanwhile."""
        with ExitStack() as lock:
            with self._named_in_errors():
                lock.enter_context(sole_writer(self.path))
            yield

    @contextmanager
    def _named_in_errors(self) -> Iterator[None]:
        try:
            yield
        except BusyFolderError:
            raise
        except OSError as error:
            raise OSError(
                f"the run folder {self.path} cannot be written ({error.strerror}); name another with --out"
            ) from error

    def read_recipe(self) -> Recipe:
        import yaml

        try:
            return recipe_from(yaml.safe_load(self.recipe_file.read_text()), str(self.recipe_file))
        except FileNotFoundError as error:
            raise FileNotFoundError(f"{self.path} is no run folder: it has no recipe.yaml") from error
        except (yaml.YAMLError, UnicodeDecodeError) as error:
            raise ValueError(f"{self.recipe_file} is damaged: {' '.join(str(error).split())}") from error

    def write_text(self, name: str, text: str) -> None:
        """Write a file under a temporary name and rename it: it is whole or not there."""
        target = self.path / name
        target.parent.mkdir(parents=True, exist_ok=True)
        write_whole(target, text.encode())

    def write_json(self, name: str, content: Mapping[str, Any]) -> None:
        self.write_text(name, json.dumps(content, indent=1))

    def read_json(self, name: str) -> dict[str, Any]:
        return json.loads((self.path / name).read_text())

    def save_weights(self, name: str, net: nn.Module) -> None:
        """The state of a network, as safetensors."""
        self.save_tensors(self.weights_file(name).name, net.state_dict())

    def save_tensors(self, name: str, tensors: Mapping[str, Tensor]) -> None:
        """A safetensors file, whole or not there."""
        from safetensors.torch import save

        # Copies, since safetensors refuses tensors that share memory, as tied weights do.
        copies = {key: tensor.detach().cpu().contiguous().clone() for key, tensor in tensors.items()}
        write_whole(self.path / name, save(copies))  # not save_file, whose files only their owner may read

    def load_weights(self, name: str, net: nn.Module) -> None:
        net.load_state_dict(read_weights(self.weights_file(name)))


def environment(seed: int) -> dict[str, Any]:
    """Versions, machine, commit, seed, threads: what a figure has to name."""
    return {
        "lrnets": lrnets.__version__,
        "commit": _commit(),
        "python": sys.version.split()[0],
        "torch": torch.__version__,
        "machine": platform.machine(),
        "processor": _processor(),
        "threads": torch.get_num_threads(),
        "cuda": torch.version.cuda if torch.cuda.is_available() else None,
        "seed": seed,
        "command": " ".join(sys.argv),
        "started": datetime.now(timezone.utc).isoformat(timespec="seconds"),
    }


def _commit() -> str | None:
    """The commit of the working copy this code runs from, if it is one."""
    folder = Path(__file__).parent
    command = ["git", "-C", str(folder), "describe", "--always", "--dirty", "--abbrev=12", "--exclude=*"]
    try:
        return subprocess.run(command, capture_output=True, text=True, check=True, timeout=10).stdout.strip()
    except (OSError, subprocess.SubprocessError):
        return None


def _processor() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
        return next(line.split(":", 1)[1].strip() for line in lines if line.startswith("model name"))
    except (OSError, StopIteration):
        return platform.processor()
