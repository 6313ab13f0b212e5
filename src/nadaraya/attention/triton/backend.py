"""The backend "triton" of `kernel_attention`: what it can do, and the call."""

import math
import os
from functools import cache
from importlib.metadata import PackageNotFoundError, version

import torch
from torch import Tensor

from nadaraya.attention import reference
from nadaraya.attention.arguments import AttentionArguments
from nadaraya.attention.transforms import is_transformed

_DTYPES = (torch.float16, torch.bfloat16, torch.float32)
_WIDEST = 256
_OLDEST = (8, 0)
_OLDEST_TRITON = (3, 6)
# Up to so many rows (queries × heads that share keys), and from so many keys a row, the keys are split.
_MOST_DECODING_ROWS = {torch.float32: 16, torch.float16: 64, torch.bfloat16: 64}
_FEWEST_CACHED = 4


def why_not(args: AttentionArguments) -> str | None:
    """Why this backend cannot do a call, or None when it can."""
    query = args.query
    reason = None
    if _triton_version() < _OLDEST_TRITON:
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
    elif args.attn_mask is not None:
        reason = "it takes no attn_mask"
    elif args.dropout_p > 0.0:
        reason = "it has no dropout"
    elif not torch.compiler.is_compiling() and is_transformed():
        reason = "it has no rule for torch.func transforms and forward-mode differentiation"
    return reason


@cache
def _triton_version() -> tuple[int, ...]:
    """Major and minor version; nothing where Triton is not installed."""
    try:
        return tuple(int(part) for part in version("triton").split(".")[:2])
    except PackageNotFoundError:
        return ()


def is_interpreted() -> bool:
    """Whether Triton was told to run kernels on the CPU."""
    return os.environ.get("TRITON_INTERPRET") == "1"


def attention(args: AttentionArguments) -> Tensor:
    """`kernel_attention` by the fused kernels.

    Args:
        args: the checked arguments; `why_not` must have returned None.

    Returns:
        (B, H, Nq, dv) in the dtype of the query.
    """
    if 0 in (*args.query.shape, *args.key.shape, *args.value.shape):
        return reference.attention(args)[0]
    from nadaraya.attention.triton.decoding_operator import triton_decoding
    from nadaraya.attention.triton.launch import with_dense_rows
    from nadaraya.attention.triton.one_tensor_operator import triton_one_tensor_attention
    from nadaraya.attention.triton.operator import triton_attention

    window = args.window or 0
    if window >= max(args.query.shape[2], args.key.shape[2]):
        window = 0  # it hides nothing
    if _decodes(args):
        out, lse = triton_decoding(
            with_dense_rows(args.query), with_dense_rows(args.key), with_dense_rows(args.value), args.scale,
            args.bandwidth, args.lag_logits, args.key_padding_mask, args.causal, window, args.exclude_self,
        )  # fmt: skip
    elif _is_one_tensor(args):
        assert args.bandwidth is not None
        features, centre = _centred_features(args)
        out, lse, _ = triton_one_tensor_attention(
            with_dense_rows(features), args.bandwidth, args.causal, window, args.exclude_self
        )
        if centre is not None:
            out = out + centre
    else:
        query, key = _centred(args)
        out, lse, _ = triton_attention(
            with_dense_rows(query), with_dense_rows(key), with_dense_rows(args.value), args.scale,
            args.bandwidth, args.lag_logits, args.key_padding_mask, args.causal, window, args.exclude_self,
        )  # fmt: skip
    if args.eps > 0.0:
        out = out * _mass_fraction(lse, args.eps).to(out.dtype)
    return out


def _decodes(args: AttentionArguments) -> bool:
    """Whether a few queries meet many keys, and no gradient is wanted."""
    tensors = (args.query, args.key, args.value, args.bandwidth, args.lag_logits)
    differentiated = torch.is_grad_enabled() and any(t is not None and t.requires_grad for t in tensors)
    rows = args.query.shape[2] * (args.query.shape[1] // args.key.shape[1])
    return (
        not differentiated
        and rows <= _MOST_DECODING_ROWS[args.query.dtype]
        and args.key.shape[2] >= _FEWEST_CACHED * rows
    )


def _is_one_tensor(args: AttentionArguments) -> bool:
    """Whether the call smooths one tensor on itself by a Gaussian alone, in a way that has one gradient."""
    return (
        args.query is args.key
        and args.key is args.value
        and args.similarity == "gaussian"
        and args.lag_logits is None
        and args.key_padding_mask is None
    )


def _centred_features(args: AttentionArguments) -> tuple[Tensor, Tensor | None]:
    """Float32 features minus their mean, which the weights' sum of 1 gives back to the output.

    Points far from the origin would lose digits in ‖x‖² − 2 x·y + ‖y‖². Half precision has none to lose: its
    products are exact in float32, and a difference rounded to it would be worse.
    """
    if args.query.dtype != torch.float32:
        return args.query, None
    centre = args.key_centre()
    return args.query - centre, centre


def _centred(args: AttentionArguments) -> tuple[Tensor, Tensor]:
    """Float32 queries and keys of a Gaussian minus the mean of the keys; see `_centred_features`."""
    query, key = args.query, args.key
    if args.similarity == "dot" or query.dtype != torch.float32:
        return query, key
    centre = args.key_centre()
    if query is key:
        return (query - centre,) * 2
    return query - centre.repeat_interleave(query.shape[1] // key.shape[1], 1), key - centre


def _mass_fraction(lse: Tensor, eps: float) -> Tensor:
    """Z / (Z + ε) with Z = Σ_j κ(i,j), (B, H, Nq, 1), from log₂ Z."""
    log_mass = math.log(2.0) * torch.where(lse == -torch.inf, 0.0, lse)
    return torch.sigmoid(log_mass - math.log(eps))[..., None]
