"""The run-time stands on NumPy and safetensors alone."""

import subprocess
import sys
from pathlib import Path

from samples import everything

from lrnets_runtime import file

SOURCE = Path(file.__file__).parents[1]
SCRIPT = """
import importlib.abc, sys

class NoTorch(importlib.abc.MetaPathFinder):
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] in ("torch", "lrnets"):
            raise AssertionError(f"{name} is imported")

sys.meta_path.insert(0, NoTorch())
sys.path.insert(0, sys.argv[1])
before = set(sys.modules)
import lrnets_runtime
network = lrnets_runtime.load(sys.argv[2])
assert network([[[0.5] * 5] * 5] * 2).shape == (3,)
found = {name.partition(".")[0] for name in set(sys.modules) - before if getattr(sys.modules[name], "__file__", None)}
print(*sorted(found - sys.stdlib_module_names))
"""


def test_only_numpy_and_safetensors(tmp_path):
    file.write(tmp_path / "net", *everything(quantized=True))
    command = [sys.executable, "-I", "-c", SCRIPT, str(SOURCE), str(tmp_path / "net")]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr
    assert done.stdout.split() == ["lrnets_runtime", "numpy", "safetensors"]
