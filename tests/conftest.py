"""What every test needs before it is imported."""

import os

import torch

if workers := os.environ.get("PYTEST_XDIST_WORKER_COUNT"):
    # pytest -n: the tests run side by side, so each has its part of the cores, and so do commands it starts.
    threads = max(1, (os.cpu_count() or 1) // int(workers))
    torch.set_num_threads(threads)
    os.environ["OMP_NUM_THREADS"] = str(threads)
