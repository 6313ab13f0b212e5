"""The logits of pairs for strips of rows, as the kernels read them, and what becomes of their gradients.

    mixed by the query    T = W P: a row has the logits of all lags that its strip sees, sums of M terms
    patches of a grid     a row has its window of the table per querys and columns

A row's logits stand in descending order of the keys. Those of a mixture, in the order of the lags, begin one
column further from row to row.

Shapes: B batch, H heads, Nq queries, Nk keys, R rows of a strip, C columns, M terms, E lags with an entry.
"""

from collections.abc import Callable, Iterator
from math import prod
from typing import TypeAlias

import torch
import torch.nn.functional as F
from torch import Tensor

from nadaraya.attention.blocked import visible_keys
from nadaraya.attention.triton.kernels.tiles import LOG2E
from nadaraya.attention.triton.launch import Table

# Rows of a strip are a multiple of this one, and this one of all tiles: no tile is in two strips.
_ROWS = 128
_LOGITS = 2**25  # of a strip, unless _ROWS rows have more: 128 MiB of float32
_PADDING = 128  # columns before the first and after the last: tiles may extend that far


Positions: TypeAlias = "Mixture | Grid"


def strips(
    positions: Positions, query: Tensor, num_keys: int, causal: bool, window: int
) -> Iterator[tuple[slice, slice]]:
    """Rows, and the keys that any of them sees, at least one; a grid's rows have all keys."""
    num_queries, pairs_per_row = query.shape[2], query.shape[0] * query.shape[1] * num_keys
    step = max(1, _LOGITS // (pairs_per_row * _ROWS)) * _ROWS
    for start in range(0, num_queries, step):
        rows, keys = slice(start, min(start + step, num_queries)), slice(0, num_keys)
        if isinstance(positions, Mixture):
            keys = visible_keys(rows, num_queries, num_keys, causal, window)
            first = min(keys.start, num_keys - 1)
            keys = slice(first, max(first + 1, keys.stop))
        yield rows, keys


def padded(create: Callable[[tuple[int]], Tensor], shape: tuple[int, ...]) -> tuple[Tensor, Tensor]:
    """A tensor, and the memory with padding around it that `create` made."""
    memory = create((prod(shape) + 2 * _PADDING,))
    return memory[_PADDING:-_PADDING].view(shape), memory


def table_of(positions: Positions, rows: slice, keys: slice) -> Table:
    """The table per query of a strip."""
    logits, memory = positions.logits(rows, keys)
    batch, head, row, _ = logits.stride()
    return Table(
        memory,
        zero=_PADDING + keys.stop - 1,
        head_stride=head if logits.shape[1] > 1 else 0,
        batch_stride=batch if logits.shape[0] > 1 else 0,
        row_stride=row + positions.skew,
        first=rows.start,
        stop=rows.stop,
    )


class Mixture:
    """b(i, r) = Σ_m w_im p_m(r), or s(r) + log Σ_m w_im p_m(r).

    Attributes:
        skew: by how many columns a row begins after the one above.
    """

    skew = 1

    def __init__(self, weights: Tensor, table: Tensor, shift: Tensor | None, num_keys: int):
        """Takes what `LagMixture` has: weights (B, H, Nq, M), and its `factors`, (H or 1, M or 1, 2E − 1)."""
        extent = (table.shape[2] + 1) // 2
        # From the first query with the last key to the last query with the first key.
        self._beyond = (weights.shape[2] - extent, num_keys - extent)
        self._num_keys = num_keys
        self._weights = weights
        self._table = F.pad(table, self._beyond, value=0.0 if shift is None else 1.0)
        self._shift = None if shift is None else F.pad(shift * LOG2E.value, self._beyond, value=-torch.inf)
        # Contiguous, as compiled code expects; weights of a layer are not.
        self._grad_weights, self._grad_table = weights.new_zeros(weights.shape), torch.zeros_like(self._table)

    @property
    def gradients(self) -> tuple[Tensor, Tensor]:
        """Of weights and table, from all strips so far."""
        before, after = self._beyond
        return self._grad_weights, F.pad(self._grad_table, (-before, -after))

    def logits(self, rows: slice, keys: slice) -> tuple[Tensor, Tensor]:
        """Of a strip: (B, H, R, C) in units of log 2, and the memory with padding around it."""
        lags = self._lags(rows, keys)
        weights, table = self._weights[:, :, rows], self._table[..., lags]
        logits, memory = padded(weights.new_empty, (*weights.shape[:3], table.shape[2]))
        if self._shift is None:
            torch.matmul(weights * LOG2E.value, table, out=logits)
        else:
            torch.matmul(weights, table, out=logits)
            logits.log2_().add_(self._shift[..., lags])
        return logits, memory

    def add_gradients(self, rows: slice, keys: slice, grad_logits: Tensor) -> None:
        """Takes in what a strip gives for its logits, (B, H, R, C), whose memory may be used."""
        lags = self._lags(rows, keys)
        weights, table = self._weights[:, :, rows], self._table[..., lags]
        if self._shift is not None:
            grad_logits.div_(weights @ table)
        self._grad_weights[:, :, rows] = grad_logits @ table.mT
        sums = weights.mT @ grad_logits
        self._grad_table[..., lags] += sums.sum_to_size(table.shape)

    def _lags(self, rows: slice, keys: slice) -> slice:
        """Columns of the table: from the strip's first row with its last key on."""
        first = rows.start + self._num_keys - keys.stop
        return slice(first, first + rows.stop - rows.start + keys.stop - keys.start - 1)


class Grid:
    """b(Δy, Δx) for patches in row-major order after some tokens without."""

    skew = 0

    def __init__(self, table: Tensor, num_tokens: int):
        """Takes a table (H or 1, 2h − 1, 2w − 1), entry (Δy + h − 1, Δx + w − 1)."""
        self._height, self._width = ((size + 1) // 2 for size in table.shape[1:])
        self._num_prefix = num_tokens - self._height * self._width
        self._table = table
        self._grad_table = torch.zeros_like(table)

    @property
    def gradients(self) -> tuple[None, Tensor]:
        """Of weights, which there are not, and table, from all strips so far."""
        return None, self._grad_table

    def logits(self, rows: slice, keys: slice) -> tuple[Tensor, Tensor]:
        """Of a strip: (1, H or 1, R, Nk) in units of log 2, and the memory with padding around it."""
        shape = (1, len(self._table), rows.stop - rows.start, keys.stop)
        logits, memory = padded(self._table.new_zeros, shape)
        first, stop = self._patches(rows)
        if first < stop:
            lines, inside = self._lines(first, stop)
            windows = self._table[:, lines].unfold(1, self._height, 1).unfold(2, self._width, 1)
            of_patches = windows.flatten(3).flatten(1, 2)[:, inside]
            logits[0, :, first - stop :, : of_patches.shape[2]] = of_patches * LOG2E.value
        return logits, memory

    def add_gradients(self, rows: slice, keys: slice, grad_logits: Tensor) -> None:
        """Takes in what a strip gives for its logits, (B, H, R, C)."""
        first, stop = self._patches(rows)
        if first == stop:
            return
        lines, inside = self._lines(first, stop)
        height, width = self._height, self._width
        part = self._grad_table[:, lines]
        windows = grad_logits.new_zeros(
            (grad_logits.shape[1], part.shape[1] - height + 1, width, height, width)
        )
        of_patches = grad_logits[:, :, first - stop :, : height * width]
        windows.flatten(3).flatten(1, 2)[:, inside] = of_patches.sum(0)
        sizes = [*windows.shape[:2], 2 * width - 1, height]
        by_line = torch.ops.aten.unfold_backward(windows, sizes, 2, width, 1)
        sizes = [len(windows), *part.shape[1:]]
        part += torch.ops.aten.unfold_backward(by_line, sizes, 1, height, 1).sum_to_size(part.shape)

    def _patches(self, rows: slice) -> tuple[int, int]:
        """The first patch among the rows, and the one after the last."""
        return max(rows.start - self._num_prefix, 0), max(rows.stop - self._num_prefix, 0)

    def _lines(self, first: int, stop: int) -> tuple[slice, slice]:
        """Lines of the table that the grid's rows with these patches see, and the patches in them."""
        start, end = first // self._width, -(-stop // self._width)
        before = start * self._width
        return slice(start, end + self._height - 1), slice(first - before, stop - before)
