"""Backward kernel of Gaussian kernel attention where queries, keys and values are one tensor.

With weights P, score gradients A_ij = P_ij (dO_i · x_j − δ_i) and T = A + Aᵀ,

    dx_i = Σ_j T_ij (x_j − x_i) / σ² + Σ_j P_ji dO_j        dσ = −(2/σ) Σ_ij A_ij log K_ij

The logits are symmetric: a block of rows visits every block it sees or is seen by, and has its one gradient
complete, in one accumulator.
"""

import triton
import triton.language as tl

from nadaraya.attention.triton.kernels.gradients import distance_gradients, load_log_sums, softmax_weights
from nadaraya.attention.triton.kernels.tiles import (
    LOG2E,
    NOT_SPECIALIZED,
    content_logits,
    document_ranges,
    key_ranges,
    keys_in_documents,
    load_documents,
    load_rows,
    matmul,
    queries_in_documents,
    visible_pairs,
)


@triton.jit
def _gather_gradient(
    state,
    tile,
    grad_out,
    norms,
    lse,
    delta,
    alone,
    bounds,
    rows,
    base,
    grad_out_base,
    norm_base,
    lse_base,
    delta_base,
    alone_base,
    factor,
    precision,
    start,
    stop,
    stride,
    grad_out_stride,
    num_tokens,
    window,
    width,
    MASKED: tl.constexpr,
    SEES: tl.constexpr,
    SEEN: tl.constexpr,
    GAUSSIAN: tl.constexpr,
    FIXED_PEAK: tl.constexpr,
    DOCUMENTS: tl.constexpr,
    CAUSAL: tl.constexpr,
    WINDOW: tl.constexpr,
    EXCLUDE_SELF: tl.constexpr,
    PRECISION: tl.constexpr,
    BLOCK_N: tl.constexpr,
    WIDTH: tl.constexpr,
    EVEN_WIDTH: tl.constexpr,
):
    """Takes the tokens start … stop − 1 in, those that the rows see, are seen by, or both."""
    gradient, score_sums, distance_sums = state
    columns = tl.arange(0, WIDTH)
    documents = rows, rows
    if MASKED and DOCUMENTS:
        documents = load_documents(bounds, rows, num_tokens)
    for first in tl.range(start, stop, BLOCK_N):
        others = first + tl.arange(0, BLOCK_N)
        other = load_rows(base, others, columns, stride, num_tokens, width, MASKED, EVEN_WIDTH)
        other_norms = tl.load(norm_base + others, mask=others < num_tokens, other=0.0) * factor
        logits = content_logits(tile, other, norms, other_norms, rows, others, factor, GAUSSIAN, PRECISION)
        if FIXED_PEAK:
            kernel = tl.exp2(logits)
        symmetric = tl.zeros_like(logits)
        if SEES:
            if FIXED_PEAK:
                weights = kernel * tl.exp2(-lse)[:, None]
            else:
                weights = softmax_weights(logits - lse[:, None], True)
            if MASKED:
                visible = visible_pairs(
                    rows[:, None], others[None, :], alone[:, None], num_tokens, window, CAUSAL, WINDOW,
                    EXCLUDE_SELF,
                )  # fmt: skip
                if DOCUMENTS:
                    visible = visible & keys_in_documents(others, documents, CAUSAL)
                weights = tl.where(visible, weights, 0.0)
            grad_weights = matmul(grad_out, tl.trans(other), None, PRECISION)
            symmetric = weights * (grad_weights - delta[:, None])
        if SEEN:
            other_lse = load_log_sums(lse_base, others, num_tokens, MASKED)
            other_delta = tl.load(delta_base + others, mask=others < num_tokens, other=0.0)
            if FIXED_PEAK:
                weights = kernel * tl.exp2(-other_lse)[None, :]
            else:
                weights = softmax_weights(logits - other_lse[None, :], True)
            if MASKED:
                other_alone = False
                if EXCLUDE_SELF:
                    other_alone = (tl.load(alone_base + others, mask=others < num_tokens, other=0) != 0)[
                        None, :
                    ]
                visible = visible_pairs(
                    others[None, :], rows[:, None], other_alone, num_tokens, window, CAUSAL, WINDOW,
                    EXCLUDE_SELF,
                )  # fmt: skip
                if DOCUMENTS:
                    visible = visible & queries_in_documents(others, documents, CAUSAL)
                weights = tl.where(visible, weights, 0.0)
            other_grad_out = load_rows(
                grad_out_base, others, columns, grad_out_stride, num_tokens, width, MASKED, EVEN_WIDTH
            )
            gradient = matmul(weights.to(other.dtype), other_grad_out, gradient, PRECISION)
            grad_weights = matmul(tile, tl.trans(other_grad_out), None, PRECISION)
            symmetric += weights * (grad_weights - other_delta[None, :])
        distance_sums += tl.sum(symmetric * logits, 1)
        rounded = distance_gradients(symmetric, logits, precision, tile).to(other.dtype)
        gradient = matmul(rounded, other, gradient, PRECISION)
        # Of the rounded numbers: both terms of Σ T (x_j − x_i) must hold the same T.
        score_sums += tl.sum(rounded.to(tl.float32), 1)
    return gradient, score_sums, distance_sums


@triton.jit(do_not_specialize=NOT_SPECIALIZED)
def one_tensor_gradient_kernel(
    features_ptr,
    grad_out_ptr,
    gradient_ptr,
    distance_sum_ptr,
    lse_ptr,
    delta_ptr,
    alone_ptr,
    norm_ptr,
    document_ptr,
    precision_ptr,
    strides,
    grad_out_strides,
    gradient_strides,
    num_heads,
    num_tokens,
    window,
    width,
    GAUSSIAN: tl.constexpr,
    FIXED_PEAK: tl.constexpr,
    DOCUMENTS: tl.constexpr,
    CAUSAL: tl.constexpr,
    WINDOW: tl.constexpr,
    EXCLUDE_SELF: tl.constexpr,
    PRECISION: tl.constexpr,
    WIDTH: tl.constexpr,
    EVEN_WIDTH: tl.constexpr,
    BLOCK_M: tl.constexpr,
    BLOCK_N: tl.constexpr,
):
    """The gradient of one block of tokens of one head."""
    num_blocks = tl.cdiv(num_tokens, BLOCK_M)
    first_row = tl.program_id(0) % num_blocks * BLOCK_M
    pair = tl.program_id(0) // num_blocks
    batch = (pair // num_heads).to(tl.int64)
    head = (pair % num_heads).to(tl.int64)
    rows = first_row + tl.arange(0, BLOCK_M)
    inside = rows < num_tokens
    columns = tl.arange(0, WIDTH)
    line = pair.to(tl.int64) * num_tokens
    base = features_ptr + batch * strides[0] + head * strides[1]
    grad_out_base = grad_out_ptr + batch * grad_out_strides[0] + head * grad_out_strides[1]
    precision = tl.load(precision_ptr + head)
    factor = precision * LOG2E
    tile = load_rows(base, rows, columns, strides[2], num_tokens, width, True, EVEN_WIDTH)
    grad_out = load_rows(
        grad_out_base, rows, columns, grad_out_strides[2], num_tokens, width, True, EVEN_WIDTH
    )
    norms = tl.load(norm_ptr + line + rows, mask=inside, other=0.0) * factor
    lse = load_log_sums(lse_ptr + line, rows, num_tokens, True)
    delta = tl.load(delta_ptr + line + rows, mask=inside, other=0.0)
    alone = tl.zeros((BLOCK_M,), tl.int1)
    if EXCLUDE_SELF:
        alone = tl.load(alone_ptr + line + rows, mask=inside, other=0) != 0

    bounds = document_ptr + batch * 2 * num_tokens
    state = (
        tl.zeros((BLOCK_M, WIDTH), tl.float32),
        tl.zeros((BLOCK_M,), tl.float32),
        tl.zeros((BLOCK_M,), tl.float32),
    )
    start, full_start, full_stop, stop = key_ranges(
        first_row, 0, 0, num_tokens, num_tokens, bounds, window, DOCUMENTS, CAUSAL, WINDOW, EXCLUDE_SELF,
        BLOCK_M, BLOCK_N,
    )  # fmt: skip
    # Parts 0 to 2, the tokens that the rows see (without causality also are seen by): the edge of the window
    # or of documents, the tiles inside, the other edge. Parts 3 to 5, in a causal call: the later tokens,
    # which see the rows.
    for part in tl.static_range(0 if WINDOW or DOCUMENTS else 1, 6 if CAUSAL else 3):
        if part == 3:
            start, stop = first_row // BLOCK_N * BLOCK_N, num_tokens
            full_start = tl.cdiv(first_row + BLOCK_M, BLOCK_N) * BLOCK_N
            full_stop = num_tokens
            if WINDOW:
                stop = tl.minimum(stop, first_row + BLOCK_M - 1 + window)
                full_stop = tl.minimum(full_stop, first_row + window)
            if DOCUMENTS:
                _, any_stop, _, all_stop = document_ranges(bounds, first_row, first_row + BLOCK_M, num_tokens)
                stop = tl.minimum(stop, any_stop)
                full_stop = tl.minimum(full_stop, all_stop)
            full_stop = tl.maximum(full_stop // BLOCK_N * BLOCK_N, full_start)
        if part % 3 == 0:
            lower, upper = start, tl.minimum(full_start, stop)
        elif part % 3 == 1:
            lower, upper = full_start, full_stop
        else:
            lower, upper = full_stop, stop
        if part % 3 != 1 or CAUSAL or not EXCLUDE_SELF:
            state = _gather_gradient(
                state, tile, grad_out, norms, lse, delta, alone, bounds, rows, base, grad_out_base,
                norm_ptr + line, lse_ptr + line, delta_ptr + line, alone_ptr + line, factor, precision, lower,
                upper, strides[2], grad_out_strides[2], num_tokens, window, width, part % 3 != 1, part < 3,
                part >= 3 or not CAUSAL, GAUSSIAN, FIXED_PEAK, DOCUMENTS, CAUSAL, WINDOW, EXCLUDE_SELF,
                PRECISION, BLOCK_N, WIDTH, EVEN_WIDTH,
            )  # fmt: skip
    gradient, score_sums, distance_sums = state
    gradient -= score_sums[:, None] * tile.to(tl.float32)
    # Every pair was met from both its ends.
    tl.store(distance_sum_ptr + line + rows, 0.5 * distance_sums, mask=inside)
    tl.store(
        gradient_ptr + batch * gradient_strides[0] + head * gradient_strides[1]
        + rows.to(tl.int64)[:, None] * gradient_strides[2] + columns[None, :],
        gradient.to(gradient_ptr.dtype.element_ty),
        mask=inside[:, None] & (columns < width)[None, :],
    )  # fmt: skip
