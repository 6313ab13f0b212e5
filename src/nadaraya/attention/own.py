"""The token's own position: its logit, and what is taken out of the output for it.

Excluding the token is a mask, and lies in the logits; the other forms follow the softmax.
"""

import torch
import torch.nn.functional as F
from torch import Tensor

from nadaraya.attention.arguments import AttentionArguments

_ROUNDINGS = 64  # of a logit that is computed in two ways, generously


def finished(args: AttentionArguments, out: Tensor, lse: Tensor | None) -> Tensor:
    """The output of the call from that of its softmax: ε in the denominator, the token's own share taken out.

    Args:
        args: the checked arguments.
        out: (B, H, Nq, dv) Σ_j κ(i,j) v_j / Σ_j κ(i,j).
        lse: (B, H, Nq) log Σ_j κ(i,j); may be None where `needs_lse` says so.

    Returns:
        (B, H, Nq, dv) in the dtype of `out`.
    """
    if args.eps > 0.0:
        assert lse is not None
        out = out * args.mass_fraction(lse).to(out.dtype)
    if args.own == "project-out":
        return without_direction(out, own_values(args))
    if args.own == "drop-value":
        assert lse is not None
        nothing, logits = lse == -torch.inf, own_logits(args)
        share = torch.exp(logits - lse.masked_fill(nothing, 0.0)).masked_fill(nothing, 0.0)
        if args.eps > 0.0:
            share = share * args.mass_fraction(lse)[..., 0]
        out = torch.addcmul(out, share[..., None].to(out.dtype), own_values(args).to(out.dtype), value=-1)
        # Others that weigh less than rounding are nothing: with none at all the output is 0, not rounding.
        rounding = _ROUNDINGS * torch.finfo(lse.dtype).eps * (1.0 + lse.abs())
        return out.masked_fill((lse - logits <= rounding)[..., None], 0.0)
    return out


def needs_lse(args: AttentionArguments) -> bool:
    """Return whether `finished` reads the log-sum-exp."""
    return args.eps > 0.0 or args.own == "drop-value"


def without_direction(out: Tensor, value: Tensor) -> Tensor:
    """y − (y·v̂) v̂, v̂ = v / ‖v‖, for y and v (…, e); y where v = 0. In float32 at least, as y's dtype."""
    dtype = torch.promote_types(out.dtype, torch.float32)
    y, v = out.to(dtype), value.to(dtype)
    square = v.square().sum(-1, keepdim=True)
    share = (y * v).sum(-1, keepdim=True) / square.masked_fill(square == 0, 1.0)
    return (y - share * v).to(out.dtype)


def own_values(args: AttentionArguments) -> Tensor:
    """The values at the queries' own positions, (B, H, Nq, dv)."""
    return _at_own_position(args.with_repeated_heads().value, args)


def own_logits(args: AttentionArguments) -> Tensor:
    """log κ(i,i) of every query with the key at its own position, as if no token were excluded.

    Returns:
        (B, H, Nq) in float32 at least, −inf where that pair takes no part.
    """
    args = args.with_repeated_heads()
    query, key = args.query, _at_own_position(args.key, args)
    if args.bandwidth is None:
        logits = (query.to(args.compute_dtype) * key).sum(-1) * args.scale
    else:
        difference = (query.to(args.compute_dtype) - key) / args.bandwidth.view(-1, 1, 1)
        logits = -0.5 * difference.square().sum(-1)
    if args.lag_logits is not None:
        logits = logits + args.lag_logits[:, args.lag_logits.shape[1] // 2, None]
    if args.mixture is not None:
        logits = logits + args.mixture.at_own()
    if args.grid is not None:
        logits = logits + args.grid.at_own()
    if args.key_logits is not None:
        by_key = args.key_logits.expand(-1, -1, args.key.shape[2])[..., None]
        logits = logits + _at_own_position(by_key, args)[..., 0]
    positions = torch.arange(query.shape[2], device=query.device) + args.offset
    hidden = (positions < 0).expand(logits.shape)
    if args.key_padding_mask is not None:
        padding = args.key_padding_mask[:, None, :, None]
        hidden = hidden | _at_own_position(padding, args)[..., 0]
    if args.attn_mask is not None:
        mask = args.attn_mask.expand(*args.attn_mask.shape[:2], query.shape[2], args.key.shape[2])
        columns = positions.clamp(min=0)[:, None].expand(*mask.shape[:2], -1, 1)
        own_mask = mask.gather(3, columns)[..., 0]
        if own_mask.dtype == torch.bool:
            hidden = hidden | ~own_mask
        else:
            logits = logits + own_mask
    return logits.masked_fill(hidden, -torch.inf)


def _at_own_position(tensor: Tensor, args: AttentionArguments) -> Tensor:
    """A tensor by key (…, Nk, e) at the queries' own positions (…, Nq, e); zero before the first key."""
    if args.offset >= 0:
        return tensor[:, :, args.offset :]
    return F.pad(tensor, (0, 0, -args.offset, 0))
