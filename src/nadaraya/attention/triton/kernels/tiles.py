"""One tile of BLOCK_M queries × BLOCK_N keys: logits, masks, sums along diagonals.

Logits are kept in units of log 2, so that exp2 serves as the exponential.
"""

import torch
import triton
import triton.language as tl
from triton import knobs

LOG2E = tl.constexpr(1.4426950408889634)
LN2 = tl.constexpr(0.6931471805599453)
# Counts and steps that change with the length of a text. Known to be multiples of 16 they would make no code
# faster, and every kernel would be compiled again for lengths that happen to be.
NOT_SPECIALIZED = [
    "num_batch",
    "num_queries",
    "num_keys",
    "num_tokens",
    "num_programs",
    "num_splits",
    "keys_per_split",
    "num_lines",
    "key_bias_batch_stride",
    "key_bias_head_stride",
    "table_zero",
    "table_stride",
    "table_batch_stride",
    "table_row_stride",
    "first_query",
    "stop_query",
    "partial_stride",
    "window",
]
# Entries that the lag table has on either side beyond those of real pairs: tiles may extend beyond it.
TABLE_PADDING = 256
_INTERPRETED = tl.constexpr(knobs.runtime.interpret)
# The assembly is NVIDIA's, the one line of these kernels that is.
_HAS_PTX = tl.constexpr(not knobs.runtime.interpret and torch.version.hip is None)


@triton.jit
def load_rows(
    base, rows, columns, stride, num_rows, width, CHECK_ROWS: tl.constexpr, EVEN_WIDTH: tl.constexpr
):
    """Rows of a matrix whose columns are adjacent in memory; zeros outside of it."""
    pointers = base + rows.to(tl.int64)[:, None] * stride + columns[None, :]
    if CHECK_ROWS:
        if EVEN_WIDTH:
            tile = tl.load(pointers, mask=(rows < num_rows)[:, None], other=0.0)
        else:
            tile = tl.load(pointers, mask=(rows < num_rows)[:, None] & (columns < width)[None, :], other=0.0)
    elif EVEN_WIDTH:
        tile = tl.load(pointers)
    else:
        tile = tl.load(pointers, mask=(columns < width)[None, :], other=0.0)
    return tile


@triton.jit
def matmul(a, b, accumulator, PRECISION: tl.constexpr):
    """a @ b + accumulator in float32."""
    if _INTERPRETED:
        # The interpreter keeps bfloat16 as its bits and would multiply those.
        a = a.to(tl.float32)
        b = b.to(tl.float32)
    return tl.dot(a, b, accumulator, input_precision=PRECISION)


@triton.jit
def lag_bias(table, positions, keys):
    """table[positions − keys] for a tile; `positions` and `keys` broadcast to it.

    A load would be coalesced in a layout of its own and brought to the layout of the matrix unit through
    shared memory. An elementwise instruction is done in that layout; and since a tile's entries depend on the
    lag alone, most of a thread's addresses are equal and the compiler keeps one load of each: for 64 keys
    18 loads per thread in place of 32.
    """
    pointers = table + (positions - keys)
    if _HAS_PTX:
        bias = tl.inline_asm_elementwise(
            "ld.global.nc.f32 $0, [$1];", "=r,l", [pointers], dtype=tl.float32, is_pure=True, pack=1
        )
    else:
        bias = tl.load(pointers)
    return bias


@triton.jit
def table_indices(rows, offset, num_queries, first_query, row_stride, PER_QUERY: tl.constexpr):
    """Indices into the table of the logits of rows with key 0; other keys lie before, in their order.

    A table by lag serves all rows. A table per query begins with `first_query` and ends with the last.
    """
    if PER_QUERY:
        indices = (tl.minimum(rows, num_queries - 1) - first_query) * row_stride
    else:
        indices = rows + offset
    return indices


@triton.jit
def active_ranges(active_ptr, line, num_queries, num_keys, ACTIVE: tl.constexpr):
    """Of a head (`line` of all items' heads): the ranges of keys that its blocks of ACTIVE queries visit, and
    the ranges of queries among which are all that visit its blocks of ACTIVE keys.
    """
    row_blocks = tl.cdiv(num_queries, ACTIVE)
    of_rows = active_ptr + 2 * line * (row_blocks + tl.cdiv(num_keys, ACTIVE))
    return of_rows, of_rows + 2 * row_blocks


@triton.jit
def at_most_zero(values):
    """min(values, 0), of which a GPU would make 0 out of NaN if it was not told otherwise."""
    return tl.minimum(values, 0.0, propagate_nan=tl.PropagateNan.ALL)


@triton.jit
def content_logits(
    row_tile,
    column_tile,
    row_norms,
    column_norms,
    row_places,
    column_places,
    factor,
    GAUSSIAN: tl.constexpr,
    PRECISION: tl.constexpr,
):
    """factor·⟨row, column⟩, or −factor·‖row − column‖²/2.

    GAUSSIAN says how: 0, the product alone; −1, distances from the product and norms that hold factor·‖·‖²/2;
    −2, likewise between points of one tensor, where equal places are one point; n > 0, distances as sums of
    n squared differences, exact however close points are and however far from the origin.
    """
    if GAUSSIAN > 0:
        columns = tl.arange(0, row_tile.shape[1])[None, :]
        distances = tl.zeros((row_tile.shape[0], column_tile.shape[0]), tl.float32)
        for feature in tl.static_range(GAUSSIAN):
            rows = tl.sum(tl.where(columns == feature, row_tile, 0.0), 1)
            others = tl.sum(tl.where(columns == feature, column_tile, 0.0), 1)
            difference = rows[:, None] - others[None, :]
            distances += difference * difference
        logits = distances * (-0.5 * factor)
    else:
        logits = matmul(row_tile, tl.trans(column_tile), None, PRECISION) * factor
        if GAUSSIAN < 0:
            # Rounding could make a distance negative, and a narrow bandwidth would blow that up.
            logits = at_most_zero(logits - (row_norms[:, None] + column_norms[None, :]))
        if GAUSSIAN == -2:
            # Zero times the norm: NaN stays NaN.
            same = row_places[:, None] == column_places[None, :]
            logits = tl.where(same, 0.0 * row_norms[:, None], logits)
    return logits


@triton.jit
def with_key_bias(logits, bias):
    """logits + bias; −∞ where the bias is, whatever stands in the key: padding may hold NaN."""
    return tl.where(bias == float("-inf"), float("-inf"), logits + bias)


@triton.jit
def visible_pairs(
    positions,
    keys,
    alone,
    num_keys,
    window,
    CAUSAL: tl.constexpr,
    WINDOW: tl.constexpr,
    EXCLUDE_SELF: tl.constexpr,
):
    """Mask of the pairs of a tile that take part, by lag; `positions` and `keys` broadcast to the tile.

    Rows that leave-one-out leaves with nothing (`alone`) see themselves.
    """
    visible = (keys < num_keys) & (positions == positions)
    if CAUSAL:
        visible = visible & (keys <= positions)
    if WINDOW:
        visible = visible & (positions - keys < window)
        if not CAUSAL:
            visible = visible & (keys - positions < window)
    if EXCLUDE_SELF:
        visible = visible & ((keys != positions) | alone)
    return visible


@triton.jit
def load_documents(bounds, positions, num_keys):
    """Starts and ends of the documents of tokens; empty ones beyond the last token.

    Read anew for each loop over masked tiles: kept for all loops they would fill the registers.
    """
    inside = positions < num_keys
    first = tl.load(bounds + positions, mask=inside, other=0)
    return first, tl.load(bounds + num_keys + positions, mask=inside, other=0)


@triton.jit
def keys_in_documents(keys, documents, CAUSAL: tl.constexpr):
    """Mask of keys (columns of a tile) in the documents of the queries; causality ends them by itself."""
    first, last = documents
    inside = keys[None, :] >= first[:, None]
    if not CAUSAL:
        inside = inside & (keys[None, :] < last[:, None])
    return inside


@triton.jit
def queries_in_documents(positions, documents, CAUSAL: tl.constexpr):
    """Mask of queries (columns of a tile) in the documents of the keys; causality begins them by itself."""
    first, last = documents
    inside = positions[None, :] < last[:, None]
    if not CAUSAL:
        inside = inside & (positions[None, :] >= first[:, None])
    return inside


@triton.jit
def document_ranges(bounds, first, stop, num_keys):
    """Documents that the tokens first … stop − 1 see: start and end of what any of them sees, and of
    what all see.
    """
    last = tl.minimum(stop, num_keys) - 1
    ends = bounds + num_keys
    return tl.load(bounds + first), tl.load(ends + last), tl.load(bounds + last), tl.load(ends + first)


@triton.jit
def key_ranges(
    first_row,
    offset,
    first_key,
    last_key,
    num_keys,
    bounds,
    window,
    DOCUMENTS: tl.constexpr,
    CAUSAL: tl.constexpr,
    WINDOW: tl.constexpr,
    EXCLUDE_SELF: tl.constexpr,
    BLOCK_M: tl.constexpr,
    BLOCK_N: tl.constexpr,
):
    """The tiles of keys that a block of queries sees.

    Returns:
        start, full_start, full_stop, stop: all but `stop` are multiples of BLOCK_N; the tiles from
        `full_start` to `full_stop` lie inside the keys and hide no pair by its lag or documents.
    """
    start, stop = first_key, last_key
    if CAUSAL:
        stop = tl.minimum(stop, first_row + BLOCK_M + offset)
    if WINDOW:
        start = tl.maximum(start, first_row + offset - window + 1)
        if not CAUSAL:
            stop = tl.minimum(stop, first_row + BLOCK_M - 1 + offset + window)
    if DOCUMENTS:
        any_start, any_stop, all_start, all_stop = document_ranges(
            bounds, first_row + offset, first_row + BLOCK_M + offset, num_keys
        )
        start = tl.maximum(start, any_start)
        stop = tl.minimum(stop, any_stop)
    start = start // BLOCK_N * BLOCK_N
    full_start, full_stop = start, tl.minimum(stop, num_keys // BLOCK_N * BLOCK_N)
    if CAUSAL:
        # Leave-one-out hides the pair of the first row with itself too.
        full_stop = tl.minimum(full_stop, first_row + offset + (0 if EXCLUDE_SELF else 1))
    if WINDOW:
        full_start = tl.maximum(start, first_row + BLOCK_M + offset - window)
        if not CAUSAL:
            full_stop = tl.minimum(full_stop, first_row + offset + window)
    if DOCUMENTS:
        full_start = tl.maximum(full_start, all_start)
        full_stop = tl.minimum(full_stop, all_stop)
    full_start = tl.cdiv(full_start, BLOCK_N) * BLOCK_N
    if EXCLUDE_SELF and not CAUSAL:
        full_stop = full_start
    full_stop = tl.maximum(tl.maximum(full_stop, 0) // BLOCK_N * BLOCK_N, full_start)
    return start, full_start, full_stop, stop


@triton.jit
def diagonal_sums(tile, BLOCK: tl.constexpr):
    """Sums of a square tile along its diagonals.

    Each row is rotated so that a diagonal becomes a column: entry (m, c) of the rotated tile is entry
    (m, m − c mod BLOCK). Column c then holds the pairs with lag m − n = c above row c and those with lag
    c − BLOCK below.

    Returns:
        The sums for the lags 0 … BLOCK − 1, and those for −BLOCK … −1.
    """
    rows = tl.arange(0, BLOCK)[:, None]
    lags = tl.arange(0, BLOCK)[None, :]
    # Gathered in one dimension, the tile goes through shared memory once; by rows it would take shuffles.
    indices = tl.reshape(rows * BLOCK + ((rows - lags) & (BLOCK - 1)), (BLOCK * BLOCK,))
    rotated = tl.reshape(tl.gather(tl.reshape(tile, (BLOCK * BLOCK,)), indices, axis=0), (BLOCK, BLOCK))
    upper = tl.sum(tl.where(rows >= lags, rotated, 0.0), 0)
    return upper, tl.sum(rotated, 0) - upper
