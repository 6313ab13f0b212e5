"""Attention with a bias by lag in row blocks: O(N) memory, forward and backward, as PyTorch custom operators.

The bias is given by diagonals: every pair with the same j − i has the same logit, so Nq + Nk − 1 numbers per
head stand for the Nq × Nk bias. Inside a block the rows are taken in reverse order, which turns the Toeplitz
bias into a Hankel one; that is a strided view of the diagonals and is never written out. Masks by lag are
−inf entries. The gradient of the diagonals sums the score gradients of each block along its diagonals,
through the same kind of view.

On the CPU the forward pass is PyTorch's fused attention on each block; elsewhere it is the block's own
softmax. The backward pass recomputes the weights of a block from the saved log-sum-exp.

Shapes: q_BHNd, k_BHNd, v_BHNe; key_bias_BHN (B or 1, H or 1); diagonals_HT, T = Nq + Nk − 1, entry t is the
logit of the pairs with j − i = t − (Nq − 1), i and j counted from 0 in their own tensors.
"""

import math
from collections.abc import Iterator
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from nadaraya.attention import fused_cpu
from nadaraya.attention.derivatives import differentiate
from nadaraya.attention.fused_cpu import with_columns
from nadaraya.attention.partition import Part, part_of, partition, subparts, whole, work_on
from nadaraya.attention.passes import ByTorch, Compiled, can_compile

# Rows of a block: large ones amortise calls, small ones compute less of the future in causal calls.
LONGEST_BLOCK = 256
_FORWARD_ROWS_SHORT = 128
_BACKWARD_ROWS_SHORT = 64
_SHORT = 512  # queries; below it smaller blocks pay: a causal block computes its whole last square
# Scores in flight at once in a thread of the backward pass: 2 MiB of float32, and as many of gradients.
_BACKWARD_SCORES = 2**19


@dataclass(frozen=True)
class Block:
    """Queries rows.start … rows.stop − 1 and the keys that any of them can see."""

    rows: slice
    keys: slice

    @property
    def num_rows(self) -> int:
        return self.rows.stop - self.rows.start

    @property
    def num_keys(self) -> int:
        return self.keys.stop - self.keys.start

    def hankel(self, diagonals: Tensor, num_queries: int) -> Tensor:
        """The block's bias with its rows reversed, (1, H, rows, keys), as a view of contiguous diagonals."""
        first = self.keys.start + num_queries - self.rows.stop
        shape = (1, diagonals.shape[0], self.num_rows, self.num_keys)
        return diagonals.as_strided(shape, (0, diagonals.shape[1], 1, 1), diagonals.storage_offset() + first)


def blocks(
    num_queries: int, num_keys: int, rows: int, causal: bool, window: int, active: Tensor | None = None
) -> Iterator[Block]:
    """Blocks of rows, and the keys that they visit; of those, the `active` where some are negligible."""
    ranges = None if active is None else active.tolist()
    for start in range(0, num_queries, rows):
        some = slice(start, min(num_queries, start + rows))
        keys = visible_keys(some, num_queries, num_keys, causal, window)
        if ranges is not None:
            low, high = ranges[start // LONGEST_BLOCK]
            first = min(max(keys.start, low), num_keys)
            keys = slice(first, max(first, min(keys.stop, high)))
        yield Block(some, keys)


def visible_keys(rows: slice, num_queries: int, num_keys: int, causal: bool, window: int) -> slice:
    """The keys from the first to the last that some of the rows see, by their lags alone; 0 for no window."""
    start, stop = (row + num_keys - num_queries for row in (rows.start, rows.stop))
    first, last = max(0, start - window + 1) if window else 0, num_keys
    if causal:
        last = min(last, stop)
    elif window:
        last = min(last, stop + window - 1)
    first = min(first, num_keys)
    return slice(first, max(first, last))


def _mask_rows(mask: Tensor, block: Block, flip: bool = True) -> Tensor:
    """The block's part of a mask; in reverse order of rows (a copy), or as a view."""
    rows = mask[:, :, block.rows] if mask.shape[2] > 1 else mask
    rows = rows.flip(2) if flip else rows
    return rows[..., block.keys] if mask.shape[3] > 1 else rows


def masked_bias(bias: Tensor | None, mask: Tensor, dtype: torch.dtype) -> Tensor:
    """A bias with a mask of the same pairs: True or 0 leaves a pair as it is."""
    if mask.dtype != torch.bool:
        return mask.to(dtype) if bias is None else bias + mask
    unmasked = torch.zeros((), dtype=dtype, device=mask.device) if bias is None else bias
    return torch.where(mask, unmasked, -torch.inf)


@torch.library.custom_op("nadaraya::blocked_attention", mutates_args=())
def blocked_attention(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    scale: float,
    diagonals: Tensor | None,
    key_bias: Tensor | None,
    mask: Tensor | None,
    causal: bool,
    window: int,
    active: Tensor | None = None,
) -> tuple[Tensor, Tensor]:
    """Softmax attention with scores q·k·scale + diagonals + key_bias + mask, in row blocks.

    Args:
        query: (B, H, Nq, d).
        key: (B, H, Nk, d).
        value: (B, H, Nk, e).
        scale: factor of the dot product.
        diagonals: (H or 1, Nq + Nk − 1), contiguous, float32 at least; −inf where a lag is masked. None, no
            bias by lag; with `causal` that needs Nq = Nk and the CPU.
        key_bias: (B or 1, H or 1, Nk), float32 at least; −inf where a key is masked.
        mask: broadcastable to (B, H, Nq, Nk), bool (True takes part) or added.
        causal: no key after a query is visible; diagonals, where given, must already say so.
        window: only |lag| < window is visible, 0 for no limit; needs diagonals that already say so.
        active: what `decay.active_keys` gives, or None, all keys.

    Returns:
        The output (B, H, Nq, e) in the dtype of the query, zero in rows that see nothing, and the
        log-sum-exp of the scores (B, H, Nq) in float32 at least, −inf in such rows.
    """
    num_queries, num_keys = query.shape[2], key.shape[2]
    dtype = torch.promote_types(query.dtype, torch.float32)
    if diagonals is None and query.device.type == "cpu" and query.numel() > 0 and num_keys > 0:
        bias = None if mask is None else masked_bias(None, mask, dtype)
        return fused_cpu.attend(query, key, value, scale, bias, key_bias, causal)
    out, lse = empty_results(query, value)
    rows = _FORWARD_ROWS_SHORT if num_queries <= _SHORT else LONGEST_BLOCK
    parts = partition(query.shape[0], query.shape[1], num_queries * num_keys, query.device)

    def work(part: Part) -> None:
        for block in blocks(num_queries, num_keys, rows, causal, window, active):
            at_rows, at_keys = (*part, block.rows), (*part, block.keys)
            bias = None if diagonals is None else part_of(block.hankel(diagonals, num_queries), part)
            if mask is not None:
                bias = masked_bias(bias, _mask_rows(part_of(mask, part), block), dtype)
            by_key = None if key_bias is None else part_of(key_bias, part)[..., block.keys]
            out_rows, lse_rows = _attend(
                query[at_rows].flip(2), key[at_keys], value[at_keys], scale, bias, by_key
            )
            out[at_rows] = out_rows.flip(2)
            lse[at_rows] = lse_rows.flip(2)

    work_on(parts, work)
    return out, lse


def empty_results(query: Tensor, value: Tensor) -> tuple[Tensor, Tensor]:
    """In the layout that fused attention gives: the heads of a token lie together, ready to be merged."""
    batch, heads, num_queries, _ = query.shape
    out = query.new_empty((batch, num_queries, heads, value.shape[3])).transpose(1, 2)
    return out, query.new_empty(query.shape[:3], dtype=torch.promote_types(query.dtype, torch.float32))


def _attend(
    query: Tensor, key: Tensor, value: Tensor, scale: float, bias: Tensor | None, key_bias: Tensor | None
) -> tuple[Tensor, Tensor]:
    """Attention of one block: output, zero in rows that see nothing, and log-sum-exp, −inf there."""
    dtype = torch.promote_types(query.dtype, torch.float32)
    if key.shape[2] == 0 or query.shape[0] == 0:
        return (
            query.new_zeros((*query.shape[:3], value.shape[3])),
            query.new_full(query.shape[:3], -torch.inf, dtype=dtype),
        )
    if query.device.type == "cpu":
        return fused_cpu.attend(query, key, value, scale, bias, key_bias, causal=False)
    scores = (query.to(dtype) @ key.to(dtype).transpose(-1, -2)) * scale
    for term in (bias, None if key_bias is None else key_bias[:, :, None, :]):
        scores = scores if term is None else scores + term
    lse = scores.logsumexp(-1)
    weights = torch.exp(scores - torch.where(lse == -torch.inf, torch.inf, lse)[..., None])
    return (weights @ value.to(dtype)).to(query.dtype), lse


@blocked_attention.register_fake
def _(query: Tensor, key: Tensor, value: Tensor, *_: object) -> tuple[Tensor, Tensor]:
    return empty_results(query, value)


@torch.library.custom_op("nadaraya::blocked_attention_backward", mutates_args=())
def blocked_attention_backward(
    grad_out: Tensor,
    grad_lse: Tensor,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    out: Tensor,
    lse: Tensor,
    scale: float,
    diagonals: Tensor | None,
    key_bias: Tensor | None,
    mask: Tensor | None,
    causal: bool,
    window: int,
    need_diagonals: bool,
    need_key_bias: bool,
    need_mask: bool,
    active: Tensor | None = None,
) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor, Tensor]:
    """Gradients of `blocked_attention`: query, key, value, diagonals, key_bias, mask (empty if not needed).

    With weights P and score gradients dS = P ∘ (dO Vᵀ − δ), δ_i = dO_i·O_i − dLSE_i, the diagonals' gradient
    is Σ dS over the batch and over all pairs with the same j − i.
    """
    dtype, none = lse.dtype, lse.new_zeros((0,))
    batch, heads, num_queries, width = query.shape
    num_keys = key.shape[2]
    num_pairs = num_queries * num_keys
    parts = [whole(batch, heads)] if need_mask else partition(batch, heads, num_pairs, query.device)
    by_lag_alone = mask is None and (diagonals is not None or causal)
    compiled = by_lag_alone and can_compile(batch * heads * num_pairs, len(parts), lse)
    by_cpu = diagonals is None and query.device.type == "cpu" and query.numel() > 0 and key.shape[2] > 0
    if by_cpu and not compiled and not need_mask:
        bias = None if mask is None else masked_bias(None, mask, dtype)
        *grads, grad_key_bias = fused_cpu.backward(
            grad_out, grad_lse, query, key, value, out, lse, scale, bias, key_bias, causal
        )
        grad_query, grad_key, grad_value = (grad.to(query.dtype) for grad in grads)
        of_key_bias = grad_key_bias if need_key_bias else none
        return grad_query, grad_key, grad_value, none.clone(), of_key_bias, none.clone()
    grad_out = grad_out.to(dtype)
    delta = (grad_out * out.to(dtype)).sum(-1) - grad_lse
    # Row and key terms ride along as extra columns of the products: no pass over the scores for them.
    level = torch.where(lse == -torch.inf, torch.inf, lse)  # exp(score − inf) = 0: no weight, no gradient
    ones = lse.new_ones((batch, heads, num_keys))
    by_key = ones.new_zeros(()) if key_bias is None else key_bias
    query_columns = with_columns(query.to(dtype) * scale, -level, torch.ones_like(lse)).flip(2)
    key_columns = with_columns(key.to(dtype), ones, by_key.expand(ones.shape))
    grad_columns = with_columns(grad_out, -delta).flip(2)
    value_columns = with_columns(value.to(dtype), ones)

    grad_query = lse.new_zeros(query.shape)  # its rows are reversed, as those of the queries above
    grad_key = lse.new_zeros(key.shape)
    grad_value = lse.new_zeros(value.shape)
    grad_key_bias = lse.new_zeros((batch, heads, num_keys) if need_key_bias else (0,))
    grad_mask = lse.new_zeros(mask.shape if need_mask and mask is not None else (0,))
    if diagonals is None and causal:  # as many queries as keys
        diagonals = lse.new_zeros((1, 2 * num_keys - 1))
        diagonals[:, num_keys:] = -torch.inf
    rows = _BACKWARD_ROWS_SHORT if num_queries <= _SHORT else LONGEST_BLOCK

    def work(part: Part) -> Tensor:
        """Writes the gradients of its items and heads; returns what it adds to that of the diagonals."""
        along_diagonals = lse.new_zeros((heads, num_queries + num_keys - 1) if need_diagonals else (0,))
        # Arrays are written over by every tile: fresh memory for each would cost as much as the sums.
        by_tile = (Compiled if compiled else ByTorch)(_BACKWARD_SCORES, lse)
        for block in blocks(num_queries, num_keys, rows, causal, window, active):
            reversed_rows = slice(num_queries - block.rows.stop, num_queries - block.rows.start)
            for tile, subpart in _tiles(block, part, heads):
                at_rows, at_keys = (*subpart, reversed_rows), (*subpart, tile.keys)
                queries, grads = _pairs(query_columns[at_rows]), _pairs(grad_columns[at_rows])
                keys, values = _pairs(key_columns[at_keys]), _pairs(value_columns[at_keys])
                shape = (*ones[at_keys].shape[:2], tile.num_rows, tile.num_keys)
                bias = None if diagonals is None else part_of(tile.hankel(diagonals, num_queries), subpart)
                if mask is not None:
                    bias = masked_bias(bias, _mask_rows(part_of(mask, subpart), tile), dtype)
                weights = by_tile.weights(queries, keys, bias, shape)
                first = tile.keys.start + num_queries - tile.rows.stop
                lags = slice(first, first + tile.num_rows + tile.num_keys - 1)
                along = along_diagonals[subpart[1], lags] if need_diagonals else None
                grad_scores = by_tile.gradients(grads, values, weights, along)
                by_pair = _pairs(grad_scores)
                if need_mask:
                    # Summed over the dimensions that the mask broadcasts.
                    of_mask = _mask_rows(part_of(grad_mask, subpart), tile, flip=False)
                    of_mask += grad_scores.flip(2).sum_to_size(of_mask.shape)
                if need_key_bias:
                    grad_key_bias[at_keys] += grad_scores.sum(2)
                _pairs(grad_value[at_keys]).baddbmm_(_pairs(weights).mT, grads[..., :-1])
                _pairs(grad_key[at_keys]).baddbmm_(by_pair.mT, queries[..., :width])
                _pairs(grad_query[at_rows]).baddbmm_(by_pair, keys[..., :width])
        return along_diagonals

    grad_diagonals = torch.stack(work_on(parts, work)).sum(0)
    return (
        grad_query.flip(2).mul_(scale).to(query.dtype),
        grad_key.to(key.dtype),
        grad_value.to(value.dtype),
        grad_diagonals,
        grad_key_bias,
        grad_mask,
    )


def _tiles(block: Block, part: Part, num_heads: int) -> Iterator[tuple[Block, Part]]:
    """Parts of a block's keys, and of the items and heads of a part, whose scores stay in cache together."""
    most = _BACKWARD_SCORES // block.num_rows
    for start in range(block.keys.start, block.keys.stop, most):
        tile = replace(block, keys=slice(start, min(block.keys.stop, start + most)))
        for subpart in subparts(part, max(1, most // max(tile.num_keys, tile.num_rows)), num_heads):
            yield tile, subpart


def _pairs(tensor: Tensor) -> Tensor:
    """A view (B, H, …) as (B · H, …)."""
    return tensor.view(math.prod(tensor.shape[:2]), *tensor.shape[2:])


@blocked_attention_backward.register_fake
def _(  # type: ignore[no-untyped-def]
    grad_out, grad_lse, query, key, value, out, lse, scale, diagonals, key_bias, mask, causal, window,
    need_diagonals, need_key_bias, need_mask, active=None,
):  # fmt: skip
    batch, heads, num_queries, _ = query.shape
    num_keys = key.shape[2]
    return (
        *(torch.empty_like(t, memory_format=torch.contiguous_format) for t in (query, key, value)),
        lse.new_empty((heads, num_queries + num_keys - 1) if need_diagonals else (0,)),
        lse.new_empty((batch, heads, num_keys) if need_key_bias else (0,)),
        lse.new_empty(mask.shape if need_mask else (0,)),
    )


differentiate(
    blocked_attention,
    blocked_attention_backward,
    ("query", "key", "value", "diagonals", "key_bias", "mask"),
    optional=(("diagonals",), ("key_bias",), ("mask",)),
)
