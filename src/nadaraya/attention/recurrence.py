"""Σ_{j ≤ i} G(i − j) φ_i·ψ_j v_j for kernels of damped modes, in chunks: O(N), with states of constant size.

Within a chunk of C tokens pairs are written out. What came before is read from the states
S_p = Σ_j λ_p^r v_j ψ_jᵀ, r the lag to the end of the last chunk, one for each mode p. From one chunk to the
next they decay by λ_p^C with |λ_p| ≤ 1: nothing overflows, as quotients of cumulative products would. A mode
with powers of the lag has several states, one that oscillates two; RetNet (Sun et al. 2023) has one decay.
"""

from itertools import product
from math import comb, prod
from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.autograd.function import once_differentiable

from nadaraya.attention.autocast import full_precision
from nadaraya.kernels.modal import Modes

CHUNK = 128
_AT_ONCE = 2**20  # features of all modes that are written out at a time


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
        state: of earlier tokens, (B, H, e, S, m); default none. Not with a bias.

    Returns:
        Sums (B, H, N, e) over exp of a shift; the shift (B or 1, H or 1, N), None without a bias; and the
        state after the last token.
    """
    if modes is None:
        one = query.new_ones((1, 1))
        modes = Modes(one[..., None], one - 1)
    batch, heads, tokens, width = query.shape
    if state is None:
        state = query.new_zeros((batch, heads, value.shape[-1], modes.num_states, width))
    shift = carry = None
    if bias is not None:
        chunks = F.pad(bias, (0, -tokens % CHUNK), value=-torch.inf).unflatten(-1, (-1, CHUNK))
        tops = finite(chunks.detach().amax(-1)).cummax(-1).values
        carry = torch.exp(F.pad(tops, (1, 0), value=0.0)[..., :-1] - tops)
        carry[..., 0] = 1.0
        shift = tops.repeat_interleave(CHUNK, -1)[..., :tokens]
        key = key * torch.exp(bias - shift)[..., None]
    whole = tokens - tokens % CHUNK
    sizes = [size for size in (whole, tokens - whole) if size] or [0]
    outs, parts = [], [(query, key, value)]
    if len(sizes) > 1:  # in one split each: the backward pass of slices would fill whole tensors with zeros
        parts = list(zip(*(t.split(sizes, 2) for t in (query, key, value)), strict=True))
    for size, of_tokens in zip(sizes, parts, strict=True):
        length = min(size, CHUNK) or 1
        of_chunks = carry
        if carry is not None:
            of_chunks = carry[..., : size // CHUNK] if size == whole else carry[..., -1:]
        chunks = (t.unflatten(2, (-1, length)) for t in of_tokens)
        out, state = _Chunks.apply(*chunks, state, of_chunks, *_tables(modes, length, include_self))
        outs.append(out.flatten(2, 3))
    return outs[0] if len(outs) == 1 else torch.cat(outs, 2), shift, state


class _Chunks(torch.autograd.Function):
    """Sums (B, H, n, C, e) of chunks, and the state after them; query and key (B, H, n, C, m).

    Some chunks at a time, so that their features times tables stay in the processor's cache, always in the
    same memory. The backward pass goes from the last ones to the first and forms the states anew.
    """

    @staticmethod
    def forward(
        ctx: Any, query: Tensor, key: Tensor, value: Tensor, state: Tensor, carry: Tensor | None,
        within: Tensor, right: Tensor, left: Tensor, across: Tensor,
    ) -> tuple[Tensor, Tensor]:  # fmt: skip
        out, starts = value.new_empty(value.shape), []
        ctx.step = max(1, _AT_ONCE // max(1, key[:, :, :1].numel() * right.shape[-1]))
        scratch = _scratch(key, right, ctx.step)
        for some in _slices(query.shape[2], ctx.step):
            starts.append(state)
            q, k, v = (t[:, :, some].contiguous() for t in (query, key, value))
            added = v.mT @ _outer(k, right, scratch)
            factors = None if carry is None else carry[..., some]
            before, state = _states(added, state, factors, across)
            near = (q @ k.mT).mul_(within[:, None]) @ v
            torch.add(near, _outer(q, left, scratch) @ before.mT, out=out[:, :, some])
        ctx.save_for_backward(query, key, value, carry, within, right, left, across, *starts)
        return out, state

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor, of_state: Tensor) -> tuple[Tensor | None, ...]:
        with full_precision(grad):
            return _Chunks._gradients(ctx, grad, of_state)

    @staticmethod
    def _gradients(ctx: Any, grad: Tensor, of_state: Tensor) -> tuple[Tensor | None, ...]:
        query, key, value, carry, within, right, left, across, *starts = ctx.saved_tensors
        of_query, of_key, of_value = (torch.empty_like(t) for t in (query, key, value))
        of_within, of_right, of_left, of_across = (torch.zeros_like(t) for t in (within, right, left, across))
        outer, of_outer = (_scratch(key, right, ctx.step) for _ in range(2))
        block = across.shape[-1]
        slices = _slices(query.shape[2], ctx.step)
        for some, start in zip(reversed(slices), reversed(starts), strict=True):
            q, k, v, g = (t[:, :, some].contiguous() for t in (query, key, value, grad))
            factors = None if carry is None else carry[..., some]
            before, _ = _states(v.mT @ _outer(k, right, outer), start, factors, across)
            scores, of_scores = q @ k.mT, g @ v.mT
            _add_summed(of_within, scores * of_scores)
            of_scores *= within[:, None]
            dq, of_table = _outer_backward(_product(g, before, of_outer), q, left)
            _add_summed(of_left, of_table)
            torch.add(dq, of_scores @ k, out=of_query[:, :, some])
            of_added = g.mT @ _outer(q, left, outer)
            for chunk in reversed(range(before.shape[2])):
                read = of_added[:, :, chunk].view_as(of_state).clone()
                of_added[:, :, chunk] = of_state.flatten(3)
                of_state = _moved(of_state, across.mT) + read
                if factors is not None:
                    of_state = of_state * factors[:, :, chunk, None, None, None]
            after, earlier = (t.unflatten(-1, (-1, block, q.shape[-1])) for t in (of_added, before))
            for i, j in product(range(block), repeat=2):
                change = (after[..., i, :] * earlier[..., j, :]).sum(-1).sum(3)
                _add_summed(of_across[..., i, j], change)
            dk, of_table = _outer_backward(_product(v, of_added, of_outer), k, right)
            _add_summed(of_right, of_table)
            torch.add(dk, of_scores.mT @ q, out=of_key[:, :, some])
            dv = scores.mul_(within[:, None]).mT @ g
            torch.add(dv, _outer(k, right, outer) @ of_added.mT, out=of_value[:, :, some])
        return of_query, of_key, of_value, of_state, None, of_within, of_right, of_left, of_across


def _slices(chunks: int, step: int) -> list[slice]:
    return [slice(start, min(start + step, chunks)) for start in range(0, chunks, step)]


def _add_summed(total: Tensor, part: Tensor) -> None:
    """Add a gradient by batch, head and chunk, (B, H, n, …), to that of a table, (H or 1, …)."""
    total += part.sum((0, 2)).sum_to_size(total.shape)


def _scratch(features: Tensor, table: Tensor, step: int) -> Tensor:
    """Memory for features of some chunks by the entries of a table."""
    return features.new_empty(features[:, :, :step].numel() * table.shape[-1])


def _outer(features: Tensor, table: Tensor, scratch: Tensor) -> Tensor:
    """Features (B, H, n, C, m) by the entries of a table (H or 1, C, S), (B, H, n, C, S m)."""
    shape = (*features.shape[:4], table.shape[-1], features.shape[-1])
    out = scratch[: prod(shape)].view(shape)
    return torch.mul(features[..., None, :], table[:, None, :, :, None], out=out).flatten(-2)


def _product(left: Tensor, right: Tensor, scratch: Tensor) -> Tensor:
    """left @ right, (B, H, n, C, S m), in given memory."""
    shape = (*left.shape[:-1], right.shape[-1])
    out = scratch[: prod(shape)].view(shape)
    torch.bmm(left.flatten(0, 2), right.flatten(0, 2), out=out.flatten(0, 2))
    return out


def _outer_backward(grad: Tensor, features: Tensor, table: Tensor) -> tuple[Tensor, Tensor]:
    """Gradients of features and, before its sum over batch and chunks, of the table."""
    grad = grad.unflatten(-1, (table.shape[-1], -1))
    return (table[:, None, :, None, :] @ grad).squeeze(-2), (grad @ features[..., None]).squeeze(-1)


def _states(added: Tensor, state: Tensor, carry: Tensor | None, across: Tensor) -> tuple[Tensor, Tensor]:
    """The states before each chunk, (B, H, n, e, S m), and the last, by what the chunks add."""
    before = torch.empty_like(added)
    for chunk in range(added.shape[2]):
        if carry is not None:
            state = state * carry[:, :, chunk, None, None, None]
        before[:, :, chunk] = state.flatten(3)
        state = _moved(state, across) + added[:, :, chunk].view_as(state)
    return before, state


def _moved(state: Tensor, across: Tensor) -> Tensor:
    """States (B, H, e, S, m) one chunk later."""
    block = across.shape[-1]
    if block == 1:
        return state * across[:, None, :, 0]
    return (across[:, None] @ state.unflatten(3, (-1, block))).flatten(3, 4)


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
    right, left = (t.transpose(1, 2).flatten(2).contiguous() for t in (right, left))
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
