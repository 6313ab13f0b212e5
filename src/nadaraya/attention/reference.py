"""The definition of the operator, written to be read; every other backend must agree with it.

    out_i = Σ_j κ(i,j) v_j / (Σ_j κ(i,j) + ε)        log κ(i,j) = content(i,j) + position(i − j) + mask(i,j)

Memory is O(Nq · Nk): use it for small problems, for tests and where the weights themselves are wanted.
"""

from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor

from nadaraya.attention.arguments import AttentionArguments


class Results(NamedTuple):
    """What rows of queries have: output, weights, and the logarithm of what the weights were divided by.

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
    out = weights @ args.value.to(weights.dtype)
    return Results(out.to(args.query.dtype), weights, lse)


def logits(args: AttentionArguments, start: int, stop: int) -> Tensor:
    """log κ of the queries start … stop − 1 against all keys; −inf where κ = 0.

    Returns:
        (B, H, stop − start, Nk) in float32 at least.
    """
    args = args.with_repeated_heads()
    query = args.query[:, :, start:stop].to(args.compute_dtype)
    key = args.key.to(args.compute_dtype)
    if args.similarity == "gaussian":
        assert args.bandwidth is not None
        sigma = args.bandwidth.view(-1, 1, 1)
        if torch.compiler.is_exporting():  # other runtimes have no cdist; centring keeps the digits
            query, key = ((x - args.key_centre()) / sigma for x in (query, key))
            squares = query.square().sum(-1, keepdim=True) + key.square().sum(-1)[:, :, None]
            log_kappa = -0.5 * (squares - 2 * query @ key.transpose(-1, -2))
        else:
            # Direct differences: ‖q‖² + ‖k‖² − 2 q·k would lose digits far from the origin.
            distance = torch.cdist(query, key, compute_mode="donot_use_mm_for_euclid_dist")
            log_kappa = -0.5 * (distance / sigma).square()  # σ² itself may underflow
    else:
        log_kappa = (query @ key.transpose(-1, -2)) * args.scale

    positions = torch.arange(start, stop, device=query.device) + args.offset
    lags = positions[:, None] - torch.arange(key.shape[2], device=query.device)  # (rows, Nk): i − j
    if args.lag_logits is not None:
        log_kappa = log_kappa + args.lag_logits[:, lags + args.lag_logits.shape[1] // 2]
    if args.key_logits is not None:
        log_kappa = log_kappa + args.key_logits[:, :, None, :]
    if args.attn_mask is not None:
        mask = args.attn_mask[:, :, start:stop] if args.attn_mask.shape[2] > 1 else args.attn_mask
        if mask.dtype == torch.bool:
            log_kappa = log_kappa.masked_fill(~mask, -torch.inf)
        else:
            log_kappa = log_kappa + mask
    if args.key_padding_mask is not None:
        log_kappa = log_kappa.masked_fill(args.key_padding_mask[:, None, None, :], -torch.inf)
    if args.document_ids is not None:
        own = args.document_ids[:, args.offset :][:, start:stop]
        others = own[:, :, None] != args.document_ids[:, None, :]
        log_kappa = log_kappa.masked_fill(others[:, None], -torch.inf)
    if args.causal:
        log_kappa = log_kappa.masked_fill(lags < 0, -torch.inf)
    if args.window is not None:
        log_kappa = log_kappa.masked_fill(lags.abs() >= args.window, -torch.inf)
    if args.exclude_self:
        # Leave-one-out: j ≠ i, but a row with nothing left keeps itself.
        others = log_kappa.masked_fill(lags == 0, -torch.inf)
        alone = (others == -torch.inf).all(-1, keepdim=True)
        log_kappa = torch.where(alone, log_kappa, others)
    return log_kappa
