"""The backend "triton" of `kernel_attention`: what it can do, and the call."""

import math
import os
from importlib.metadata import PackageNotFoundError, version

import torch
from torch import Tensor

from nadaraya.attention import reference
from nadaraya.attention.arguments import AttentionArguments

try:
    _TRITON = tuple(int(part) for part in version("triton").split(".")[:2])
except PackageNotFoundError:
    _TRITON = ()

_DTYPES = (torch.float16, torch.bfloat16, torch.float32)
_WIDEST = 256
_OLDEST = (8, 0)
_OLDEST_TRITON = (3, 6)
# The keys are split among programs up to this many rows (queries × heads that share keys), and from this many
# keys per row on.
_MOST_DECODING_ROWS = {torch.float32: 16, torch.float16: 64, torch.bfloat16: 64}
_FEWEST_CACHED = 4
_FEWEST_PRUNED = 1024  # keys: of fewer none are looked for that are negligible


def why_not(args: AttentionArguments) -> str | None:
    """Why this backend cannot do a call, or None when it can."""
    query, reason = args.query, None
    if _TRITON < _OLDEST_TRITON:
        reason = f"it needs Triton {'.'.join(map(str, _OLDEST_TRITON))} or newer"
    elif query.device.type != "cuda" and not is_interpreted():
        reason = f"the tensors are on {query.device.type}, not on a CUDA device"
    elif query.device.type == "cuda" and torch.version.hip is not None:
        reason = "its kernels are for NVIDIA GPUs"
    elif query.device.type == "cuda" and torch.cuda.get_device_capability(query.device) < _OLDEST:
        reason = "it needs a GPU of compute capability 8.0 or newer"
    elif query.dtype not in _DTYPES:
        reason = f"it computes in float16, bfloat16 or float32, not {query.dtype}"
    elif max(query.shape[3], args.value.shape[3]) > _WIDEST:
        reason = f"heads are wider than {_WIDEST}"
    elif args.kernel is not None:
        reason = "of kernels of the distance it knows the Gaussian alone"
    elif args.has_own_form:
        reason = "it has weighted means of all keys alone, and no factorised content"
    elif args.attn_mask is not None:
        reason = "it takes no attn_mask"
    elif args.dropout_p > 0.0:
        reason = "it has no dropout"
    return reason


def is_interpreted() -> bool:
    """Return whether Triton was told to run kernels on the CPU."""
    return os.environ.get("TRITON_INTERPRET") == "1"


def attention(args: AttentionArguments, with_lse: bool = False) -> tuple[Tensor, Tensor | None]:
    """`kernel_attention` by the fused kernels.

    Args:
        args: the checked arguments; `why_not` must have returned None.
        with_lse: whether the log-sum-exp is wanted.

    Returns:
        (B, H, Nq, dv) in the dtype of the query, and log Σ_j κ(i,j), (B, H, Nq) in float32, or None.
    """
    if 0 in (*args.query.shape, *args.key.shape, *args.value.shape):
        out, _, lse = reference.attention(args)
        return out, lse if with_lse else None
    from nadaraya.attention.triton.active import active_blocks
    from nadaraya.attention.triton.decoding import triton_decoding
    from nadaraya.attention.triton.launch import document_bounds, with_dense_rows
    from nadaraya.attention.triton.operator import triton_attention
    from nadaraya.attention.triton.per_query import triton_attention_per_query

    documents = None if args.document_ids is None else document_bounds(args.document_ids)
    content, window = (args.scale, args.bandwidth), _window(args)
    masks = (
        args.key_bias, args.key_padding_mask, documents, args.causal, window, args.exclude_self
    )  # fmt: skip
    if decodes(args):
        query, key, value = (with_dense_rows(t) for t in (args.query, args.key, args.value))
        out, lse_in_bits = triton_decoding(query, key, value, *content, args.lag_logits, *masks)
    elif _is_one_tensor(args):
        query, _, centre = _centred(args)
        out, lse_in_bits, _ = triton_attention(with_dense_rows(query), None, None, *content, None, *masks)
        if centre is not None:
            out = out + centre  # the weights sum to 1
    else:
        query, key, _ = _centred(args)
        query, key, value = (with_dense_rows(t) for t in (query, key, args.value))
        if args.mixture is None and args.grid is None:
            active = None
            if args.prune_tol > 0.0 and args.lag_logits is not None and key.shape[2] > _FEWEST_PRUNED:
                active = active_blocks(args, query, key, documents, window)
            out, lse_in_bits, _ = triton_attention(
                query, key, value, *content, args.lag_logits, *masks, active
            )
        else:
            position = _per_query(args)
            out, lse_in_bits, _ = triton_attention_per_query(query, key, value, *content, *position, *masks)
    natural = math.log(2.0) * lse_in_bits if with_lse or args.eps > 0.0 else None
    return args.with_eps(out, natural), natural


def _per_query(args: AttentionArguments) -> tuple[Tensor | None, Tensor, Tensor | None]:
    """Weights, table and shift of a position that needs a logit per pair."""
    if args.mixture is not None:
        return args.mixture.weights, *args.mixture.factors()
    assert args.grid is not None
    return None, args.grid.logits, None


def _window(args: AttentionArguments) -> int:
    """Only smaller lags are seen; 0 for no limit."""
    window = args.window or 0
    if args.mixture is not None and args.mixture.of_kernels:  # they are 0 beyond their extent
        window = min(window or args.mixture.extent, args.mixture.extent)
    return 0 if window >= max(args.query.shape[2], args.key.shape[2]) else window


def decodes(args: AttentionArguments) -> bool:
    """Return whether there are few queries, many keys and no gradients."""
    tensors = (args.query, args.key, args.value, args.bandwidth, args.lag_logits, args.key_bias)
    differentiated = torch.is_grad_enabled() and any(t is not None and t.requires_grad for t in tensors)
    rows = args.query.shape[2] * (args.query.shape[1] // args.key.shape[1])
    return (
        not differentiated
        and args.mixture is None
        and args.grid is None
        and rows <= _MOST_DECODING_ROWS[args.query.dtype]
        and args.key.shape[2] >= _FEWEST_CACHED * rows
    )


def _is_one_tensor(args: AttentionArguments) -> bool:
    """Return whether the call smooths one tensor on itself by a Gaussian alone, with one gradient."""
    others = (args.lag_logits, args.mixture, args.grid, args.key_bias, args.key_padding_mask)
    alone = args.bandwidth is not None and all(part is None for part in others)
    return alone and args.query is args.key and args.key is args.value


def _centred(args: AttentionArguments) -> tuple[Tensor, Tensor, Tensor | None]:
    """Queries and keys minus the mean of the keys, and that mean; only the Gaussian's in float32 are moved.

    Points far from the origin would lose digits in ‖x‖² − 2 x·y + ‖y‖². Half precision has none to lose: its
    products are exact in float32, and a difference rounded to it would be worse.
    """
    query, key = args.query, args.key
    if args.bandwidth is None or query.dtype != torch.float32:
        return query, key, None
    centre = args.key_centre()
    if query is key:
        query = key = query - centre
    else:
        query = query - centre.repeat_interleave(query.shape[1] // key.shape[1], 1)
        key = key - centre
    return query, key, centre
