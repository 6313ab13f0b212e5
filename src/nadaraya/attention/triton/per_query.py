"""Attention with positions that need a logit per pair, in strips of rows: O(N) memory and every gradient.

PyTorch makes the logits of a strip, the kernels read them as a table per query, and the backward pass puts
score gradients in the same places, of which PyTorch makes the gradients of the position. Those of keys and
values are added up from strip to strip: no atomic operation, every sum in a fixed order.
"""

import torch
from torch import Tensor

from nadaraya.attention.autocast import full_precision
from nadaraya.attention.derivatives import differentiate
from nadaraya.attention.triton.configs import Kernel
from nadaraya.attention.triton.launch import (
    configured,
    empty_with_dense_rows,
    kernel_arguments,
    num_blocks,
    with_dense_rows,
)
from nadaraya.attention.triton.operator import (
    backward_arguments,
    bandwidth_gradient,
    empty_results,
    launch_forward,
    launch_key_value_gradient,
    launch_query_gradient,
    row_sums,
)
from nadaraya.attention.triton.strips import Grid, Mixture, Positions, padded, strips, table_of


@torch.library.custom_op("nadaraya::triton_attention_per_query", mutates_args=())
def triton_attention_per_query(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    scale: float,
    bandwidth: Tensor | None,
    weights: Tensor | None,
    table: Tensor,
    shift: Tensor | None,
    key_bias: Tensor | None,
    padding: Tensor | None,
    documents: Tensor | None,
    causal: bool,
    window: int,
    exclude_self: bool,
) -> tuple[Tensor, Tensor, Tensor]:
    """`triton_attention` with logits by lag that queries mix, or by the rows and columns of a grid.

    Args:
        query, key, value, scale, bandwidth, key_bias, padding, documents, causal, window, exclude_self: as
            `triton_attention` takes them.
        weights: (B, H, Nq, M) float32; None, a grid.
        table: (H or 1, M, 2E − 1) float32, entry r + E − 1 for lag r; of a grid of h × w patches
            (H or 1, 2h − 1, 2w − 1), entry (Δy + h − 1, Δx + w − 1).
        shift: (H or 1, 1, 2E − 1), of kernels the logarithms taken out of the table; pairs at other lags take
            no part. None, the table has logits, which are 0 at other lags.

    Returns:
        As `triton_attention`.
    """
    out, lse, alone = empty_results(query, value, exclude_self)
    arguments = kernel_arguments(
        query, key, value, scale, bandwidth, None, key_bias, padding, documents, causal, window,
        exclude_self,
    )  # fmt: skip
    positions = _positions(weights, table, shift, key.shape[2])
    with full_precision(query):
        for rows, keys in strips(positions, query, key.shape[2], causal, window):
            launch_forward(arguments | table_of(positions, rows, keys).arguments(), out, lse, alone)
    return out, lse, alone


def _positions(weights: Tensor | None, table: Tensor, shift: Tensor | None, num_keys: int) -> Positions:
    return Grid(table, num_keys) if weights is None else Mixture(weights, table, shift, num_keys)


@triton_attention_per_query.register_fake
def _(  # type: ignore[no-untyped-def]
    query, key, value, scale, bandwidth, weights, table, shift, key_bias, padding, documents, causal,
    window, exclude_self,
):  # fmt: skip
    return empty_results(query, value, exclude_self)


@torch.library.custom_op("nadaraya::triton_attention_per_query_backward", mutates_args=())
def triton_attention_per_query_backward(
    grad_out: Tensor,
    grad_lse: Tensor,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    out: Tensor,
    lse: Tensor,
    alone: Tensor,
    scale: float,
    bandwidth: Tensor | None,
    weights: Tensor | None,
    table: Tensor,
    shift: Tensor | None,
    key_bias: Tensor | None,
    padding: Tensor | None,
    documents: Tensor | None,
    causal: bool,
    window: int,
    exclude_self: bool,
    need_position: bool,
    need_key_bias: bool,
) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor, Tensor, Tensor]:
    """Gradients of `triton_attention_per_query`: query, key, value, bandwidth, weights, table and key_bias.

    Those of bandwidth and key_bias are float32 of shapes (H,) and (B, H, Nk). What is not needed is empty.
    """
    grad_out = with_dense_rows(grad_out)
    batch, num_heads = query.shape[:2]
    distance_sums = lse if bandwidth is None else torch.empty_like(lse)
    grad_query = empty_with_dense_rows(query)
    grad_key, grad_value = (torch.zeros(t.shape, dtype=lse.dtype, device=t.device) for t in (key, value))
    grad_key_bias = lse.new_zeros((batch, num_heads, key.shape[2]) if need_key_bias else (0,))
    arguments = kernel_arguments(
        query, key, value, scale, bandwidth, None, key_bias, padding, documents, causal, window,
        exclude_self,
    ) | backward_arguments(grad_out, lse, row_sums(out, grad_out, grad_lse), alone)  # fmt: skip
    kernel: Kernel = "query_gradient"
    if need_position:
        kernel = "table_gradient" if bandwidth is None else "gaussian_table_gradient"
    config = configured(kernel, query, value).narrow
    positions = _positions(weights, table, shift, key.shape[2])
    with full_precision(query):  # a backward pass may be under autocast
        for rows, keys in strips(positions, query, key.shape[2], causal, window):
            logits = table_of(positions, rows, keys)
            of_strip = arguments | logits.arguments()
            launch_key_value_gradient(of_strip, grad_key, grad_value, grad_key_bias)
            shape = (batch, num_heads, rows.stop - rows.start, logits.row_stride - positions.skew)
            grad_logits, memory = padded(lse.new_zeros, shape if need_position else (1, 1, 1, 1))
            launch_query_gradient(
                of_strip, config, grad_query, distance_sums, partial_ptr=memory,
                partial_stride=grad_logits.stride(1), TABLE_GRAD=need_position,
                num_programs=batch * num_blocks(of_strip, config),
            )  # fmt: skip
            if need_position:
                positions.add_gradients(rows, keys, grad_logits)
    grad_weights, grad_table = positions.gradients
    return (
        grad_query,
        grad_key.to(key.dtype),
        grad_value.to(value.dtype),
        bandwidth_gradient(distance_sums, bandwidth),
        lse.new_empty((0,)) if grad_weights is None else grad_weights,
        grad_table,
        grad_key_bias,
    )


@triton_attention_per_query_backward.register_fake
def _(  # type: ignore[no-untyped-def]
    grad_out, grad_lse, query, key, value, out, lse, alone, scale, bandwidth, weights, table, shift,
    key_bias, padding, documents, causal, window, exclude_self, need_position, need_key_bias,
):  # fmt: skip
    heads = query.shape[1]
    return (
        empty_with_dense_rows(query),
        *(torch.empty_like(t, memory_format=torch.contiguous_format) for t in (key, value)),
        lse.new_empty((0,) if bandwidth is None else (heads,)),
        lse.new_empty((0,) if weights is None else weights.shape),
        lse.new_empty(table.shape),
        lse.new_empty((*query.shape[:2], key.shape[2]) if need_key_bias else (0,)),
    )


differentiate(
    triton_attention_per_query,
    triton_attention_per_query_backward,
    ("query", "key", "value", "bandwidth", "weights", "table", "key_bias"),
    optional=(("weights", "table"), ("key_bias",)),
)
