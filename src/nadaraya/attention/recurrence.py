"""Σ_{j ≤ i} G(i − j) φ_i·ψ_j v_j for kernels of damped modes, in chunks: O(N), with states of constant size.

Within a chunk of C tokens pairs are written out. What came before is read from the states
S_p = Σ_j λ_p^r ψ_j v_jᵀ, r the lag to the end of the last chunk, one for each mode p. From one chunk to the
next they decay by λ_p^C with |λ_p| ≤ 1: nothing overflows, as quotients of cumulative products would. A mode
with powers of the lag has several states, one that oscillates two; RetNet (Sun et al. 2023) has one decay.
"""

from math import comb
from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.autograd.function import once_differentiable
from torch.utils.checkpoint import checkpoint

from nadaraya.kernels.modal import Modes

CHUNK = 128
_SEGMENT = 2**23  # numbers that a run of chunks writes for the features of all modes


class _Tables(NamedTuple):
    """Modes at the lags of a chunk of C tokens, by heads (H or 1), S states in P groups of b.

    Attributes:
        within: G of query and key, (H, C, C).
        right: what a key adds to the states at the end of its chunk, (H, C, S).
        left: how a query reads the states at the end of the chunk before, (H, C, S).
        across: the change of states over a chunk, (H, P, b, b).
    """

    within: Tensor
    right: Tensor
    left: Tensor
    across: Tensor


def causal_sums(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    *,
    modes: Modes | None,
    include_self: bool = True,
    bias: Tensor | None = None,
    state: Tensor | None = None,
) -> tuple[Tensor, Tensor | None, Tensor]:
    """Sums over the tokens so far.

    Args:
        query, key: features (B, H, N, m).
        value: (B, H, N, e).
        modes: of G; None for G = 1.
        include_self: whether a token counts for itself.
        bias: logarithms of a factor by key, (B or 1, H or 1, N), any size.
        state: of earlier tokens, (B, H, S, m, e); default none. Not with a bias.

    Returns:
        Sums (B, H, N, e) over exp of a shift; the shift (B or 1, H or 1, N), None without a bias; and the
        state after the last token.
    """
    if modes is None:
        one = query.new_ones((1, 1))
        modes = Modes(one[..., None], one - 1)
    batch, heads, tokens, width = query.shape
    if state is None:
        state = query.new_zeros((batch, heads, modes.num_states, width, value.shape[-1]))
    shift = carry = None
    if bias is not None:
        chunks = F.pad(bias, (0, -tokens % CHUNK), value=-torch.inf).unflatten(-1, (-1, CHUNK))
        tops = finite(chunks.detach().amax(-1)).cummax(-1).values
        carry = torch.exp(F.pad(tops, (1, 0), value=0.0)[..., :-1] - tops)
        carry[..., 0] = 1.0
        shift = tops.repeat_interleave(CHUNK, -1)[..., :tokens]
        key = key * torch.exp(bias - shift)[..., None]
    chunks_at_once = max(1, _SEGMENT // max(1, batch * heads * CHUNK * modes.num_states * width))
    sizes = _sizes(tokens, chunks_at_once * CHUNK)
    # In one split each: the backward pass of slices would fill whole tensors with zeros.
    parts = zip(*(t.split(sizes, 2) for t in (query, key, value)), strict=True)
    outs, start, tables = [], 0, {}
    for size, of_tokens in zip(sizes, parts, strict=True):
        length = min(size, CHUNK) or 1
        if length not in tables:
            tables[length] = _tables(modes, length, include_self)
        stop = start + size
        of_chunks = None if carry is None else carry[..., start // CHUNK : -(-stop // CHUNK)]
        arguments = (*(t.unflatten(2, (-1, length)) for t in of_tokens), state, of_chunks, tables[length])
        if torch.is_grad_enabled() and len(sizes) > 1:
            out, state = checkpoint(_segment, *arguments, use_reentrant=False, preserve_rng_state=False)
        else:
            out, state = _segment(*arguments)
        outs.append(out.flatten(2, 3))
        start = stop
    return torch.cat(outs, 2), shift, state


def _sizes(tokens: int, step: int) -> list[int]:
    """Tokens of each run of chunks: whole ones of `step` at most, then what is left of a chunk."""
    whole = tokens - tokens % CHUNK
    sizes = [min(step, whole - start) for start in range(0, whole, step)]
    return [*sizes, tokens - whole] if tokens > whole or not tokens else sizes


def _segment(
    query: Tensor, key: Tensor, value: Tensor, state: Tensor, carry: Tensor | None, tables: _Tables
) -> tuple[Tensor, Tensor]:
    """Sums of chunks, (B, H, n, C, e), and the state after them; query and key (B, H, n, C, m)."""
    within, right, left, across = tables
    out = (query @ key.mT * within[:, None]) @ value
    weighted = _Outer.apply(key, right)
    added = (weighted.mT @ value).unflatten(3, (right.shape[-1], -1))
    states = []
    for chunk, of_chunk in enumerate(added.unbind(2)):
        if carry is not None:
            state = state * carry[:, :, chunk, None, None, None]
        states.append(state)
        state = _moved(state, across) + of_chunk
    before = torch.stack(states, 2).flatten(3, 4)
    return torch.baddbmm(
        out.flatten(0, 2), _Outer.apply(query, left).flatten(0, 2), before.flatten(0, 2)
    ).view_as(out), state


class _Outer(torch.autograd.Function):
    """Features (B, H, n, C, m) by the entries of a table (H or 1, C, S), (B, H, n, C, S m).

    Its backward pass writes nothing of that size but the gradient that it is given.
    """

    @staticmethod
    def forward(ctx: Any, features: Tensor, table: Tensor) -> Tensor:
        ctx.save_for_backward(features, table)
        return (features[..., None, :] * table[:, None, :, :, None]).flatten(-2)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, Tensor]:
        features, table = ctx.saved_tensors
        grad = grad.unflatten(-1, (table.shape[-1], -1))
        of_features = (table[:, None, :, None, :] @ grad).squeeze(-2)
        of_table = (grad @ features[..., None]).squeeze(-1).sum((0, 2))
        return of_features, of_table.sum_to_size(table.shape)


def _moved(state: Tensor, across: Tensor) -> Tensor:
    """States (B, H, S, m, e) one chunk later."""
    block = across.shape[-1]
    if block == 1:
        return state * across[:, :, 0, 0, None, None]
    grouped = state.unflatten(2, (-1, block))
    across = across.expand(state.shape[1], -1, -1, -1)
    return torch.einsum("hpij,zhpjme->zhpime", across, grouped).flatten(2, 3)


def _tables(modes: Modes, length: int, include_self: bool) -> _Tables:
    coefficients, rate, frequency = modes.coefficients, modes.rate, modes.frequency
    powers = coefficients.shape[2]
    token = torch.arange(length, device=rate.device, dtype=rate.dtype)
    lags = (token[:, None] - token).long()
    hidden = lags < (0 if include_self else 1)
    within = modes.at(token)[:, lags.clamp(min=0)].masked_fill(hidden, 0.0)
    # G(x + y) = Σ_a y^a exp(−δ y) cos, sin (ω y) times what the binomial theorem and the sum of angles leave.
    y, x = length - 1 - token, token + 1
    right = _powers(y, powers)[:, :, 0] * torch.exp(-rate[..., None] * y)[..., None]
    left = torch.einsum("hpk,cka->hpca", coefficients, _powers(x, powers))
    left = left * torch.exp(-rate[..., None] * x)[..., None]
    across = _powers(x[-1], powers) * torch.exp(-rate * length)[..., None, None]
    if frequency is not None:
        right, left = (_waves(t, frequency, at, sign) for t, at, sign in ((right, y, 1.0), (left, x, -1.0)))
        turn = frequency * length
        cos, sin = turn.cos(), turn.sin()
        turns = torch.stack([torch.stack([cos, -sin], -1), torch.stack([sin, cos], -1)], -2)
        across = torch.einsum("hpab,hpij->hpaibj", across, turns).flatten(4, 5).flatten(2, 3)
    right, left = (t.transpose(1, 2).flatten(2) for t in (right, left))
    return _Tables(within, right, left, across)


def _powers(x: Tensor, powers: int) -> Tensor:
    """(…, K, K): entry (a, b) is what y^b counts in (x + y)^a, the binomial coefficient times x^(a − b)."""
    rows = [[comb(a, b) * x ** (a - b) if b <= a else 0 * x for b in range(powers)] for a in range(powers)]
    return torch.stack([torch.stack(row, -1) for row in rows], -2)


def _waves(table: Tensor, frequency: Tensor, at: Tensor, sign: float) -> Tensor:
    """(H, P, C, K) times cosines and signed sines, (H, P, C, 2 K)."""
    angle = frequency[..., None] * at
    waves = torch.stack([angle.cos(), sign * angle.sin()], -1)
    return (table[..., None] * waves[..., None, :]).flatten(3)


def finite(largest: Tensor) -> Tensor:
    """Largest logarithms, where all are −∞ a number far below any other."""
    return largest.clamp(min=-1e30)
