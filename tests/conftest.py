"""What every test needs before it is imported."""

import os
import signal

import torch

# Shells and nohup start programs with signals ignored, which training respects: tests and what they start
# hear them.
if signal.getsignal(signal.SIGINT) == signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)
if signal.getsignal(signal.SIGHUP) == signal.SIG_IGN:
    signal.signal(signal.SIGHUP, signal.SIG_DFL)

if workers := os.environ.get("PYTEST_XDIST_WORKER_COUNT"):
    # pytest -n: the tests run side by side, so each has its part of the cores, and so do commands it starts.
    threads = max(1, (os.cpu_count() or 1) // int(workers))
    torch.set_num_threads(threads)
    os.environ["OMP_NUM_THREADS"] = str(threads)

# No test depends on what `nadaraya check` measured on this machine.
os.environ["NADARAYA_DISPATCH"] = "off"

if os.environ.get("NADARAYA_TEST_DEVICE") != "cuda":
    # Triton, which other tests import too, reads it where a kernel is defined.
    os.environ["TRITON_INTERPRET"] = "1"
