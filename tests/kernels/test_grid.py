"""Kernels of a grid of patches."""

import pytest
import torch

from nadaraya.attention.positions import GridLogits
from nadaraya.errors import InputError
from nadaraya.kernels import ExponentialDecay, FreeTable, Gaussian, GridKernel, KernelBank


@pytest.mark.parametrize("signed", [False, True])
def test_every_lag_has_the_product_of_its_row_and_column_kernels(signed: bool) -> None:
    rows, columns = ExponentialDecay(torch.tensor([1.5, 4.0])), Gaussian(2.0)
    if signed:
        rows = FreeTable(2, 3, signed=True)
        torch.nn.init.normal_(rows.logits)
    table = GridKernel(2, rows, columns).lag_logits(3, 4)
    assert table.shape == (2, 5, 7)
    for dy in range(-2, 3):
        for dx in range(-3, 4):
            expected = rows.log(torch.tensor(dy)) + columns.log(torch.tensor(dx))
            torch.testing.assert_close(table[:, dy + 2, dx + 3], expected)


def test_kernels_that_all_heads_share_give_one_table_for_all() -> None:
    assert GridKernel(2, Gaussian(1.0), Gaussian(2.0)).lag_logits(3, 4).shape == (1, 5, 7)


def test_two_patches_have_the_logits_of_the_rows_and_columns_between_them() -> None:
    grid = GridKernel(2, ExponentialDecay(torch.tensor([1.5, 4.0])), Gaussian(2.0)).lag_logits(3, 4)
    dense = GridLogits(grid, num_prefix=2).dense()
    assert dense.shape == (2, 14, 14)
    for i in range(12):
        for j in range(12):
            dy, dx = i // 4 - j // 4, i % 4 - j % 4
            assert torch.equal(dense[:, 2 + i, 2 + j], grid[:, dy + 2, dx + 3])
    assert dense[:, :2].abs().max() == dense[:, :, :2].abs().max() == 0.0


def test_rows_and_columns_learn_apart() -> None:
    grid = GridKernel(3, lambda heads: KernelBank(heads, 2, init="grid"))
    assert len(list(grid.parameters())) == 8
    grid.lag_logits(2, 5).sum().backward()
    assert not torch.equal(grid.rows.log_length.grad, grid.columns.log_length.grad)


def test_bad_arguments_are_named() -> None:
    with pytest.raises(
        InputError,
        match="rows must be a kernel shared by all heads or with one value for each of 3, got Gaussian",
    ):
        GridKernel(3, Gaussian(torch.ones(2)), Gaussian(1.0))
    with pytest.raises(InputError, match="columns must be a kernel of its own where rows is one, got None"):
        GridKernel(3, Gaussian(1.0))
