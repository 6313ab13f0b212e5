"""The forward kernel: softmax over tiles of keys, with a running maximum where one is needed."""

import triton
import triton.language as tl

from nadaraya.attention.triton.kernels.tiles import (
    LOG2E,
    NOT_SPECIALIZED,
    active_ranges,
    content_logits,
    key_ranges,
    keys_in_documents,
    lag_bias,
    load_documents,
    load_rows,
    matmul,
    table_indices,
    visible_pairs,
    with_key_bias,
)


@triton.jit
def _attend(
    state,
    query,
    query_norms,
    bounds,
    rows,
    key_base,
    value_base,
    key_norm_base,
    key_bias_base,
    table,
    factor,
    start,
    stop,
    key_stride,
    value_stride,
    num_keys,
    offset,
    indices,
    window,
    width,
    value_width,
    MASKED: tl.constexpr,
    GAUSSIAN: tl.constexpr,
    ONE_TENSOR: tl.constexpr,
    FIXED_PEAK: tl.constexpr,
    TABLE: tl.constexpr,
    KEY_BIAS: tl.constexpr,
    DOCUMENTS: tl.constexpr,
    CAUSAL: tl.constexpr,
    WINDOW: tl.constexpr,
    EXCLUDE_SELF: tl.constexpr,
    PRECISION: tl.constexpr,
    BLOCK_N: tl.constexpr,
    WIDTH: tl.constexpr,
    VALUE_WIDTH: tl.constexpr,
    EVEN_WIDTH: tl.constexpr,
    EVEN_VALUE_WIDTH: tl.constexpr,
):
    """Takes the keys start … stop − 1 into the running (output, sum, peak) of a block of queries."""
    columns = tl.arange(0, WIDTH)
    value_columns = tl.arange(0, VALUE_WIDTH)
    out, total, peak = state
    documents = rows, rows
    if MASKED and DOCUMENTS:
        documents = load_documents(bounds, rows + offset, num_keys)
    for first in tl.range(start, stop, BLOCK_N):
        keys = first + tl.arange(0, BLOCK_N)
        key = load_rows(key_base, keys, columns, key_stride, num_keys, width, MASKED, EVEN_WIDTH)
        key_norms = tl.zeros((BLOCK_N,), tl.float32)
        if GAUSSIAN:
            if MASKED:
                key_norms = tl.load(key_norm_base + keys, mask=keys < num_keys, other=0.0) * factor
            else:
                key_norms = tl.load(key_norm_base + keys) * factor
        logits = content_logits(query, key, query_norms, key_norms, rows, keys, factor, GAUSSIAN, PRECISION)
        if TABLE:
            logits += lag_bias(table, indices[:, None], keys[None, :])
        if KEY_BIAS:
            if MASKED:
                bias = tl.load(key_bias_base + keys, mask=keys < num_keys, other=0.0)
            else:
                bias = tl.load(key_bias_base + keys)
            logits = with_key_bias(logits, bias[None, :])
        if MASKED:
            visible = visible_pairs(
                (rows + offset)[:, None], keys[None, :], False, num_keys, window, CAUSAL, WINDOW, EXCLUDE_SELF
            )
            if DOCUMENTS:
                visible = visible & keys_in_documents(keys, documents, CAUSAL)
            logits = tl.where(visible, logits, float("-inf"))
        if FIXED_PEAK:
            weights = tl.exp2(logits)
            total += tl.sum(weights, 1)
        else:
            new_peak = tl.maximum(peak, tl.max(logits, 1))
            safe_peak = tl.where(new_peak == float("-inf"), 0.0, new_peak)
            weights = tl.exp2(logits - safe_peak[:, None])
            shrink = tl.exp2(peak - safe_peak)
            total = total * shrink + tl.sum(weights, 1)
            out = out * shrink[:, None]
            peak = new_peak
        if ONE_TENSOR:
            value = key
        else:
            value = load_rows(
                value_base, keys, value_columns, value_stride, num_keys, value_width, MASKED, EVEN_VALUE_WIDTH
            )
        out = matmul(weights.to(value.dtype), value, out, PRECISION)
    return out, total, peak


@triton.jit(do_not_specialize=NOT_SPECIALIZED)
def forward_kernel(
    query_ptr,
    key_ptr,
    value_ptr,
    out_ptr,
    lse_ptr,
    alone_ptr,
    query_norm_ptr,
    key_norm_ptr,
    table_ptr,
    key_bias_ptr,
    range_ptr,
    document_ptr,
    active_ptr,
    precision_ptr,
    scale,
    query_strides,
    key_strides,
    value_strides,
    out_strides,
    key_bias_batch_stride,
    key_bias_head_stride,
    num_heads,
    group_size,
    num_queries,
    num_keys,
    table_zero,
    table_stride,
    table_batch_stride,
    table_row_stride,
    first_query,
    stop_query,
    window,
    width,
    value_width,
    GAUSSIAN: tl.constexpr,
    ONE_TENSOR: tl.constexpr,
    FIXED_PEAK: tl.constexpr,
    TABLE: tl.constexpr,
    PER_QUERY: tl.constexpr,
    KEY_BIAS: tl.constexpr,
    HIDDEN: tl.constexpr,
    DOCUMENTS: tl.constexpr,
    ACTIVE: tl.constexpr,
    CAUSAL: tl.constexpr,
    WINDOW: tl.constexpr,
    EXCLUDE_SELF: tl.constexpr,
    PRECISION: tl.constexpr,
    WIDTH: tl.constexpr,
    VALUE_WIDTH: tl.constexpr,
    EVEN_WIDTH: tl.constexpr,
    EVEN_VALUE_WIDTH: tl.constexpr,
    BLOCK_M: tl.constexpr,
    BLOCK_N: tl.constexpr,
):
    """Output and log-sum-exp of one block of queries of one head; PER_QUERY, of those that the table has."""
    if not PER_QUERY:
        first_query, stop_query = 0, num_queries
    num_blocks = tl.cdiv(stop_query - first_query, BLOCK_M)
    # The last rows of a causal call see most keys: they start first.
    first_row = first_query + (num_blocks - 1 - tl.program_id(0) % num_blocks) * BLOCK_M
    pair = tl.program_id(0) // num_blocks
    batch = (pair // num_heads).to(tl.int64)
    head = (pair % num_heads).to(tl.int64)
    group = head // group_size
    rows = first_row + tl.arange(0, BLOCK_M)
    offset = num_keys - num_queries
    query_base = query_ptr + batch * query_strides[0] + head * query_strides[1]
    key_base = key_ptr + batch * key_strides[0] + group * key_strides[1]
    value_base = value_ptr + batch * value_strides[0] + group * value_strides[1]
    key_norm_base = key_norm_ptr + (batch * (num_heads // group_size) + group) * num_keys
    key_bias_base = key_bias_ptr + batch * key_bias_batch_stride + head * key_bias_head_stride
    table = table_ptr + batch * table_batch_stride + head * table_stride + table_zero
    indices = table_indices(rows, offset, num_queries, first_query, table_row_stride, PER_QUERY)
    line = (batch * num_heads + head) * num_queries

    query = load_rows(
        query_base, rows, tl.arange(0, WIDTH), query_strides[2], num_queries, width, True, EVEN_WIDTH
    )
    query_norms = tl.zeros((BLOCK_M,), tl.float32)
    if GAUSSIAN:
        factor = tl.load(precision_ptr + head) * LOG2E
        query_norms = tl.load(query_norm_ptr + line + rows, mask=rows < num_queries, other=0.0) * factor
    else:
        factor = scale * LOG2E

    first_key, last_key = 0, num_keys
    if HIDDEN:
        first_key = tl.load(range_ptr + 2 * batch)
        last_key = tl.load(range_ptr + 2 * batch + 1)
    if ACTIVE:
        of_rows, _ = active_ranges(active_ptr, batch * num_heads + head, num_queries, num_keys, ACTIVE)
        first_key = tl.maximum(first_key, tl.load(of_rows + first_row // ACTIVE * 2))
        last_key = tl.minimum(last_key, tl.load(of_rows + first_row // ACTIVE * 2 + 1))
    bounds = document_ptr + batch * 2 * num_keys
    start, full_start, full_stop, stop = key_ranges(
        first_row, offset, first_key, last_key, num_keys, bounds, window, DOCUMENTS, CAUSAL, WINDOW,
        EXCLUDE_SELF, BLOCK_M, BLOCK_N,
    )  # fmt: skip
    state = (
        tl.zeros((BLOCK_M, VALUE_WIDTH), tl.float32),
        tl.zeros((BLOCK_M,), tl.float32),
        tl.full((BLOCK_M,), float("-inf"), tl.float32),
    )
    # The edge of the window or of documents, the tiles inside, the edge towards the future or the end.
    for part in tl.static_range(0 if WINDOW or DOCUMENTS else 1, 3):
        if part == 0:
            lower, upper = start, tl.minimum(full_start, stop)
        elif part == 1:
            lower, upper = full_start, full_stop
        else:
            lower, upper = full_stop, stop
        if part != 1 or CAUSAL or not EXCLUDE_SELF:
            state = _attend(
                state, query, query_norms, bounds, rows, key_base, value_base, key_norm_base,
                key_bias_base, table, factor, lower, upper, key_strides[2], value_strides[2], num_keys,
                offset, indices, window, width, value_width, part != 1, GAUSSIAN, ONE_TENSOR, FIXED_PEAK,
                TABLE, KEY_BIAS, DOCUMENTS, CAUSAL, WINDOW, EXCLUDE_SELF, PRECISION, BLOCK_N, WIDTH,
                VALUE_WIDTH, EVEN_WIDTH, EVEN_VALUE_WIDTH,
            )  # fmt: skip
    out, total, peak = state
    if FIXED_PEAK:
        peak = tl.zeros((BLOCK_M,), tl.float32)
        # A row's own weight is 1: where a narrow bandwidth lost it to rounding, the row keeps itself.
        lost = total < 0.5
        out = tl.where(lost[:, None], query.to(tl.float32), out)
        total = tl.where(lost, 1.0, total)
    out = out / tl.where(total == 0.0, 1.0, total)[:, None]
    lse = tl.where(total == 0.0, float("-inf"), peak + tl.log2(total))

    value_columns = tl.arange(0, VALUE_WIDTH)
    inside = rows < num_queries
    if EXCLUDE_SELF:
        own = rows + offset
        alone = (total == 0.0) & (own >= 0) & inside
        own_key = tl.load(
            key_base + own.to(tl.int64)[:, None] * key_strides[2] + tl.arange(0, WIDTH)[None, :],
            mask=alone[:, None] & (tl.arange(0, WIDTH) < width)[None, :],
            other=0.0,
        )
        if GAUSSIAN:
            difference = query.to(tl.float32) - own_key.to(tl.float32)
            own_logit = tl.sum(difference * difference, 1) * (-0.5 * factor)
        else:
            own_logit = tl.sum(query.to(tl.float32) * own_key.to(tl.float32), 1) * factor
        if TABLE:
            own_logit += tl.load(table + (indices - own), mask=alone, other=0.0)
        if KEY_BIAS:
            own_logit = with_key_bias(own_logit, tl.load(key_bias_base + own, mask=alone, other=0.0))
        alone = alone & (own_logit > float("-inf"))
        own_value = tl.load(
            value_base + own.to(tl.int64)[:, None] * value_strides[2] + value_columns[None, :],
            mask=alone[:, None] & (value_columns < value_width)[None, :],
            other=0.0,
        )
        out = tl.where(alone[:, None], own_value.to(tl.float32), out)
        lse = tl.where(alone, own_logit, lse)
        tl.store(alone_ptr + line + rows, alone.to(tl.int8), mask=inside)
    tl.store(lse_ptr + line + rows, lse, mask=inside)
    out_base = out_ptr + batch * out_strides[0] + head * out_strides[1]
    tl.store(
        out_base + rows.to(tl.int64)[:, None] * out_strides[2] + value_columns[None, :],
        out.to(out_ptr.dtype.element_ty),
        mask=inside[:, None] & (value_columns < value_width)[None, :],
    )
