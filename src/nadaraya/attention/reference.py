"""The definition of the operator, written to be read; every other backend must agree with it.

    out_i = Σ_j κ(i,j) v_j / (Σ_j κ(i,j) + ε)      log κ(i,j) = content(i,j) + position(i,j) + a_j + mask(i,j)

Memory is O(Nq · Nk): use it for small problems, for tests and where the weights themselves are wanted.
"""

from dataclasses import replace
from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor

from nadaraya.attention.arguments import AttentionArguments
from nadaraya.attention.distances import distances, squared_distances
from nadaraya.attention.local_line import along_line
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
    args = args.with_repeated_heads()
    log_kappa = logits(args)
    # Any shift of a row cancels between numerator and denominator; the row's maximum keeps exp in range.
    shift = (
        log_kappa.detach().amax(-1, keepdim=True) if args.key.shape[2] else log_kappa.sum(-1, keepdim=True)
    )
    shift = shift.masked_fill(shift == -torch.inf, 0.0)
    kappa = torch.exp(log_kappa - shift)
    if args.factored is not None:
        kappa = kappa * _products(args)
    normaliser = kappa.sum(-1, keepdim=True)
    nothing = normaliser <= 0
    lse = (normaliser.masked_fill(nothing, 1.0).log() + shift).masked_fill(nothing, -torch.inf)[..., 0]
    if args.factored is None:
        if args.eps > 0.0:  # exp(−shift) may be infinite, and 0 · ∞ is not 0
            normaliser = normaliser + args.eps * torch.exp(-shift)
        weights = kappa / normaliser.masked_fill(normaliser == 0, 1.0)
    elif args.factored.normalise:
        weights = kappa / args.factored.denominator(normaliser, torch.exp(-shift), args.eps)
    else:
        weights = kappa * torch.exp(shift)
    if args.degree or args.probe is not None:
        if args.spoilt:  # a weight of 0 times such a key would be NaN
            finite = args.key.isfinite().all(-1, keepdim=True)
            args = replace(args, key=args.key.masked_fill(~finite, 0.0))
        weights = along_line(args, weights)
    weights = F.dropout(weights, args.dropout_p)
    value = args.value.to(weights.dtype)
    out = weights @ value
    if args.spoilt:
        # Values that are not finite reach the rows that see them; in others 0 times them would be NaN.
        spoilt = ~value.isfinite()
        reached = (log_kappa != -torch.inf).to(value.dtype) @ spoilt.to(value.dtype) > 0.0
        out = torch.where(reached, out.detach(), weights @ value.masked_fill(spoilt, 0.0))
    return Results(out.to(args.query.dtype), weights, lse)


def logits(args: AttentionArguments) -> Tensor:
    """log κ of all queries and keys, −inf where κ = 0; of factored content what multiplies the product.

    Returns:
        (B, H, Nq, Nk) in float32 at least.
    """
    args = args.with_repeated_heads()
    query = args.query.to(args.compute_dtype)
    given = key = args.key.to(args.compute_dtype)
    finite = key.isfinite().all(-1, keepdim=True) if args.spoilt else None
    if finite is not None:
        key = torch.where(finite, key, 0.0)  # products of others with a gradient of 0 would be NaN
    log_kappa = _content(args, query, key)
    lags = lags_of(args)
    if args.lag_logits is not None:
        log_kappa = log_kappa + args.lag_logits[:, lags + args.lag_logits.shape[1] // 2]
    if args.mixture is not None:
        log_kappa = log_kappa + args.mixture.pairs(lags)
    if args.grid is not None:
        log_kappa = log_kappa + args.grid.dense()
    if args.key_bias is not None:
        log_kappa = log_kappa + args.key_bias[:, :, None, :]
    if args.attn_mask is not None:
        if args.attn_mask.dtype == torch.bool:
            log_kappa = log_kappa.masked_fill(~args.attn_mask, -torch.inf)
        else:
            log_kappa = log_kappa + args.attn_mask
    if args.key_padding_mask is not None:
        log_kappa = log_kappa.masked_fill(args.key_padding_mask[:, None, None, :], -torch.inf)
    if args.document_ids is not None:
        others = args.ids_of_queries[:, :, None] != args.document_ids[:, None, :]
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
    if args.nearest is not None and args.nearest < args.key.shape[2]:
        kept = log_kappa.topk(args.nearest, dim=-1).indices
        log_kappa = log_kappa.masked_fill(
            torch.ones_like(log_kappa, dtype=torch.bool).scatter(-1, kept, False), -torch.inf
        )
    return log_kappa


def _products(args: AttentionArguments) -> Tensor:
    """φ(q_i)·ψ(k_j) G(i − j), factored content with its position."""
    query, key = (t.to(args.compute_dtype) for t in (args.query, args.key))
    if args.spoilt:  # logits have what such keys are to the rows that see them
        key = torch.where(key.isfinite().all(-1, keepdim=True), key, 0.0)
    products = query @ key.mT
    if args.lag_values is not None:
        products = products * args.lag_values[:, lags_of(args) + args.lag_values.shape[1] // 2]
    return products


def _content(args: AttentionArguments, query: Tensor, key: Tensor) -> Tensor:
    """Content logits of queries and keys."""
    if args.factored is not None:
        if args.spoilt:  # NaN where a key is not finite
            return 0.0 * (query.detach() @ key.detach().mT)
        return query.new_zeros((*query.shape[:3], key.shape[2]))
    if args.kernel is not None:
        return log_by_head(args.kernel, distances(query, key)).to(query.dtype)
    if args.bandwidth is None:
        return (query @ key.transpose(-1, -2)) * args.scale
    # Over σ first: σ² itself may underflow.
    return -0.5 * squared_distances(*(x / args.bandwidth.view(-1, 1, 1) for x in (query, key)))


def lags_of(args: AttentionArguments) -> Tensor:
    """i − j of all queries and keys, (Nq, Nk)."""
    return lags_between(args.query.shape[2], args.key.shape[2], args.offset, args.query.device)


def lags_between(num_queries: int, num_keys: int, offset: int, device: torch.device) -> Tensor:
    """i − j of all queries and keys, (Nq, Nk)."""
    positions = torch.arange(num_queries, device=device) + offset
    return positions[:, None] - torch.arange(num_keys, device=device)
