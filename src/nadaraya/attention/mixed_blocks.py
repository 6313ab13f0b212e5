"""Attention with logits by lag that every query mixes for itself, in row blocks: O(N) memory, with gradients.

    b(i, r) = Σ_m w_im p_m(r)      or      b(i, r) = s(r) + log Σ_m w_im p_m(r)

The second form mixes kernels; the largest logarithm s of each lag is taken out of them. A block of n rows
needs the logits T = W P of the lags that it sees, n + keys − 1 of them per row. With the lags descending, a
row's logits lie in the order of its keys and begin one column before those of the row above: T, read with a
row stride of one less than its width, is the bias of the block and is never copied.

On the CPU it goes as the mask to PyTorch's fused attention; keys so far away that all b are 0 go there
without one. Elsewhere, and in the backward pass, products of queries and keys are added into T, weights take
their place, and then score gradients. So T becomes its own gradient: dW = dT Pᵀ, dP = Σ Wᵀ dT; in the second
form dT is first divided by the sums that the logarithm was taken of.

Shapes: q_BHNd, k_BHNd, v_BHNe; in a block batch and heads are one dimension, C.
"""

from collections.abc import Iterator
from dataclasses import dataclass

import torch
from torch import Tensor

from nadaraya.attention import fused_cpu
from nadaraya.attention.blocked import Block, blocks, empty_results, masked_bias
from nadaraya.attention.fused_cpu import with_columns
from nadaraya.attention.merging import merge_attention

_FORWARD_ROWS = 256
_BACKWARD_ROWS = 128
_SHORT = 512  # queries; below it blocks of half as many rows pay, as a causal block computes its last square
# Logits by lag in memory at once, unless those of one head are more: 2 MiB of float32.
_LOGITS = 2**19
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
class _Mixture:
    """What the logits by lag of a call are made of, and which lags are hidden."""

    weights: Tensor  # (B, H, Nq, M)
    table: Tensor  # (H or 1, M, U), column u for lag E − 1 − u; U = E where causal, otherwise 2E − 1
    shift: Tensor | None  # (H or 1, 1, U) where the table is of kernels
    num_keys: int
    causal: bool
    window: int  # 0 for no limit
    exclude_self: bool

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

    def memory(self, blocks: list[Block]) -> Tensor:
        """For the strips of all blocks in turn: fresh memory for each would cost as much as the products."""
        pairs = self.weights.shape[0] * self.weights.shape[1]
        largest = max((block.num_rows * _width(block) for block in blocks), default=0)
        matrices = 1 if self.shift is None else 2
        return self.weights.new_empty((matrices, min(pairs * largest, max(largest, _LOGITS))))

    def strips(self, block: Block, memory: Tensor) -> Iterator["_Strip"]:
        """The block's logits by lag, for as many heads at a time as the memory holds."""
        batch, heads = self.weights.shape[:2]
        pairs = max(1, _LOGITS // (block.num_rows * _width(block)))
        num_items, num_heads = max(1, pairs // heads), min(heads, pairs)
        for item in range(0, batch, num_items):
            items = slice(item, min(batch, item + num_items))
            for head in range(0, heads, num_heads):
                yield _Strip(self, block, (items, slice(head, min(heads, head + num_heads))), memory)


def _width(block: Block) -> int:
    return block.num_rows + block.num_keys - 1


def _part_of_mask(mask: Tensor, part: tuple[slice, slice, slice, slice]) -> Tensor:
    """Some items, heads, rows and keys of a mask, whose dimensions of 1 serve all."""
    return mask[tuple(p if size > 1 else slice(None) for p, size in zip(part, mask.shape, strict=True))]


class _Strip:
    """T of a block for some of the heads, and the masks by lag in it.

    Attributes:
        rows, keys: where the strip's rows and keys lie in tensors (B, H, N, …).
        lines: where its items and heads lie in tensors (B · H, …).
        by_lag: T, (C, rows, rows + keys − 1).
        by_key: the view of it that is the bias, (C, rows, keys).
    """

    def __init__(self, mixture: _Mixture, block: Block, part: tuple[slice, slice], memory: Tensor):
        (items, group), heads = part, mixture.weights.shape[1]
        self.rows, self.keys = (*part, block.rows), (*part, block.keys)
        self.num_items, self.group = items.stop - items.start, group
        first = items.start * heads + group.start
        count = self.num_items * (group.stop - group.start)
        self.lines = slice(first, first + count)
        self.columns = mixture.columns(block)
        self.weights = mixture.weights[self.rows].flatten(0, 1)
        num_rows, width = block.num_rows, _width(block)
        self.by_lag = memory[0, : count * num_rows * width].view(count, num_rows, width)
        # A single row has no row stride; products want one that is not below its length.
        strides = (num_rows * width, max(width - 1, block.num_keys), 1)
        first = memory.storage_offset() + num_rows - 1
        self.by_key = self.by_lag.as_strided((count, num_rows, block.num_keys), strides, first)
        self.table = self._of_heads(mixture.table)
        self.sums: Tensor | None = None
        seen, known = self.columns.seen, self.columns.known
        beyond = 0.0 if mixture.shift is None else -torch.inf
        self.by_lag[..., : seen.start] = -torch.inf
        self.by_lag[..., seen.start : known.start] = beyond
        self.by_lag[..., known.stop : seen.stop] = beyond
        self.by_lag[..., seen.stop :] = -torch.inf
        if mixture.shift is None:
            torch.bmm(self.weights, self.table, out=self.by_lag[..., known])
        else:
            num_known = self.table.shape[2]
            self.sums = memory[1, : count * num_rows * num_known].view(count, num_rows, num_known)
            torch.bmm(self.weights, self.table, out=self.sums)
            torch.log(self.sums, out=self.by_lag[..., known])
            self.by_lag[..., known] += self._of_heads(mixture.shift)
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
        return _part_of_mask(mask, (*self.rows, self.keys[2]))

    def add_gradients(self, grad_weights: Tensor, grad_table: Tensor) -> None:
        """The gradients of weights (B · H, Nq, M) and table, when `by_key` holds the score gradients."""
        known = self.columns.known
        num_rows, num_keys = self.by_key.shape[1:]
        # The corners of T belong to no pair.
        places = torch.arange(num_rows, device=self.by_lag.device)
        before = places[:, None] + places[:-1] < num_rows - 1
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


@torch.library.custom_op("nadaraya::mixed_attention", mutates_args=())
def mixed_attention(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    scale: float,
    weights: Tensor,
    table: Tensor,
    shift: Tensor | None,
    key_bias: Tensor | None,
    mask: Tensor | None,
    causal: bool,
    window: int,
    exclude_self: bool,
) -> tuple[Tensor, Tensor]:
    """Softmax attention with scores q·k·scale + b + key_bias + mask, in row blocks.

    Args:
        query: (B, H, Nq, d).
        key: (B, H, Nk, d).
        value: (B, H, Nk, e).
        scale: factor of the dot product.
        weights: (B, H, Nq, M), float32 at least, as are the table, the shift and the bias by key.
        table: (H or 1, M, U), entry u for lag E − 1 − u; U = E with `causal` and 2E − 1 without.
        shift: (H or 1, 1, U) where the table is of kernels, the logarithms taken out of it; pairs at other
            lags then take no part. None where it is of logits, which are 0 at other lags.
        key_bias: (B or 1, H or 1, Nk); −inf where a key is masked.
        mask: broadcastable to (B, H, Nq, Nk), bool (True takes part) or added.
        causal: no key after a query is visible.
        window: only |lag| < window is visible, 0 for no limit.
        exclude_self: lag 0 is not visible.

    Returns:
        The output (B, H, Nq, e) in the dtype of the query, zero in rows that see nothing, and the
        log-sum-exp of the scores (B, H, Nq) in float32 at least, −inf in such rows.
    """
    mixture = _Mixture(weights, table, shift, key.shape[2], causal, window, exclude_self)
    out, lse = empty_results(query, value)
    blocks = mixture.blocks(_FORWARD_ROWS)
    memory = mixture.memory(blocks)
    for block in blocks:
        near = block
        if query.device.type == "cpu":
            near = Block(block.rows, mixture.near_keys(block))
        if near.num_keys == 0:
            out[:, :, block.rows], lse[:, :, block.rows] = 0.0, -torch.inf
        else:
            for strip in mixture.strips(near, memory):
                if key_bias is not None:
                    strip.add_mask(key_bias[:, :, None])
                if mask is not None:
                    strip.add_mask(mask)
                rows, keys = strip.rows, strip.keys
                out[rows], lse[rows] = _attend(query[rows], key[keys], value[keys], scale, strip.by_key)
        far = (slice(block.keys.start, near.keys.start), slice(near.keys.stop, block.keys.stop))
        for beyond in far:
            if beyond.start < beyond.stop:
                rows, keys = ((slice(None), slice(None), part) for part in (block.rows, beyond))
                bias = (
                    None
                    if mask is None
                    else masked_bias(None, _part_of_mask(mask, (*rows, beyond)), lse.dtype)
                )
                by_key = None if key_bias is None else key_bias[keys]
                found = fused_cpu.attend(
                    query[rows], key[keys], value[keys], scale, bias, by_key, causal=False
                )
                out[rows], lse[rows] = merge_attention([(out[rows], lse[rows]), found])
    return out, lse


def _attend(query: Tensor, key: Tensor, value: Tensor, scale: float, bias: Tensor) -> tuple[Tensor, Tensor]:
    """Output and log-sum-exp of (B, H, …) with a bias (B · H, …), whose memory may be used."""
    shape = query.shape[:2]
    if query.device.type == "cpu":
        return fused_cpu.attend(query, key, value, scale, bias.unflatten(0, shape), None, causal=False)
    queries, keys, values = (t.to(bias.dtype).flatten(0, 1) for t in (query, key, value))
    scores = bias.baddbmm_(queries, keys.mT, alpha=scale)
    lse = scores.logsumexp(-1, keepdim=True)
    weights = scores.sub_(torch.where(lse == -torch.inf, torch.inf, lse)).exp_()
    return (weights @ values).to(query.dtype).unflatten(0, shape), lse[..., 0].unflatten(0, shape)


@mixed_attention.register_fake
def _(  # type: ignore[no-untyped-def]
    query, key, value, scale, weights, table, shift, key_bias, mask, causal, window, exclude_self
):
    return empty_results(query, value)


@torch.library.custom_op("nadaraya::mixed_attention_backward", mutates_args=())
def mixed_attention_backward(
    grad_out: Tensor,
    grad_lse: Tensor,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    out: Tensor,
    lse: Tensor,
    scale: float,
    weights: Tensor,
    table: Tensor,
    shift: Tensor | None,
    key_bias: Tensor | None,
    mask: Tensor | None,
    causal: bool,
    window: int,
    exclude_self: bool,
    need_key_bias: bool,
    need_mask: bool,
) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor, Tensor, Tensor]:
    """Gradients of `mixed_attention`: query, key, value, weights, table, key_bias, mask.

    Those of the last two are empty if not needed. With softmax weights P and score gradients
    dS = P ∘ (dO Vᵀ − δ), δ_i = dO_i·O_i − dLSE_i.
    """
    mixture = _Mixture(weights, table, shift, key.shape[2], causal, window, exclude_self)
    dtype, width = lse.dtype, query.shape[3]
    grad_out = grad_out.to(dtype)
    delta = (grad_out * out.to(dtype)).sum(-1) - grad_lse
    nothing = torch.where(lse == -torch.inf, torch.inf, lse)  # exp(score − inf) = 0: no weight, no gradient
    # Row and key terms ride along as extra columns of the products: no pass over the scores for them.
    ones = lse.new_ones(key.shape[:3])
    query_terms, key_terms = [-nothing], [ones]
    if key_bias is not None:
        query_terms.insert(0, torch.ones_like(lse))
        key_terms.insert(0, key_bias.expand(key.shape[:3]))
    queries = with_columns(query.to(dtype) * scale, *query_terms).flatten(0, 1)
    keys = with_columns(key.to(dtype), *key_terms).flatten(0, 1)
    grads = with_columns(grad_out, -delta).flatten(0, 1)
    values = with_columns(value.to(dtype), ones).flatten(0, 1)

    grad_query = torch.zeros_like(queries[..., :width])
    # The column of ones collects Σ_i dS_ij, the gradient of the bias by key.
    grad_keys = torch.zeros_like(keys[..., : width + need_key_bias])
    grad_value = torch.zeros_like(values[..., :-1])
    grad_weights = torch.zeros_like(weights, memory_format=torch.contiguous_format).flatten(0, 1)
    grad_table = torch.zeros_like(table, memory_format=torch.contiguous_format)
    grad_mask = lse.new_zeros(mask.shape if need_mask and mask is not None else (0,))
    blocks = mixture.blocks(_BACKWARD_ROWS)
    memory, room = mixture.memory(blocks), mixture.memory(blocks)[0]
    for block in blocks:
        if block.num_keys == 0:
            continue
        for strip in mixture.strips(block, memory):
            at_rows, at_keys = (strip.lines, block.rows), (strip.lines, block.keys)
            if mask is not None:
                strip.add_mask(mask)
            scores = strip.by_key
            scores.baddbmm_(queries[at_rows], keys[at_keys].mT).exp_()
            grad_value[at_keys].baddbmm_(scores.mT, grads[at_rows][..., :-1])
            grad_scores = room[: scores.numel()].view(scores.shape)
            scores *= torch.bmm(grads[at_rows], values[at_keys].mT, out=grad_scores)
            if need_mask:
                # Summed over the dimensions that the mask broadcasts.
                part = strip.of_mask(grad_mask)
                part += scores.unflatten(0, (strip.num_items, -1)).sum_to_size(part.shape)
            torch.bmm(scores, keys[at_keys][..., :width], out=grad_query[at_rows])
            grad_keys[at_keys].baddbmm_(scores.mT, queries[at_rows][..., : grad_keys.shape[2]])
            strip.add_gradients(grad_weights, grad_table)
    grad_key_bias = grad_keys[..., -1].clone() if need_key_bias else lse.new_zeros((0,))
    return (
        grad_query.mul_(scale).view(query.shape).to(query.dtype),
        grad_keys[..., :width].unflatten(0, key.shape[:2]).to(key.dtype, copy=need_key_bias),
        grad_value.view(value.shape).to(value.dtype),
        grad_weights.view(weights.shape),
        grad_table,
        grad_key_bias.view(key.shape[:3] if need_key_bias else (0,)),
        grad_mask,
    )


@mixed_attention_backward.register_fake
def _(  # type: ignore[no-untyped-def]
    grad_out, grad_lse, query, key, value, out, lse, scale, weights, table, shift, key_bias, mask, causal,
    window, exclude_self, need_key_bias, need_mask,
):  # fmt: skip
    operands = (query, key, value, weights, table)
    return (
        *(torch.empty_like(t, memory_format=torch.contiguous_format) for t in operands),
        lse.new_empty(key.shape[:3] if need_key_bias else (0,)),
        lse.new_empty(mask.shape if need_mask else (0,)),
    )


def _save_for_backward(ctx, inputs, output) -> None:  # type: ignore[no-untyped-def]
    query, key, value, scale, weights, table, shift, key_bias, mask, causal, window, exclude_self = inputs
    ctx.save_for_backward(query, key, value, *output, weights, table, shift, key_bias, mask)
    ctx.options = (scale, causal, window, exclude_self)


def _backward(ctx, grad_out, grad_lse):  # type: ignore[no-untyped-def]
    query, key, value, out, lse, weights, table, shift, key_bias, mask = ctx.saved_tensors
    scale, causal, window, exclude_self = ctx.options
    need_key_bias, need_mask = ctx.needs_input_grad[7:9]
    *grads, grad_weights, grad_table, grad_key_bias, grad_mask = mixed_attention_backward(
        grad_out, grad_lse, query, key, value, out, lse, scale, weights, table, shift, key_bias, mask, causal,
        window, exclude_self, need_key_bias, need_mask,
    )  # fmt: skip
    return (
        *grads,
        None,
        grad_weights,
        grad_table,
        None,
        grad_key_bias.sum_to_size(key_bias.shape) if need_key_bias else None,
        grad_mask.to(mask.dtype) if need_mask else None,
        None,
        None,
        None,
    )


mixed_attention.register_autograd(_backward, setup_context=_save_for_backward)
