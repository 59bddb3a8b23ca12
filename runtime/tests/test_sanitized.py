"""The C core under AddressSanitizer and UBSan: the native tests, and thousands of hostile files."""

import ast
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from test_other_cpus import COMMON

HERE = Path(__file__).parent
NATIVE = HERE.parent / "native"
COUNT = 10_000


@pytest.fixture(scope="module")
def environment(tmp_path_factory):
    if shutil.which("gcc") is None:
        pytest.skip("needs gcc")
    folder = tmp_path_factory.mktemp("sanitized")
    flags = [
        "-std=c11",
        "-O1",
        "-g",
        "-fPIC",
        "-fsanitize=address,undefined",
        "-fno-sanitize-recover=all",
        "-ffp-contract=off",
        "-Wno-psabi",
    ]
    objects = []
    names = [*COMMON]
    if os.uname().machine == "x86_64":
        names += ["avx2", "avx512"]
    for name in names:
        own = {"avx2": ["-mavx2", "-mfma"], "avx512": ["-mavx512f", "-mavx512bw", "-mavx512vl", "-mavx512vnni"]}
        objects.append(str(folder / f"{name}.o"))
        subprocess.run(["gcc", *flags, *own.get(name, []), "-c", NATIVE / f"{name}.c", "-o", objects[-1]], check=True)
    library = folder / "sanitized.so"
    linked = subprocess.run(
        ["gcc", "-shared", *flags, *objects, "-o", library, "-lm", "-lpthread"], capture_output=True
    )
    if linked.returncode:
        pytest.skip("gcc has no sanitizers here")
    runtime = subprocess.run(["gcc", "-print-file-name=libasan.so"], capture_output=True, text=True, check=True)
    return {
        **os.environ,
        "LRNETS_LIBRARY": str(library),
        "LD_PRELOAD": runtime.stdout.strip(),
        # Python itself does not free all at exit; the C core's own leaks are not looked for here.
        "ASAN_OPTIONS": "detect_leaks=0",
        "PYTHONMALLOC": "malloc",
    }


def test_the_native_tests_pass_under_the_sanitizers(environment):
    tests = [str(HERE / name) for name in ("test_native.py", "test_signs.py")]
    command = [sys.executable, "-m", "pytest", "-q", "-x", "-p", "no:xdist", *tests]
    outcome = subprocess.run(command, capture_output=True, text=True, env=environment, timeout=900, cwd=HERE.parent)
    assert outcome.returncode == 0, (outcome.stdout + outcome.stderr)[-3000:]


def test_ten_thousand_hostile_files_are_refused_or_run(environment):
    command = [sys.executable, str(HERE / "hostile.py"), str(COUNT), "0"]
    outcome = subprocess.run(command, capture_output=True, text=True, env=environment, timeout=900, cwd=HERE)
    assert outcome.returncode == 0, outcome.stderr[-3000:]
    counts = ast.literal_eval(outcome.stdout)
    assert counts["refused"] > COUNT / 2
    assert counts["ran"] > COUNT / 100  # otherwise the C core was hardly reached
