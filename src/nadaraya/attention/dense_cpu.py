"""Attention of short sequences on the CPU: the scores of a few items at a time, which stay in cache.

PyTorch's fused operators take as long. Backward they have no gradient of a bias, and forward a bias by key
beside another one costs them copies of all operands. Shapes are those of `blocked`; `bias` is all that is
added to the scores but the bias by key, broadcastable to (B, H, Nq, Nk).
"""

import math
from collections.abc import Iterator

import torch
import torch.nn.functional as F
from torch import Tensor

from nadaraya.attention.partition import part_of

_MOST_SCORES = 2**17  # of one head: 0.5 MiB of float32
_SCORES = 2**18  # in flight at once for each thread, where one item has fewer


def suits(query: Tensor, key: Tensor) -> bool:
    """Return whether the sequences are short enough."""
    return query.shape[2] * key.shape[2] <= _MOST_SCORES


def attend(
    query: Tensor, key: Tensor, value: Tensor, scale: float, bias: Tensor | None, key_bias: Tensor | None
) -> tuple[Tensor, Tensor]:
    """Output, zero in rows that see nothing, and log-sum-exp, −inf there: those of `blocked_attention`."""
    batch, heads, num_queries, _ = query.shape
    out = query.new_empty((batch, num_queries, heads, value.shape[3])).transpose(1, 2)
    lse = query.new_empty(query.shape[:3])
    for items, (scores,) in _parts(query, key, 1):
        _set_scores(scores, items, query, key, scale, bias, key_bias)
        most = scores.amax(-1, keepdim=True)
        most = torch.where(most == -torch.inf, 0.0, most)
        weights = exp_without_underflow(scores.sub_(most))
        sums = weights.sum(-1, keepdim=True)
        lse[items] = (sums.log() + most)[..., 0]
        found = (weights.flatten(0, 1) @ value[items].flatten(0, 1)).unflatten(0, weights.shape[:2])
        torch.div(found, torch.where(sums > 0.0, sums, 1.0), out=out[items])
    return out, lse


def backward(
    grad_out: Tensor,
    grad_lse: Tensor,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    out: Tensor,
    lse: Tensor,
    scale: float,
    bias: Tensor | None,
    key_bias: Tensor | None,
    mask_shape: torch.Size | None,
) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor]:
    """Gradients of query, key, value, the bias by key (B, H, Nk), and a mask of `mask_shape` (empty if None).

    Args:
        others: as in `blocked_attention_backward`.
    """
    grad_query, grad_key, grad_value = (lse.new_empty(t.shape) for t in (query, key, value))
    grad_key_bias = lse.new_empty(key.shape[:3])
    grad_mask = lse.new_zeros((0,) if mask_shape is None else mask_shape)
    delta = (grad_out * out).sum(-1, keepdim=True) - grad_lse[..., None]
    nothing = torch.where(lse == -torch.inf, torch.inf, lse)[..., None]  # exp(score − inf) = 0: no weight
    for items, (weights, grad_scores) in _parts(query, key, 2):
        _set_scores(weights, items, query, key, scale, bias, key_bias)
        exp_without_underflow(weights.sub_(nothing[items]))
        by_weights, by_scores = weights.flatten(0, 1), grad_scores.flatten(0, 1)
        rows, keys, values, grads = (t[items].flatten(0, 1) for t in (query, key, value, grad_out))
        torch.bmm(grads, values.transpose(1, 2), out=by_scores)
        grad_scores.sub_(delta[items]).mul_(weights)
        if mask_shape is not None:
            part = part_of(grad_mask, (items,))
            part += grad_scores.sum_to_size(part.shape)
        torch.sum(grad_scores, 2, out=grad_key_bias[items])
        torch.bmm(by_scores, keys, out=grad_query[items].flatten(0, 1))
        torch.bmm(by_scores.transpose(1, 2), rows, out=grad_key[items].flatten(0, 1))
        torch.bmm(by_weights.transpose(1, 2), grads, out=grad_value[items].flatten(0, 1))
    if scale != 1.0:
        grad_query *= scale
        grad_key *= scale
    return grad_query, grad_key, grad_value, grad_key_bias, grad_mask


def exp_without_underflow(logits: Tensor) -> Tensor:
    """exp in place; what is too small to count is 0: numbers near underflow take a hundred times as long."""
    least = 0.75 * math.log(torch.finfo(logits.dtype).tiny)
    logits.clamp_(min=least).exp_()
    return F.threshold(logits, 1.01 * math.exp(least), 0.0, inplace=True)


def _parts(query: Tensor, key: Tensor, count: int) -> Iterator[tuple[slice, Tensor]]:
    """Items of the batch whose scores stay in cache together, and `count` places for numbers of each pair."""
    batch, heads, num_queries, _ = query.shape
    step = max(1, _SCORES * torch.get_num_threads() // (heads * num_queries * key.shape[2]))
    room = query.new_empty((count, min(step, batch), heads, num_queries, key.shape[2]))
    for start in range(0, batch, step):
        items = slice(start, min(batch, start + step))
        yield items, room[:, : items.stop - start]


def _set_scores(
    scores: Tensor,
    items: slice,
    query: Tensor,
    key: Tensor,
    scale: float,
    bias: Tensor | None,
    key_bias: Tensor | None,
) -> None:
    by_pair = scores.new_zeros(()) if bias is None else part_of(bias, (items,))
    by_key = scores.new_zeros(()) if key_bias is None else part_of(key_bias, (items,))[:, :, None]
    torch.add(by_pair.expand(scores.shape), by_key, out=scores)
    scores.flatten(0, 1).baddbmm_(
        query[items].flatten(0, 1), key[items].flatten(0, 1).transpose(1, 2), alpha=scale
    )
