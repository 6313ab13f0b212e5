"""Compiled sums, however small; one thread each for torch and numba, whose pools only wait for each other."""

import pytest
import torch

from nadaraya.regression import sums

try:
    import numba

    from nadaraya.regression.compiled import dispatch
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


@pytest.fixture(autouse=True, scope="package")
def _compiled():
    """Small problems are PyTorch's until a process has done some work: tests are not to depend on that."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(sums, "_WORTH_LOADING", 0)
        patch.setattr(sums, "_WORTH_COMPILING", 0)
        if numba is not None:
            patch.setattr(dispatch, "_PAIRS_WORTH_COMPILING", 0)
        yield
