"""The definition of the operator, written to be read; every other backend must agree with it.

    out_i = Σ_j κ(i,j) v_j / (Σ_j κ(i,j) + ε)      log κ(i,j) = content(i,j) + position(i,j) + a_j + mask(i,j)

Memory is O(Nq · Nk): use it for small problems, for tests and where the weights themselves are wanted.
"""

from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor

from nadaraya.attention.arguments import AttentionArguments
from nadaraya.attention.distances import distances, squared_distances
from nadaraya.kernels.heads import log_by_head


class Results(NamedTuple):
    """Results of rows of queries: output, weights, and the logarithm of what the weights were divided by.

    Attributes:
        out: (B, H, rows, dv) in the dtype of the query.
        weights: (B, H, rows, Nk) in float32 at least.
        lse: (B, H, rows) log Σ_j κ(i,j), −inf where a row sees nothing; ε is no part of it.
    """

    out: Tensor
    weights: Tensor
    lse: Tensor


def attention(args: AttentionArguments) -> Results:
    """Nadaraya-Watson attention with every pair of tokens written out.

    Args:
        args: the checked arguments of `kernel_attention`.

    Returns:
        The results for all queries. A row that may see nothing has weights and output zero.
    """
    return rows(args, 0, args.query.shape[2])


def rows(args: AttentionArguments, start: int, stop: int) -> Results:
    """`attention` for the queries start … stop − 1 only: the same sums, in O((stop − start) · Nk) memory."""
    args = args.with_repeated_heads()
    log_kappa = logits(args, start, stop)
    # Any shift of a row cancels between numerator and denominator; the row's maximum keeps exp in range.
    shift = (
        log_kappa.detach().amax(-1, keepdim=True) if args.key.shape[2] else log_kappa.sum(-1, keepdim=True)
    )
    shift = shift.masked_fill(shift == -torch.inf, 0.0)
    kappa = torch.exp(log_kappa - shift)
    normaliser = kappa.sum(-1, keepdim=True)
    nothing = normaliser == 0
    lse = (normaliser.masked_fill(nothing, 1.0).log() + shift).masked_fill(nothing, -torch.inf)[..., 0]
    if args.eps > 0.0:  # exp(−shift) may be infinite, and 0 · ∞ is not 0
        normaliser = normaliser + args.eps * torch.exp(-shift)
    weights = kappa / normaliser.masked_fill(normaliser == 0, 1.0)
    weights = F.dropout(weights, args.dropout_p)
    value = args.value.to(weights.dtype)
    out = weights @ value
    if args.spoilt:
        # Values that are not finite reach the rows that see them; in others 0 times them would be NaN.
        spoilt = ~value.isfinite()
        reached = (log_kappa != -torch.inf).to(value.dtype) @ spoilt.to(value.dtype) > 0.0
        out = torch.where(reached, out.detach(), weights @ value.masked_fill(spoilt, 0.0))
    return Results(out.to(args.query.dtype), weights, lse)


def logits(args: AttentionArguments, start: int, stop: int) -> Tensor:
    """log κ of the queries start … stop − 1 against all keys; −inf where κ = 0.

    Returns:
        (B, H, stop − start, Nk) in float32 at least.
    """
    args = args.with_repeated_heads()
    query = args.query[:, :, start:stop].to(args.compute_dtype)
    given = key = args.key.to(args.compute_dtype)
    finite = key.isfinite().all(-1, keepdim=True) if args.spoilt else None
    if finite is not None:
        key = torch.where(finite, key, 0.0)  # products of others with a gradient of 0 would be NaN
    log_kappa = _content(args, query, key)
    lags = _lags(args, start, stop)
    if args.lag_logits is not None:
        log_kappa = log_kappa + args.lag_logits[:, lags + args.lag_logits.shape[1] // 2]
    if args.mixture is not None:
        mixed, extent = args.mixture.by_lag(slice(start, stop)), args.mixture.extent
        entries = (lags.clamp(-extent, extent) + extent).expand(*mixed.shape[:2], -1, -1)
        log_kappa = log_kappa + mixed.gather(3, entries)
    if args.grid is not None:
        log_kappa = log_kappa + args.grid.dense()[:, start:stop]
    if args.key_bias is not None:
        log_kappa = log_kappa + args.key_bias[:, :, None, :]
    if args.attn_mask is not None:
        mask = args.attn_mask[:, :, start:stop] if args.attn_mask.shape[2] > 1 else args.attn_mask
        if mask.dtype == torch.bool:
            log_kappa = log_kappa.masked_fill(~mask, -torch.inf)
        else:
            log_kappa = log_kappa + mask
    if args.key_padding_mask is not None:
        log_kappa = log_kappa.masked_fill(args.key_padding_mask[:, None, None, :], -torch.inf)
    if args.document_ids is not None:
        of_queries = args.document_ids[:, args.offset :][:, start:stop]
        others = of_queries[:, :, None] != args.document_ids[:, None, :]
        log_kappa = log_kappa.masked_fill(others[:, None], -torch.inf)
    if args.causal:
        log_kappa = log_kappa.masked_fill(lags < 0, -torch.inf)
    if args.window is not None:
        log_kappa = log_kappa.masked_fill(lags.abs() >= args.window, -torch.inf)
    if finite is not None:  # those that are not are constants of the rows that see them
        reached = ~finite.transpose(-1, -2) & (log_kappa != -torch.inf)
        log_kappa = torch.where(reached, _content(args, query, given).detach(), log_kappa)
    if args.exclude_self:
        # Leave-one-out: j ≠ i, but a row with nothing left keeps itself.
        others = log_kappa.masked_fill(lags == 0, -torch.inf)
        alone = (others == -torch.inf).all(-1, keepdim=True)
        log_kappa = torch.where(alone, log_kappa, others)
    return log_kappa


def _content(args: AttentionArguments, query: Tensor, key: Tensor) -> Tensor:
    """Content logits of queries and keys."""
    if args.kernel is not None:
        return log_by_head(args.kernel, distances(query, key)).to(query.dtype)
    if args.bandwidth is None:
        return (query @ key.transpose(-1, -2)) * args.scale
    # Over σ first: σ² itself may underflow.
    return -0.5 * squared_distances(*(x / args.bandwidth.view(-1, 1, 1) for x in (query, key)))


def _lags(args: AttentionArguments, start: int, stop: int) -> Tensor:
    """i − j of the queries start … stop − 1 with all keys, (rows, Nk)."""
    device = args.query.device
    positions = torch.arange(start, stop, device=device) + args.offset
    return positions[:, None] - torch.arange(args.key.shape[2], device=device)
