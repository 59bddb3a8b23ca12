"""One thread a process: two processes of two OpenMP threads each would spin at each other on two cores."""

import torch

torch.set_num_threads(1)
