"""`kernel_attention`: the contract of the operator, the argument checks and the choice of backend."""

from collections.abc import Callable
from contextlib import nullcontext
from typing import Literal, NamedTuple, TypedDict, Unpack, overload

import torch
from torch import Tensor

from nadaraya.attention import reference, sdpa, triton
from nadaraya.attention.arguments import AttentionArguments, check_arguments
from nadaraya.errors import InputError, unknown_name


class _Backend(NamedTuple):
    """A way to compute the operator."""

    why_not: Callable[[AttentionArguments], str | None]  # why it cannot do a call, None when it can
    attention: Callable[[AttentionArguments], Tensor]
    devices: frozenset[str] | None  # where "auto" may choose it; None, everywhere


# Fastest first.
_FAST_BACKENDS = {
    "triton": _Backend(triton.why_not, triton.attention, frozenset({"cuda"})),
    "sdpa": _Backend(sdpa.why_not, sdpa.attention, None),
}


class AttentionOptions(TypedDict, total=False):
    """The keyword arguments of `kernel_attention`, `return_weights` excepted; that function explains them."""

    similarity: str
    scale: float | None
    bandwidth: float | Tensor | None
    lag_logits: Tensor | None
    causal: bool
    window: int | None
    exclude_self: bool
    key_padding_mask: Tensor | None
    attn_mask: Tensor | None
    dropout_p: float
    eps: float
    backend: str


@overload
def kernel_attention(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    *,
    return_weights: Literal[False] = ...,
    **options: Unpack[AttentionOptions],
) -> Tensor: ...


@overload
def kernel_attention(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    *,
    return_weights: Literal[True],
    **options: Unpack[AttentionOptions],
) -> tuple[Tensor, Tensor]: ...


def kernel_attention(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    *,
    similarity: str = "dot",
    scale: float | None = None,
    bandwidth: float | Tensor | None = None,
    lag_logits: Tensor | None = None,
    causal: bool = False,
    window: int | None = None,
    exclude_self: bool = False,
    key_padding_mask: Tensor | None = None,
    attn_mask: Tensor | None = None,
    dropout_p: float = 0.0,
    eps: float = 0.0,
    backend: str = "auto",
    return_weights: bool = False,
) -> Tensor | tuple[Tensor, Tensor]:
    r"""Attention as Nadaraya-Watson regression with an explicit kernel.

        out_i = Σ_j κ(i,j) v_j / (Σ_j κ(i,j) + ε)
        log κ(i,j) = content(i,j) + position(i − j) + mask(i,j)

    Content is q_i·k_j·scale, or −‖q_i − k_j‖² / (2σ_h²) (document D, equation 3); position is a table of
    logits by lag (documents B and C, equation 6). Softmax attention, ALiBi, T5's bias, both forms of
    Gaussian process attention, Gaussian kernel attention and kernel regression are all points of this form.

    Sequences of unequal length are aligned at their ends, as in decoding: query i is at position
    i + Nk − Nq. A row that may see no key gives zeros, never NaN.

    Args:
        query: (B, H, Nq, d), float16, bfloat16, float32 or float64.
        key: (B, G, Nk, d); H must be a multiple of G, and each key head serves H / G query heads.
        value: (B, G, Nk, dv).
        similarity: "dot" or "gaussian".
        scale: factor of the dot product; default 1/√d.
        bandwidth: σ of the Gaussian, in the units of the features: a positive number or a tensor of shape
            (H,); required for "gaussian". Differentiable.
        lag_logits: (H, L) with one logit for each lag |i − j| = 0 … L − 1, or (H, 2L − 1) signed, entry
            r + L − 1 for lag r = i − j; L = max(Nq, Nk). A first dimension of 1 serves all heads.
            Differentiable. An additive kernel passes G (document C), a multiplied one log G (document B).
        causal: keys at positions after the query's take no part.
        window: only lags |i − j| < window take part; None for no limit.
        exclude_self: leave-one-out, j ≠ i; a row with nothing left keeps itself.
        key_padding_mask: (B, Nk) bool, True where a key is padding, as in `torch.nn.MultiheadAttention`.
        attn_mask: broadcastable to (B, H, Nq, Nk), as in `scaled_dot_product_attention`: bool, True where
            the pair takes part, or floating point, added to the logits.
        dropout_p: probability of dropping a weight; the caller passes 0 in evaluation.
        eps: ε in the denominator (document D, equation 4); default 0.
        backend: "reference" (the definition, O(Nq·Nk) memory), "sdpa" (exact rewrites onto PyTorch's fused
            attention, O(Nq + Nk) memory), "triton" (fused kernels for NVIDIA GPUs, O(Nq + Nk) memory), or
            "auto", the fastest that can do the call. The fused kernels have no dropout and no attn_mask: such
            calls take "sdpa" on a GPU too.
        return_weights: also return the weights; only the reference has them.

    Returns:
        (B, H, Nq, dv) in the dtype of the query; with `return_weights` also (B, H, Nq, Nk) in float32 at
        least.

    Raises:
        InputError: for arguments that do not fit, or a backend asked for by name that cannot do the call.
    """
    args = check_arguments(
        query,
        key,
        value,
        similarity=similarity,
        scale=scale,
        bandwidth=bandwidth,
        lag_logits=lag_logits,
        causal=causal,
        window=window,
        exclude_self=exclude_self,
        key_padding_mask=key_padding_mask,
        attn_mask=attn_mask,
        dropout_p=dropout_p,
        eps=eps,
    )
    name = _choose_backend(backend, args, return_weights)
    device = query.device.type
    autocast = torch.amp.is_autocast_available(device) and torch.is_autocast_enabled(device)
    # Backends choose their own precision; autocast would take sums and tables out of float32.
    with torch.autocast(device, enabled=False) if autocast else nullcontext():
        if name == "reference":
            out, weights = reference.attention(args)
            return (out, weights) if return_weights else out
        return _FAST_BACKENDS[name].attention(args)


def _choose_backend(backend: str, args: AttentionArguments, return_weights: bool) -> str:
    if backend not in ("auto", "reference", *_FAST_BACKENDS):
        raise unknown_name("backend", backend, ("auto", "reference", *_FAST_BACKENDS))
    if backend == "reference":
        return backend
    if backend == "auto":
        if return_weights:
            return "reference"
        device = args.query.device.type
        for name, fast in _FAST_BACKENDS.items():
            if (fast.devices is None or device in fast.devices) and fast.why_not(args) is None:
                return name
        return "reference"
    reason = "only the reference returns weights" if return_weights else _FAST_BACKENDS[backend].why_not(args)
    if reason is not None:
        raise InputError(f"backend {backend!r} cannot do this call: {reason}")
    return backend
