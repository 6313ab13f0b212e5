"""Kernels of some of the heads are the rows of the whole."""

import pytest
import torch
from kernels.conftest import CASES

from nadaraya.kernels import Exp, Gaussian, Kernel, KernelBank, Periodic, Sandwich
from nadaraya.kernels.heads import keep_kernel_heads

LAGS = torch.arange(9, dtype=torch.float64)
MORE = {
    "sum": lambda: Gaussian(torch.tensor([1.0, 2.0])) + Gaussian(3.0),
    "product": lambda: torch.tensor([2.0, 3.0]) * (Gaussian(2.0) * Periodic(torch.tensor([0.5, 0.7]), 3.0)),
    "bank": lambda: Exp(KernelBank(2, num_terms=2)),
    "as many frequencies as heads": lambda: Sandwich(2, dim=4),
}


@pytest.mark.parametrize("make", [*(case.build for case in CASES), *MORE.values()])
def test_the_kept_heads_are_rows_of_all(make) -> None:
    kernel: Kernel = make()
    before = kernel.log(LAGS).detach()
    if not kernel.batch_shape:
        keep_kernel_heads(kernel, [0])
        assert torch.equal(kernel.log(LAGS), before)
        return
    last = len(before) - 1
    keep_kernel_heads(kernel, [last])
    assert kernel.batch_shape == (1,)
    torch.testing.assert_close(kernel.log(LAGS).detach(), before[[last]], equal_nan=True)
    assert {p.requires_grad for p in kernel.parameters()} <= {True}
