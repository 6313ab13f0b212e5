"""Kernels for a few queries against many cached keys: split over the keys, so that all of the GPU reads."""

import triton
import triton.language as tl

from nadaraya.attention.triton.kernels.tiles import (
    LOG2E,
    NOT_SPECIALIZED,
    at_most_zero,
    keys_in_documents,
    lag_bias,
    load_documents,
    load_rows,
    matmul,
    visible_pairs,
    with_key_bias,
)


@triton.jit(do_not_specialize=NOT_SPECIALIZED)
def decoding_kernel(
    query_ptr,
    key_ptr,
    value_ptr,
    partial_out_ptr,
    partial_lse_ptr,
    table_ptr,
    key_bias_ptr,
    range_ptr,
    document_ptr,
    precision_ptr,
    scale,
    query_strides,
    key_strides,
    value_strides,
    key_bias_batch_stride,
    key_bias_head_stride,
    num_heads,
    group_size,
    num_queries,
    num_keys,
    num_splits,
    keys_per_split,
    num_lines,
    table_zero,
    table_stride,
    window,
    width,
    value_width,
    GAUSSIAN: tl.constexpr,
    CENTRED: tl.constexpr,
    ONE_TENSOR: tl.constexpr,
    TABLE: tl.constexpr,
    KEY_BIAS: tl.constexpr,
    KEY_BIAS_BY_HEAD: tl.constexpr,
    HIDDEN: tl.constexpr,
    DOCUMENTS: tl.constexpr,
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
    """Output and log-sum-exp over one part of the keys, for all queries of all heads that share them.

    A tile's rows are (query head of the group, query). Key norms are taken from the tiles as they pass: time
    goes to reading the cache. Leave-one-out writes each row's own pair as one part more.
    """
    split = tl.program_id(0) % num_splits
    pair = tl.program_id(0) // num_splits
    num_groups = num_heads // group_size
    batch = (pair // num_groups).to(tl.int64)
    group = (pair % num_groups).to(tl.int64)
    rows = tl.arange(0, BLOCK_M)
    is_row = rows < group_size * num_queries
    heads = group * group_size + rows // num_queries
    positions = rows % num_queries + num_keys - num_queries
    lines = (batch * num_heads + heads) * num_queries + rows % num_queries
    columns = tl.arange(0, WIDTH)
    value_columns = tl.arange(0, VALUE_WIDTH)
    key_base = key_ptr + batch * key_strides[0] + group * key_strides[1]
    value_base = value_ptr + batch * value_strides[0] + group * value_strides[1]
    # Rows beyond the real ones read what the first head has.
    real_heads = tl.where(is_row, heads, group * group_size)
    key_bias_bases = key_bias_ptr + batch * key_bias_batch_stride + real_heads * key_bias_head_stride
    key_bias_base = key_bias_ptr + batch * key_bias_batch_stride + group * group_size * key_bias_head_stride
    query = tl.load(
        query_ptr + batch * query_strides[0] + heads[:, None] * query_strides[1]
        + (rows % num_queries)[:, None] * query_strides[2] + columns[None, :],
        mask=is_row[:, None] & (columns < width)[None, :],
        other=0.0,
    )  # fmt: skip
    centre = tl.zeros((WIDTH,), tl.float32)
    query_norms = tl.zeros((BLOCK_M,), tl.float32)
    if GAUSSIAN:
        factors = tl.load(precision_ptr + heads, mask=is_row, other=0.0) * LOG2E
        if CENTRED:
            # Distances from a query near the origin lose no digits to ‖x‖² − 2 x·y + ‖y‖².
            centre = tl.sum(tl.where((rows == 0)[:, None], query, 0.0), 0)
            query = tl.where((columns < width)[None, :], query - centre[None, :], 0.0)
        query_norms = 0.5 * tl.sum(query.to(tl.float32) * query.to(tl.float32), 1)
    else:
        factors = tl.full((BLOCK_M,), scale, tl.float32) * LOG2E

    start = split * keys_per_split
    stop = tl.minimum(start + keys_per_split, num_keys)
    if HIDDEN:
        start = tl.maximum(start, tl.load(range_ptr + 2 * batch) // BLOCK_N * BLOCK_N)
        stop = tl.minimum(stop, tl.load(range_ptr + 2 * batch + 1))
    if WINDOW:
        start = tl.maximum(start, tl.maximum(num_keys - num_queries - window + 1, 0) // BLOCK_N * BLOCK_N)
    documents = rows, rows
    if DOCUMENTS:
        bounds = document_ptr + batch * 2 * num_keys
        documents = load_documents(bounds, positions, num_keys)
        start = tl.maximum(start, tl.load(bounds + num_keys - num_queries) // BLOCK_N * BLOCK_N)
    out = tl.zeros((BLOCK_M, VALUE_WIDTH), tl.float32)
    total = tl.zeros((BLOCK_M,), tl.float32)
    peak = tl.full((BLOCK_M,), float("-inf"), tl.float32)
    for first in tl.range(start, stop, BLOCK_N):
        keys = first + tl.arange(0, BLOCK_N)
        key = load_rows(key_base, keys, columns, key_strides[2], num_keys, width, True, EVEN_WIDTH)
        if ONE_TENSOR:
            value = key
        else:
            value = load_rows(
                value_base, keys, value_columns, value_strides[2], num_keys, value_width, True,
                EVEN_VALUE_WIDTH,
            )  # fmt: skip
        logits = pair_logits(query, key, query_norms, centre, factors, width, GAUSSIAN, CENTRED, PRECISION)
        if TABLE:
            # Keys beyond the real ones read an entry that exists.
            entries = table_ptr + table_zero + real_heads * table_stride
            near = tl.minimum(keys, num_keys - 1)
            logits += lag_bias(entries[:, None], positions[:, None], near[None, :]) * LOG2E
        if KEY_BIAS:
            if KEY_BIAS_BY_HEAD:
                bias = tl.load(
                    key_bias_bases[:, None] + keys[None, :], mask=(keys < num_keys)[None, :], other=0.0
                )
            else:
                bias = tl.load(key_bias_base + keys, mask=keys < num_keys, other=0.0)[None, :]
            logits = with_key_bias(logits, bias)
        visible = visible_pairs(
            positions[:, None], keys[None, :], False, stop, window, CAUSAL, WINDOW, EXCLUDE_SELF
        )
        if DOCUMENTS:
            visible = visible & keys_in_documents(keys, documents, CAUSAL)
        logits = tl.where(visible, logits, float("-inf"))
        new_peak = tl.maximum(peak, tl.max(logits, 1))
        safe_peak = tl.where(new_peak == float("-inf"), 0.0, new_peak)
        weights = tl.exp2(logits - safe_peak[:, None])
        shrink = tl.exp2(peak - safe_peak)
        total = total * shrink + tl.sum(weights, 1)
        out = matmul(weights.to(value.dtype), value, out * shrink[:, None], PRECISION)
        peak = new_peak
    out = out / tl.where(total == 0.0, 1.0, total)[:, None]
    lse = tl.where(total == 0.0, float("-inf"), peak + tl.log2(total))
    inside = is_row[:, None] & (value_columns < value_width)[None, :]
    lines_before = split.to(tl.int64) * num_lines
    tl.store(partial_lse_ptr + lines_before + lines, lse, mask=is_row)
    indices = partial_out_ptr + (lines_before + lines)[:, None] * value_width + value_columns[None, :]
    tl.store(indices, out, mask=inside)

    if EXCLUDE_SELF and split == 0:
        has_own = is_row & (positions >= 0)
        own = positions.to(tl.int64)[:, None]
        key = tl.load(
            key_base + own * key_strides[2] + columns[None, :],
            mask=has_own[:, None] & (columns < width)[None, :],
            other=0.0,
        )
        value = tl.load(
            value_base + own * value_strides[2] + value_columns[None, :],
            mask=has_own[:, None] & (value_columns < value_width)[None, :],
            other=0.0,
        )
        own_key = key.to(tl.float32)
        if CENTRED:
            own_key = tl.where((columns < width)[None, :], own_key - centre[None, :], 0.0)
        if GAUSSIAN:
            difference = query.to(tl.float32) - own_key
            lse = -0.5 * tl.sum(difference * difference, 1) * factors
        else:
            lse = tl.sum(query.to(tl.float32) * own_key, 1) * factors
        if TABLE:
            lse += tl.load(table_ptr + table_zero + heads * table_stride, mask=is_row, other=0.0) * LOG2E
        if KEY_BIAS:
            lse = with_key_bias(lse, tl.load(key_bias_bases + positions, mask=has_own, other=0.0))
        lse = tl.where(has_own, lse, float("-inf"))
        lines_before = tl.cast(num_splits, tl.int64) * num_lines
        tl.store(partial_lse_ptr + lines_before + lines, lse, mask=is_row)
        indices = partial_out_ptr + (lines_before + lines)[:, None] * value_width + value_columns[None, :]
        tl.store(indices, value.to(tl.float32), mask=inside)


@triton.jit
def pair_logits(
    query,
    key,
    query_norms,
    centre,
    factors,
    width,
    GAUSSIAN: tl.constexpr,
    CENTRED: tl.constexpr,
    PRECISION: tl.constexpr,
):
    """Content of a tile in units of log 2, with one factor a row."""
    if CENTRED:
        columns = tl.arange(0, key.shape[1])
        key = tl.where((columns < width)[None, :], key - centre[None, :], 0.0)
    logits = matmul(query, tl.trans(key), None, PRECISION)
    if GAUSSIAN:
        key_norms = 0.5 * tl.sum(key.to(tl.float32) * key.to(tl.float32), 1)
        logits = at_most_zero(logits - (query_norms[:, None] + key_norms[None, :]))
    return logits * factors[:, None]


@triton.jit(do_not_specialize=NOT_SPECIALIZED)
def merging_kernel(
    partial_out_ptr,
    partial_lse_ptr,
    out_ptr,
    lse_ptr,
    out_strides,
    num_heads,
    num_queries,
    num_splits,
    num_lines,
    value_width,
    EXCLUDE_SELF: tl.constexpr,
    SPLITS: tl.constexpr,
    VALUE_WIDTH: tl.constexpr,
):
    """One row of the output from its parts."""
    line = tl.program_id(0)
    splits = tl.arange(0, SPLITS)
    columns = tl.arange(0, VALUE_WIDTH)
    lses = tl.load(
        partial_lse_ptr + splits.to(tl.int64) * num_lines + line,
        mask=splits < num_splits,
        other=float("-inf"),
    )
    peak = tl.max(lses, 0)
    weights = tl.exp2(lses - tl.where(peak == float("-inf"), 0.0, peak))
    total = tl.sum(weights, 0)
    indices = (splits.to(tl.int64) * num_lines + line)[:, None] * value_width + columns[None, :]
    inside = (columns < value_width)[None, :]
    parts = tl.load(partial_out_ptr + indices, mask=(splits < num_splits)[:, None] & inside, other=0.0)
    out = tl.sum(weights[:, None] * parts, 0) / tl.where(total == 0.0, 1.0, total)
    lse = tl.where(total == 0.0, float("-inf"), peak + tl.log2(total))
    if EXCLUDE_SELF:
        # A row with nothing left keeps itself, if it may.
        own = tl.cast(num_splits, tl.int64) * num_lines + line
        own_lse = tl.load(partial_lse_ptr + own)
        own_value = tl.load(
            partial_out_ptr + own * value_width + columns, mask=columns < value_width, other=0.0
        )
        alone = (total == 0.0) & (own_lse > float("-inf"))
        out = tl.where(alone, own_value, out)
        lse = tl.where(alone, own_lse, lse)
    tl.store(lse_ptr + line, lse)
    batch = (line // (num_heads * num_queries)).to(tl.int64)
    head = (line // num_queries % num_heads).to(tl.int64)
    indices = batch * out_strides[0] + head * out_strides[1] + line % num_queries * out_strides[2] + columns
    tl.store(out_ptr + indices, out.to(out_ptr.dtype.element_ty), mask=columns < value_width)
