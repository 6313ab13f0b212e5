"""Gaussian sums over points on a line in O((n + m) log(n + m)) time and O(n + m) memory, to rounding.

The sums are smooth: where more queries than `_NODES` lie within σ / 8 they are interpolated between Chebyshev
nodes, and only the nodes are summed (`sorted_gaussian_cells`). A point up to `_REACH` σ away is then still
interpolated to rounding relative to its own kernel; where farther ones matter every query is summed itself.
"""

import math

import numpy as np
from numba import prange
from numpy.typing import NDArray

from nadaraya.regression.compiled.double_double import two_sum
from nadaraya.regression.compiled.jit import compiled
from nadaraya.regression.compiled.sorted import sorted_line
from nadaraya.regression.compiled.sorted_gaussian_cells import (
    LANES,
    WIDTH,
    Cells,
    add_around,
    cells_of,
    divide,
    middle,
    running_sums,
)

Array = NDArray[np.float64]

_NODES = 16
_REACH = 12.0  # σ
_TINY = 1e-280  # weights below may consist of underflow
_SPAN = 0.5  # σ within which few queries are summed together
_CHUNK = 16  # runs of queries of one task
_ANGLES = (np.arange(_NODES)[::-1] + 0.5) * (math.pi / _NODES)
_PLACES = np.cos(_ANGLES)  # ascending
_TO_CHEBYSHEV = np.cos(np.arange(_NODES)[:, None] * _ANGLES) * (2.0 / _NODES)
_TO_CHEBYSHEV[0] /= 2.0


def gaussian_sums(
    query: Array,
    points: Array,
    columns: Array,
    sigma: float,
    *,
    exclude_self: bool = False,
    derivative: bool = False,
) -> tuple[Array, Array, Array]:
    """Σ_j exp(−u_ij² / 2) C_rj and Σ_j u_ij² exp(−u_ij² / 2) C_rj, u_ij = (q_i − x_j) / σ.

    The second is the derivative of the first by log σ. Errors are about 1e-14 of the sums of |C| exp(−u² / 2)
    and, for the derivative, of |C| exp(−u² / 2) max(1, u²); for queries u ≫ 1 from all points they
    grow to the u² eps that a rounding of u makes in exp(−u² / 2). Points with less
    than 1e-17 of a query's weight (columns[0] counts) may be left out.

    Args:
        query: (m,) q, float64, finite, in any order; ascending input is not sorted again.
        points: (n,) x, n ≥ 1, likewise.
        columns: (c, n) C, float64, finite; columns[0] ≥ 0 are weights, and where they are zero so are the
            others.
        sigma: σ > 0, in units of x.
        exclude_self: query i leaves out point i, and only that one; query is then the points. Default False.
        derivative: whether the second sums are wanted. Default False.

    Returns:
        sums (c, m), derivatives (c, m) or (0, m), and log_scale (m,), all float64: the true values are those
        times exp(log_scale). log_scale is 0 except for queries so far from all weighted points that exp
        underflows, whose values are relative to the kernel at the nearest of them; where no point counts the
        sums are 0 and log_scale is −inf.
    """
    line = sorted_line(query, points, columns, exclude_self)
    c, m = len(columns), len(line.query)
    cells = cells_of(line.points, line.columns, float(sigma), derivative)
    values = _sums(line.query, divide(line.query, WIDTH * sigma, LANES, _SPAN * sigma), cells, exclude_self)
    log_scale = np.zeros(m)
    far = np.flatnonzero(values[0] < _TINY)
    if len(far):
        weighted = np.flatnonzero(line.columns[0] > 0)
        values[:, far], log_scale[far] = _far_sums(
            line.query[far],
            line.points[weighted],
            line.columns[:, weighted],
            np.searchsorted(weighted, far) if exclude_self else np.full(len(far), -1),
            np.isin(far, weighted) if exclude_self else np.zeros(len(far), np.bool_),
            float(sigma),
            len(values),
        )
    values, log_scale = line.in_given_order(values), line.in_given_order(log_scale)
    return values[:c], values[c:], log_scale


@compiled(error_model="numpy", fastmath={"contract"})
def _interpolate(out: Array, query: Array, coefficients: Array, base: float, half: float) -> None:
    """Chebyshev series (s, _NODES) at s = (query − base) / half, by Clenshaw's recurrence."""
    for r in range(out.shape[0]):
        series = coefficients[r]
        for i in range(len(query)):
            s = (query[i] - base) / half if half > 0.0 else 0.0
            later, value = 0.0, series[_NODES - 1]
            for k in range(_NODES - 2, 0, -1):
                later, value = value, series[k] + 2.0 * s * value - later
            out[r, i] = series[0] + s * value - later


@compiled(error_model="numpy")
def _expand(
    coefficients: Array, base: float, half: float, cells: Cells, lanes: Array, scratch: Array
) -> bool:
    """Fills a Chebyshev series (s, _NODES) of the sums; False where it would not be exact to rounding."""
    own = np.full(LANES, -1)
    coefficients.fill(0.0)
    for begin in range(0, _NODES, LANES):
        for lane in range(LANES):
            lanes[lane] = half / cells.sigma * _PLACES[begin + lane]
        totals = np.zeros((coefficients.shape[0], LANES))
        if add_around(totals, base, lanes, own, cells, scratch) > _REACH:
            return False
        for lane in range(LANES):
            if totals[0, lane] < _TINY:
                return False
            for r in range(coefficients.shape[0]):
                for k in range(_NODES):
                    coefficients[r, k] += _TO_CHEBYSHEV[k, begin + lane] * totals[r, lane]
    return True


@compiled(error_model="numpy")
def _leave_out(out: Array, columns: Array, start: int, pending: NDArray[np.int64]) -> int:
    """Subtracts from interpolated sums each query's own term; pending gets those that must be summed anew.

    Where a term is more than half of what the run has in any column the difference would lose digits; there
    are at most two such points a column.
    """
    c, length = columns.shape[0], out.shape[1]
    magnitudes = np.zeros(c)
    for r in range(c):
        for i in range(length):
            magnitudes[r] += abs(columns[r, start + i])
    count = 0
    for i in range(length):
        dominant = False
        for r in range(c):
            own = columns[r, start + i]
            out[r, i] -= own
            dominant |= abs(own) > magnitudes[r] - abs(own)
        if dominant:
            pending[count] = start + i
            count += 1
    return count


@compiled(parallel=True, error_model="numpy")
def _sums(query: Array, starts: NDArray[np.int64], cells: Cells, exclude_self: bool) -> Array:
    """(s, m) for ascending queries in runs."""
    runs = len(starts) - 1
    s = cells.moments.shape[1]
    out = np.empty((s, len(query)))
    for chunk in prange((runs + _CHUNK - 1) // _CHUNK):
        lanes, scratch, own = np.empty(LANES), np.empty((2, LANES)), np.full(LANES, -1)
        coefficients, totals = np.empty((s, _NODES)), np.empty((s, LANES))
        for run in range(chunk * _CHUNK, min(runs, (chunk + 1) * _CHUNK)):
            start, stop = starts[run], starts[run + 1]
            base = middle(query[start], query[stop - 1])
            half = max(base - query[start], query[stop - 1] - base)
            pending = np.arange(start, stop)
            count = stop - start
            if count > _NODES and _expand(coefficients, base, half, cells, lanes, scratch):
                here = out[:, start:stop]
                _interpolate(here, query[start:stop], coefficients, base, half)
                count = _leave_out(here, cells.columns, start, pending) if exclude_self else 0
            for begin in range(0, count, LANES):
                together = min(LANES, count - begin)
                for lane in range(LANES):
                    i = pending[begin + min(lane, together - 1)]
                    lanes[lane] = (query[i] - base) / cells.sigma
                    if exclude_self:
                        own[lane] = i
                totals.fill(0.0)
                add_around(totals, base, lanes, own, cells, scratch)
                for lane in range(together):
                    for r in range(s):
                        out[r, pending[begin + lane]] = totals[r, lane]
    return out


@compiled(parallel=True, error_model="numpy")
def _far_sums(
    query: Array,
    points: Array,
    columns: Array,
    place: NDArray[np.int64],
    is_point: NDArray[np.bool_],
    sigma: float,
    num_sums: int,
) -> tuple[Array, Array]:
    """Sums relative to the kernel at the nearest point, and its logarithm.

    Args:
        query: (m,).
        points: (n,) ascending, all with weight; n ≥ 0.
        columns: (c, n).
        place: (m,) where a query stands among the points, −1 for one to be searched.
        is_point: (m,) whether it is the point there, to be left out.
        sigma: σ.
        num_sums: c, or 2 c with derivatives.
    """
    c, n, m = columns.shape[0], len(points), len(query)
    up_to, from_on = running_sums(columns[0])
    sums, log_scale = np.zeros((num_sums, m)), np.full(m, -np.inf)
    for i in prange(m):
        q = query[i]
        right = place[i] if place[i] >= 0 else np.searchsorted(points, q)
        left = right - 1
        if is_point[i]:
            right += 1
        nearest = left if left >= 0 else right
        if left >= 0 and right < n and _farther(q, points[left], points[right]) > 0.0:
            nearest = right
        if nearest < 0 or nearest >= n:
            continue
        distance = abs(q - points[nearest]) / sigma
        log_scale[i] = max(-0.5 * distance * distance, -np.finfo(np.float64).max)
        for side in range(2):
            j = left if side == 0 else right
            while 0 <= j < n:
                excess = _farther(q, points[j], points[nearest]) / sigma
                u = distance + excess
                weight = math.exp(-0.5 * excess * (u + distance)) if excess > 0.0 else 1.0
                rest = up_to[j] if side == 0 else from_on[j]
                if weight * rest <= 1e-17 * sums[0, i]:
                    break
                for r in range(c):
                    sums[r, i] += weight * columns[r, j]
                    if num_sums > c:
                        sums[c + r, i] += weight * columns[r, j] * u * u
                j += 1 if side else -1
    return sums, log_scale


@compiled()
def _farther(q: float, x: float, y: float) -> float:
    """|q − x| − |q − y|, to rounding of the difference."""
    to_x, x_error = two_sum(q, -x)
    to_y, y_error = two_sum(q, -y)
    if to_x < 0.0:
        to_x, x_error = -to_x, -x_error
    if to_y < 0.0:
        to_y, y_error = -to_y, -y_error
    return (to_x - to_y) + (x_error - y_error)
