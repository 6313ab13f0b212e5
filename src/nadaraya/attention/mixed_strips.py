"""Logits by lag that every query mixes for itself, for blocks of rows, and their gradients.

    b(i, r) = Σ_m w_im p_m(r)      or      b(i, r) = s(r) + log Σ_m w_im p_m(r)

The second form mixes kernels; the largest logarithm s of each lag is taken out of them. A block of n rows
needs the logits T = W P of the lags that it sees, n + keys − 1 of them per row. With the lags descending, a
row's logits lie in the order of its keys and begin one column before those of the row above: T, read with a
row stride of one less than its width, is the bias of the block and is never copied. Score gradients written
through the same view give dW = dT Pᵀ and dP = Σ Wᵀ dT; in the second form dT is first divided by the sums
that the logarithm was taken of.

Shapes: B batch, H heads, Nq queries, M terms, E lags |r| with an entry; in a strip C items and heads.
"""

from collections.abc import Iterator
from dataclasses import dataclass

import torch
from torch import Tensor

from nadaraya.attention.blocked import Block, blocks
from nadaraya.attention.partition import Part, part_of, subparts

_SHORT = 512  # queries; below it blocks of half as many rows pay, as a causal block computes its last square
# Logits by lag in a thread's memory at once, unless those of one head are more: 16 MiB of float32. They leave
# the caches of a core, but fewer and larger operators gain more than that costs.
_LOGITS = 2**22
# Numbers that vector instructions read at once.
_ALIGNMENT = 16
# Keys at lags without a profile that are worth a call of their own.
_FAR_KEYS = 256


@dataclass(frozen=True)
class _Columns:
    """The columns of a block's T: column u is for lag own − u."""

    own: int  # of lag 0; may lie outside T
    seen: slice  # what neither causality nor the window hides
    known: slice  # what is seen and has an entry in the table
    table: slice  # these entries


@dataclass(frozen=True)
class Mixture:
    """Parts of the logits by lag of a call, and the lags that are hidden."""

    weights: Tensor  # (B, H, Nq, M)
    table: Tensor  # (H or 1, M, U), column u for lag E − 1 − u; U = E where causal, otherwise 2E − 1
    shift: Tensor | None  # (H or 1, 1, U) where the table is of kernels
    num_keys: int
    causal: bool
    window: int  # 0 for no limit
    exclude_self: bool
    level: Tensor | None = None  # (B, H, Nq, 1), added to all logits of a row

    @property
    def extent(self) -> int:
        return self.table.shape[2] if self.causal else (self.table.shape[2] + 1) // 2

    @property
    def offset(self) -> int:
        return self.num_keys - self.weights.shape[2]

    def blocks(self, rows: int) -> list[Block]:
        """Row blocks with the keys that they see: none at lags that no kernel reaches."""
        num_queries, window = self.weights.shape[2], self.window
        if self.shift is not None:
            window = min(window or self.extent, self.extent)
        rows = rows // 2 if num_queries <= _SHORT else rows
        return list(blocks(num_queries, self.num_keys, rows, self.causal, window))

    def near_keys(self, block: Block) -> slice:
        """The block's keys without those, if many, that are beyond the table for all of its rows."""
        keys = block.keys
        if self.window or self.shift is not None:
            return keys
        first = max(keys.start, block.rows.start + self.offset - self.extent + 1)
        last = min(keys.stop, block.rows.stop - 1 + self.offset + self.extent)
        first = first if first - keys.start >= _FAR_KEYS else keys.start
        last = last if keys.stop - last >= _FAR_KEYS else keys.stop
        return slice(first, max(first, last))

    def columns(self, block: Block) -> _Columns:
        own = block.rows.stop - 1 + self.offset - block.keys.start
        width = _width(block)
        reach = self.window or abs(own) + width + 1
        begin = min(max(0, own - reach + 1), width)
        end = max(begin, min(width, own + 1 if self.causal else own + reach))
        first = own - self.extent + 1
        start = min(max(begin, first), end)
        stop = max(start, min(end, first + self.table.shape[2]))
        return _Columns(own, slice(begin, end), slice(start, stop), slice(start - first, stop - first))

    def memory(self, blocks: list[Block], part: Part) -> Tensor:
        """For the strips of all blocks in turn: fresh memory for each would cost as much as the products."""
        items, heads = part
        pairs = (items.stop - items.start) * (heads.stop - heads.start)
        largest = max((block.num_rows * _row_stride(block) for block in blocks), default=0)
        matrices = 1 if self.shift is None else 2
        size = min(pairs * largest, max(largest, _LOGITS)) + _ALIGNMENT
        return self.weights.new_empty((matrices, size))

    def strips(self, block: Block, memory: Tensor, part: Part) -> Iterator["Strip"]:
        """The block's logits by lag, for as many of the part's heads at a time as the memory holds."""
        pairs = max(1, _LOGITS // (block.num_rows * _row_stride(block)))
        for heads in subparts(part, pairs, self.weights.shape[1]):
            yield Strip(self, block, heads, memory)


def _width(block: Block) -> int:
    return block.num_rows + block.num_keys - 1


def _row_stride(block: Block) -> int:
    """Of T; the rows of its view by key then all begin on a boundary."""
    return (_width(block) - 2) // _ALIGNMENT * _ALIGNMENT + _ALIGNMENT + 1


class Strip:
    """T of a block for some of the heads, and the masks by lag in it.

    Attributes:
        rows, keys: where the strip's rows and keys lie in tensors (B, H, N, …).
        lines: where its items and heads lie in tensors (B · H, …).
        by_lag: T, (C, rows, rows + keys − 1).
        by_key: the view of it that is the bias, (C, rows, keys).
    """

    def __init__(self, mixture: Mixture, block: Block, part: tuple[slice, slice], memory: Tensor):
        (items, group), heads = part, mixture.weights.shape[1]
        self.rows, self.keys = (*part, block.rows), (*part, block.keys)
        self.num_items, self.group = items.stop - items.start, group
        first = items.start * heads + group.start
        count = self.num_items * (group.stop - group.start)
        self.lines = slice(first, first + count)
        self.columns = mixture.columns(block)
        self.weights = mixture.weights[self.rows].flatten(0, 1)
        num_rows, width, stride = block.num_rows, _width(block), _row_stride(block)
        # A single row has no row stride; products want one that is not below its length.
        strides = num_rows * stride, max(stride - 1, block.num_keys), 1
        first = memory.storage_offset() + (1 - num_rows) % _ALIGNMENT
        self.by_lag = memory.as_strided((count, num_rows, width), (strides[0], stride, 1), first)
        self.by_key = memory.as_strided((count, num_rows, block.num_keys), strides, first + num_rows - 1)
        self.table = self._of_heads(mixture.table)
        self.sums: Tensor | None = None
        seen, known = self.columns.seen, self.columns.known
        level = None if mixture.level is None else mixture.level[self.rows].flatten(0, 1)
        beyond = level if level is not None else 0.0
        if mixture.shift is not None:
            beyond = -torch.inf
        self.by_lag[..., : seen.start] = -torch.inf
        self.by_lag[..., seen.start : known.start] = beyond
        self.by_lag[..., known.stop : seen.stop] = beyond
        self.by_lag[..., seen.stop :] = -torch.inf
        logits = self.by_lag[..., known]
        if mixture.shift is not None:
            num_known = self.table.shape[2]
            self.sums = memory[1, : count * num_rows * num_known].view(count, num_rows, num_known)
            torch.bmm(self.weights, self.table, out=self.sums)
            torch.log(self.sums, out=logits)
            logits += self._of_heads(mixture.shift)
            if level is not None:
                logits += level
        elif level is not None:
            torch.baddbmm(level, self.weights, self.table, out=logits)
        else:
            torch.bmm(self.weights, self.table, out=logits)
        if mixture.exclude_self and 0 <= self.columns.own < width:
            self.by_lag[..., self.columns.own] = -torch.inf

    def _of_heads(self, table: Tensor) -> Tensor:
        """The strip's columns of a table (H or 1, …, U), for each of its items and heads."""
        table = table[..., self.columns.table]
        if table.shape[0] == 1:
            return table.expand(self.weights.shape[0], -1, -1)
        return table[self.group].repeat(self.num_items, 1, 1)

    def add_mask(self, mask: Tensor) -> None:
        """A mask (B, H, Nq, Nk), with any dimension of 1 that serves all, added to the logits."""
        scores = self.by_key.unflatten(0, (self.num_items, -1))
        if mask.dtype == torch.bool:
            scores.masked_fill_(~self.of_mask(mask), -torch.inf)
        else:
            scores += self.of_mask(mask)

    def of_mask(self, mask: Tensor) -> Tensor:
        """The strip's part of a mask, as a view."""
        return part_of(mask, (*self.rows, self.keys[2]))

    def add_gradients(self, grad_weights: Tensor, grad_table: Tensor) -> None:
        """The gradients of weights (B · H, Nq, M) and table, when `by_key` holds the score gradients."""
        known = self.columns.known
        num_rows, num_keys = self.by_key.shape[1:]
        # The corners of T belong to no pair.
        indices = torch.arange(num_rows, device=self.by_lag.device)
        before = indices[:, None] + indices[:-1] < num_rows - 1
        if known.start < num_rows - 1:
            self.by_lag[..., : num_rows - 1].masked_fill_(before, 0.0)
        if known.stop > num_keys:
            self.by_lag[..., num_keys:].masked_fill_(~before, 0.0)
        grad = self.by_lag[..., known]
        if self.sums is not None:
            grad = torch.div(grad, self.sums, out=self.sums)
        torch.bmm(grad, self.table.mT, out=grad_weights[self.lines, self.rows[2]])
        if grad_table.shape[0] == 1:
            grad_columns = grad_table[0, :, self.columns.table]
            grad_columns.addmm_(self.weights.flatten(0, 1).T, grad.flatten(0, 1))
        else:
            products = (self.weights.mT @ grad).unflatten(0, (self.num_items, -1))
            grad_table[self.group, :, self.columns.table] += products.sum(0)
