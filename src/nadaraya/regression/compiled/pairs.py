"""The loop over pairs: weighted sums of columns, their derivatives and local moments, for every query.

Queries come in blocks, points in tiles, both with bounding boxes. A block takes its tiles nearest first and
stops
when all the weight that is left could not change the last digit: far pairs are never visited (compact
kernels: the pairs outside the support). Differences are taken directly, coordinate by coordinate, so nothing
cancels. Sums run over a tile in the type of the data and over tiles in float64.

Where every weight of a query underflows, `nearest` measures weights against the nearest point's.

Shapes: q_dm, x_TdJ scaled by the bandwidth, in spatial order, in T tiles of J = TILE points; columns_TcJ, the
first of them nonnegative and the measure of what matters (the sample weights), 0 where a tile is padded;
out_mc, by_feature_mdc, second_mdd.
"""

from typing import Any

import numpy as np
from numba import prange

from nadaraya.regression.compiled.jit import compiled
from nadaraya.regression.compiled.modes import BY_BANDWIDTH, BY_POSITION, LINES, MOMENTS, VALUES
from nadaraya.regression.compiled.nearest import add_from_nearest
from nadaraya.regression.compiled.order import BLOCK, TILE
from nadaraya.regression.compiled.profiles import fill, upper_bound

NOT_A_POINT = -1


@compiled(fastmath=True)
def _squared_distances(q: Any, i: int, tile: Any, scale: float, u: Any) -> None:
    """u_j = scale · ‖q_i − x_j‖² over the points of a tile (d, TILE)."""
    for f in range(tile.shape[0]):
        a = q[f, i]
        x = tile[f]
        if f == 0:
            for j in range(TILE):
                t = a - x[j]
                u[j] = t * t
        else:
            for j in range(TILE):
                t = a - x[j]
                u[j] += t * t
    if scale != 1.0:
        s = u.dtype.type(scale)
        for j in range(TILE):
            u[j] *= s


@compiled(fastmath=True)
def _dot(w: Any, column: Any) -> float:
    total = w.dtype.type(0.0)
    for j in range(TILE):
        total += w[j] * column[j]
    return float(total)


@compiled(fastmath=True)
def _add_tile(
    mode: int,
    q: Any,
    i: int,
    tile: Any,
    columns: Any,
    w: Any,
    v: Any,
    z: Any,
    out: Any,
    by_feature: Any,
    second: Any,
) -> None:
    """Adds one tile with weights w and their derivatives v to the sums of query i."""
    for c in range(columns.shape[0]):
        out[i, c] += _dot(w, columns[c])
    if mode in (VALUES, LINES):
        return
    for f in range(tile.shape[0]):
        a = q[f, i]
        x = tile[f]
        if mode == BY_BANDWIDTH:
            for j in range(TILE):
                t = a - x[j]
                z[j] = v[j] * t * t
        elif mode == BY_POSITION:
            for j in range(TILE):
                z[j] = v[j] * (a - x[j])
        else:
            for j in range(TILE):
                z[j] = w[j] * (a - x[j])
        for c in range(columns.shape[0]):
            by_feature[i, f, c] += _dot(z, columns[c])
        if mode == MOMENTS:
            weight = columns[0]
            for j in range(TILE):
                z[j] *= weight[j]
            for g in range(f + 1):
                b = q[g, i]
                x = tile[g]
                total = z.dtype.type(0.0)
                for j in range(TILE):
                    total += z[j] * (b - x[j])
                second[i, f, g] += total


@compiled(fastmath=True)
def _add_lines(
    q: Any,
    i: int,
    tile: Any,
    columns: Any,
    v: Any,
    z: Any,
    leaning: Any,
    residual: Any,
    row: Any,
    coefficients: Any,
    by_feature: Any,
) -> None:
    """Adds one tile to the derivatives of a local line; row (d + 1,), coefficients (d + 1, c)."""
    for j in range(TILE):
        leaning[j] = row[0]
    for f in range(tile.shape[0]):
        a, x, slope = q[f, i], tile[f], row[1 + f]
        for j in range(TILE):
            leaning[j] += slope * (x[j] - a)
    for c in range(columns.shape[0]):
        weight = columns[0]
        if c == 0:
            for j in range(TILE):
                residual[j] = v[j] * leaning[j] * leaning[j] * weight[j]
        else:
            column, level = columns[c], coefficients[0, c]
            for j in range(TILE):
                residual[j] = level
            for f in range(tile.shape[0]):
                a, x, slope = q[f, i], tile[f], coefficients[1 + f, c]
                for j in range(TILE):
                    residual[j] += slope * (x[j] - a)
            for j in range(TILE):
                residual[j] = v[j] * leaning[j] * (column[j] - weight[j] * residual[j])
        for f in range(tile.shape[0]):
            a, x = q[f, i], tile[f]
            for j in range(TILE):
                t = a - x[j]
                z[j] = t * t
            by_feature[i, f, c] += _dot(z, residual)


@compiled()
def _tile_bounds(low: Any, high: Any, tile_low: Any, tile_high: Any, scale: float, bounds: Any) -> None:
    """The least squared distance from a box of queries to each tile's box, a rounding below any pair's."""
    for t in range(tile_low.shape[1]):
        u = 0.0
        for f in range(low.shape[0]):
            gap = max(tile_low[f, t] - high[f], low[f] - tile_high[f, t])
            if gap > 0.0:
                u += gap * gap
        bounds[t] = u * scale * (1.0 - 1e-5)


@compiled(parallel=True)
def accumulate(
    mode: int,
    family: int,
    power: int,
    q: Any,
    x: Any,
    columns: Any,
    tile_low: Any,
    tile_high: Any,
    tile_weight: Any,
    query_scale: Any,
    self_at: Any,
    tolerance: float,
    tiny: float,
    row: Any,
    coefficients: Any,
    out: Any,
    by_feature: Any,
    second: Any,
    log_scale: Any,
) -> None:
    """Fills the sums of every query.

    Args:
        mode: VALUES, BY_BANDWIDTH, BY_POSITION, MOMENTS or LINES.
        family: a family of `profiles`.
        power: 1, or 2 for sums with κ² (VALUES only).
        q: (d, m) queries and x: (T, d, TILE) points, divided by the bandwidth, in spatial order.
        columns: (T, c, TILE), of the type of x; columns[:, 0] ≥ 0.
        tile_low: (d, T) least coordinates of each tile of points; tile_high: the greatest.
        tile_weight: (T,) sum of columns[:, 0] over each tile.
        query_scale: (m,) factor of each query's squared distances, 1 unless its bandwidth is its own.
        self_at: (m,) the point that a query must not see, or NOT_A_POINT.
        tolerance: weight that may stay unvisited, relative to the weight visited.
        tiny: sums of columns[:, 0] at or below it are made again relative to the nearest point.
        row: (m, d + 1) and coefficients: (m, d + 1, c), for LINES, in the type of x and scaled coordinates;
            coefficients of column 0 are not read.
        out: (m, c), by_feature: (m, d, c), second: (m, d, d, its lower triangle): zeros, float64, filled
            here.
        log_scale: (m,) zeros; afterwards the sums are to be multiplied by exp(log_scale).
    """
    m, tiles = q.shape[1], tile_low.shape[1]
    for block in prange((m + BLOCK - 1) // BLOCK):
        start, stop = block * BLOCK, min(m, (block + 1) * BLOCK)
        u, w = np.empty(TILE, x.dtype), np.empty(TILE, x.dtype)
        v, z = np.empty(TILE, x.dtype), np.empty(TILE, x.dtype)
        leaning, residual = np.empty(TILE, x.dtype), np.empty(TILE, x.dtype)
        low, high = np.empty(q.shape[0]), np.empty(q.shape[0])
        for f in range(q.shape[0]):
            low[f], high[f] = q[f, start:stop].min(), q[f, start:stop].max()
        bounds = np.empty(tiles)
        _tile_bounds(low, high, tile_low, tile_high, query_scale[start:stop].min(), bounds)
        nearest_first = np.argsort(bounds)
        rest = np.zeros(tiles + 1)
        for k in range(tiles - 1, -1, -1):
            t = nearest_first[k]
            rest[k] = rest[k + 1] + tile_weight[t] * upper_bound(family, bounds[t]) ** power
        for k in range(tiles):
            if rest[k] <= tolerance * out[start:stop, 0].min():
                break
            t = nearest_first[k]
            for i in range(start, stop):
                _squared_distances(q, i, x[t], query_scale[i], u)
                fill(family, u, w, v, mode in (BY_BANDWIDTH, BY_POSITION, LINES))
                if power == 2:
                    for j in range(TILE):
                        w[j] *= w[j]
                at = self_at[i] - t * TILE
                if 0 <= at < TILE:
                    w[at] = 0.0
                    v[at] = 0.0
                _add_tile(mode, q, i, x[t], columns[t], w, v, z, out, by_feature, second)
                if mode == LINES:
                    _add_lines(
                        q, i, x[t], columns[t], v, z, leaning, residual, row[i], coefficients[i], by_feature
                    )
        for i in range(start, stop):
            if out[i, 0] <= tiny:
                log_scale[i] = add_from_nearest(
                    mode,
                    family,
                    power,
                    q,
                    i,
                    x,
                    columns,
                    self_at[i],
                    query_scale[i],
                    bounds,
                    nearest_first,
                    row,
                    coefficients,
                    out,
                    by_feature,
                    second,
                )
