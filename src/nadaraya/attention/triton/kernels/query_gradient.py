"""Backward kernel for queries, which also sums the gradient of the lag table and of the bandwidth.

The table's gradient is a sum of score gradients along diagonals. Each tile is reduced along its diagonals on
the chip; a program adds the sums of all tiles it visits, in order, to a table of its own, and the tables of
the programs are added afterwards, in order: no atomic operation, the same bits in every run, and memory for
(programs × lags) numbers.
"""

import triton
import triton.language as tl

from nadaraya.attention.triton.kernels.gradients import distance_gradients, load_log_sums, softmax_weights
from nadaraya.attention.triton.kernels.tiles import (
    LOG2E,
    NOT_SPECIALIZED,
    active_ranges,
    content_logits,
    diagonal_sums,
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
def _gather_gradients(
    state,
    query,
    grad_out,
    query_norms,
    lse,
    delta,
    alone,
    bounds,
    rows,
    first_row,
    key_base,
    value_base,
    key_norm_base,
    key_bias_base,
    table,
    partial,
    factor,
    precision,
    start,
    stop,
    key_stride,
    value_stride,
    num_queries,
    num_keys,
    offset,
    indices,
    window,
    width,
    value_width,
    MASKED: tl.constexpr,
    GAUSSIAN: tl.constexpr,
    ONE_TENSOR: tl.constexpr,
    TABLE: tl.constexpr,
    TABLE_GRAD: tl.constexpr,
    PER_QUERY: tl.constexpr,
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
    """Takes the keys start … stop − 1 into the gradients of a block of queries."""
    grad_query, score_sums, distance_sums, lower = state
    documents = rows, rows
    if MASKED and DOCUMENTS:
        documents = load_documents(bounds, rows + offset, num_keys)
    for first in tl.range(start, stop, BLOCK_N):
        keys = first + tl.arange(0, BLOCK_N)
        key = load_rows(key_base, keys, tl.arange(0, WIDTH), key_stride, num_keys, width, MASKED, EVEN_WIDTH)
        if ONE_TENSOR:
            value = key
        else:
            value = load_rows(
                value_base, keys, tl.arange(0, VALUE_WIDTH), value_stride, num_keys, value_width, MASKED,
                EVEN_VALUE_WIDTH,
            )  # fmt: skip
        key_norms = tl.zeros((BLOCK_N,), tl.float32)
        if GAUSSIAN:
            key_norms = tl.load(key_norm_base + keys, mask=keys < num_keys, other=0.0) * factor
        content = content_logits(query, key, query_norms, key_norms, rows, keys, factor, GAUSSIAN, PRECISION)
        logits = content
        if TABLE:
            logits += lag_bias(table, indices[:, None], keys[None, :])
        if KEY_BIAS:
            bias = tl.load(key_bias_base + keys, mask=keys < num_keys, other=0.0)
            logits = with_key_bias(logits, bias[None, :])
        weights = softmax_weights(logits - lse[:, None], GAUSSIAN)
        inside = (rows < num_queries)[:, None]
        if MASKED:
            visible = visible_pairs(
                (rows + offset)[:, None], keys[None, :], alone[:, None], num_keys, window, CAUSAL, WINDOW,
                EXCLUDE_SELF,
            )  # fmt: skip
            if DOCUMENTS:
                visible = visible & keys_in_documents(keys, documents, CAUSAL)
            weights = tl.where(visible, weights, 0.0)
            inside = inside & visible
        grad_weights = matmul(grad_out, tl.trans(value), None, PRECISION)
        grad_scores = weights * (grad_weights - delta[:, None])
        if TABLE_GRAD and PER_QUERY:
            tl.store(partial + (indices[:, None] - keys[None, :]), grad_scores, mask=inside)
        elif TABLE_GRAD:
            upper, below = diagonal_sums(grad_scores, BLOCK_N)
            sums = partial + (first_row + offset - first) + tl.arange(0, BLOCK_N)
            tl.store(sums, tl.load(sums) + upper + lower)
            lower = below
        if GAUSSIAN:
            distance_sums += tl.sum(grad_scores * content, 1)
            grad_scores = distance_gradients(grad_scores, content, precision, key)
        rounded = grad_scores.to(key.dtype)
        grad_query = matmul(rounded, key, grad_query, PRECISION)
        if GAUSSIAN:
            # Of the rounded numbers: both terms of Σ dS (k − q) must hold the same dS.
            score_sums += tl.sum(rounded.to(tl.float32), 1)
    return grad_query, score_sums, distance_sums, lower


@triton.jit(do_not_specialize=NOT_SPECIALIZED)
def query_gradient_kernel(
    query_ptr,
    key_ptr,
    value_ptr,
    grad_out_ptr,
    grad_query_ptr,
    partial_ptr,
    distance_sum_ptr,
    lse_ptr,
    delta_ptr,
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
    grad_out_strides,
    grad_query_strides,
    key_bias_batch_stride,
    key_bias_head_stride,
    num_batch,
    num_heads,
    group_size,
    num_queries,
    num_keys,
    num_programs,
    table_zero,
    table_stride,
    table_batch_stride,
    table_row_stride,
    first_query,
    stop_query,
    partial_stride,
    window,
    width,
    value_width,
    GAUSSIAN: tl.constexpr,
    ONE_TENSOR: tl.constexpr,
    TABLE: tl.constexpr,
    TABLE_GRAD: tl.constexpr,
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
    """Gradients of every `num_programs`-th block of queries of one head, batch items in turn.

    A table per query has its gradient per query: the score gradients of the pairs, where their logits were.
    """
    SUMS: tl.constexpr = TABLE_GRAD and not PER_QUERY
    tl.static_assert(not SUMS or BLOCK_M == BLOCK_N)
    if not PER_QUERY:
        first_query, stop_query = 0, num_queries
    head = (tl.program_id(0) // num_programs).to(tl.int64)
    slot = tl.program_id(0) % num_programs
    group = head // group_size
    offset = num_keys - num_queries
    partial = partial_ptr + tl.program_id(0).to(tl.int64) * partial_stride + table_zero
    num_blocks = tl.cdiv(stop_query - first_query, BLOCK_M)
    columns = tl.arange(0, WIDTH)
    precision = scale
    if GAUSSIAN:
        precision = tl.load(precision_ptr + head)
    factor = precision * LOG2E
    num_items = num_batch * num_blocks
    # One turn, known as such, is no loop: the compiler would keep what it can hoist out of it in registers.
    for turn in tl.range(0, tl.cdiv(num_items - slot, num_programs) if SUMS else 1, disable_licm=True):
        item = slot + turn * num_programs
        batch = (item % num_batch).to(tl.int64)
        # The last rows of a causal call see most keys: they come first.
        first_row = first_query + (num_blocks - 1 - item // num_batch) * BLOCK_M
        rows = first_row + tl.arange(0, BLOCK_M)
        inside = rows < num_queries
        table = table_ptr + batch * table_batch_stride + head * table_stride + table_zero
        indices = table_indices(rows, offset, num_queries, first_query, table_row_stride, PER_QUERY)
        if PER_QUERY:
            partial = partial_ptr + (batch * num_heads + head) * partial_stride + table_zero
        line = (batch * num_heads + head) * num_queries
        key_base = key_ptr + batch * key_strides[0] + group * key_strides[1]
        value_base = value_ptr + batch * value_strides[0] + group * value_strides[1]
        key_norm_base = key_norm_ptr + (batch * (num_heads // group_size) + group) * num_keys
        key_bias_base = key_bias_ptr + batch * key_bias_batch_stride + head * key_bias_head_stride
        query = load_rows(
            query_ptr + batch * query_strides[0] + head * query_strides[1],
            rows, columns, query_strides[2], num_queries, width, True, EVEN_WIDTH,
        )  # fmt: skip
        grad_out = load_rows(
            grad_out_ptr + batch * grad_out_strides[0] + head * grad_out_strides[1],
            rows, tl.arange(0, VALUE_WIDTH), grad_out_strides[2], num_queries, value_width, True,
            EVEN_VALUE_WIDTH,
        )  # fmt: skip
        query_norms = tl.zeros((BLOCK_M,), tl.float32)
        if GAUSSIAN:
            query_norms = tl.load(query_norm_ptr + line + rows, mask=inside, other=0.0) * factor
        lse = load_log_sums(lse_ptr + line, rows, num_queries, True)
        delta = tl.load(delta_ptr + line + rows, mask=inside, other=0.0)
        alone = tl.zeros((BLOCK_M,), tl.int1)
        if EXCLUDE_SELF:
            alone = tl.load(alone_ptr + line + rows, mask=inside, other=0) != 0

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
            tl.zeros((BLOCK_M, WIDTH), tl.float32),
            tl.zeros((BLOCK_M,), tl.float32),
            tl.zeros((BLOCK_M,), tl.float32),
            tl.zeros((BLOCK_N,), tl.float32),
        )
        for part in tl.static_range(0 if WINDOW or DOCUMENTS else 1, 3):
            if part == 0:
                first_tile, end = start, tl.minimum(full_start, stop)
            elif part == 1:
                first_tile, end = full_start, full_stop
            else:
                first_tile, end = full_stop, stop
            if part != 1 or CAUSAL or not EXCLUDE_SELF:
                state = _gather_gradients(
                    state, query, grad_out, query_norms, lse, delta, alone, bounds, rows, first_row,
                    key_base, value_base, key_norm_base, key_bias_base, table, partial, factor, precision,
                    first_tile, end, key_strides[2], value_strides[2], num_queries, num_keys, offset, indices,
                    window, width, value_width, part != 1, GAUSSIAN, ONE_TENSOR, TABLE, TABLE_GRAD, PER_QUERY,
                    KEY_BIAS, DOCUMENTS, CAUSAL, WINDOW, EXCLUDE_SELF, PRECISION, BLOCK_N, WIDTH, VALUE_WIDTH,
                    EVEN_WIDTH, EVEN_VALUE_WIDTH,
                )  # fmt: skip
        grad_query, score_sums, distance_sums, lower = state
        if SUMS and stop > start:
            # What lies below the last tile's diagonal belongs to the next tile, which there is not.
            last_tile = start + (stop - 1 - start) // BLOCK_N * BLOCK_N
            sums = partial + (first_row + offset - last_tile - BLOCK_N) + tl.arange(0, BLOCK_N)
            tl.store(sums, tl.load(sums) + lower)
            # The next block adds to the same places.
            tl.debug_barrier()
        if GAUSSIAN:
            grad_query -= score_sums[:, None] * query.to(tl.float32)
            tl.store(distance_sum_ptr + line + rows, distance_sums, mask=inside)
        else:
            grad_query *= scale
        tl.store(
            grad_query_ptr + batch * grad_query_strides[0] + head * grad_query_strides[1]
            + rows.to(tl.int64)[:, None] * grad_query_strides[2] + columns[None, :],
            grad_query.to(grad_query_ptr.dtype.element_ty),
            mask=inside[:, None] & (columns < width)[None, :],
        )  # fmt: skip
