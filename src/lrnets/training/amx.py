"""Products in bfloat16 on CPUs that name AMX and cannot run it as oneDNN, which computes torch's products, would.

Some virtual machines show AMX among the CPU's flags and hide the table of its tiles (CPUID leaf 1Dh). oneDNN then sets
up no tiles, and the first product in bfloat16 kills the process: "Illegal instruction".
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

LIMIT = "ONEDNN_MAX_CPU_ISA"  # oneDNN reads it once, at its first product
BELOW_AMX = "AVX512_CORE_FP16"  # what CPUs with AMX have besides
PRODUCT = "import torch; x = torch.ones(64, 64, dtype=torch.bfloat16); x @ x"


def avoid_broken_amx() -> bool:
    """Keep oneDNN off AMX, in this process and those it starts, if AMX would kill them; says whether it would.

    Found out by a product in a process of its own, a few seconds; only where the CPU names AMX and the environment
    says nothing of oneDNN's instructions. To be called before the first product.
    """
    if LIMIT in os.environ or not names_amx():
        return False
    if subprocess.run([sys.executable, "-c", PRODUCT], capture_output=True).returncode != -signal.SIGILL:
        return False
    os.environ[LIMIT] = BELOW_AMX
    return True


def names_amx(cpu_info: Path = Path("/proc/cpuinfo")) -> bool:
    """Whether Linux lists AMX's tiles among the flags of this CPU."""
    try:
        return " amx_tile" in cpu_info.read_text()
    except OSError:
        return False
