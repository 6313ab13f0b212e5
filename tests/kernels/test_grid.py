"""Kernels of a grid of patches."""

import pytest
import torch

from nadaraya.errors import InputError
from nadaraya.kernels import ExponentialDecay, FreeTable, Gaussian, GridKernel, KernelBank


@pytest.mark.parametrize("compose", ["add", "multiply"])
@pytest.mark.parametrize("signed", [False, True])
def test_every_pair_has_the_product_of_its_row_and_column_kernels(compose: str, signed: bool) -> None:
    rows, columns = ExponentialDecay(torch.tensor([1.5, 4.0])), Gaussian(2.0)
    if signed:
        rows = FreeTable(2, 3, signed=True)
        torch.nn.init.normal_(rows.logits)
    grid = GridKernel(2, rows, columns, compose=compose)
    table = grid(3, 4, num_prefix=2)
    assert table.shape == (2, 14, 14)
    for i in range(12):
        for j in range(12):
            dy, dx = i // 4 - j // 4, i % 4 - j % 4
            product = rows(torch.tensor(dy)) * columns(torch.tensor(dx))
            expected = product if compose == "add" else product.log()
            torch.testing.assert_close(table[:, 2 + i, 2 + j], expected)
    assert table[:, :2].abs().max() == table[:, :, :2].abs().max() == 0.0


def test_rows_and_columns_learn_apart() -> None:
    grid = GridKernel(3, lambda heads: KernelBank(heads, 2, init="grid"))
    assert len(list(grid.parameters())) == 8
    grid(2, 5).sum().backward()
    assert not torch.equal(grid.rows.log_length.grad, grid.columns.log_length.grad)


def test_bad_arguments_are_named() -> None:
    with pytest.raises(
        InputError,
        match="rows must be a kernel shared by all heads or with one value for each of 3, got Gaussian",
    ):
        GridKernel(3, Gaussian(torch.ones(2)), Gaussian(1.0))
    with pytest.raises(InputError, match="columns must be a kernel of its own where rows is one, got None"):
        GridKernel(3, Gaussian(1.0))
    with pytest.raises(InputError, match="compose must be one of"):
        GridKernel(3, Gaussian, compose="times")
