"""Kernels of two-dimensional lags, rows and columns of a grid of patches, from one-dimensional ones."""

from collections.abc import Callable, Sequence

import torch
from torch import Tensor, nn

from nadaraya.errors import must_be
from nadaraya.kernels.base import Kernel
from nadaraya.kernels.heads import PartByHead, keep_kernel_heads
from nadaraya.kernels.parameters import at_least_float32


class GridKernel(nn.Module):
    """κ(Δy, Δx) = κ_rows(Δy) · κ_columns(Δx): the separable kernel of patches Δy rows and Δx columns apart.

    Args:
        rows: a Kernel for the lags between rows, with one value per head or one for all, or a function of
            the number of heads that makes one.
        columns: the same for the columns; default a second kernel from `rows`, which must then be a function.
        num_heads: H.

    Raises:
        InputError: kernels that do not serve H heads.

    >>> from nadaraya.kernels import GridKernel, KernelBank
    >>> grid = GridKernel(3, lambda heads: KernelBank(heads, num_terms=2, init="grid"))
    >>> grid.lag_logits(height=4, width=5).shape
    torch.Size([3, 7, 9])
    """

    def __init__(
        self,
        num_heads: int,
        rows: Kernel | Callable[[int], Kernel],
        columns: Kernel | Callable[[int], Kernel] | None = None,
    ) -> None:
        super().__init__()
        if columns is None and isinstance(rows, Kernel):
            raise must_be("columns", "a kernel of its own where rows is one", columns)
        made = [
            kernel if isinstance(kernel, Kernel) or not callable(kernel) else kernel(num_heads)
            for kernel in (rows, rows if columns is None else columns)
        ]
        for name, kernel in zip(("rows", "columns"), made, strict=True):
            if not isinstance(kernel, Kernel):
                raise must_be(name, "a kernel, or a function of the number of heads that makes one", kernel)
            kernel.check_serves(num_heads, name)
        self.rows, self.columns = made

    def lag_logits(self, height: int, width: int) -> Tensor:
        """log κ by the rows and columns between two patches.

        Args:
            height: rows of patches h.
            width: columns of patches w.

        Returns:
            (H or 1, 2h − 1, 2w − 1), entry (Δy + h − 1, Δx + w − 1), float32 at least.
        """
        return _table(self.rows, height)[:, :, None] + _table(self.columns, width)[:, None, :]

    def keep_heads(self, heads: Sequence[int]) -> None:
        """Keep the kernels of some heads, in place."""
        for kernel in {self.rows, self.columns}:
            keep_kernel_heads(kernel, heads)


class GridTable(PartByHead):
    """log κ(Δy, Δx): one learned number by the rows and columns between two patches (Luo et al. 2021).

    `logits`, (H, 2 height − 1, 2 width − 1) for the rows and columns of the largest grid, are zero at first.
    """

    per_head = ("logits",)

    def __init__(self, num_heads: int, height: int, width: int) -> None:
        super().__init__(num_heads)
        self.logits = nn.Parameter(torch.zeros(num_heads, 2 * height - 1, 2 * width - 1))

    def lag_logits(self, height: int, width: int) -> Tensor:
        """As `GridKernel.lag_logits`, for grids that are no larger than the table's.

        Raises:
            InputError: a larger grid.
        """
        rows, columns = ((size + 1) // 2 for size in self.logits.shape[1:])
        if height > rows or width > columns:
            raise must_be("grid of patches", f"at most {rows} x {columns} with its table", (height, width))
        table = self.logits.to(at_least_float32(self.logits))
        return table[:, rows - height : rows + height - 1, columns - width : columns + width - 1]


def _table(kernel: Kernel, length: int) -> Tensor:
    """log κ at the lags 1 − length … length − 1, (H or 1, 2 length − 1)."""
    logits = torch.atleast_2d(kernel.lag_logits(length))
    return torch.cat((logits[:, 1:].flip(1), logits), dim=1) if kernel.symmetric else logits
