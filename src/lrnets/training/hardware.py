"""Where a run trains: devices, machines, precision; and which of its processes this is."""

from __future__ import annotations

import os
from dataclasses import dataclass
from typing import Any

import torch

# In Lightning's words, old ones too.
PRECISIONS = ("32-true", "bf16-mixed", "16-mixed", "bf16-true", "16-true", "64-true", "32", "16", "bf16", "64")


@dataclass(frozen=True)
class Hardware:
    """Processes on this machine, machines, and precision and accelerator in Lightning's own words."""

    devices: int = 1
    nodes: int = 1
    precision: Any = "32-true"
    accelerator: str = "auto"

    def __post_init__(self) -> None:
        for name in ("devices", "nodes"):
            if getattr(self, name) < 1:
                raise ValueError(f"{name} must be at least 1, got {getattr(self, name)}")
        if str(self.precision) not in PRECISIONS:
            raise ValueError(f"precision must be one of {', '.join(PRECISIONS)}, got {self.precision!r}")

    @property
    def processes(self) -> int:
        return self.devices * self.nodes

    @property
    def device(self) -> torch.device:
        """Where a network is when nothing trains it: the accelerator, as Lightning would choose it, or the CPU."""
        found = None if self.accelerator == "cpu" else torch.accelerator.current_accelerator(check_available=True)
        return found or torch.device("cpu")

    @classmethod
    def here(cls, devices: int | None = None, nodes: int | None = None, precision: Any = "32-true") -> Hardware:
        """As asked for; what is not said comes from torchrun if it started this process, and is 1 otherwise."""
        local = int(os.environ.get("LOCAL_WORLD_SIZE", 1))
        started = int(os.environ.get("WORLD_SIZE", local)) if "LOCAL_WORLD_SIZE" in os.environ else local
        return cls(local if devices is None else devices, started // local if nodes is None else nodes, precision)

    def share_of(self, batch_size: int) -> int:
        """What each process takes of a batch."""
        share, rest = divmod(batch_size, self.processes)
        if rest or not share:
            raise ValueError(
                f"a batch of {batch_size} cannot be shared evenly by {self.processes} processes; "
                f"--set batch_size={max(1, share) * self.processes}, or use another number of devices"
            )
        return share


def is_first_process() -> bool:
    """Whether this process is the one that writes: the first of all, by what torchrun, SLURM or Lightning tell it."""
    if "RANK" in os.environ:
        return int(os.environ["RANK"]) == 0
    # All three: Lightning's children inherit the one number of SLURM's task that started them.
    return all(int(os.environ.get(name, 0)) == 0 for name in ("NODE_RANK", "LOCAL_RANK", "SLURM_PROCID"))


def restart_advice() -> str:
    """What to mend if torchrun is to restart this run and may fail to; nothing otherwise.

    Its agent keeps one store for all attempts, in which processes can find addresses of those that died before them
    (pytorch issue 135712).
    """
    restarts = int(os.environ.get("TORCHELASTIC_MAX_RESTARTS", 0))
    if not restarts or os.environ.get("TORCHELASTIC_USE_AGENT_STORE") != "True":
        return ""
    return "restarts may fail to connect: give torchrun the environment TORCH_DISABLE_SHARE_RDZV_TCP_STORE=1"
