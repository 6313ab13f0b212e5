"""Attention with logits by lag that every query mixes for itself: O(N) memory, forward and backward.

Row blocks take their bias from strips of mixed logits (`mixed_strips`). On the CPU it goes as the mask to
PyTorch's fused attention; keys so far away that the bias is 0 for all rows go there without one. Elsewhere,
and in the backward pass, products of queries and keys are added into the strip, weights take their place,
and then score gradients, from which the strip gives the gradients of weights and profiles.

Shapes: q_BHNd, k_BHNd, v_BHNe.
"""

import torch
from torch import Tensor

from nadaraya.attention import fused_cpu
from nadaraya.attention.blocked import Block, empty_results, masked_bias
from nadaraya.attention.derivatives import differentiate
from nadaraya.attention.fused_cpu import with_columns
from nadaraya.attention.merging import merge_attention
from nadaraya.attention.mixed_strips import Mixture
from nadaraya.attention.partition import Part, part_of, partition, whole, work_on

_FORWARD_ROWS = 256
_BACKWARD_ROWS = 128


@torch.library.custom_op("nadaraya::mixed_attention", mutates_args=())
def mixed_attention(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    scale: float,
    weights: Tensor,
    table: Tensor,
    shift: Tensor | None,
    key_bias: Tensor | None,
    mask: Tensor | None,
    causal: bool,
    window: int,
    exclude_self: bool,
) -> tuple[Tensor, Tensor]:
    """Softmax attention with scores q·k·scale + b + key_bias + mask, in row blocks.

    Args:
        query, key, value, scale, key_bias, mask: as `blocked_attention` takes them.
        weights: (B, H, Nq, M), float32 at least, as are the table and the shift.
        table: (H or 1, M, U), entry u for lag E − 1 − u; U = E with `causal` and 2E − 1 without.
        shift: (H or 1, 1, U) where the table is of kernels, the logarithms taken out of it; pairs at other
            lags then take no part. None where it is of logits, which are 0 at other lags.
        causal: no key after a query is visible.
        window: only |lag| < window is visible, 0 for no limit.
        exclude_self: lag 0 is not visible.

    Returns:
        As `blocked_attention`.
    """
    mixture = Mixture(weights, table, shift, key.shape[2], causal, window, exclude_self)
    out, lse = empty_results(query, value)
    blocks = mixture.blocks(_FORWARD_ROWS)

    def work(part: Part) -> None:
        memory = mixture.memory(blocks, part)
        for block in blocks:
            near = block
            if _is_fused(query):
                near = Block(block.rows, mixture.near_keys(block))
            if near.num_keys == 0:
                rows = (*part, block.rows)
                out[rows], lse[rows] = 0.0, -torch.inf
            else:
                for strip in mixture.strips(near, memory, part):
                    if key_bias is not None:
                        strip.add_mask(key_bias[:, :, None])
                    if mask is not None:
                        strip.add_mask(mask)
                    rows, keys = strip.rows, strip.keys
                    out[rows], lse[rows] = _attend(query[rows], key[keys], value[keys], scale, strip.by_key)
            for beyond in (
                slice(block.keys.start, near.keys.start),
                slice(near.keys.stop, block.keys.stop),
            ):
                if beyond.start < beyond.stop:
                    rows, keys = (*part, block.rows), (*part, beyond)
                    bias = None
                    if mask is not None:
                        bias = masked_bias(None, part_of(mask, (*rows, beyond)), lse.dtype)
                    by_key = None if key_bias is None else part_of(key_bias, keys)
                    found = fused_cpu.attend(
                        query[rows], key[keys], value[keys], scale, bias, by_key, causal=False
                    )
                    out[rows], lse[rows] = merge_attention([(out[rows], lse[rows]), found])

    num_pairs = query.shape[2] * key.shape[2]
    work_on(partition(query.shape[0], query.shape[1], num_pairs, query.device), work)
    return out, lse


def _is_fused(query: Tensor) -> bool:
    return query.device.type == "cpu"


def _attend(query: Tensor, key: Tensor, value: Tensor, scale: float, bias: Tensor) -> tuple[Tensor, Tensor]:
    """Output and log-sum-exp of (B, H, …) with a bias (B · H, …), whose memory may be used."""
    shape = query.shape[:2]
    if _is_fused(query):
        return fused_cpu.attend(query, key, value, scale, bias.unflatten(0, shape), None, causal=False)
    queries, keys, values = (t.to(bias.dtype).flatten(0, 1) for t in (query, key, value))
    scores = bias.baddbmm_(queries, keys.mT, alpha=scale)
    lse = scores.logsumexp(-1, keepdim=True)
    weights = scores.sub_(torch.where(lse == -torch.inf, torch.inf, lse)).exp_()
    return (weights @ values).to(query.dtype).unflatten(0, shape), lse[..., 0].unflatten(0, shape)


@mixed_attention.register_fake
def _(query: Tensor, key: Tensor, value: Tensor, *_: object) -> tuple[Tensor, Tensor]:
    return empty_results(query, value)


@torch.library.custom_op("nadaraya::mixed_attention_backward", mutates_args=())
def mixed_attention_backward(
    grad_out: Tensor,
    grad_lse: Tensor,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    out: Tensor,
    lse: Tensor,
    scale: float,
    weights: Tensor,
    table: Tensor,
    shift: Tensor | None,
    key_bias: Tensor | None,
    mask: Tensor | None,
    causal: bool,
    window: int,
    exclude_self: bool,
    need_key_bias: bool,
    need_mask: bool,
) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor, Tensor, Tensor]:
    """Gradients of `mixed_attention`: query, key, value, weights, table, key_bias, mask.

    Those of the last two are empty if not needed. With softmax weights P and score gradients
    dS = P ∘ (dO Vᵀ − δ), δ_i = dO_i·O_i − dLSE_i.
    """
    nothing = torch.where(lse == -torch.inf, torch.inf, lse)  # exp(score − inf) = 0: no weight, no gradient
    level = -nothing[..., None]
    mixture = Mixture(weights, table, shift, key.shape[2], causal, window, exclude_self, level)
    dtype, width = lse.dtype, query.shape[3]
    grad_out = grad_out.to(dtype)
    delta = (grad_out * out.to(dtype)).sum(-1) - grad_lse
    queries, keys, factor = query.to(dtype), key.to(dtype), scale
    if key_bias is not None:
        # Terms by key ride along as an extra column of the products: no pass over the scores for them.
        queries = with_columns(queries * scale, torch.ones_like(lse))
        keys, factor = with_columns(keys, key_bias.expand(key.shape[:3])), 1.0
    grads, values = with_columns(grad_out, -delta), with_columns(value.to(dtype), lse.new_ones(key.shape[:3]))
    queries, keys, grads, values = (t.flatten(0, 1) for t in (queries, keys, grads, values))

    grad_query = lse.new_zeros((*queries.shape[:2], width))
    # The column of ones collects Σ_i dS_ij, the gradient of the bias by key.
    grad_keys = lse.new_zeros((*keys.shape[:2], width + need_key_bias))
    grad_value = lse.new_zeros((*keys.shape[:2], value.shape[3]))
    grad_weights = lse.new_zeros(weights.shape).flatten(0, 1)
    grad_mask = lse.new_zeros(mask.shape if need_mask and mask is not None else (0,))
    blocks = mixture.blocks(_BACKWARD_ROWS)

    def work(part: Part) -> Tensor:
        """Writes the gradients of its items and heads; returns what it adds to that of the table."""
        of_table = lse.new_zeros(table.shape)
        memory, room = mixture.memory(blocks, part), mixture.memory(blocks, part)[0]
        for block in blocks:
            if block.num_keys == 0:
                continue
            for strip in mixture.strips(block, memory, part):
                at_rows, at_keys = (strip.lines, block.rows), (strip.lines, block.keys)
                if mask is not None:
                    strip.add_mask(mask)
                scores = strip.by_key
                scores.baddbmm_(queries[at_rows], keys[at_keys].mT, alpha=factor).exp_()
                grad_value[at_keys].baddbmm_(scores.mT, grads[at_rows][..., :-1])
                grad_scores = room[: scores.numel()].view(scores.shape)
                scores *= torch.bmm(grads[at_rows], values[at_keys].mT, out=grad_scores)
                if need_mask:
                    # Summed over the dimensions that the mask broadcasts.
                    of_mask = strip.of_mask(grad_mask)
                    of_mask += scores.unflatten(0, (strip.num_items, -1)).sum_to_size(of_mask.shape)
                torch.bmm(scores, keys[at_keys][..., :width], out=grad_query[at_rows])
                grad_keys[at_keys].baddbmm_(scores.mT, queries[at_rows][..., : grad_keys.shape[2]])
                strip.add_gradients(grad_weights, of_table)
        return of_table

    batch, heads, num_queries = lse.shape
    parts = [whole(batch, heads)]
    if not need_mask:
        parts = partition(batch, heads, num_queries * key.shape[2], query.device)
    grad_table = torch.stack(work_on(parts, work)).sum(0)
    grad_key_bias = grad_keys[..., -1].clone() if need_key_bias else lse.new_zeros((0,))
    return (
        grad_query.mul_(scale).view(query.shape).to(query.dtype),
        (grad_keys[..., :width] * factor).view(key.shape).to(key.dtype),
        grad_value.view(value.shape).to(value.dtype),
        grad_weights.view(weights.shape),
        grad_table,
        grad_key_bias.view(key.shape[:3] if need_key_bias else (0,)),
        grad_mask,
    )


@mixed_attention_backward.register_fake
def _(  # type: ignore[no-untyped-def]
    grad_out, grad_lse, query, key, value, out, lse, scale, weights, table, shift, key_bias, mask, causal,
    window, exclude_self, need_key_bias, need_mask,
):  # fmt: skip
    operands = (query, key, value, weights, table)
    return (
        *(torch.empty_like(t, memory_format=torch.contiguous_format) for t in operands),
        lse.new_empty(key.shape[:3] if need_key_bias else (0,)),
        lse.new_empty(mask.shape if need_mask else (0,)),
    )


differentiate(
    mixed_attention,
    mixed_attention_backward,
    ("query", "key", "value", "weights", "table", "key_bias", "mask"),
    optional=(("key_bias",), ("mask",)),
)
