"""Logits of queries with the keys at their own positions, and the entries there of any tensor by key."""

import torch
import torch.nn.functional as F
from torch import Tensor

from nadaraya.attention.arguments import AttentionArguments


def own_logits(args: AttentionArguments) -> Tensor:
    """log κ(i,i) of every query with the key at its own position, as if no token were excluded.

    Returns:
        (B, H, Nq) in float32 at least, −inf where that pair takes no part.
    """
    args = args.with_repeated_heads()
    query, key = args.query, at_own_position(args.key, args)
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
    if args.key_bias is not None:
        by_key = args.key_bias.expand(-1, -1, args.key.shape[2])[..., None]
        logits = logits + at_own_position(by_key, args)[..., 0]
    positions = torch.arange(query.shape[2], device=query.device) + args.offset
    hidden = (positions < 0).expand(logits.shape)
    if args.key_padding_mask is not None:
        padding = args.key_padding_mask[:, None, :, None]
        hidden = hidden | at_own_position(padding, args)[..., 0]
    if args.attn_mask is not None:
        mask = args.attn_mask.expand(*args.attn_mask.shape[:2], query.shape[2], args.key.shape[2])
        columns = positions.clamp(min=0)[:, None].expand(*mask.shape[:2], -1, 1)
        own_mask = mask.gather(3, columns)[..., 0]
        if own_mask.dtype == torch.bool:
            hidden = hidden | ~own_mask
        else:
            logits = logits + own_mask
    return logits.masked_fill(hidden, -torch.inf)


def at_own_position(tensor: Tensor, args: AttentionArguments) -> Tensor:
    """A tensor by key (…, Nk, e) at the queries' own positions (…, Nq, e); zero before the first key."""
    if args.offset >= 0:
        return tensor[..., args.offset :, :]
    return F.pad(tensor, (0, 0, -args.offset, 0))
