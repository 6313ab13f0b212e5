"""Active ranges: keys that blocks of queries visit where the rest is negligible, found on the device.

The bound is that of `nadaraya.attention.decay`: keys are left out from the far ends inwards while together
they weigh at most δ of every row. A row's weights are at least those of its nearest keys, which the forward
kernel sums. Memory is that of one number per block of queries and block of keys, N²/65,536 a head.
"""

import math

import torch
import torch.nn.functional as F
from torch import Tensor

from nadaraya.attention.arguments import AttentionArguments
from nadaraya.attention.decay import by_block
from nadaraya.attention.triton import launch
from nadaraya.attention.triton.operator import triton_attention

_NEAREST = 64  # lags


@torch.no_grad()
def active_blocks(
    args: AttentionArguments, query: Tensor, key: Tensor, documents: Tensor | None, window: int
) -> Tensor:
    """Ranges of keys for blocks of queries, and ranges of queries for blocks of keys.

    Args:
        args: of the call, with a table by lag and δ > 0.
        query, key, documents, window: as `triton_attention` takes them for this call.

    Returns:
        (B, H, blocks of queries + blocks of keys, 2) int32. The first are the keys that a block of queries
        visits; the others are queries, among which are all that visit a block of keys.
    """
    table, key_bias, padding = args.lag_logits, args.key_bias, args.key_padding_mask
    assert table is not None
    num_queries, num_keys = query.shape[2], key.shape[2]
    size, group_size = launch.ACTIVE_BLOCK, query.shape[1] // key.shape[1]
    nearest = min(window, _NEAREST) if window else _NEAREST
    _, lse, alone = triton_attention(
        query, key, key, args.scale, args.bandwidth, table, key_bias, padding, documents, args.causal,
        nearest, args.exclude_self,
    )  # fmt: skip
    least = math.log(2.0) * lse
    if args.exclude_self:  # such a row may see others, farther off
        least = least.masked_fill(alone != 0, -torch.inf)
    by_key = key.new_zeros((1, 1, num_keys), dtype=lse.dtype) if key_bias is None else key_bias
    if padding is not None:
        by_key = by_key.masked_fill(padding[:, None], -torch.inf)
    bound = by_block(by_key, size, -torch.inf).amax(-1)[:, :, None] + math.log(size)
    bound = bound + _largest_by_lag(table, num_queries, num_keys, args.causal, window)
    if args.bandwidth is None:
        # ⟨q, k⟩ = ⟨q, c⟩ + ⟨q, k − c⟩, and what is alike for all keys changes no weight.
        centre = args.key_centre()
        least = least - args.scale * (query.float() @ centre.repeat_interleave(group_size, 1).mT)[..., 0]
        length = abs(args.scale) * torch.linalg.vector_norm(query, dim=-1, dtype=lse.dtype)
        radius = torch.linalg.vector_norm(key.float() - centre, dim=-1)
        if padding is not None:
            radius = radius.masked_fill(padding[:, None], 0.0)
        longest = by_block(length, size, 0.0).amax(-1)[..., None]
        farthest = by_block(radius, size, 0.0).amax(-1).repeat_interleave(group_size, 1)
        bound = bound + longest * farthest[:, :, None]
    # Half of it behind, half of it ahead.
    least = by_block(least, size, torch.inf).amin(-1)[..., None] + math.log(
        args.prune_tol / (1 if args.causal else 2)
    )
    # A row without a bound has −∞ or NaN here: nothing is left out but what weighs nothing.
    behind, ahead = ((of_blocks.logcumsumexp(-1) <= least).sum(-1) for of_blocks in (bound, bound.flip(-1)))
    own = num_keys - num_queries + size * torch.arange(least.shape[2], device=query.device)
    first = torch.minimum(behind, own.clamp(min=0) // size)
    stop = torch.maximum(bound.shape[3] - ahead, -(-(own + size) // size))
    blocks = torch.arange(bound.shape[3], device=query.device)
    active = (first[..., None] <= blocks) & (blocks < stop[..., None])
    of_rows = torch.stack((first, stop), -1).expand(*query.shape[:2], -1, -1)
    ranges = torch.cat((of_rows, launch.first_and_last(active.mT).expand(*query.shape[:2], -1, -1)), 2)
    return (size * ranges).to(torch.int32).contiguous()


def _largest_by_lag(table: Tensor, num_queries: int, num_keys: int, causal: bool, window: int) -> Tensor:
    """The largest logit by lag of each block of queries with each block of keys, (H or 1, blocks, blocks)."""
    size, middle = launch.ACTIVE_BLOCK, table.shape[1] // 2
    lags = torch.arange(-middle, middle + 1, device=table.device)
    if causal:
        table = table.masked_fill(lags < 0, -torch.inf)
    if window:
        table = table.masked_fill(lags.abs() >= window, -torch.inf)
    rows, columns = -(-num_queries // size), -(-num_keys // size)
    # From the first queries with the last keys to the last queries with the first keys.
    least, most = num_keys - num_queries - columns * size + 1, num_keys - num_queries + rows * size - 1
    whole = F.pad(table, (-least - middle, most - middle), value=-torch.inf)
    largest = whole.unfold(-1, 2 * size - 1, size).amax(-1)
    between = torch.arange(rows, device=table.device)[:, None] - torch.arange(columns, device=table.device)
    return largest[:, between + columns - 1]
