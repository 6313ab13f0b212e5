"""Content that factorises, κ(i,j) = φ(q_i)·ψ(k_j) G(i − j): attention without any pair of tokens.

out_i = Σ_j κ(i,j) v_j / (Σ_j κ(i,j) + ε) is a sum over features of sums over keys, of which there are three
exact forms in O(N), by what the position G is:

- "sum": no position, not causal; all queries read one sum over the keys (Katharopoulos et al. 2020).
- "chunks": causal, G = 1 or a kernel of damped modes (`Kernel.modes`): a recurrence (`recurrence`).
- "fft": any other G of the lag or of the rows and columns of a grid: a convolution (`toeplitz`).
"""

import math
from functools import partial

import torch
import torch.nn.functional as F
from torch import Tensor

from nadaraya.attention import recurrence, sdpa, toeplitz
from nadaraya.attention.arguments import AttentionArguments
from nadaraya.attention.documents import document_by_document
from nadaraya.attention.own import at_own_position

FORMS = ("sum", "chunks", "fft")
_ROUNDINGS = 2**-40  # of the error of a transform, so that weights have some four digits less than float32's


def why_not(form: str, args: AttentionArguments) -> str | None:
    """Why a form cannot do a call, or None when it can."""
    if args.factored is None:
        return "its content does not factorise"
    if args.degree or args.probe is not None:
        return "local lines are computed row by row"
    for name in ("window", "attn_mask", "mixture"):
        if getattr(args, name) is not None:
            return f"{name} has no form that factorises"
    if args.dropout_p > 0.0:
        return "dropout drops pairs"
    if args.spoilt:
        return "keys or values that are hidden are not finite"
    position = args.lag_values is not None or args.grid is not None
    if form == "sum":
        if args.causal or args.exclude_self:
            return "queries see different keys"
        return "a position depends on the query" if position else None
    if args.grid is not None and (args.causal or form == "chunks"):
        return "patches of a grid come one after another in two directions"
    if form == "fft":
        if args.causal and args.key_bias is not None:
            return "a transform adds what a row may not see, which a key bias may make large"
        return None
    if args.lag_values is not None and args.modes is None:
        return "its position is no finite sum of damped modes"
    return None


def work(backend: str, args: AttentionArguments) -> float:
    """Multiplications and additions of a form, or of row blocks of the definition, for each query and head.

    Of a forward and a backward pass, roughly: the factors are measured on a CPU, and only their ratios count.
    """
    features, channels = args.query.shape[3], args.value.shape[3] + 1
    rows, keys = max(1, args.query.shape[2]), args.key.shape[2]
    tokens = max(rows, keys)
    if backend == "sum":
        return 8.0 * features * channels * tokens / rows
    if backend == "chunks":
        states = 1 if args.modes is None else args.modes.num_states
        chunk = 8.0 * states * features * channels + 4.0 * min(recurrence.CHUNK, tokens) * (
            features + channels
        )
        return chunk * (1 if args.causal else 2) * tokens / rows
    if backend == "fft":
        return 75.0 * math.log2(2 * tokens) * features * channels * tokens / rows
    seen = keys if args.window is None else min(keys, 2 * args.window)
    return (4.0 * (features + channels) + 200.0) * seen / (2 if args.causal and rows > 1 else 1)


def attention(form: str, args: AttentionArguments, with_lse: bool) -> tuple[Tensor, Tensor | None]:
    """`kernel_attention` by one of `FORMS`; returns the output and log Σ_j κ(i,j)."""
    if args.document_ids is not None:
        return document_by_document(args, lambda document: attention(form, document, with_lse))
    args = args.with_repeated_heads()
    query, key, value, bias = _prepared(args, with_lse)
    sums, shift = _sums(form, args, query, key, value, bias)
    looks = query.device.type == "cpu" and not torch.compiler.is_compiling()
    if looks and form == "fft" and _normalised(args) and _loses_digits(args, query, key, sums[..., -1]):
        return sdpa.attention(args, with_lse)
    if args.exclude_self:
        sums = sums + _own_where_alone(args, query, key, value, bias, shift)
    return _completed(args, sums, shift, with_lse)


def continued(
    args: AttentionArguments, state: Tensor | None, earlier: Tensor
) -> tuple[Tensor, Tensor | None, Tensor]:
    """A causal call that goes on from the state of earlier tokens.

    Args:
        args: the checked arguments of the new tokens.
        state: what `recurrence.causal_sums` returned; None at the beginning.
        earlier: how many earlier tokens can be seen, (B or 1,).

    Returns:
        Output, log-sum-exp, None without a denominator, and the state after the last token.
    """
    args = args.with_repeated_heads()
    query, key, value, _ = _prepared(args, False)
    own = not args.exclude_self
    sums, _, state = recurrence.causal_sums(
        query, key, value, modes=args.modes, include_self=own, state=state
    )
    if args.exclude_self:
        sums = sums + _own_where_alone(args, query, key, value, None, None, earlier)
    return *_completed(args, sums, None, _normalised(args)), state


def _normalised(args: AttentionArguments) -> bool:
    assert args.factored is not None
    return args.factored.normalise


def _prepared(args: AttentionArguments, with_lse: bool) -> tuple[Tensor, Tensor, Tensor, Tensor | None]:
    """Features without padding, values with a column of ones where sums of weights are wanted, key bias."""
    query, key, value = (t.to(args.compute_dtype) for t in (args.query, args.key, args.value))
    bias = args.key_bias
    if args.key_padding_mask is not None:
        key = key.masked_fill(args.key_padding_mask[:, None, :, None], 0.0)
        if bias is not None:
            bias = bias.masked_fill(args.key_padding_mask[:, None], -torch.inf)
    if _normalised(args) or with_lse:
        value = torch.cat([value, value.new_ones((*value.shape[:-1], 1))], -1)
    return query, key, value, bias


def _sums(
    form: str, args: AttentionArguments, query: Tensor, key: Tensor, value: Tensor, bias: Tensor | None
) -> tuple[Tensor, Tensor | None]:
    """Σ_j κ(i,j) [v_j, 1] over exp of a shift, (B, H, Nq, e), and the shift, (B, H, Nq or 1)."""
    shift: Tensor | None = None
    if bias is not None and not (form == "chunks" and args.causal):
        shift = recurrence.finite(bias.detach().amax(-1, keepdim=True))
        key, bias = key * torch.exp(bias - shift)[..., None], None
    if form == "sum":
        return query @ (key.transpose(-1, -2) @ value), shift
    num_queries, length = query.shape[2], max(query.shape[2], key.shape[2])
    # Aligned at the ends; what is put before has no features, and no weight.
    query, key, value = (
        t if t.shape[2] == length else F.pad(t, (0, 0, length - t.shape[2], 0)) for t in (query, key, value)
    )
    if form == "fft":
        sums = toeplitz.sums(query, key, value, args)
    else:
        modes, own = args.modes, not args.exclude_self
        if bias is not None and bias.shape[-1] < length:
            bias = F.pad(bias, (length - bias.shape[-1], 0), value=-torch.inf)
        sums, shifts, _ = recurrence.causal_sums(query, key, value, modes=modes, include_self=own, bias=bias)
        if shifts is not None:
            shift = shifts[:, :, length - num_queries :]
        if not args.causal:
            backwards = [t.flip(2) for t in (query, key, value)]
            later, _, _ = recurrence.causal_sums(*backwards, modes=modes, include_self=False)
            sums = sums + later.flip(2)
    return sums[:, :, length - num_queries :], shift


def _own_where_alone(
    args: AttentionArguments,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    bias: Tensor | None,
    shift: Tensor | None,
    earlier: Tensor | None = None,
) -> Tensor:
    """Share of itself of a token that sees nothing else, (B, H, Nq, e); zero for others."""

    at_own = partial(at_own_position, args=args)
    seen = torch.ones((1, key.shape[2], 1), dtype=query.dtype, device=query.device)
    if args.key_padding_mask is not None:
        seen = (~args.key_padding_mask).to(query.dtype)[..., None]
    others = at_own(seen.cumsum(1)) if args.causal else seen.sum(1, keepdim=True)
    if earlier is not None:
        others = others + earlier[:, None, None]
    alone = (at_own(seen) > 0) & (others - at_own(seen) == 0)
    kappa = (query * at_own(key)).sum(-1, keepdim=True)
    if args.lag_values is not None:
        kappa = kappa * args.lag_values[:, args.lag_values.shape[1] // 2, None, None]
    if args.grid is not None:
        kappa = kappa * args.grid.at_own()[..., None].exp()
    if bias is not None and shift is not None:
        # Elsewhere the exponential may be infinite, and its gradient NaN.
        own_bias = torch.where(alone[:, None, :, 0], at_own(bias[..., None])[..., 0] - shift, 0.0)
        kappa = kappa * own_bias.exp()[..., None]
    return torch.where(alone[:, None], kappa * at_own(value), 0.0)


def _loses_digits(args: AttentionArguments, query: Tensor, key: Tensor, mass: Tensor) -> bool:
    """Return whether a transform rounds the sum of some row too much.

    Its error is one of the largest weights of all: a row whose near keys are hidden may have none of them.
    """
    table = args.lag_values if args.grid is None else args.grid.logits.exp().flatten(1)
    largest = query.new_ones(1) if table is None else torch.linalg.vector_norm(table, dim=1).to(query.dtype)
    size = torch.linalg.vector_norm(key, dim=2, keepdim=True)
    return bool((mass < _ROUNDINGS * largest[:, None] * (query.abs() * size).sum(-1)).any())


def _completed(
    args: AttentionArguments, sums: Tensor, shift: Tensor | None, with_lse: bool
) -> tuple[Tensor, Tensor | None]:
    assert args.factored is not None
    if not (args.factored.normalise or with_lse):
        out = sums if shift is None else sums * shift.exp()[..., None]
        return out.to(args.query.dtype), None
    out, mass = sums.split((sums.shape[-1] - 1, 1), -1)
    mass = mass.squeeze(-1)
    scale = torch.ones((), dtype=mass.dtype, device=mass.device) if shift is None else torch.exp(-shift)
    lse = None
    if with_lse:
        nothing = mass <= 0.0
        lse = mass.masked_fill(nothing, 1.0).log() + (0.0 if shift is None else shift)
        lse = lse.masked_fill(nothing, -torch.inf)
    if not args.factored.normalise:
        return (out / scale[..., None]).to(args.query.dtype), lse
    denominator = args.factored.denominator(mass, scale, args.eps)
    # Its gradient takes fewer tensors of this size than that of a quotient.
    inverse = 1 / denominator.clamp(min=torch.finfo(denominator.dtype).tiny)
    return (out * inverse[..., None]).to(args.query.dtype), lse
