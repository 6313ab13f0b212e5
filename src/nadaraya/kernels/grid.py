"""Kernels of two-dimensional lags, rows and columns of a grid of patches, from one-dimensional ones."""

from collections.abc import Callable

import torch
from torch import Tensor, nn

from nadaraya.errors import must_be, unknown_name
from nadaraya.kernels.base import Kernel


class GridKernel(nn.Module):
    """κ(Δy, Δx) = κ_rows(Δy) · κ_columns(Δx): the separable kernel of patches Δy rows and Δx columns apart.

    Args:
        rows: a Kernel for the lags between rows, with one value per head or one for all, or a function of
            the number of heads that makes one.
        columns: the same for the columns; default a second kernel from `rows`, which must then be a function.
        num_heads: H.
        compose: "multiply" (the logits are log κ) or "add" (they are κ).

    Raises:
        InputError: kernels that do not serve H heads, or an unknown composition.

    >>> from nadaraya.kernels import GridKernel, KernelBank
    >>> grid = GridKernel(3, lambda heads: KernelBank(heads, num_terms=2, init="grid"))
    >>> grid(height=4, width=4, num_prefix=1).shape  # 16 patches and a class token
    torch.Size([3, 17, 17])
    """

    def __init__(
        self,
        num_heads: int,
        rows: Kernel | Callable[[int], Kernel],
        columns: Kernel | Callable[[int], Kernel] | None = None,
        compose: str = "multiply",
    ) -> None:
        super().__init__()
        if compose not in ("add", "multiply"):
            raise unknown_name("compose", compose, ("add", "multiply"))
        if columns is None:
            if isinstance(rows, Kernel):
                raise must_be("columns", "a kernel of its own where rows is one", columns)
            columns = rows
        self.compose = compose
        self.rows = rows if isinstance(rows, Kernel) else rows(num_heads)
        self.columns = columns if isinstance(columns, Kernel) else columns(num_heads)
        for name, kernel in (("rows", self.rows), ("columns", self.columns)):
            if tuple(kernel.batch_shape) not in ((), (num_heads,)):
                accepted = f"a kernel shared by all heads or with one value for each of {num_heads}"
                raise must_be(name, accepted, kernel)

    def forward(self, height: int, width: int, num_prefix: int = 0) -> Tensor:
        """The logits that attention adds for patches in row-major order, after tokens without a place.

        Args:
            height: rows of patches h.
            width: columns of patches w.
            num_prefix: tokens before the patches (class, registers); pairs with them have logit 0.

        Returns:
            (H or 1, N, N), N = num_prefix + h·w, query by key, float32 at least.
        """
        rows = _table(self.rows, height, self.compose)
        columns = _table(self.columns, width, self.compose)
        # (H, h, 1, h, 1) and (H, 1, w, 1, w): each pair of patches meets its row lag and its column lag.
        rows, columns = rows[:, :, None, :, None], columns[:, None, :, None, :]
        logits = rows + columns if self.compose == "multiply" else rows * columns
        logits = logits.reshape(logits.shape[0], height * width, height * width)
        return nn.functional.pad(logits, (num_prefix, 0, num_prefix, 0))

    def extra_repr(self) -> str:
        return f"compose={self.compose!r}"


def _table(kernel: Kernel, length: int, compose: str) -> Tensor:
    """Logits of all pairs of places on a line, (H or 1, length, length), query by key."""
    logits = torch.atleast_2d(kernel.lag_logits(length, compose=compose))
    places = torch.arange(length, device=logits.device)
    lags = places[:, None] - places
    return logits[:, lags.abs() if kernel.symmetric else lags + length - 1]
