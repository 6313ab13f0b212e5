"""Attention whose output leaves out the token's own value, or its direction."""

from typing import Literal, NamedTuple

import torch
from torch import Tensor

from nadaraya.attention.arguments import mass_fraction
from nadaraya.attention.factored import Factored
from nadaraya.attention.functional import AttentionOptions, kernel_attention

OwnValue = Literal["drop", "project-out"]
_ROUNDINGS = 64  # of a logit that is computed in two ways, generously


class Attended(NamedTuple):
    """Output, and weights and log-sum-exp where they were asked for."""

    out: Tensor
    weights: Tensor | None
    lse: Tensor | None


def attend(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    own_value: OwnValue | None,
    options: AttentionOptions,
    *,
    weights: bool = False,
    lse: bool = False,
) -> Attended:
    """`kernel_attention` of tokens on themselves without the value of each token, or without its direction.

    Args:
        query, key, value, options: those of the call.
        own_value: "drop", Σ_{j ≠ i} κ(i,j) v_j / (Σ_j κ(i,j) + ε), which is exactly 0 where all others
            together weigh less than rounding; "project-out", y − (y·v̂) v̂ of the output y, v̂ = v / ‖v‖ (XSA,
            Zhai 2026); or None, `kernel_attention` itself.
        weights: whether weights are wanted, by the O(N²) definition; dropped values have none.
        lse: whether the log-sum-exp is wanted.
    """
    drops, content = own_value == "drop", options.get("content")
    form = content if isinstance(content, Factored) else Factored()
    # A denominator with a floor is not that of the token itself.
    by_definition = weights or (drops and (options.get("dropout_p", 0.0) > 0.0 or form.floor is not None))
    log_mass = kept = None
    if lse or (drops and form.normalise and not by_definition):
        out, log_mass = kernel_attention(query, key, value, return_lse=True, **options)
    if by_definition:
        out, kept = kernel_attention(query, key, value, return_weights=True, **options)
        if drops:
            own_pairs = torch.zeros_like(kept[0, 0], dtype=torch.bool)
            own_pairs.diagonal(key.shape[2] - query.shape[2]).fill_(True)
            share = kept.masked_fill(~own_pairs, 0.0).sum(-1, keepdim=True)
            out = out - (share * own_rows(value, out)).to(out.dtype)
            kept = kept.masked_fill(own_pairs, 0.0)
    elif drops and not form.normalise:
        itself: AttentionOptions = {**options, "window": 1}
        out = kernel_attention(query, key, value, **options) - kernel_attention(query, key, value, **itself)
    elif drops:
        assert log_mass is not None
        out = _without_own_share(out, log_mass, query, key, value, options)
    elif not lse:
        out = kernel_attention(query, key, value, **options)
    if own_value == "project-out":
        out = without_direction(out, own_rows(value, out))
    return Attended(out, kept if weights else None, log_mass if lse else None)


def _without_own_share(
    out: Tensor, lse: Tensor, query: Tensor, key: Tensor, value: Tensor, options: AttentionOptions
) -> Tensor:
    """The output less each token's share of it, which a window of one lag gives."""
    of_itself: AttentionOptions = {**options, "window": 1, "eps": 0.0}
    own, logits = kernel_attention(query, key, value, return_lse=True, **of_itself)
    nothing = lse == -torch.inf
    share = torch.exp(logits - lse.masked_fill(nothing, 0.0)).masked_fill(nothing, 0.0)[..., None]
    if (eps := options.get("eps", 0.0)) > 0.0:
        share = share * mass_fraction(lse, eps)
    rounding = _ROUNDINGS * torch.finfo(lse.dtype).eps * (1.0 + lse.abs())
    others = torch.addcmul(out, share.to(out.dtype), own, value=-1)
    return others.masked_fill((lse - logits <= rounding)[..., None], 0.0)


def without_direction(out: Tensor, value: Tensor) -> Tensor:
    """y − (y·v̂) v̂ for y and v (…, e), in float32 at least; y where v = 0."""
    dtype = torch.promote_types(out.dtype, torch.float32)
    y, v = out.to(dtype), value.to(dtype)
    square = v.square().sum(-1, keepdim=True)
    share = (y * v).sum(-1, keepdim=True) / square.masked_fill(square == 0, 1.0)
    return (y - share * v).to(out.dtype)


def own_rows(value: Tensor, out: Tensor) -> Tensor:
    """The value at each query's own position, (B, H, Nq, dv)."""
    heads, num_queries = out.shape[1:3]
    return value[:, :, value.shape[2] - num_queries :].repeat_interleave(heads // value.shape[1], 1)
