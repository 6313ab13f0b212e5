"""Softmax attention with dot or Gaussian content and a table of lag logits, as a PyTorch operator.

Opaque to torch.compile, with shapes for tracing and a rule for gradients.
"""

import torch
from torch import Tensor

from nadaraya.attention.triton.configs import Kernel
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
    gaussian_operands,
    half_squared_norms,
    is_same,
    kernel_table,
    key_bias,
    key_options,
    key_range,
    mask_options,
    num_multiprocessors,
    on_device,
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
    key_logits: Tensor | None,
    padding: Tensor | None,
    documents: Tensor | None,
    causal: bool,
    window: int,
    exclude_self: bool,
) -> tuple[Tensor, Tensor, Tensor]:
    """Softmax attention with logits content + table[i − j], in O(Nq + Nk) memory.

    Args:
        query: (B, H, Nq, d), float16, bfloat16 or float32, the last dimension adjacent in memory.
        key: (B, G, Nk, d) likewise, H a multiple of G. None, with `value`: the queries serve as all three, as
            in Gaussian kernel attention, and have one gradient; needs a bandwidth, and no table,
            key_logits or padding.
        value: (B, G, Nk, e) likewise.
        scale: factor of the dot product; not used with a bandwidth.
        bandwidth: (H or 1,) float32; with it the content is −‖q − k‖²/(2σ²).
        table: (H or 1, 2L − 1) float32, L = max(Nq, Nk), entry r + L − 1 for lag r = i + Nk − Nq − j.
        key_logits: (B or 1, H or 1, Nk) float32, added to all logits of a key.
        padding: (B, Nk) bool, True where a key is padding.
        documents: (B, 2, Nk) int32, `document_bounds`; keys outside of a query's document are not seen.
        causal: only lags ≥ 0.
        window: only |lag| < window; 0 for no limit.
        exclude_self: not lag 0, unless nothing else is left.

    Returns:
        The output (B, H, Nq, e), zero in rows that see nothing; the log-sum-exp of the logits (B, H, Nq) in
        float32 and units of log 2, −∞ in such rows; with `exclude_self` which rows keep themselves,
        (B, H, Nq) int8, else nothing.
    """
    # Each token then sees itself, at distance 0: no logit is larger, and no running maximum is needed.
    fixed_peak = key is None and not exclude_self
    key, value = _or_query(query, key, value)
    batch, num_heads, num_queries, width = query.shape
    num_keys, value_width = value.shape[2:]
    out, lse, alone = _empty_results(query, value, exclude_self)
    config = configured("forward", query, value)
    entries, zero, step = kernel_table(table, lse)
    bias, bias_strides = key_bias(key_logits, padding, lse)
    ranges = key_range(padding, lse)
    bounds = lse if documents is None else documents
    query_norms, key_norms, precision = gaussian_operands(query, key, bandwidth, lse)
    grid = (-(-num_queries // config.block_m) * batch * num_heads,)
    with on_device(query):
        forward_kernel[grid](
            query, key, value, out, lse, alone, query_norms, key_norms, entries, bias, ranges, bounds,
            precision, scale, strides(query), strides(key), strides(value), strides(out), *bias_strides,
            num_heads, num_heads // key.shape[1], num_queries, num_keys, zero, step, window, width,
            value_width, GAUSSIAN=gaussian_mode(query, key, bandwidth), ONE_TENSOR=is_same(key, value),
            FIXED_PEAK=fixed_peak, TABLE=table is not None, **key_options(key_logits, padding, documents),
            **mask_options(causal, window, exclude_self),
            **width_options(query, value, bandwidth is not None), **config.launch_options,
        )  # fmt: skip
    return out, lse, alone


def _or_query(query: Tensor, key: Tensor | None, value: Tensor | None) -> tuple[Tensor, Tensor]:
    return (query, query) if key is None or value is None else (key, value)


def _empty_results(query: Tensor, value: Tensor, exclude_self: bool) -> tuple[Tensor, Tensor, Tensor]:
    """Output, log-sum-exp and the flags of rows that keep themselves, to be filled."""
    out = empty_output(query, value.shape[3])
    lse = query.new_empty(query.shape[:3], dtype=torch.float32)
    alone = query.new_empty(query.shape[:3] if exclude_self else (0,), dtype=torch.int8)
    return out, lse, alone


@triton_attention.register_fake
def _(  # type: ignore[no-untyped-def]
    query, key, value, scale, bandwidth, table, key_logits, padding, documents, causal, window, exclude_self
):
    return _empty_results(query, query if value is None else value, exclude_self)


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
    key_logits: Tensor | None,
    padding: Tensor | None,
    documents: Tensor | None,
    causal: bool,
    window: int,
    exclude_self: bool,
    need_table: bool,
    need_key_logits: bool,
) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor, Tensor]:
    """Gradients of `triton_attention` for query, key, value, bandwidth, table and key_logits.

    The last three are float32, of shapes (H,), (H, 2L − 1) and (B, H, Nk). What is not needed is empty.
    Bit-identical in every run.
    """
    grad_out = with_dense_rows(grad_out)
    delta = _row_sums(out, grad_out, grad_lse)
    distance_sums = lse if bandwidth is None else torch.empty_like(lse)
    masks = mask_options(causal, window, exclude_self)
    grad_query, grad_key, grad_value = _empty_gradients(query, key, value)
    grad_table, grad_key_logits = lse.new_empty((0,)), lse.new_empty((0,))
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
        grad_bandwidth = _bandwidth_gradient(distance_sums, bandwidth)
        return grad_query, grad_key, grad_value, grad_bandwidth, grad_table, grad_key_logits

    batch, num_heads, num_queries, width = query.shape
    num_keys, value_width = value.shape[2:]
    group_size = num_heads // key.shape[1]
    entries, zero, step = kernel_table(table, lse)
    bias, bias_strides = key_bias(key_logits, padding, lse)
    ranges = key_range(padding, lse)
    bounds = lse if documents is None else documents
    query_norms, key_norms, precision = gaussian_operands(query, key, bandwidth, lse)
    options = {
        "GAUSSIAN": gaussian_mode(query, key, bandwidth),
        "TABLE": table is not None,
        **key_options(key_logits, padding, documents),
        **masks,
        **width_options(query, value, bandwidth is not None),
    }
    if need_key_logits:
        grad_key_logits = lse.new_empty((batch, num_heads, num_keys))
    with on_device(query):
        config = configured("key_value_gradient", query, value)
        key_value_gradient_kernel[(-(-num_keys // config.block_n) * batch * key.shape[1],)](
            query, key, value, grad_out, grad_key, grad_value, grad_key_logits, lse, delta, alone,
            query_norms, key_norms, entries, bias, ranges, bounds, precision, scale, strides(query),
            strides(key), strides(value), strides(grad_out), strides(grad_key), strides(grad_value),
            *bias_strides, num_heads, group_size, num_queries, num_keys, zero, step, window, width,
            value_width, KEY_BIAS_GRAD=need_key_logits, **options, **config.launch_options,
        )  # fmt: skip
        kernel: Kernel = "query_gradient"
        if need_table:
            kernel = "table_gradient" if bandwidth is None else "gaussian_table_gradient"
        config = configured(kernel, query, value)
        num_programs = batch * -(-num_queries // config.block_m)
        partial = lse
        if need_table:
            wanted = _TABLE_PROGRAMS_PER_MULTIPROCESSOR * num_multiprocessors(query.device)
            # One program more than fit at once would double the time.
            num_programs = min(num_programs, max(1, wanted // num_heads))
            partial = lse.new_zeros((num_heads * num_programs, entries.shape[1]))
        query_gradient_kernel[(num_heads * num_programs,)](
            query, key, value, grad_out, grad_query, partial, distance_sums, lse, delta, alone, query_norms,
            key_norms, entries, bias, ranges, bounds, precision, scale, strides(query), strides(key),
            strides(value), strides(grad_out), strides(grad_query), *bias_strides, batch, num_heads,
            group_size, num_queries, num_keys, num_programs, zero, step, partial.stride(0), window, width,
            value_width, ONE_TENSOR=is_same(key, value), TABLE_GRAD=need_table, **options,
            **config.launch_options,
        )  # fmt: skip
    if need_table:
        assert table is not None
        middle = table.shape[1] // 2
        by_program = partial.view(num_heads, num_programs, -1)[..., zero - middle : zero + middle + 1]
        grad_table = by_program.sum(1)
    grad_bandwidth = _bandwidth_gradient(distance_sums, bandwidth)
    return grad_query, grad_key, grad_value, grad_bandwidth, grad_table, grad_key_logits


def _row_sums(out: Tensor, grad_out: Tensor, grad_lse: Tensor) -> Tensor:
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


def _bandwidth_gradient(distance_sums: Tensor, bandwidth: Tensor | None) -> Tensor:
    """dσ = −(2/σ) Σ dS log κ, (H,), from the row sums of dS log₂ κ, (B, H, Nq)."""
    if bandwidth is None:
        return distance_sums.new_empty((0,))
    return distance_sums.sum((0, 2)) * (-2.0 * LN2.value / bandwidth)


@triton_attention_backward.register_fake
def _(  # type: ignore[no-untyped-def]
    grad_out, grad_lse, query, key, value, out, lse, alone, scale, bandwidth, table, key_logits, padding,
    documents, causal, window, exclude_self, need_table, need_key_logits,
):  # fmt: skip
    heads = query.shape[1]
    grad_bandwidth = lse.new_empty((0,) if bandwidth is None else (heads,))
    grad_table = lse.new_empty((heads, table.shape[1]) if need_table else (0,))
    grad_key_logits = lse.new_empty((*query.shape[:2], key.shape[2]) if need_key_logits else (0,))
    return *_empty_gradients(query, key, value), grad_bandwidth, grad_table, grad_key_logits


def _save_for_backward(ctx, inputs, output) -> None:  # type: ignore[no-untyped-def]
    query, key, value, scale, *optional, causal, window, exclude_self = inputs
    ctx.save_for_backward(query, key, value, *output, *optional)
    ctx.mark_non_differentiable(output[2])
    ctx.scale, ctx.masks = scale, (causal, window, exclude_self)


def _backward(ctx, grad_out, grad_lse, _):  # type: ignore[no-untyped-def]
    query, key, value, out, lse, alone, bandwidth, table, key_logits, padding, documents = ctx.saved_tensors
    need_bandwidth, need_table, need_key_logits = ctx.needs_input_grad[4:7]
    grad_query, grad_key, grad_value, grad_bandwidth, grad_table, grad_key_logits = triton_attention_backward(
        grad_out, grad_lse, query, key, value, out, lse, alone, ctx.scale, bandwidth, table, key_logits,
        padding, documents, *ctx.masks, need_table, need_key_logits,
    )  # fmt: skip
    return (
        grad_query,
        None if key is None else grad_key,
        None if value is None else grad_value,
        None,
        grad_bandwidth.sum_to_size(bandwidth.shape) if need_bandwidth else None,
        grad_table.sum_to_size(table.shape) if need_table else None,
        grad_key_logits.sum_to_size(key_logits.shape) if need_key_logits else None,
        *(None,) * 5,
    )


triton_attention.register_autograd(_backward, setup_context=_save_for_backward)
