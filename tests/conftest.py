"""One thread a process: two processes of two OpenMP threads each would spin at each other on two cores."""

import os

os.environ.setdefault("OMP_NUM_THREADS", "1")  # of processes that tests start, too

import torch

torch.set_num_threads(1)
