"""Backward kernel of Gaussian kernel attention where queries, keys and values are one tensor.

With weights P, score gradients A_ij = P_ij (dO_i · x_j − δ_i) and T = A + Aᵀ,

    dx_i = Σ_j T_ij (x_j − x_i) / σ² + Σ_j P_ji dO_j        dσ = −(2/σ) Σ_ij A_ij log K_ij

The logits are symmetric: a block of rows visits every block it sees or is seen by, and has its one gradient
complete, in one accumulator.
"""

import triton
import triton.language as tl

from nadaraya.attention.triton.gradients import load_log_sums
from nadaraya.attention.triton.tiles import (
    LOG2E,
    content_logits,
    key_ranges,
    load_line,
    load_rows,
    store_rows,
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
    first_row,
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
    FIXED_PEAK: tl.constexpr,
    CAUSAL: tl.constexpr,
    WINDOW: tl.constexpr,
    EXCLUDE_SELF: tl.constexpr,
    PRECISION: tl.constexpr,
    BLOCK_M: tl.constexpr,
    BLOCK_N: tl.constexpr,
    WIDTH: tl.constexpr,
    EVEN_WIDTH: tl.constexpr,
):
    """Takes the tokens start … stop − 1 in, those that the rows see, are seen by, or both."""
    gradient, score_sums, distance_sums = state
    pattern = tl.arange(0, BLOCK_M)[:, None] - tl.arange(0, BLOCK_N)[None, :]
    for first in tl.range(start, stop, BLOCK_N):
        other = load_rows(base, first, stride, num_tokens, width, MASKED, EVEN_WIDTH, BLOCK_N, WIDTH)
        other_norms = load_line(norm_base, first, num_tokens, 0.0, MASKED, BLOCK_N) * factor
        logits = content_logits(tile, other, norms, other_norms, factor, True, PRECISION)
        lags = (first_row - first) + pattern
        inside = (tl.arange(0, BLOCK_N) < num_tokens - first)[None, :]
        if FIXED_PEAK:
            kernel = tl.exp2(logits)
        symmetric = tl.zeros_like(logits)
        if SEES:
            if FIXED_PEAK:
                weights = kernel * tl.exp2(-lse)[:, None]
            else:
                weights = tl.exp2(logits - lse[:, None])
            if MASKED:
                visible = visible_pairs(lags, inside, alone[:, None], window, CAUSAL, WINDOW, EXCLUDE_SELF)
                weights = tl.where(visible, weights, 0.0)
            grad_weights = tl.dot(grad_out, tl.trans(other), input_precision=PRECISION)
            symmetric = weights * (grad_weights - delta[:, None])
        if SEEN:
            other_lse = load_log_sums(lse_base, first, num_tokens, MASKED, BLOCK_N)
            other_delta = load_line(delta_base, first, num_tokens, 0.0, MASKED, BLOCK_N)
            if FIXED_PEAK:
                weights = kernel * tl.exp2(-other_lse)[None, :]
            else:
                weights = tl.exp2(logits - other_lse[None, :])
            if MASKED:
                other_alone = False
                if EXCLUDE_SELF:
                    other_alone = (load_line(alone_base, first, num_tokens, 0, True, BLOCK_N) != 0)[None, :]
                visible = visible_pairs(-lags, inside, other_alone, window, CAUSAL, WINDOW, EXCLUDE_SELF)
                weights = tl.where(visible, weights, 0.0)
            other_grad_out = load_rows(
                grad_out_base, first, grad_out_stride, num_tokens, width, MASKED, EVEN_WIDTH, BLOCK_N, WIDTH
            )
            gradient = tl.dot(weights.to(other.dtype), other_grad_out, gradient, input_precision=PRECISION)
            grad_weights = tl.dot(tile, tl.trans(other_grad_out), input_precision=PRECISION)
            symmetric += weights * (grad_weights - other_delta[None, :])
        distance_sums += tl.sum(symmetric * logits, 1)
        rounded = (symmetric * precision).to(other.dtype)
        gradient = tl.dot(rounded, other, gradient, input_precision=PRECISION)
        # Of the rounded numbers: both terms of Σ T (x_j − x_i) must hold the same T.
        score_sums += tl.sum(rounded.to(tl.float32), 1)
    return gradient, score_sums, distance_sums


@triton.jit
def one_tensor_gradient_kernel(
    features_ptr,
    grad_out_ptr,
    gradient_ptr,
    distance_sum_ptr,
    lse_ptr,
    delta_ptr,
    alone_ptr,
    norm_ptr,
    precision_ptr,
    strides,
    grad_out_strides,
    gradient_strides,
    num_heads,
    num_tokens,
    window,
    width,
    FIXED_PEAK: tl.constexpr,
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
    head = pair % num_heads
    line = pair.to(tl.int64) * num_tokens
    base = features_ptr + batch * strides[0] + head * strides[1]
    grad_out_base = grad_out_ptr + batch * grad_out_strides[0] + head * grad_out_strides[1]
    precision = tl.load(precision_ptr + head)
    factor = precision * LOG2E
    tile = load_rows(base, first_row, strides[2], num_tokens, width, True, EVEN_WIDTH, BLOCK_M, WIDTH)
    grad_out = load_rows(
        grad_out_base, first_row, grad_out_strides[2], num_tokens, width, True, EVEN_WIDTH, BLOCK_M, WIDTH
    )
    norms = load_line(norm_ptr + line, first_row, num_tokens, 0.0, True, BLOCK_M) * factor
    lse = load_log_sums(lse_ptr + line, first_row, num_tokens, True, BLOCK_M)
    delta = load_line(delta_ptr + line, first_row, num_tokens, 0.0, True, BLOCK_M)
    alone = tl.zeros((BLOCK_M,), tl.int1)
    if EXCLUDE_SELF:
        alone = load_line(alone_ptr + line, first_row, num_tokens, 0, True, BLOCK_M) != 0

    state = (
        tl.zeros((BLOCK_M, WIDTH), tl.float32),
        tl.zeros((BLOCK_M,), tl.float32),
        tl.zeros((BLOCK_M,), tl.float32),
    )
    start, full_start, full_stop, stop = key_ranges(
        first_row, 0, 0, num_tokens, num_tokens, window, CAUSAL, WINDOW, EXCLUDE_SELF, BLOCK_M, BLOCK_N
    )
    if WINDOW:
        state = _gather_gradient(
            state, tile, grad_out, norms, lse, delta, alone, first_row, base, grad_out_base, norm_ptr + line,
            lse_ptr + line, delta_ptr + line, alone_ptr + line, factor, precision, start,
            tl.minimum(full_start, stop), strides[2], grad_out_strides[2], num_tokens, window, width, True,
            True, not CAUSAL, FIXED_PEAK, CAUSAL, WINDOW, EXCLUDE_SELF, PRECISION, BLOCK_M, BLOCK_N, WIDTH,
            EVEN_WIDTH,
        )  # fmt: skip
    if CAUSAL or not EXCLUDE_SELF:
        state = _gather_gradient(
            state, tile, grad_out, norms, lse, delta, alone, first_row, base, grad_out_base, norm_ptr + line,
            lse_ptr + line, delta_ptr + line, alone_ptr + line, factor, precision, full_start, full_stop,
            strides[2], grad_out_strides[2], num_tokens, window, width, False,
            True, not CAUSAL, FIXED_PEAK, CAUSAL, WINDOW, EXCLUDE_SELF, PRECISION, BLOCK_M, BLOCK_N, WIDTH,
            EVEN_WIDTH,
        )  # fmt: skip
    state = _gather_gradient(
        state, tile, grad_out, norms, lse, delta, alone, first_row, base, grad_out_base, norm_ptr + line,
        lse_ptr + line, delta_ptr + line, alone_ptr + line, factor, precision, full_stop, stop,
        strides[2], grad_out_strides[2], num_tokens, window, width, True,
        True, not CAUSAL, FIXED_PEAK, CAUSAL, WINDOW, EXCLUDE_SELF, PRECISION, BLOCK_M, BLOCK_N, WIDTH,
            EVEN_WIDTH,
    )  # fmt: skip
    if CAUSAL:
        # The tokens after the rows, which see them: masked around the rows' own places and at the far end.
        start, stop = first_row // BLOCK_N * BLOCK_N, num_tokens
        full_start = tl.cdiv(first_row + BLOCK_M, BLOCK_N) * BLOCK_N
        full_stop = num_tokens
        if WINDOW:
            stop = tl.minimum(stop, first_row + BLOCK_M - 1 + window)
            full_stop = tl.minimum(full_stop, first_row + window)
        full_stop = tl.maximum(full_stop // BLOCK_N * BLOCK_N, full_start)
        state = _gather_gradient(
            state, tile, grad_out, norms, lse, delta, alone, first_row, base, grad_out_base, norm_ptr + line,
            lse_ptr + line, delta_ptr + line, alone_ptr + line, factor, precision, start,
            tl.minimum(full_start, stop), strides[2], grad_out_strides[2], num_tokens, window, width, True,
            False, True, FIXED_PEAK, CAUSAL, WINDOW, EXCLUDE_SELF, PRECISION, BLOCK_M, BLOCK_N, WIDTH,
            EVEN_WIDTH,
        )  # fmt: skip
        state = _gather_gradient(
            state, tile, grad_out, norms, lse, delta, alone, first_row, base, grad_out_base, norm_ptr + line,
            lse_ptr + line, delta_ptr + line, alone_ptr + line, factor, precision, full_start, full_stop,
            strides[2], grad_out_strides[2], num_tokens, window, width, False,
            False, True, FIXED_PEAK, CAUSAL, WINDOW, EXCLUDE_SELF, PRECISION, BLOCK_M, BLOCK_N, WIDTH,
            EVEN_WIDTH,
        )  # fmt: skip
        state = _gather_gradient(
            state, tile, grad_out, norms, lse, delta, alone, first_row, base, grad_out_base, norm_ptr + line,
            lse_ptr + line, delta_ptr + line, alone_ptr + line, factor, precision, full_stop, stop,
            strides[2], grad_out_strides[2], num_tokens, window, width, True,
            False, True, FIXED_PEAK, CAUSAL, WINDOW, EXCLUDE_SELF, PRECISION, BLOCK_M, BLOCK_N, WIDTH,
            EVEN_WIDTH,
        )  # fmt: skip
    gradient, score_sums, distance_sums = state
    gradient -= score_sums[:, None] * tile.to(tl.float32)
    # Every pair was met from both its ends.
    rows = first_row + tl.arange(0, BLOCK_M)
    tl.store(distance_sum_ptr + line + rows, 0.5 * distance_sums, mask=rows < num_tokens)
    store_rows(
        gradient_ptr + batch * gradient_strides[0] + head * gradient_strides[1],
        first_row, gradient_strides[2], num_tokens, width, gradient, BLOCK_M, WIDTH,
    )  # fmt: skip
