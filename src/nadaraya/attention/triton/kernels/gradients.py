"""Backward kernels for keys and values, and the row sums that both backward passes start from."""

import triton
import triton.language as tl

from nadaraya.attention.triton.kernels.tiles import (
    LOG2E,
    NOT_SPECIALIZED,
    active_ranges,
    at_most_zero,
    content_logits,
    document_ranges,
    lag_bias,
    load_documents,
    load_rows,
    matmul,
    queries_in_documents,
    table_indices,
    visible_pairs,
    with_key_bias,
)


@triton.jit(do_not_specialize=NOT_SPECIALIZED)
def row_sum_kernel(
    out_ptr,
    grad_out_ptr,
    grad_lse_ptr,
    delta_ptr,
    out_strides,
    grad_out_strides,
    num_heads,
    num_queries,
    width,
    WIDTH: tl.constexpr,
    BLOCK_M: tl.constexpr,
):
    """δ_i = dO_i · O_i − dLSE_i, the log-sum-exp being in units of log 2."""
    num_blocks = tl.cdiv(num_queries, BLOCK_M)
    pair = tl.program_id(0) // num_blocks
    rows = tl.program_id(0) % num_blocks * BLOCK_M + tl.arange(0, BLOCK_M)
    batch = (pair // num_heads).to(tl.int64)
    head = (pair % num_heads).to(tl.int64)
    columns = tl.arange(0, WIDTH)
    out = load_rows(
        out_ptr + batch * out_strides[0] + head * out_strides[1],
        rows, columns, out_strides[2], num_queries, width, True, False,
    )  # fmt: skip
    grad_out = load_rows(
        grad_out_ptr + batch * grad_out_strides[0] + head * grad_out_strides[1],
        rows, columns, grad_out_strides[2], num_queries, width, True, False,
    )  # fmt: skip
    delta = tl.sum(out.to(tl.float32) * grad_out.to(tl.float32), 1)
    line = pair.to(tl.int64) * num_queries + rows
    delta -= tl.load(grad_lse_ptr + line, mask=rows < num_queries, other=0.0) * LOG2E
    tl.store(delta_ptr + line, delta, mask=rows < num_queries)


@triton.jit
def load_log_sums(base, rows, num_rows, CHECK_ROWS: tl.constexpr):
    """Log-sum-exps; rows without any weight get infinity, so that exp2(· − it) is zero."""
    if CHECK_ROWS:
        lse = tl.load(base + rows, mask=rows < num_rows, other=float("inf"))
    else:
        lse = tl.load(base + rows)
    return tl.where(lse == float("-inf"), float("inf"), lse)


@triton.jit
def softmax_weights(differences, GAUSSIAN: tl.constexpr):
    """2^(logit − log-sum-exp)."""
    if GAUSSIAN:
        # No weight is above 1; where a narrow bandwidth makes logits huge, their rounding could say so.
        differences = at_most_zero(differences)
    return tl.exp2(differences)


@triton.jit
def distance_gradients(grad_scores, content, precision, points):
    """dS / σ², by which differences of points are weighted; zero at zero distance.

    In exact arithmetic that changes nothing: the difference is zero there. Of float32 points σ may be so
    small that the rounding of dS over σ² would drown the rest of the sum.
    """
    weighted = grad_scores * precision
    if points.dtype == tl.float32:
        weighted = tl.where(content == 0.0, 0.0, weighted)
    return weighted


@triton.jit
def _gather_gradients(
    state,
    key,
    value,
    key_norms,
    bias,
    bounds,
    keys,
    query_base,
    grad_out_base,
    lse_base,
    delta_base,
    alone_base,
    query_norm_base,
    table,
    active_of_rows,
    factor,
    precision,
    start,
    stop,
    query_stride,
    grad_out_stride,
    num_queries,
    num_keys,
    first_query,
    first_key,
    table_row_stride,
    offset,
    window,
    width,
    value_width,
    MASKED: tl.constexpr,
    GAUSSIAN: tl.constexpr,
    TABLE: tl.constexpr,
    PER_QUERY: tl.constexpr,
    KEY_BIAS: tl.constexpr,
    KEY_BIAS_GRAD: tl.constexpr,
    DOCUMENTS: tl.constexpr,
    ACTIVE: tl.constexpr,
    CAUSAL: tl.constexpr,
    WINDOW: tl.constexpr,
    EXCLUDE_SELF: tl.constexpr,
    PRECISION: tl.constexpr,
    BLOCK_M: tl.constexpr,
    WIDTH: tl.constexpr,
    VALUE_WIDTH: tl.constexpr,
    EVEN_WIDTH: tl.constexpr,
    EVEN_VALUE_WIDTH: tl.constexpr,
):
    """Takes the queries start … stop − 1 into the gradients of a block of keys; tiles are keys × queries."""
    grad_key, grad_value, score_sums, logit_sums = state
    documents = keys, keys
    if MASKED and DOCUMENTS:
        documents = load_documents(bounds, keys, num_keys)
    for first in tl.range(start, stop, BLOCK_M):
        rows = first + tl.arange(0, BLOCK_M)
        query = load_rows(
            query_base, rows, tl.arange(0, WIDTH), query_stride, num_queries, width, MASKED, EVEN_WIDTH
        )
        query_norms = tl.zeros((BLOCK_M,), tl.float32)
        if GAUSSIAN:
            query_norms = tl.load(query_norm_base + rows, mask=rows < num_queries, other=0.0) * factor
        content = content_logits(key, query, key_norms, query_norms, keys, rows, factor, GAUSSIAN, PRECISION)
        logits = content
        if TABLE:
            indices = table_indices(rows, offset, num_queries, first_query, table_row_stride, PER_QUERY)
            logits += lag_bias(table, indices[None, :], keys[:, None])
        if KEY_BIAS:
            logits = with_key_bias(logits, bias[:, None])
        lse = load_log_sums(lse_base, rows, num_queries, MASKED)
        weights = softmax_weights(logits - lse[None, :], GAUSSIAN)
        if MASKED:
            alone = False
            if EXCLUDE_SELF:
                alone = (tl.load(alone_base + rows, mask=rows < num_queries, other=0) != 0)[None, :]
            visible = visible_pairs(
                (rows + offset)[None, :], keys[:, None], alone, num_keys, window, CAUSAL, WINDOW, EXCLUDE_SELF
            )
            if DOCUMENTS:
                visible = visible & queries_in_documents(rows + offset, documents, CAUSAL)
            weights = tl.where(visible, weights, 0.0)
        if ACTIVE:
            active = active_of_rows + first // ACTIVE * 2
            is_active = (tl.load(active) <= first_key) & (first_key < tl.load(active + 1))
            weights = tl.where(is_active, weights, 0.0)
        grad_out = load_rows(
            grad_out_base, rows, tl.arange(0, VALUE_WIDTH), grad_out_stride, num_queries, value_width, MASKED,
            EVEN_VALUE_WIDTH,
        )  # fmt: skip
        grad_value = matmul(weights.to(grad_out.dtype), grad_out, grad_value, PRECISION)
        delta = tl.load(delta_base + rows, mask=rows < num_queries, other=0.0)
        grad_weights = matmul(value, tl.trans(grad_out), None, PRECISION)
        grad_scores = weights * (grad_weights - delta[None, :])
        if KEY_BIAS_GRAD:
            logit_sums += tl.sum(grad_scores, 1)
        if GAUSSIAN:
            grad_scores = distance_gradients(grad_scores, content, precision, query)
        rounded = grad_scores.to(query.dtype)
        grad_key = matmul(rounded, query, grad_key, PRECISION)
        if GAUSSIAN:
            # Of the rounded numbers: both terms of Σ dS (q − k) must hold the same dS.
            score_sums += tl.sum(rounded.to(tl.float32), 1)
    return grad_key, grad_value, score_sums, logit_sums


@triton.jit(do_not_specialize=NOT_SPECIALIZED)
def key_value_gradient_kernel(
    query_ptr,
    key_ptr,
    value_ptr,
    grad_out_ptr,
    grad_key_ptr,
    grad_value_ptr,
    grad_key_bias_ptr,
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
    grad_key_strides,
    grad_value_strides,
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
    TABLE: tl.constexpr,
    PER_QUERY: tl.constexpr,
    KEY_BIAS: tl.constexpr,
    KEY_BIAS_GRAD: tl.constexpr,
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
    """Gradients of one block of keys and values of one key-value head, over all query heads it serves.

    PER_QUERY, those through the rows that the table has are added to what is there, in float32.
    """
    if not PER_QUERY:
        first_query, stop_query = 0, num_queries
    num_blocks = tl.cdiv(num_keys, BLOCK_N)
    # The first keys of a causal call are seen by most rows: they start first.
    first_key = (tl.program_id(0) % num_blocks) * BLOCK_N
    pair = tl.program_id(0) // num_blocks
    num_groups = num_heads // group_size
    batch = (pair // num_groups).to(tl.int64)
    group = (pair % num_groups).to(tl.int64)
    keys = first_key + tl.arange(0, BLOCK_N)
    offset = num_keys - num_queries
    columns = tl.arange(0, WIDTH)
    value_columns = tl.arange(0, VALUE_WIDTH)
    key = load_rows(
        key_ptr + batch * key_strides[0] + group * key_strides[1],
        keys, columns, key_strides[2], num_keys, width, True, EVEN_WIDTH,
    )  # fmt: skip
    value = load_rows(
        value_ptr + batch * value_strides[0] + group * value_strides[1],
        keys, value_columns, value_strides[2], num_keys, value_width, True, EVEN_VALUE_WIDTH,
    )  # fmt: skip

    # Rows first … last − 1 see a key of the block; those in [full_first, full_last) see all of it.
    first, last = first_query, stop_query
    if CAUSAL:
        first = tl.maximum(first, first_key - offset)
    if WINDOW:
        last = tl.minimum(last, first_key + BLOCK_N - 1 + window - offset)
        if not CAUSAL:
            first = tl.maximum(first, first_key - window + 1 - offset)
    bounds = document_ptr + batch * 2 * num_keys
    if DOCUMENTS:
        any_first, any_last, all_first, all_last = document_ranges(
            bounds, first_key, first_key + BLOCK_N, num_keys
        )
        first = tl.maximum(first, any_first - offset)
        last = tl.minimum(last, any_last - offset)
    first = first // BLOCK_M * BLOCK_M
    if HIDDEN:
        is_empty = (first_key >= tl.load(range_ptr + 2 * batch + 1)) | (
            first_key + BLOCK_N <= tl.load(range_ptr + 2 * batch)
        )
        last = tl.where(is_empty, first, last)
    full_first, full_last = first, tl.minimum(last, num_queries // BLOCK_M * BLOCK_M)
    if CAUSAL:
        full_first = tl.maximum(full_first, first_key + BLOCK_N - (0 if EXCLUDE_SELF else 1) - offset)
    if WINDOW:
        full_last = tl.minimum(full_last, first_key + window - offset)
        if not CAUSAL:
            full_first = tl.maximum(full_first, first_key + BLOCK_N - window - offset)
    if DOCUMENTS:
        full_first = tl.maximum(full_first, all_first - offset)
        full_last = tl.minimum(full_last, all_last - offset)
    if EXCLUDE_SELF and not CAUSAL:
        full_first = tl.maximum(last, first)
    full_first = tl.cdiv(full_first, BLOCK_M) * BLOCK_M
    full_last = tl.maximum(tl.maximum(full_last, 0) // BLOCK_M * BLOCK_M, full_first)

    state = (
        tl.zeros((BLOCK_N, WIDTH), tl.float32),
        tl.zeros((BLOCK_N, VALUE_WIDTH), tl.float32),
        tl.zeros((BLOCK_N,), tl.float32),
        tl.zeros((BLOCK_N,), tl.float32),
    )
    inside = keys < num_keys
    # Hoisted out of this loop, the addresses of the inner ones would fill the registers.
    for member in tl.range(group_size, disable_licm=True):
        head = group * group_size + member
        line = (batch * num_heads + head) * num_queries
        query_base = query_ptr + batch * query_strides[0] + head * query_strides[1]
        grad_out_base = grad_out_ptr + batch * grad_out_strides[0] + head * grad_out_strides[1]
        table = table_ptr + batch * table_batch_stride + head * table_stride + table_zero
        of_rows, of_keys = active_ptr, active_ptr
        if ACTIVE:
            of_rows, of_keys = active_ranges(
                active_ptr, batch * num_heads + head, num_queries, num_keys, ACTIVE
            )
            of_keys += first_key // ACTIVE * 2
        key_norms = tl.zeros((BLOCK_N,), tl.float32)
        precision = scale
        if GAUSSIAN:
            precision = tl.load(precision_ptr + head)
            key_norms = tl.load(
                key_norm_ptr + pair.to(tl.int64) * num_keys + keys, mask=keys < num_keys, other=0.0
            )
        factor = precision * LOG2E
        key_norms *= factor
        bias = tl.zeros((BLOCK_N,), tl.float32)
        if KEY_BIAS:
            bias_base = key_bias_ptr + batch * key_bias_batch_stride + head * key_bias_head_stride
            bias = tl.load(bias_base + keys, mask=inside, other=0.0)
        for part in tl.static_range(0 if CAUSAL or WINDOW or EXCLUDE_SELF or DOCUMENTS else 1, 3):
            if part == 0:
                lower, upper = first, tl.minimum(full_first, last)
            elif part == 1:
                lower, upper = full_first, full_last
            else:
                lower, upper = full_last, last
            if ACTIVE:
                lower, upper = tl.maximum(lower, tl.load(of_keys)), tl.minimum(upper, tl.load(of_keys + 1))
            if part != 1 or CAUSAL or not EXCLUDE_SELF:
                state = _gather_gradients(
                    state, key, value, key_norms, bias, bounds, keys, query_base, grad_out_base,
                    lse_ptr + line, delta_ptr + line, alone_ptr + line, query_norm_ptr + line, table, of_rows,
                    factor, precision, lower, upper, query_strides[2], grad_out_strides[2], num_queries,
                    num_keys, first_query, first_key, table_row_stride, offset, window, width, value_width,
                    part != 1, GAUSSIAN, TABLE, PER_QUERY, KEY_BIAS, KEY_BIAS_GRAD, DOCUMENTS, ACTIVE, CAUSAL,
                    WINDOW, EXCLUDE_SELF, PRECISION, BLOCK_M, WIDTH, VALUE_WIDTH, EVEN_WIDTH,
                    EVEN_VALUE_WIDTH,
                )  # fmt: skip
        if KEY_BIAS_GRAD:
            # Every query head has a sum of its own.
            grad_key, grad_value, score_sums, logit_sums = state
            sums = grad_key_bias_ptr + (batch * num_heads + head) * num_keys + keys
            if PER_QUERY:
                logit_sums += tl.load(sums, mask=inside, other=0.0)
            tl.store(sums, logit_sums, mask=inside)
            state = grad_key, grad_value, score_sums, tl.zeros((BLOCK_N,), tl.float32)
    grad_key, grad_value, score_sums, _ = state
    if GAUSSIAN:
        grad_key -= score_sums[:, None] * key.to(tl.float32)
    else:
        grad_key *= scale
    indices = keys.to(tl.int64)[:, None]
    key_places = (
        grad_key_ptr + batch * grad_key_strides[0] + group * grad_key_strides[1]
        + indices * grad_key_strides[2] + columns[None, :]
    )  # fmt: skip
    value_places = (
        grad_value_ptr + batch * grad_value_strides[0] + group * grad_value_strides[1]
        + indices * grad_value_strides[2] + value_columns[None, :]
    )  # fmt: skip
    key_inside = inside[:, None] & (columns < width)[None, :]
    value_inside = inside[:, None] & (value_columns < value_width)[None, :]
    if PER_QUERY:
        grad_key += tl.load(key_places, mask=key_inside, other=0.0)
        grad_value += tl.load(value_places, mask=value_inside, other=0.0)
    tl.store(key_places, grad_key.to(grad_key_ptr.dtype.element_ty), mask=key_inside)
    tl.store(value_places, grad_value.to(grad_value_ptr.dtype.element_ty), mask=value_inside)
