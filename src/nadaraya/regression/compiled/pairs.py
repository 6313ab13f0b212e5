"""The loop over pairs: weighted sums of columns, their derivatives and local moments, for every query.

Queries come in blocks, points in tiles, both with bounding boxes. A block takes its tiles nearest first and
stops when all the weight that is left could not change the last digit: far pairs are never visited (compact
kernels: the pairs outside the support). Differences are taken directly, coordinate by coordinate, so nothing
cancels. Sums run over a tile in the type of the data and over tiles in float64.

Where every weight of a query underflows, weights are measured against the nearest point's.
"""

import math
from typing import Any, NamedTuple

import numpy as np
from numba import prange

from nadaraya.compiled.jit import compiled
from nadaraya.regression.compiled.profiles import (
    FIRST_COMPACT,
    TILE,
    fill,
    log_profile,
    log_slope,
    upper_bound,
)

# Beside Σ κ C: nothing for VALUES; Σ κ' Δ² C, for derivatives by bandwidth; Σ κ' Δ C, by position; for
# MOMENTS Σ κ Δ C and Σ κ Δ Δᵀ C_0, of which local linear fits are made; for LINES, given rows a and
# coefficients β of every query, their derivatives by bandwidth, Σ κ' Δ² (a · z) (C − C_0 β · z) with
# z = (1, −Δ), and for C_0 itself Σ κ' Δ² (a · z)² C_0.
VALUES, BY_BANDWIDTH, BY_POSITION, MOMENTS, LINES = range(5)
NOT_A_POINT = -1
BLOCK = 32  # queries that share one list of tiles


class Law(NamedTuple):
    """The kernel and how exactly it is summed."""

    family: int  # a family of `profiles`
    power: int  # 1, or 2 for sums with κ² (VALUES and MOMENTS)
    tolerance: float  # weight that may stay unvisited, relative to the weight visited
    tiny: float  # sums of weights at or below it are made again relative to the nearest point


class Queries(NamedTuple):
    """Queries in spatial order."""

    x: Any  # (m, d), divided by the bandwidth
    scale: Any  # (m,) factor of squared distances, 1 unless a query has a bandwidth of its own
    self_at: Any  # (m,) the point that a query must not see, or NOT_A_POINT
    row: Any  # (m, d + 1), for LINES, in scaled coordinates
    coefficients: Any  # (m, d + 1, c − 1), likewise


class Tiles(NamedTuple):
    """Points in spatial order, in T tiles of J = TILE points."""

    x: Any  # (T, d, J), divided by the bandwidth
    # (T, c, J), of the type of x; columns[:, 0] ≥ 0 measures what matters (the sample weights), and where it
    # is 0, as where a tile is padded, so are the others
    columns: Any
    low: Any  # (d, T) least coordinates of each tile
    high: Any  # (d, T) the greatest
    weight: Any  # (T,) sum of columns[:, 0] over each tile


class Totals(NamedTuple):
    """Float64 zeros, filled by `accumulate`; the sums are then to be multiplied by exp(log_scale)."""

    values: Any  # (m, c)
    log_scale: Any  # (m,)
    by_feature: Any  # (m, d, c)
    second: Any  # (m, d, d), its lower triangle


@compiled(parallel=True)
def accumulate(mode: int, law: Law, queries: Queries, tiles: Tiles, totals: Totals) -> None:
    """Fills the sums of every query."""
    q, scale, self_at, row, coefficients = queries
    x, columns, low, high, tile_weight = tiles
    values, by_feature, second = totals.values, totals.by_feature, totals.second
    m, num_tiles, num_columns = len(q), x.shape[0], columns.shape[1]
    for block in prange((m + BLOCK - 1) // BLOCK):
        start, stop = block * BLOCK, min(m, (block + 1) * BLOCK)
        u, w = np.empty(TILE, x.dtype), np.empty(TILE, x.dtype)
        v, z = np.empty(TILE, x.dtype), np.empty(TILE, x.dtype)
        residual = np.empty((num_columns, TILE), x.dtype)
        bounds = np.empty(num_tiles)
        _tile_bounds(q[start:stop], scale[start:stop].min(), low, high, bounds)
        nearest_first = np.argsort(bounds)
        rest = np.zeros(num_tiles + 1)
        for k in range(num_tiles - 1, -1, -1):
            t = nearest_first[k]
            rest[k] = rest[k + 1] + tile_weight[t] * upper_bound(law.family, bounds[t]) ** law.power
        for k in range(num_tiles):
            if rest[k] <= law.tolerance * values[start:stop, 0].min():
                break
            t = nearest_first[k]
            for i in range(start, stop):
                _squared_distances(q[i], x[t], scale[i], u)
                fill(law.family, u, w, v, mode in (BY_BANDWIDTH, BY_POSITION, LINES))
                if law.power == 2:
                    for j in range(TILE):
                        w[j] *= w[j]
                at = self_at[i] - t * TILE
                if 0 <= at < TILE:
                    w[at] = 0.0
                    v[at] = 0.0
                for c in range(num_columns):
                    values[i, c] += _dot(w, columns[t, c])
                if mode == MOMENTS:
                    _add_moments(q[i], x[t], columns[t], w, z, by_feature[i], second[i])
                elif mode == LINES:
                    _off_lines(q[i], row[i], coefficients[i], x[t], columns[t], z, residual)
                    _add_gradients(mode, q[i], x[t], residual, v, z, by_feature[i])
                elif mode != VALUES:
                    _add_gradients(mode, q[i], x[t], columns[t], v, z, by_feature[i])
        for i in range(start, stop):
            if values[i, 0] <= law.tiny:
                _add_from_nearest(mode, law, queries, i, tiles, bounds, nearest_first, totals)


@compiled(fastmath=True)
def _squared_distances(q: Any, tile: Any, scale: float, u: Any) -> None:
    """u_j = scale · ‖q − x_j‖² over the points of a tile (d, TILE)."""
    for f in range(tile.shape[0]):
        a = q[f]
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


@compiled()
def _tile_bounds(q: Any, scale: float, tile_low: Any, tile_high: Any, bounds: Any) -> None:
    """The least squared distance from a block of queries to each tile's box, a rounding below any pair's."""
    bounds[:] = 0.0
    for f in range(q.shape[1]):
        low, high = q[:, f].min(), q[:, f].max()
        for t in range(len(bounds)):
            gap = float(max(tile_low[f, t] - high, low - tile_high[f, t]))
            if gap > 0.0:
                bounds[t] += gap * gap
    bounds *= scale * (1.0 - 1e-5)


@compiled(fastmath=True)
def _dot(w: Any, column: Any) -> float:
    total = w.dtype.type(0.0)
    for j in range(TILE):
        total += w[j] * column[j]
    return float(total)


@compiled(fastmath=True)
def _add_gradients(mode: int, q: Any, tile: Any, columns: Any, v: Any, z: Any, gradients: Any) -> None:
    """Adds Σ_j v_j Δ_jf C_cj of one tile, or with Δ² for gradients by bandwidth, to (d, c); z is a buffer."""
    for f in range(tile.shape[0]):
        a, x = q[f], tile[f]
        if mode == BY_POSITION:
            for j in range(TILE):
                z[j] = v[j] * (a - x[j])
        else:
            for j in range(TILE):
                t = a - x[j]
                z[j] = v[j] * t * t
        for c in range(columns.shape[0]):
            gradients[f, c] += _dot(z, columns[c])


@compiled(fastmath=True)
def _add_moments(q: Any, tile: Any, columns: Any, w: Any, z: Any, first: Any, second: Any) -> None:
    """Adds Σ_j w_j Δ_jf C_cj and, for g ≤ f, Σ_j w_j Δ_jf Δ_jg C_0j of one tile; z is a buffer."""
    weight = columns[0]
    for f in range(tile.shape[0]):
        a, x = q[f], tile[f]
        for j in range(TILE):
            z[j] = w[j] * (a - x[j])
        for c in range(columns.shape[0]):
            first[f, c] += _dot(z, columns[c])
        for j in range(TILE):
            z[j] *= weight[j]
        for g in range(f + 1):
            b, x = q[g], tile[g]
            total = z.dtype.type(0.0)
            for j in range(TILE):
                total += z[j] * (b - x[j])
            second[f, g] += total


@compiled(fastmath=True)
def _off_lines(
    q: Any, row: Any, coefficients: Any, tile: Any, columns: Any, leaning: Any, residual: Any
) -> None:
    """Factors of LINES for derivatives of weights, (c, TILE); `leaning` is a buffer."""
    weight = columns[0]
    leaning[:] = row[0]
    for f in range(tile.shape[0]):
        a, x, slope = q[f], tile[f], row[1 + f]
        for j in range(TILE):
            leaning[j] += slope * (x[j] - a)
    for j in range(TILE):
        residual[0, j] = leaning[j] * leaning[j] * weight[j]
    for c in range(1, columns.shape[0]):
        line, column = residual[c], columns[c]
        line[:] = coefficients[0, c - 1]
        for f in range(tile.shape[0]):
            a, x, slope = q[f], tile[f], coefficients[1 + f, c - 1]
            for j in range(TILE):
                line[j] += slope * (x[j] - a)
        for j in range(TILE):
            line[j] = leaning[j] * (column[j] - weight[j] * line[j])


@compiled()
def _add_from_nearest(
    mode: int,
    law: Law,
    queries: Queries,
    i: int,
    tiles: Tiles,
    bounds: Any,
    nearest_first: Any,
    totals: Totals,
) -> None:
    """Sums of query i with weights relative to its nearest point's.

    Beyond the support of a compact kernel the sums are those of the nearest points, and the logarithm of the
    scale is −∞.
    """
    q, row, coefficients = queries.x, queries.row, queries.coefficients
    x, columns = tiles.x, tiles.columns
    values, log_scale, by_feature, second = totals
    values[i, :] = 0.0
    if mode != VALUES:
        by_feature[i] = 0.0
    if mode == MOMENTS:
        second[i] = 0.0
    scale = queries.scale[i]
    nearest = np.inf
    u = np.empty(TILE)
    for t in nearest_first:
        if bounds[t] > nearest * scale:
            break
        _visible_distances(queries, i, tiles, t, u)
        nearest = min(nearest, u.min())
    log_scale[i] = -np.inf
    if nearest == np.inf:
        return
    compact = law.family >= FIRST_COMPACT
    top = 0.0 if compact else log_profile(law.family, nearest * scale)
    if not compact:
        log_scale[i] = law.power * top
    # All points together, each below exp(negligible), stay below the last digit of the nearest's weight 1.
    negligible = -45.0 - math.log(x.shape[0] * TILE)
    w, v = np.empty(TILE, x.dtype), np.empty(TILE, x.dtype)
    z, residual = np.empty(TILE, x.dtype), np.empty(columns.shape[1:], x.dtype)
    for t in nearest_first:
        if compact and bounds[t] > nearest * scale:
            break
        if not compact and log_profile(law.family, bounds[t]) - top < negligible:
            break
        _visible_distances(queries, i, tiles, t, u)
        for j in range(TILE):
            w[j] = v[j] = 0.0
            if compact and u[j] <= nearest * (1.0 + 1e-12):
                w[j] = 1.0
            elif not compact and u[j] < np.inf:
                w[j] = math.exp(law.power * (log_profile(law.family, u[j] * scale) - top))
                v[j] = w[j] * log_slope(law.family, u[j] * scale)
        for c in range(columns.shape[1]):
            values[i, c] += _dot(w, columns[t, c])
        if mode == MOMENTS:
            _add_moments(q[i], x[t], columns[t], w, z, by_feature[i], second[i])
        elif mode == LINES:
            _off_lines(q[i], row[i], coefficients[i], x[t], columns[t], z, residual)
            _add_gradients(mode, q[i], x[t], residual, v, z, by_feature[i])
        elif mode != VALUES:
            _add_gradients(mode, q[i], x[t], columns[t], v, z, by_feature[i])


@compiled()
def _visible_distances(queries: Queries, i: int, tiles: Tiles, t: int, u: Any) -> None:
    """u_j = ‖q_i − x_j‖² over the points of tile t, in float64; inf for points that do not count."""
    for j in range(TILE):
        u[j] = 0.0
        for f in range(tiles.x.shape[1]):
            difference = float(queries.x[i, f]) - float(tiles.x[t, f, j])
            u[j] += difference * difference
        if tiles.columns[t, 0, j] == 0.0 or t * TILE + j == queries.self_at[i]:
            u[j] = np.inf
