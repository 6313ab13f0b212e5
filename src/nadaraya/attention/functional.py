"""`kernel_attention`: the contract of the operator, the argument checks and the choice of backend."""

from contextlib import nullcontext
from typing import Literal, TypedDict, Unpack, overload

import torch
from torch import Tensor
from torch.autograd import forward_ad

from nadaraya.attention import reference, sdpa, triton
from nadaraya.attention.arguments import (
    AttentionArguments,
    check_attn_mask,
    check_content,
    check_document_ids,
    check_key_logits,
    check_key_padding_mask,
    check_lag_logits,
    check_options,
    check_tensors,
)
from nadaraya.errors import InputError, unknown_name

_FAST_BACKENDS = ("triton", "sdpa")  # fastest first


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
    key_logits: Tensor | None
    document_ids: Tensor | None
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
    return_lse: Literal[False] = ...,
    **options: Unpack[AttentionOptions],
) -> Tensor: ...


@overload
def kernel_attention(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    *,
    return_weights: Literal[True],
    return_lse: Literal[False] = ...,
    **options: Unpack[AttentionOptions],
) -> tuple[Tensor, Tensor]: ...


@overload
def kernel_attention(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    *,
    return_weights: Literal[False] = ...,
    return_lse: Literal[True],
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
    key_logits: Tensor | None = None,
    document_ids: Tensor | None = None,
    dropout_p: float = 0.0,
    eps: float = 0.0,
    backend: str = "auto",
    return_weights: bool = False,
    return_lse: bool = False,
) -> Tensor | tuple[Tensor, Tensor]:
    r"""Attention as Nadaraya-Watson regression with an explicit kernel.

        out_i = Σ_j κ(i,j) v_j / (Σ_j κ(i,j) + ε)
        log κ(i,j) = content(i,j) + position(i − j) + a_j + mask(i,j)

    Content is q_i·k_j·scale, or −‖q_i − k_j‖² / (2σ_h²) (Kundu et al. (2026), eq. 3). Position is a relative
    position bias by lag, log G in Bunks et al. (2025), eq. 6, and G in Gaussian Process Attention
    (anonymous), eq. 6. Softmax attention, ALiBi, T5's bias, both forms of Gaussian process attention,
    Gaussian kernel attention and kernel regression are special cases.

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
        lag_logits: relative position bias by lag: (H, L) with one logit for each lag |i − j| = 0 … L − 1, or
            (H, 2L − 1) signed, entry r + L − 1 for lag r = i − j; L = max(Nq, Nk). A first dimension of 1
            serves all heads. Differentiable.
        causal: each query sees only keys at its own position and before.
        window: each query sees only lags |i − j| < window; None for no limit.
        exclude_self: leave-one-out, j ≠ i; a row with nothing else to see keeps itself.
        key_padding_mask: (B, Nk) bool, True where a key is padding, as in `torch.nn.MultiheadAttention`.
        attn_mask: broadcastable to (B, H, Nq, Nk), as in `scaled_dot_product_attention`: bool, True where
            the pair takes part, or floating point, added to the logits. Differentiable.
        key_logits: a, (B, H, Nk), added to all logits of a key; dimensions of 1 serve all. For gates such as
            the Forgetting Transformer's (Lin et al. 2025), a_j = −Σ_{t ≤ j} log f_t, and for sinks.
            Differentiable.
        document_ids: (B, Nk) whole numbers: pairs take part within one document only, as if each were a call
            of its own. Every document is in one piece; `nadaraya.attention.document_ids_of` makes them from
            packed positions.
        dropout_p: probability of dropping a weight; the caller passes 0 in evaluation.
        eps: ε in the denominator (Kundu et al. (2026), eq. 4); default 0.
        backend: "reference" (the definition, O(Nq·Nk) memory), "sdpa" (exact rewrites onto PyTorch's fused
            attention, O(Nq + Nk) memory), "triton" (fused kernels for NVIDIA GPUs, O(Nq + Nk) memory, no
            dropout, no attn_mask), or "auto", the fastest that can do the call.
        return_weights: also return the weights; only the reference has them.
        return_lse: also return log Σ_j κ(i,j), −inf for rows that see nothing; ε is no part of it. Outputs
            over parts of the keys go together by `nadaraya.attention.merge_attention`. Differentiable.

    Returns:
        (B, H, Nq, dv) in the dtype of the query; with `return_weights` or `return_lse` a pair of it and the
        weights (B, H, Nq, Nk) or the log-sum-exp (B, H, Nq), in float32 at least.

    Raises:
        InputError: for arguments that do not fit, or a backend asked for by name that cannot do the call.

    >>> import torch
    >>> from nadaraya import kernel_attention
    >>> x = torch.randn(1, 2, 5, 8)  # batch, heads, tokens, width
    >>> decay = -0.5 * torch.arange(5.0)[None]  # one logit per lag, for all heads
    >>> kernel_attention(x, x, x, similarity="gaussian", bandwidth=1.5, lag_logits=decay, causal=True).shape
    torch.Size([1, 2, 5, 8])
    """
    if return_weights and return_lse:
        raise InputError("return_weights and return_lse must not be given together")
    check_tensors(query, key, value)
    check_options(window, dropout_p, eps)
    checked_similarity, factor, sigma = check_content(similarity, scale, bandwidth, query)
    args = AttentionArguments(
        query=query,
        key=key,
        value=value,
        similarity=checked_similarity,
        scale=factor,
        bandwidth=sigma,
        lag_logits=check_lag_logits(lag_logits, query, key),
        causal=bool(causal),
        window=window,
        exclude_self=bool(exclude_self),
        key_padding_mask=check_key_padding_mask(key_padding_mask, key),
        attn_mask=check_attn_mask(attn_mask, query, key),
        key_logits=check_key_logits(key_logits, query, key),
        document_ids=check_document_ids(document_ids, query, key),
        dropout_p=float(dropout_p),
        eps=float(eps),
    )
    name = _choose_backend(backend, args, return_weights)
    device = query.device.type
    autocast = torch.amp.is_autocast_available(device) and torch.is_autocast_enabled(device)
    # Backends choose their own precision; autocast would take sums and tables out of float32.
    with torch.autocast(device, enabled=False) if autocast else nullcontext():
        if name == "triton":
            out, lse = triton.attention(args)
        elif name == "sdpa" and not return_lse:
            return sdpa.attention(args)
        elif name == "sdpa":
            out, lse = sdpa.attention_and_lse(args)
        else:
            out, weights, lse = reference.attention(args)
            if return_weights:
                return out, weights
        return (out, lse) if return_lse else out


def _choose_backend(backend: str, args: AttentionArguments, return_weights: bool) -> str:
    if backend == "auto":
        on_gpu = args.query.device.type == "cuda"
        candidates = [name for name in _FAST_BACKENDS if on_gpu or name != "triton"]
        return next((n for n in candidates if _why_not(n, args, return_weights) is None), "reference")
    if backend in _FAST_BACKENDS:
        reason = _why_not(backend, args, return_weights)
        if reason is not None:
            raise InputError(f"backend {backend!r} cannot do this call: {reason}")
    elif backend != "reference":
        raise unknown_name("backend", backend, ("auto", "reference", *_FAST_BACKENDS))
    return backend


def _why_not(backend: str, args: AttentionArguments, return_weights: bool) -> str | None:
    """Why a fast backend cannot do a call, or None when it can."""
    if return_weights:
        return "only the reference returns weights"
    if torch.compiler.is_exporting() and torch.onnx.is_in_onnx_export():
        return "ONNX has none of its operators"
    # PyTorch would silently drop the forward tangents of custom operators: they must refuse such calls.
    if not torch.compiler.is_compiling() and (
        torch._C._are_functorch_transforms_active() or forward_ad._current_level >= 0
    ):
        return "it has no rule for torch.func transforms and forward-mode differentiation"
    return triton.why_not(args) if backend == "triton" else None
