"""Keys that a block of rows need not visit, because the kernel of the lag has decayed: a guaranteed bound.

A row's keys in a block J weigh together at most |J| exp(u_i + max a_j + max b), u_i an upper bound of the
content, and all its keys at least exp(s_i), s_i the log-sum-exp of its nearest ones. Blocks are left out
from the far ends inwards while the sum of their bounds is at most δ exp(s_i). For the dot product u_i is
‖q_i‖ max‖k_j − c‖ |scale|, as a shift c of all keys changes no weight; for the Gaussian it is 0.
"""

import math

import torch
import torch.nn.functional as F
from torch import Tensor

from nadaraya.attention.blocked import LONGEST_BLOCK, blocks

_KEYS = 256  # of a block; rows of a block are a multiple of it
_NEAREST = 64  # lags
_NEAREST_ROWS = 128
_NOTHING = -60.0  # nats: a hidden key counts as this against a row's largest weight


@torch.library.custom_op("nadaraya::active_keys", mutates_args=())
def active_keys(
    query: Tensor,
    key: Tensor,
    scale: float,
    diagonals: Tensor,
    key_bias: Tensor | None,
    gaussian: bool,
    causal: bool,
    window: int,
    prune_tol: float,
) -> Tensor:
    """The keys that blocks of rows visit: those left out have at most a share δ of every row's weights.

    Args:
        query, key, scale, diagonals, key_bias, causal, window: as `blocked_attention` takes them.
        gaussian: q·k is part of −‖q − k‖²/2, the key bias has −‖k‖²/2, and scale is 1.
        prune_tol: δ > 0.

    Returns:
        (blocks, 2) whole numbers on the CPU: of each LONGEST_BLOCK queries the first key, and the one after
        the last; one range for all items and heads.
    """
    num_queries, num_keys = query.shape[2], key.shape[2]
    dtype = torch.promote_types(query.dtype, torch.float32)
    query, key = query.to(dtype), key.to(dtype)
    if not gaussian:
        key = key - key.mean(2, keepdim=True)
    least = _log_sum_of_nearest(query, key, scale, diagonals, key_bias, causal, window)
    by_key = key.new_zeros((1, 1, num_keys)) if key_bias is None else key_bias.expand(-1, -1, num_keys)
    if gaussian:  # q·k − ‖k‖²/2 ≤ ‖q‖²/2
        least = least - 0.5 * query.square().sum(-1)
        by_key = by_key + 0.5 * key.square().sum(-1)
        length, radius = torch.zeros_like(query[..., 0]), torch.zeros_like(key[..., 0])
    else:
        length, radius = query.norm(dim=-1) * abs(scale), key.norm(dim=-1)
    least = by_block(least, LONGEST_BLOCK, torch.inf).amin(-1)
    length = by_block(length, LONGEST_BLOCK, 0.0).amax(-1)
    radius = by_block(radius, _KEYS, 0.0).amax(-1)
    by_key = by_block(by_key, _KEYS, -torch.inf).amax(-1) + math.log(_KEYS)
    by_lag = _largest_by_lag(diagonals, num_queries, num_keys)

    least = least + math.log(prune_tol / (1 if causal else 2))  # half of it behind, half of it ahead
    row_blocks, key_blocks = length.shape[-1], radius.shape[-1]
    active = torch.empty((row_blocks, 2), dtype=torch.int64)
    for block in range(row_blocks):
        first = (row_blocks - 1 - block) * (LONGEST_BLOCK // _KEYS)
        bound = length[..., block, None] * radius + by_key + by_lag[:, first : first + key_blocks]
        # A row without a bound has −inf or NaN here: nothing is left out but what weighs nothing.
        behind, ahead = (
            int((of_blocks.logcumsumexp(-1) <= least[..., block, None]).sum(-1).amin())
            for of_blocks in (bound, bound.flip(-1))
        )
        own = max(0, num_keys - num_queries + block * LONGEST_BLOCK)
        active[block, 0] = min(behind * _KEYS, own)
        active[block, 1] = max((key_blocks - ahead) * _KEYS, own + LONGEST_BLOCK)
    return active


@active_keys.register_fake
def _(query: Tensor, *_: object) -> Tensor:
    return torch.empty((-(-query.shape[2] // LONGEST_BLOCK), 2), dtype=torch.int64, device="cpu")


def _log_sum_of_nearest(
    query: Tensor,
    key: Tensor,
    scale: float,
    diagonals: Tensor,
    key_bias: Tensor | None,
    causal: bool,
    window: int,
) -> Tensor:
    """A lower bound of every row's log-sum-exp, (B, H, Nq): that of its nearest keys."""
    num_queries, num_keys = query.shape[2], key.shape[2]
    window = min(window, _NEAREST) if window else _NEAREST
    sums = []
    for block in blocks(num_queries, num_keys, _NEAREST_ROWS, causal, window):
        if not block.num_keys:
            sums.append(query.new_full((*query.shape[:2], block.num_rows), -torch.inf))
            continue
        scores = query[:, :, block.rows].flip(2) @ key[:, :, block.keys].transpose(-1, -2) * scale
        scores += block.hankel(diagonals, num_queries)
        if key_bias is not None:
            scores += key_bias[:, :, None, block.keys]
        # As logsumexp, but exp(−∞) takes twenty times as long as other exponentials.
        top = scores.amax(-1, keepdim=True).clamp(min=torch.finfo(scores.dtype).min)
        total = scores.sub_(top).clamp_(min=_NOTHING).exp_().sum(-1)
        sums.append((total.log_() + top[..., 0]).flip(2))
    return torch.cat(sums, dim=2)


def _largest_by_lag(diagonals: Tensor, num_queries: int, num_keys: int) -> Tensor:
    """The largest entry between a block of rows and one of keys, by how many blocks of keys lie between."""
    whole = F.pad(diagonals, (-num_queries % LONGEST_BLOCK, -num_keys % _KEYS), value=-torch.inf)
    return whole.unfold(-1, LONGEST_BLOCK + _KEYS - 1, _KEYS).amax(-1)


def by_block(tensor: Tensor, size: int, filling: float) -> Tensor:
    """(…, N) as (…, blocks, size)."""
    return F.pad(tensor, (0, -tensor.shape[-1] % size), value=filling).unflatten(-1, (-1, size))
