"""Keeps NumPy to one thread; what is tested is the installed package, C core included (`make setup`)."""

import os

os.environ.setdefault("OMP_NUM_THREADS", "1")
os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")
