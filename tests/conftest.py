"""One thread a process: two processes of two OpenMP threads each would spin at each other on two cores."""

import os

os.environ.setdefault("OMP_NUM_THREADS", "1")  # of processes that tests start, too

import torch

from lrnets.training.amx import avoid_broken_amx

torch.set_num_threads(1)
avoid_broken_amx()  # or tests in bfloat16 would die; pytest's workers inherit what it finds
