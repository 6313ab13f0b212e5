"""Softmax attention with dot or Gaussian content and a table of lag logits, as a PyTorch operator.

Opaque to torch.compile, with shapes for tracing and a rule for gradients.
"""

from typing import Any

import torch
from torch import Tensor

from nadaraya.attention.derivatives import differentiate
from nadaraya.attention.triton.configs import Config, Kernel
from nadaraya.attention.triton.kernels.forward import forward_kernel
from nadaraya.attention.triton.kernels.gradients import key_value_gradient_kernel, row_sum_kernel
from nadaraya.attention.triton.kernels.one_tensor import one_tensor_gradient_kernel
from nadaraya.attention.triton.kernels.query_gradient import query_gradient_kernel
from nadaraya.attention.triton.kernels.tiles import LN2
from nadaraya.attention.triton.launch import (
    configured,
    empty_output,
    empty_with_dense_rows,
    gaussian_mode,
    half_squared_norms,
    is_same,
    kernel_arguments,
    mask_options,
    num_blocks,
    num_multiprocessors,
    on_device,
    operands,
    padded_width,
    precision_of,
    strides,
    width_options,
    with_dense_rows,
)

_ROW_SUM_BLOCK = 64
_TABLE_PROGRAMS_PER_MULTIPROCESSOR = 2


@torch.library.custom_op("nadaraya::triton_attention", mutates_args=())
def triton_attention(
    query: Tensor,
    key: Tensor | None,
    value: Tensor | None,
    scale: float,
    bandwidth: Tensor | None,
    table: Tensor | None,
    key_bias: Tensor | None,
    padding: Tensor | None,
    documents: Tensor | None,
    causal: bool,
    window: int,
    exclude_self: bool,
    active: Tensor | None = None,
) -> tuple[Tensor, Tensor, Tensor]:
    """Softmax attention with logits content + table[i − j], in O(Nq + Nk) memory.

    Args:
        query: (B, H, Nq, d), float16, bfloat16 or float32, the last dimension adjacent in memory.
        key: (B, G, Nk, d) likewise, H a multiple of G. None, with `value`: the queries serve as all three, as
            in Gaussian kernel attention, and have one gradient; needs a bandwidth, and no table,
            key_bias or padding.
        value: (B, G, Nk, e) likewise.
        scale: factor of the dot product; not used with a bandwidth.
        bandwidth: (H or 1,) float32; with it the content is −‖q − k‖²/(2σ²).
        table: (H or 1, 2L − 1) float32, L = max(Nq, Nk), entry r + L − 1 for lag r = i + Nk − Nq − j.
        key_bias: (B or 1, H or 1, Nk) float32, added to all logits of a key.
        padding: (B, Nk) bool, True where a key is padding.
        documents: (B, 2, Nk) int32, `document_bounds`; keys outside of a query's document are not seen.
        causal: only lags ≥ 0.
        window: only |lag| < window; 0 for no limit.
        exclude_self: not lag 0, unless nothing else is left.
        active: (B, H, blocks of queries and keys, 2) int32, `active_blocks`; other keys are not visited.

    Returns:
        The output (B, H, Nq, e), zero in rows that see nothing; the log-sum-exp of the logits (B, H, Nq) in
        float32 and units of log 2, −∞ in such rows; with `exclude_self` which rows keep themselves,
        (B, H, Nq) int8, else nothing.
    """
    # Where each token sees itself, at distance 0, no logit is larger, and no running maximum is needed.
    fixed_peak = key is None and not exclude_self
    if key is None or value is None:
        key = value = query
    out, lse, alone = empty_results(query, value, exclude_self)
    arguments = kernel_arguments(
        query, key, value, scale, bandwidth, table, key_bias, padding, documents, causal, window,
        exclude_self, active,
    )  # fmt: skip
    launch_forward(arguments, out, lse, alone, fixed_peak=fixed_peak)
    return out, lse, alone


def launch_forward(
    arguments: dict[str, Any], out: Tensor, lse: Tensor, alone: Tensor, fixed_peak: bool = False
) -> None:
    """Fills the results of all queries, or of those of a table per query."""
    query, key, value = operands(arguments)
    config = configured("forward", query, value)
    with on_device(query):
        forward_kernel[(num_blocks(arguments, config) * query.shape[0] * query.shape[1],)](
            **arguments, out_ptr=out, lse_ptr=lse, alone_ptr=alone, out_strides=strides(out),
            ONE_TENSOR=is_same(key, value), FIXED_PEAK=fixed_peak, **config.launch_options,
        )  # fmt: skip


def empty_results(query: Tensor, value: Tensor, exclude_self: bool) -> tuple[Tensor, Tensor, Tensor]:
    """Output, log-sum-exp and the flags of rows that keep themselves, to be filled."""
    out = empty_output(query, value.shape[3])
    lse = query.new_empty(query.shape[:3], dtype=torch.float32)
    alone = query.new_empty(query.shape[:3] if exclude_self else (0,), dtype=torch.int8)
    return out, lse, alone


@triton_attention.register_fake
def _(  # type: ignore[no-untyped-def]
    query, key, value, scale, bandwidth, table, key_bias, padding, documents, causal, window, exclude_self,
    active=None,
):  # fmt: skip
    return empty_results(query, query if value is None else value, exclude_self)


@torch.library.custom_op("nadaraya::triton_attention_backward", mutates_args=())
def triton_attention_backward(
    grad_out: Tensor,
    grad_lse: Tensor,
    query: Tensor,
    key: Tensor | None,
    value: Tensor | None,
    out: Tensor,
    lse: Tensor,
    alone: Tensor,
    scale: float,
    bandwidth: Tensor | None,
    table: Tensor | None,
    key_bias: Tensor | None,
    padding: Tensor | None,
    documents: Tensor | None,
    causal: bool,
    window: int,
    exclude_self: bool,
    need_table: bool,
    need_key_bias: bool,
    active: Tensor | None = None,
) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor, Tensor]:
    """Gradients of `triton_attention` for query, key, value, bandwidth, table and key_bias.

    The last three are float32, of shapes (H,), (H, 2L − 1) and (B, H, Nk). What is not needed is empty.
    Bit-identical in every run.
    """
    grad_out = with_dense_rows(grad_out)
    delta = row_sums(out, grad_out, grad_lse)
    distance_sums = lse if bandwidth is None else torch.empty_like(lse)
    masks = mask_options(causal, window, exclude_self)
    grad_query, grad_key, grad_value = _empty_gradients(query, key, value)
    grad_table, grad_key_bias = lse.new_empty((0,)), lse.new_empty((0,))
    if key is None or value is None:
        assert bandwidth is not None
        batch, num_heads, num_tokens, width = query.shape
        config = configured("one_tensor_gradient", query)
        options = width_options(query, query, gaussian=True)
        with on_device(query):
            one_tensor_gradient_kernel[(-(-num_tokens // config.block_m) * batch * num_heads,)](
                query, grad_out, grad_query, distance_sums, lse, delta, alone, half_squared_norms(query),
                lse if documents is None else documents, precision_of(bandwidth, num_heads), strides(query),
                strides(grad_out), strides(grad_query), num_heads, num_tokens, window, width,
                GAUSSIAN=gaussian_mode(query, query, bandwidth), FIXED_PEAK=not exclude_self,
                DOCUMENTS=documents is not None,
                PRECISION=options["PRECISION"], WIDTH=options["WIDTH"], EVEN_WIDTH=options["EVEN_WIDTH"],
                **masks, **config.launch_options,
            )  # fmt: skip
        grad_bandwidth = bandwidth_gradient(distance_sums, bandwidth)
        return grad_query, grad_key, grad_value, grad_bandwidth, grad_table, grad_key_bias

    arguments = {
        **kernel_arguments(
            query, key, value, scale, bandwidth, table, key_bias, padding, documents, causal, window,
            exclude_self, active,
        ),
        **backward_arguments(grad_out, lse, delta, alone),
    }  # fmt: skip
    if need_key_bias:
        grad_key_bias = lse.new_empty((*query.shape[:2], key.shape[2]))
    launch_key_value_gradient(arguments, grad_key, grad_value, grad_key_bias)
    kernel: Kernel = "query_gradient"
    if need_table:
        kernel = "table_gradient" if bandwidth is None else "gaussian_table_gradient"
    config = configured(kernel, query, value)
    num_programs = query.shape[0] * num_blocks(arguments, config)
    partial = lse
    if need_table:
        wanted = _TABLE_PROGRAMS_PER_MULTIPROCESSOR * num_multiprocessors(query.device)
        # One program more than fit at once would double the time.
        num_programs = min(num_programs, max(1, wanted // query.shape[1]))
        partial = lse.new_zeros((query.shape[1] * num_programs, arguments["table_ptr"].shape[1]))
    launch_query_gradient(
        arguments, config, grad_query, distance_sums, partial_ptr=partial, partial_stride=partial.stride(0),
        num_programs=num_programs, TABLE_GRAD=need_table,
    )  # fmt: skip
    if need_table:
        assert table is not None
        zero, middle = arguments["table_zero"], table.shape[1] // 2
        by_program = partial.view(query.shape[1], num_programs, -1)[..., zero - middle : zero + middle + 1]
        grad_table = by_program.sum(1)
    grad_bandwidth = bandwidth_gradient(distance_sums, bandwidth)
    return grad_query, grad_key, grad_value, grad_bandwidth, grad_table, grad_key_bias


def backward_arguments(grad_out: Tensor, lse: Tensor, delta: Tensor, alone: Tensor) -> dict[str, Any]:
    """Arguments of both kernels for gradients beside `kernel_arguments`."""
    return {
        "grad_out_ptr": grad_out, "grad_out_strides": strides(grad_out),
        "lse_ptr": lse, "delta_ptr": delta, "alone_ptr": alone,
    }  # fmt: skip


def launch_key_value_gradient(
    arguments: dict[str, Any], grad_key: Tensor, grad_value: Tensor, grad_key_bias: Tensor
) -> None:
    """Fills the gradients of keys, values and, unless empty, key biases; a table per query adds to them."""
    query, key, value = operands(arguments)
    config = configured("key_value_gradient", query, value)
    with on_device(query):
        key_value_gradient_kernel[(-(-key.shape[2] // config.block_n) * key.shape[0] * key.shape[1],)](
            **arguments, grad_key_ptr=grad_key, grad_value_ptr=grad_value, grad_key_bias_ptr=grad_key_bias,
            grad_key_strides=strides(grad_key), grad_value_strides=strides(grad_value),
            KEY_BIAS_GRAD=grad_key_bias.numel() > 0, **config.launch_options,
        )  # fmt: skip


def launch_query_gradient(
    arguments: dict[str, Any], config: Config, grad_query: Tensor, distance_sums: Tensor, **table: Any
) -> None:
    """Fills the gradients of queries, and adds to those of the table.

    Args:
        arguments: those of the forward kernel, and `backward_arguments`.
        config: the tiles; square for a table by lag.
        grad_query: like the queries.
        distance_sums: (B, H, Nq) float32, filled with a bandwidth.
        table: partial_ptr, the gradient of the table: by lag, one of every program of every head; by row, one
            of every item and head; partial_stride, from one to the next; num_programs, of a head; TABLE_GRAD,
            whether it is wanted.
    """
    query, key, value = operands(arguments)
    with on_device(query):
        query_gradient_kernel[(query.shape[1] * table["num_programs"],)](
            **arguments, **table, grad_query_ptr=grad_query, grad_query_strides=strides(grad_query),
            distance_sum_ptr=distance_sums, num_batch=query.shape[0], ONE_TENSOR=is_same(key, value),
            **config.launch_options,
        )  # fmt: skip


def row_sums(out: Tensor, grad_out: Tensor, grad_lse: Tensor) -> Tensor:
    """δ_i = dO_i · O_i − dLSE_i, (B, H, Nq) float32."""
    batch, num_heads, num_queries, width = out.shape
    delta = out.new_empty(out.shape[:3], dtype=torch.float32)
    grid = (-(-num_queries // _ROW_SUM_BLOCK) * batch * num_heads,)
    with on_device(out):
        row_sum_kernel[grid](
            out, grad_out, grad_lse.contiguous(), delta, strides(out), strides(grad_out), num_heads,
            num_queries, width, WIDTH=padded_width(width), BLOCK_M=_ROW_SUM_BLOCK,
        )  # fmt: skip
    return delta


def _empty_gradients(query: Tensor, *others: Tensor | None) -> tuple[Tensor, ...]:
    """Dense tensors to be filled with gradients, also where the inputs are expanded; none for None."""
    return empty_with_dense_rows(query), *(
        query.new_empty((0,)) if t is None else empty_with_dense_rows(t) for t in others
    )


def bandwidth_gradient(distance_sums: Tensor, bandwidth: Tensor | None) -> Tensor:
    """dσ = −(2/σ) Σ dS log κ, (H,), from the row sums of dS log₂ κ, (B, H, Nq)."""
    if bandwidth is None:
        return distance_sums.new_empty((0,))
    return distance_sums.sum((0, 2)) * (-2.0 * LN2.value / bandwidth)


@triton_attention_backward.register_fake
def _(  # type: ignore[no-untyped-def]
    grad_out, grad_lse, query, key, value, out, lse, alone, scale, bandwidth, table, key_bias, padding,
    documents, causal, window, exclude_self, need_table, need_key_bias, active=None,
):  # fmt: skip
    heads = query.shape[1]
    grad_bandwidth = lse.new_empty((0,) if bandwidth is None else (heads,))
    grad_table = lse.new_empty((heads, table.shape[1]) if need_table else (0,))
    grad_key_bias = lse.new_empty((*query.shape[:2], key.shape[2]) if need_key_bias else (0,))
    return *_empty_gradients(query, key, value), grad_bandwidth, grad_table, grad_key_bias


differentiate(
    triton_attention,
    triton_attention_backward,
    ("query", "key", "value", "bandwidth", "table", "key_bias"),
    optional=(("table",), ("key_bias",)),
)
