"""One thread each for torch and numba: on small problems their pools only wait for each other."""

import pytest
import torch

try:
    import numba
except ImportError:  # the sums then go through PyTorch
    numba = None


@pytest.fixture(autouse=True, scope="package")
def _one_thread():
    threads = torch.get_num_threads()
    if numba is not None:
        # First: where both use OpenMP, the start of numba's pool sets the number of torch's threads.
        numba.set_num_threads(1)
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)
    if numba is not None:
        numba.set_num_threads(numba.config.NUMBA_NUM_THREADS)
