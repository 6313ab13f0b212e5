"""The operator on PyTorch's fused attention by exact rewrites: O(N) memory, forward and backward, any device.

- −‖q_i − k_j‖²/(2σ²) = q_i·k_j/σ² − ‖k_j‖²/(2σ²) − ‖q_i‖²/(2σ²), and the last term is constant along a
  row: the Gaussian is softmax attention with scale 1/σ² and a bias by key.
- A bias, causality, a window and leave-one-out are functions of the lag alone: Nq + Nk − 1 numbers per head.
- Logits by lag that queries mix are products of weights and profiles, block by block (`mixed_blocks`).
- ε in the denominator multiplies the softmax output by Z / (Z + ε), with Z from the log-sum-exp.

Points far from the origin lose digits in the first rewrite, so keys and queries are centred on the keys'
mean, which changes no distance. A bandwidth that is tiny against the spread of the points loses them too;
such calls, those that hide keys that are not finite, kernels of the distance other than the Gaussian, and
dropout where pairs are not written out take row blocks of the definition instead.
"""

from dataclasses import replace
from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.utils.checkpoint import checkpoint

from nadaraya.attention import by_lag, dense, own, reference, stock
from nadaraya.attention.arguments import AttentionArguments, in_dtype
from nadaraya.attention.blocked import blocked_attention, masked_bias, visible_keys
from nadaraya.attention.decay import active_keys
from nadaraya.attention.documents import document_by_document
from nadaraya.attention.mixed_blocks import mixed_attention

_DEFINITION_ROWS = 128
# Rounding of the Gaussian's logits that is still accepted; the weights are off by the same fraction.
_LOGIT_TOLERANCE = 1e-3
_NEAR_ORIGIN = 256.0  # ‖x‖²/σ² up to which nothing is gained by centring


def attention(
    args: AttentionArguments, with_lse: bool = False, keep: bool = False
) -> tuple[Tensor, Tensor | None]:
    """`kernel_attention` in O(Nq + Nk) memory.

    Args:
        args: the checked arguments.
        with_lse: whether the log-sum-exp is wanted.
        keep: whether the weights of all pairs are kept for the backward pass: the backend "dense".

    Returns:
        The output, (B, H, Nq, dv) in the dtype of the query, and log Σ_j κ(i,j), (B, H, Nq) in float32 at
        least, which may be None if it is not wanted.
    """
    if 0 in (*args.query.shape[:3], args.key.shape[2]):
        found = reference.attention(args)
        return found.out, found.lse
    if args.spoilt or args.has_own_form:
        return _definition_in_row_blocks(args)
    if not with_lse and not keep and stock.can(args):
        return stock.attention(args), None
    keep = keep or _is_one_row(args)
    if args.dropout_p > 0.0 and not keep:
        return _definition_in_row_blocks(args)
    if args.document_ids is None:
        out, lse = _softmax(args, with_lse, keep)
    else:
        out, lse = document_by_document(args, lambda document: _within_document(document, with_lse, keep))
    return args.with_eps(out, lse), lse if with_lse else None


def _within_document(args: AttentionArguments, with_lse: bool, keep: bool) -> tuple[Tensor, Tensor | None]:
    if not with_lse and not keep and stock.can(args):
        return stock.attention(args), None
    return _softmax(args, with_lse, keep)


def _is_one_row(args: AttentionArguments) -> bool:
    """Return whether one token is decoded on the CPU: all of its pairs are O(Nk), in fewer steps."""
    if args.query.shape[2] > 1 or args.query.device.type != "cpu":
        return False
    return args.window is None or args.key.shape[2] <= 2 * args.window


def _softmax(args: AttentionArguments, with_lse: bool, keep: bool) -> tuple[Tensor, Tensor | None]:
    """Output of the softmax, within one document, and log-sum-exp, which may be None if not wanted."""
    if not keep or args.mixture is not None:
        args = args.with_repeated_heads()  # else products of all pairs share keys as they are
    by_pair = keep and (args.mixture is None or args.dropout_p > 0.0 or not _is_one_row(args))
    mask = args.attn_mask
    added = mask is not None and mask.is_floating_point()  # it may take away as much as the products are
    form = _softmax_form(args, by_pair and not added)
    if form.loses_digits:
        return _definition_in_row_blocks(replace(args, eps=0.0))
    if mask is not None and added:
        mask = mask.to(args.compute_dtype)
    if args.grid is not None:
        logits = args.grid.dense()[None]
        mask = logits if mask is None else masked_bias(logits, mask, args.compute_dtype)
    if args.mixture is not None and by_pair:
        pairs = args.mixture.pairs(by_lag.lags_of_pairs(args))
        mask = pairs if mask is None else masked_bias(pairs, mask, args.compute_dtype)
    elif args.mixture is not None:
        out, lse = mixed_attention(
            form.query, form.key, form.value, args.scale, args.mixture.weights, *_mixed_table(args),
            form.key_bias, mask, args.causal, args.window or 0, args.exclude_self,
        )  # fmt: skip
        return _completed(args, form, out, lse)
    query, key, value, key_bias, *_ = form
    if keep:
        needs_lse = with_lse or args.eps > 0.0
        hides = _hides(args) or (args.exclude_self and needs_lse)
        by_pairs = by_lag.pairs_of(args, args.exclude_self and args.causal and not hides)
        if mask is not None:
            by_pairs = masked_bias(by_pairs, mask, args.compute_dtype)
        biases = [] if key_bias is None else [key_bias[:, :, None]]
        biases += [] if by_pairs is None else [by_pairs]
        out, lse = dense.attention(query, key, value, args.scale, biases, hides, needs_lse, args.dropout_p)
        return _completed(args, form, out, lse if needs_lse or args.exclude_self else None)
    diagonals = _diagonals(args)
    if diagonals is not None and _masks_densely(args):
        pairs = by_lag.of_all_pairs(diagonals, args.key.shape[2])
        mask = pairs if mask is None else masked_bias(pairs, mask, args.compute_dtype)
        diagonals = None
    window = 0 if diagonals is None else args.window or 0
    active = _active(args, form, diagonals) if mask is None else None
    out, lse = blocked_attention(
        query, key, value, args.scale, diagonals, key_bias, mask, args.causal, window, active
    )
    return _completed(args, form, out, lse)


def _hides(args: AttentionArguments) -> bool:
    """Return whether a row may see nothing, or its own key alone, besides the first of a causal call."""
    excluded = args.exclude_self and (args.window == 1 or args.key.shape[2] == 1 or args.offset != 0)
    if args.key_padding_mask is not None or args.attn_mask is not None or args.offset < 0 or excluded:
        return True
    if args.mixture is not None and args.mixture.of_kernels:
        return True
    if torch.compiler.is_compiling():
        return any(part is not None for part in (args.key_bias, args.lag_logits, args.mixture, args.grid))
    # The sum of two numbers near the least one is −∞, too.
    return not args.all_logits_above(torch.finfo(args.compute_dtype).min / 8)


def _completed(
    args: AttentionArguments, form: "_SoftmaxForm", out: Tensor, lse: Tensor | None
) -> tuple[Tensor, Tensor | None]:
    """Output and log-sum-exp of the call from those of its softmax form."""
    if lse is None:
        return in_dtype(out, args.query.dtype), None
    if args.bandwidth is not None:  # −‖q_i‖²/(2σ²), which the softmax form left out
        lse = lse - 0.5 * form.squares[0]
    if args.exclude_self:
        out, lse = _keep_self_where_alone(args, out, lse)
    return in_dtype(out, args.query.dtype), lse


class _SoftmaxForm(NamedTuple):
    """Inputs of softmax attention that give the call's content and padding, with the call's scale."""

    query: Tensor  # (B, H, Nq, d)
    key: Tensor  # (B, H, Nk, d), or (B, G, Nk, d) as the call's
    value: Tensor  # (B, H, Nk, dv), or (B, G, Nk, dv)
    key_bias: Tensor | None  # (B or 1, H or 1, Nk)
    squares: tuple[Tensor, ...]  # of the Gaussian: ‖q_i‖² (B, H, Nq) and ‖k_j‖² (B, H, Nk)
    loses_digits: bool  # the Gaussian's logits, differences of larger terms, are rounded too much


def _softmax_form(args: AttentionArguments, half: bool) -> _SoftmaxForm:
    """The form; dot products stay in half precision where `half` says that what follows knows it."""
    query, key, value = args.query, args.key, args.value
    key_bias: Tensor | None = None
    squares: tuple[Tensor, ...] = ()
    loses_digits = False
    if args.bandwidth is not None:
        gaussian = _near_origin(args)
        if gaussian is None:
            args = args.with_repeated_heads()
            query, key = stock.standardised(args)
            gaussian = query, key, _squares(query, key)
            loses_digits = _loses_digits(args, gaussian[2])
        query, key, squares = gaussian
        key_bias = -0.5 * squares[1]
        value = args.value if half else in_dtype(args.value, query.dtype)
    elif args.query.device.type == "cpu" and not half:
        # Half precision is emulated on most CPUs: float32 is faster there and no less exact.
        query, key, value = (in_dtype(t, args.compute_dtype) for t in (query, key, value))
    if args.key_bias is not None:
        key_bias = args.key_bias if key_bias is None else key_bias + args.key_bias
    if args.key_padding_mask is not None:
        padded = args.key_padding_mask[:, None, :]
        if key_bias is None:
            key_bias = torch.zeros((), dtype=args.compute_dtype, device=key.device)
        key_bias = key_bias.masked_fill(padded, -torch.inf)
    return _SoftmaxForm(query, key, value, key_bias, squares, loses_digits)


def _near_origin(args: AttentionArguments) -> tuple[Tensor, Tensor, tuple[Tensor, ...]] | None:
    """Queries and keys whose products are the Gaussian's but for ‖q‖²/2σ² and ‖k‖²/2σ², and these squares.

    σ goes into the queries, the keys stay as they are unless both are one tensor. None: centring may gain
    something, it is not known whether, or both sides must have σ, so that decay is told by their distances.
    """
    assert args.bandwidth is not None
    if torch.compiler.is_compiling() or args.query.device.type != "cpu":
        return None
    query, sigma = in_dtype(args.query, args.compute_dtype), args.bandwidth
    is_one = not sigma.requires_grad and set(sigma.tolist()) == {1.0}
    if args.query is args.key:
        query = key = query if is_one else query * sigma.reciprocal().view(-1, 1, 1)
        squares = _squares(query, key)
    elif args.prune_tol > 0.0 and not is_one:
        return None
    else:
        key = in_dtype(args.key, args.compute_dtype)
        squares = _squares(query, key)
        if (shared := query.shape[1] // key.shape[1]) > 1:
            squares = squares[0], squares[1].repeat_interleave(shared, 1)
        if not is_one:
            precision = sigma.square().reciprocal().view(-1, 1, 1)
            squares = squares[0] * precision[..., 0], squares[1] * precision[..., 0]
            query = query * precision
    return (query, key, squares) if _all_below(squares, _NEAR_ORIGIN) else None


def _loses_digits(args: AttentionArguments, squares: tuple[Tensor, ...]) -> bool:
    """Return whether logits from such squares are rounded too much, looked at where reading them is free."""
    if torch.compiler.is_compiling() or args.query.device.type != "cpu":
        return False
    return not _all_below(squares, 2 * _LOGIT_TOLERANCE / torch.finfo(args.compute_dtype).eps)


class _Square(torch.autograd.Function):
    """‖x‖² (…,) of x (…, d): one pass, as of the norm, which has no second derivative at 0."""

    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        ctx.save_for_backward(x)
        return torch.linalg.vector_norm(x, dim=-1).square()

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> Tensor:
        (x,) = ctx.saved_tensors
        return (2.0 * grad)[..., None] * x


def _squares(query: Tensor, key: Tensor) -> tuple[Tensor, Tensor]:
    def of(x: Tensor) -> Tensor:
        if torch.compiler.is_compiling():
            return x.square().sum(-1)
        differentiated = x.requires_grad and torch.is_grad_enabled()
        return _Square.apply(x) if differentiated else torch.linalg.vector_norm(x, dim=-1).square()

    of_key = of(key)
    return of_key if query is key else of(query), of_key


def _all_below(squares: tuple[Tensor, ...], limit: float) -> bool:
    """Not so if one overflowed to infinity or NaN."""
    some = squares[:1] if squares[0] is squares[1] else squares
    return all(float(square.detach().amax()) <= limit for square in some)


def _diagonals(args: AttentionArguments) -> Tensor | None:
    """The logits by j − i, with −∞ where a lag is masked, unless the CPU's fused kernel knows the mask."""
    lags, parts = by_lag.masked_lags(args), (args.lag_logits, args.window, args.attn_mask)
    if lags is None:
        return None
    causal_alone = not args.exclude_self and all(part is None for part in parts)
    if causal_alone and args.query.device.type == "cpu" and lags.num_queries == lags.num_keys:
        return None
    return lags.diagonals(args.lag_logits, args.compute_dtype, args.query.device).contiguous()


def _active(args: AttentionArguments, form: _SoftmaxForm, diagonals: Tensor | None) -> Tensor | None:
    """Ranges of keys to visit where the rest is negligible, or None: all."""
    if args.prune_tol == 0.0 or diagonals is None or args.lag_logits is None or not args.query.numel():
        return None
    query, key, diagonals = form.query.detach(), form.key.detach(), diagonals.detach()
    key_bias = None if form.key_bias is None else form.key_bias.detach()
    gaussian, window = args.bandwidth is not None, args.window or 0
    return active_keys(
        query, key, args.scale, diagonals, key_bias, gaussian, args.causal, window, args.prune_tol
    )


def _mixed_table(args: AttentionArguments) -> tuple[Tensor, Tensor | None]:
    """Table that queries mix and the logarithms taken out of it, by descending lag (to 0 in causal calls)."""
    assert args.mixture is not None
    first = args.mixture.extent - 1 if args.causal else 0
    table, shift = args.mixture.factors()
    return table[..., first:].flip(-1), None if shift is None else shift[..., first:].flip(-1)


def _masks_densely(args: AttentionArguments) -> bool:
    """Return whether a mask by lag is written out: the CPU's fused kernel then takes all rows at once."""
    short = max(args.query.shape[2], args.key.shape[2]) <= dense.LONGEST
    return short and args.query.device.type == "cpu" and args.lag_logits is None and not args.causal


def _keep_self_where_alone(args: AttentionArguments, out: Tensor, lse: Tensor) -> tuple[Tensor, Tensor]:
    """Leave-one-out rows with nothing left take their own value, if they may see it."""
    nowhere = lse == -torch.inf
    if args.query.device.type == "cpu" and not torch.compiler.is_compiling() and not nowhere.any():
        return out, lse
    logits = own.own_logits(args)
    alone = nowhere & (logits != -torch.inf)
    # The unused branch of `where` must not carry −inf into the backward pass.
    logits = torch.where(alone, logits, 0.0)
    values = own.at_own_position(args.with_repeated_heads().value, args).to(out.dtype)
    if args.dropout_p > 0.0:
        values = values * F.dropout(torch.ones_like(values[..., :1]), args.dropout_p)
    return torch.where(alone[..., None], values, out), torch.where(alone, logits, lse)


def _definition_in_row_blocks(args: AttentionArguments) -> tuple[Tensor, Tensor]:
    """Row blocks of the definition, recomputed in the backward pass with the same random numbers."""
    if args.query.shape[2] <= _DEFINITION_ROWS:  # one block: recomputed, it would take as much memory
        return _definition(args, 0)
    blocks = [
        checkpoint(_definition, args, start, use_reentrant=False, preserve_rng_state=True)
        for start in range(0, args.query.shape[2], _DEFINITION_ROWS)
    ]
    out, lse = zip(*blocks, strict=True)
    return torch.cat(out, dim=2), torch.cat(lse, dim=2)


def _definition(args: AttentionArguments, start: int) -> tuple[Tensor, Tensor]:
    """The definition for a block of rows and the keys that causality and the window let it see."""
    num_queries, num_keys = args.query.shape[2], args.key.shape[2]
    rows = slice(start, min(num_queries, start + _DEFINITION_ROWS))
    keys = visible_keys(rows, num_queries, num_keys, args.causal, args.window or 0)
    found = reference.attention(args.block(rows, keys))
    return found.out, found.lse
