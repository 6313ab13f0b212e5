"""`kernel_attention`: the contract of the operator, the argument checks and the choice of backend."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from typing import Any, Literal, TypedDict, Unpack, overload

import torch
from torch import Tensor

from nadaraya.attention import linear, reference
from nadaraya.attention.arguments import AttentionArguments, Content
from nadaraya.attention.autocast import full_precision
from nadaraya.attention.checks import (
    RIDGE,
    check_attn_mask,
    check_content,
    check_document_ids,
    check_key_bias,
    check_key_mask,
    check_lag_logits,
    check_options,
    check_pairs,
    check_tensors,
    check_ways,
)
from nadaraya.attention.dispatch import BackendChoice, by_backend, choice, explained
from nadaraya.attention.positions import (
    GridLogits,
    MixedKernels,
    MixedLogits,
    Position,
    SignedLogits,
    check_grid,
    check_mixture,
)
from nadaraya.errors import InputError, must_be, unknown_name
from nadaraya.kernels import Kernel

_WATCHERS: list[Callable[[AttentionArguments], None]] = []
# What other libraries call an argument.
_MEANT = {
    "is_causal": "causal", "scale": "content", "softmax_scale": "content", "dropout": "dropout_p",
    "mask": "attn_mask", "attention_mask": "attn_mask", "key_padding_mask": "key_mask", "bias": "position",
    "need_weights": "return_weights", "window_size": "window", "sliding_window": "window",
    "own": "exclude_self", "key_logits": "key_bias", "negligible": "prune_tol",
}  # fmt: skip


class AttentionOptions(TypedDict, total=False):
    """The keyword arguments of `kernel_attention`, what it returns excepted; that function explains them."""

    content: Content
    position: Position | None
    key_bias: Tensor | None
    exclude_self: bool
    causal: bool
    window: int | None
    key_mask: Tensor | None
    attn_mask: Tensor | None
    document_ids: Tensor | None
    dropout_p: float
    eps: float
    prune_tol: float
    degree: int
    ridge: float
    probe: Tensor | None
    nearest: int | None
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
    content: Content = None,
    position: Position | None = None,
    key_bias: Tensor | None = None,
    exclude_self: bool = False,
    causal: bool = False,
    window: int | None = None,
    key_mask: Tensor | None = None,
    attn_mask: Tensor | None = None,
    document_ids: Tensor | None = None,
    dropout_p: float = 0.0,
    eps: float = 0.0,
    prune_tol: float = 0.0,
    degree: int = 0,
    ridge: float = RIDGE,
    probe: Tensor | None = None,
    nearest: int | None = None,
    backend: str = "auto",
    return_weights: bool = False,
    return_lse: bool = False,
    **unknown: Any,
) -> Tensor | tuple[Tensor, Tensor]:
    r"""Attention as Nadaraya-Watson regression with an explicit kernel.

        out_i = Σ_j κ(i,j) v_j / (Σ_j κ(i,j) + ε)
        log κ(i,j) = content(i,j) + position(i,j) + a_j + mask(i,j)

    Content is q_i·k_j·scale, or the log of a kernel of the distance ‖q_i − k_j‖, such as the Gaussian's
    −‖q_i − k_j‖² / (2σ_h²) (Kundu et al. (2026), eq. 3). Position is the log of
    a kernel of the lag i − j (Bunks et al. (2025), eq. 6); with `Exp` around it, the kernel itself (Gaussian
    Process Attention (anonymous), eq. 6). Softmax attention, ALiBi, T5's bias, both forms of Gaussian process
    attention, Gaussian kernel attention and kernel regression are special cases.

    Sequences of unequal length are aligned at their ends, as in decoding: query i is at position
    i + Nk − Nq. A row that may see no key gives zeros, never NaN. On the CPU, outside of `torch.compile` and
    `torch.func`, what a row may not see may be NaN or infinite and reaches neither it nor its gradients;
    elsewhere hidden keys and values must be finite.

    Args:
        query: (B, H, Nq, d), float16, bfloat16, float32 or float64. Tensors (B, N, H, d), as some libraries
            have them, are taken for N heads of H tokens without a word: transpose them.
        key: (B, G, Nk, d); H must be a multiple of G, and each key head serves H / G query heads.
        value: (B, G, Nk, dv).
        content: what queries and keys say of each other: the scale of their dot product, of any sign, a
            number or a tensor of shape (H,), default 1/√d; or a `Kernel` of their distance in the units of
            the features, one for all heads or one per head. Differentiable. A `Gaussian` is as fast as a
            dot product; other kernels (sums, products, compact support) are computed pair by pair, in blocks
            of rows. Or `Factored()`: queries and keys are features, κ their product, in O(N).
        position: what their places say: a `Kernel` of the lag, one for all heads or one per head, by whose
            log it multiplies the weights; a table of logits, (H or 1, L) for the lags |i − j| = 0 … L − 1 or
            (H or 1, 2L − 1) signed, entry r + L − 1 for lag r = i − j, L = max(Nq, Nk); `MixedLogits` or
            `MixedKernels`, which each query mixes for itself; `GridLogits` for the patches of an image; or
            logits of all pairs, (H or 1, Nq, Nk). Default None. Differentiable.
        key_bias: a, (B, H, Nk), added to all logits of a key; dimensions of 1 serve all. For gates such as
            the Forgetting Transformer's (Lin et al. 2025), a_j = −Σ_{t ≤ j} log f_t, and for sinks.
            Differentiable.
        exclude_self: leave-one-out regression, j ≠ i; a row with nothing else to see keeps itself. Default
            False. `KernelSelfAttention(own_value=…)` has other ways to leave the token itself out.
        causal: each query sees only keys at its own position and before.
        window: each query sees only lags |i − j| < window; None for no limit.
        key_mask: (B, Nk) bool, True where a key takes part, False for padding. All masks here say True for
            what takes part, as `scaled_dot_product_attention` does; `torch.nn.MultiheadAttention` says True
            for what is hidden.
        attn_mask: broadcastable to (B, H, Nq, Nk): bool, True where the pair takes part, or floating point,
            added to the logits. Differentiable.
        document_ids: (B, Nk) whole numbers: pairs take part within one document only, as if each were a call
            of its own. Every document is in one piece; `nadaraya.attention.document_ids_of` makes them from
            packed positions, `document_ids_of_lengths` from cumulative lengths.
        dropout_p: probability of dropping a weight; the caller passes 0 in evaluation.
        eps: ε in the denominator (Kundu et al. (2026), eq. 4); default 0.
        prune_tol: δ, the share of a row's weights that pairs at long lags may have together and be left out
            where the kernel of the lag has decayed; default 0, all are summed. A leave, not an order: "sdpa"
            and "triton" make use of it for a `Kernel` or a table without an `attn_mask`. Gradients are those
            of the pairs that are kept.
        degree: 0, a weighted mean (default), or 1, the local line at the query: the weighted least squares of
            the values on the keys (Zuo et al. 2025), as `NadarayaWatson(degree=1)`.
        ridge: of that line, as a share of the keys' mean variance about each query; default 1e-3. With 0
            every query must see more keys than they have dimensions. Gradients take what is added for a
            constant, so that those of a large ridge are not exact.
        probe: r, (B, H, Nq, d): out_i = ȳ_i − r_i·Cov_i(k, v), a line whose slope needs no solve (Parallax
            2026). Differentiable. Default None.
        nearest: k, of each query's keys only those k with the largest weights take part; default None, all.
            Lines and nearest keys are computed in blocks of rows.
        backend: "reference" (the definition, O(Nq·Nk) memory), "sdpa" (exact rewrites onto PyTorch's fused
            attention, O(Nq + Nk) memory), "dense" (the same rewrites with all pairs written out, for at most
            1,024 tokens on the CPU), "triton" (fused kernels for NVIDIA GPUs, O(Nq + Nk) memory), for
            `Factored` content "sum", "chunks" or "fft" (see `nadaraya.attention.linear`), or "auto", the
            fastest that can do the call; `nadaraya.attention.choose_backend` says which, and why not another.
            Only "reference" is sure to have second derivatives.
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
    >>> from nadaraya.kernels import ExponentialDecay, Gaussian
    >>> x = torch.randn(1, 2, 5, 8)  # batch, heads, tokens, width
    >>> kernel_attention(
    ...     x, x, x, content=Gaussian(1.5), position=ExponentialDecay(length=2.0), causal=True
    ... ).shape
    torch.Size([1, 2, 5, 8])
    """
    if return_weights and return_lse:
        raise InputError("return_weights and return_lse must not be given together")
    args = _checked(
        query, key, value, content=content, position=position, key_bias=key_bias, exclude_self=exclude_self,
        causal=causal, window=window, key_mask=key_mask, attn_mask=attn_mask, document_ids=document_ids,
        dropout_p=dropout_p, eps=eps, prune_tol=prune_tol, degree=degree, ridge=ridge, probe=probe,
        nearest=nearest, **unknown,
    )  # fmt: skip
    for watch in _WATCHERS:
        watch(args)
    name = choice(backend, args, return_weights).name
    # Backends choose their own precision; autocast would take sums and tables out of float32.
    with full_precision(query):
        if name == "reference":
            out, weights, lse = reference.attention(args)
            if return_weights:
                return out, weights
        else:
            out, found = by_backend(name, args, return_lse)
            if not return_lse:
                return out
            assert found is not None
            lse = found
        return (out, lse) if return_lse else out


def attention_from_state(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    state: Tensor | None,
    earlier: Tensor,
    **options: Unpack[AttentionOptions],
) -> tuple[Tensor, Tensor | None, Tensor]:
    """Causal attention with factorised content over all tokens so far, of which only a state is kept.

    Args:
        query, key, value, options: of the new tokens, as `kernel_attention` takes them.
        state: of the earlier tokens, as returned; None at the beginning.
        earlier: how many earlier tokens take part, (B or 1,).

    Returns:
        Output, log Σ_j κ(i,j), which is None without a denominator, and the state, (B, H, S, m, dv + 1) or
        (B, H, S, m, dv) without one, whose size does not grow.

    Raises:
        InputError: the position is no finite sum of damped modes, or another argument has no such form.
    """
    args = _checked(query, key, value, **options)
    if not args.causal or args.key_bias is not None or (reason := linear.why_not("chunks", args)):
        reason = reason if args.causal and args.key_bias is None else "it must be causal without a key bias"
        raise InputError(f"attention from a state cannot do this call: {reason}")
    with full_precision(query):
        return linear.continued(args, state, earlier)


@contextmanager
def watching_calls(watch: Callable[[AttentionArguments], None]) -> Iterator[None]:
    """Show a function the checked arguments of every call of `kernel_attention` while the context lasts.

    Args:
        watch: gets them ahead of the computation, which they do not change; `nadaraya.attention.reference`
            makes logits and weights of them.

    >>> import torch
    >>> from nadaraya import kernel_attention
    >>> from nadaraya.attention.functional import watching_calls
    >>> x, seen = torch.randn(1, 2, 5, 8), []
    >>> with watching_calls(seen.append):
    ...     out = kernel_attention(x, x, x, causal=True)
    >>> seen[0].causal
    True
    """
    _WATCHERS.append(watch)
    try:
        yield
    finally:
        _WATCHERS.remove(watch)


def choose_backend(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    *,
    return_weights: bool = False,
    return_lse: bool = False,
    **options: Unpack[AttentionOptions],
) -> BackendChoice:
    """Return the backend that `kernel_attention` takes for a call, and why not a faster one.

    Args:
        query, key, value, return_weights, return_lse, options: those of the call.

    Returns:
        The name of the backend, and for each faster one the reason why it cannot do the call.

    Raises:
        InputError: as the call itself.

    >>> import torch
    >>> from nadaraya.attention import choose_backend
    >>> x = torch.randn(1, 2, 5, 8)
    >>> name, refused = choose_backend(x, x, x, causal=True)
    >>> name, refused["dense"]
    ('sdpa', "PyTorch's fused attention does this call as it stands")
    """
    args = _checked(query, key, value, **options)
    return explained(options.get("backend", "auto"), args, return_weights)


def _checked(
    query: Tensor, key: Tensor, value: Tensor, *, content: Content = None, position: Position | None = None,
    key_bias: Tensor | None = None, exclude_self: bool = False, causal: bool = False,
    window: int | None = None, key_mask: Tensor | None = None, attn_mask: Tensor | None = None,
    document_ids: Tensor | None = None, dropout_p: float = 0.0, eps: float = 0.0, prune_tol: float = 0.0,
    degree: int = 0, ridge: float = RIDGE, probe: Tensor | None = None, nearest: int | None = None,
    backend: str = "auto", **unknown: Any,
) -> AttentionArguments:  # fmt: skip
    """The arguments of a call in the one form that backends take; which of them takes it is not looked at."""
    for name in unknown:
        accepted = [*AttentionOptions.__annotations__, "return_weights", "return_lse"]
        raise unknown_name("argument of kernel_attention", name, accepted, meant=_MEANT.get(name))
    causal, given = bool(causal), query
    others = {
        "key_bias": key_bias, "key_mask": key_mask, "attn_mask": attn_mask, "document_ids": document_ids,
        "probe": probe,
    }  # fmt: skip
    check_tensors(query, key, value, others)
    check_options(window, exclude_self, dropout_p, eps, prune_tol)
    query, scale, bandwidth, kernel, factored = check_content(content, query, key)
    attn_mask = None if attn_mask is None else check_attn_mask(attn_mask, query, key)
    lag_logits, mirrored, lowest, mixture, grid, modes = None, False, None, None, None, None
    if isinstance(position, (MixedLogits, MixedKernels)):
        mixture = check_mixture(position, query, key)
    elif isinstance(position, GridLogits):
        if document_ids is not None:
            raise InputError("document_ids must not be given with a grid: its patches are of one image")
        grid = check_grid(position, query, key)
    elif isinstance(position, Tensor) and position.dim() == 3:
        attn_mask = check_pairs(position, attn_mask, query, key)
    elif isinstance(position, (Kernel, Tensor, SignedLogits)):
        lag_logits, mirrored, lowest = check_lag_logits(position, causal, query, key, factored is not None)
        if factored is not None and isinstance(position, Kernel) and (position.symmetric or causal):
            modes = position.modes(lag_logits.dtype, 1e-12 if query.dtype == torch.float64 else 1e-7)
    elif position is not None:
        accepted = "a Kernel, a table of logits, MixedLogits, MixedKernels or GridLogits"
        raise must_be("position", accepted, position)
    args = AttentionArguments(
        query=query, key=key, value=value, scale=scale, bandwidth=bandwidth, kernel=kernel,
        lag_logits=lag_logits if factored is None else None, mirrored=mirrored, lowest_by_lag=lowest,
        mixture=mixture, grid=grid, causal=causal,
        window=None if window is None else int(window), exclude_self=exclude_self,
        key_padding_mask=None if key_mask is None else check_key_mask(key_mask, key),
        attn_mask=attn_mask,
        key_bias=None if key_bias is None else check_key_bias(key_bias, query, key),
        document_ids=None if document_ids is None else check_document_ids(document_ids, query, key),
        dropout_p=float(dropout_p), eps=float(eps), prune_tol=float(prune_tol), factored=factored,
        lag_values=None if factored is None else lag_logits, modes=modes,
        line_at=None if query is given else given,
    )  # fmt: skip
    args = check_ways(args, degree, ridge, probe, nearest)
    return replace(args, spoilt=True) if args.hides_non_finite() else args
