"""Sums in one dimension: sorted, then by recurrences or by cells of points, O(n log n) for every profile."""

import math
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np
from numba import prange
from numpy.typing import NDArray

from nadaraya.compiled.jit import compiled
from nadaraya.regression.compiled.line_sums import LineKernel, line_sums, log_kernel, relative, two_sum
from nadaraya.regression.compiled.profiles import (
    EXPONENTIAL,
    FIRST_COMPACT,
    GAUSSIAN,
    MATERN32,
    MATERN52,
    Profile,
)
from nadaraya.regression.requests import BandwidthGradients, Request, Sums

Array = NDArray[np.float64]
Floats = NDArray[np.floating]

# Matérn kernels are functions of √(2ν) distance / length.
_UNITS = {MATERN32: math.sqrt(3.0), MATERN52: math.sqrt(5.0)}
_TINY = 1e-280  # weights below may consist of underflow


def compute(request: Request[Any], profile: Profile) -> Any:
    """The answer to a request for Sums or BandwidthGradients, d = 1, with a finite bandwidth."""
    length = float(request.bandwidth[0]) * profile.length / _UNITS.get(profile.family, 1.0)
    squared = request.power == 2
    if squared and profile.family == GAUSSIAN:  # κ² has the kernel's form
        squared, length = False, length / math.sqrt(2.0)
    with_gradients = request.quantity is BandwidthGradients
    kernel = LineKernel(profile.family, length, squared, with_gradients)
    query, points = request.query[:, 0], request.points[:, 0]
    if request.query is request.points:
        query = points
    values, gradients, log_scale = sorted_sums(kernel, query, points, request.columns, request.exclude_self)
    log_scale += request.power * profile.log_factor
    if with_gradients:
        return BandwidthGradients(values, log_scale, gradients[:, None])
    return Sums(values, log_scale)


def sorted_sums(
    kernel: LineKernel, query: Floats, points: Floats, columns: Floats, exclude_self: bool = False
) -> tuple[Array, Array, Array]:
    """Σ_j κ(|q_i − x_j| / length) C_rj and, with `kernel.slopes`, its derivative by log length.

    Queries (m,) and points (n,), n ≥ 1, are in any order; columns (c, n) as of a `Request`; with exclude_self
    query is `points`. Returns values (m, c), derivatives (m, c), or (m, 0) without slopes, and log_scale (m,)
    as in `Sums`: 0 but for queries so far from all weighted points that κ underflows, whose sums are relative
    to κ at the nearest of them, and for queries without support, where it is −inf, with derivatives 0.

    They are right to 1e-12 of Σ |C| κ and, the derivatives, of Σ |C| (κ + |∂κ/∂log length|); for a query u
    lengths from all points to the u² eps (Gaussian) or u eps that the rounding of u makes in κ(u), where that
    is more. Points with less than 1e-17 of a query's weight (columns[0] counts) may be left out.
    """
    same = query is points
    with ThreadPoolExecutor() as pool:  # sorting leaves Python to others
        lines = list(pool.map(_in_order, [points] if same else [points, query]))
    (x, order), (q, query_order) = lines[0], lines[-1]
    c = np.take(np.asarray(columns, np.float64), order, axis=1)
    take = recurrent_sums if kernel.family in RECURRENT else line_sums
    sums = take(kernel, q, x, c, exclude_self)
    log_scale = np.zeros(len(query))
    far = np.flatnonzero(sums[0] <= (0.0 if kernel.family >= FIRST_COMPACT else _TINY))
    if len(far):
        sums[:, far], log_scale[query_order[far]] = far_sums(kernel, q[far], x, c, exclude_self)
    values = _in_given_order(sums[: len(c)], query_order)
    return values, _in_given_order(sums[len(c) :], query_order), log_scale


def _in_order(values: Floats) -> tuple[NDArray[np.float64], NDArray[np.int64]]:
    """Values (n,) ascending, and where each was."""
    order = np.argsort(values)
    return values[order].astype(np.float64), order


@compiled(parallel=True)
def _in_given_order(sums: Array, order: NDArray[np.int64]) -> Array:
    """(m, s) from (s, m) in the order."""
    result = np.empty(sums.shape[::-1])
    for i in prange(len(order)):
        for r in range(sums.shape[0]):
            result[order[i], r] = sums[r, i]
    return result


RECURRENT = (EXPONENTIAL, MATERN32, MATERN52)

# Coefficients of 1, u, u² … in κ(u) exp(u) and in ∂κ/∂log length exp(u).
_POLYNOMIALS: dict[int, tuple[list[float], list[float]]] = {
    EXPONENTIAL: ([1.0], [0.0, 1.0]),
    MATERN32: ([1.0, 1.0], [0.0, 0.0, 1.0]),
    MATERN52: ([1.0, 1.0, 1.0 / 3.0], [0.0, 0.0, 1.0 / 3.0, 1.0 / 3.0]),
}
_MOST = 1024  # points between two moves of the origin
_BEYOND = 800.0  # lengths: every kernel underflows


def recurrent_sums(kernel: LineKernel, query: Array, points: Array, columns: Array, apart: bool) -> Array:
    """(s, m) sums over ascending points for ascending queries; with `kernel.slopes` derivatives from c on.

    With `apart` the queries are the points, each of which leaves out its own place.
    """
    value, slope = _POLYNOMIALS[kernel.family]
    rows = [np.convolve(value, value) if kernel.squared else value] + ([slope] if kernel.slopes else [])
    polynomials = np.zeros((len(rows), max(map(len, rows))))
    for polynomial, row in zip(polynomials, rows, strict=True):
        polynomial[: len(row)] = row
    n, m = len(points), len(query)
    before = np.arange(m) if apart else np.searchsorted(points, query, side="right")
    after = (n - 1 if apart else n) - before
    sums = walks(
        1.0 / kernel.length,
        2.0 if kernel.squared else 1.0,
        polynomials,
        _both_ways(query, -query),
        _both_ways(points, -points),
        _both_ways(columns, columns),
        _both_ways(before, after),
    )
    return sums[0] + sums[1, :, ::-1]


def _both_ways(there: NDArray[Any], back: NDArray[Any]) -> NDArray[Any]:
    return np.stack([there, back[..., ::-1]])


@compiled(parallel=True, error_model="numpy")
def walks(
    scale: float,
    rate: float,
    polynomials: Array,
    query: Array,
    points: Array,
    columns: Array,
    before: NDArray[np.int64],
) -> Array:
    """The sums of `recurrent_sums` over points to the left, and over those to the right: (2, s, m)."""
    out = np.zeros((2, polynomials.shape[0] * columns.shape[1], query.shape[1]))
    for way in prange(2):
        _walk(scale, rate, polynomials, query[way], points[way], columns[way], before[way], out[way])
    return out


@compiled(error_model="numpy")
def _walk(
    scale: float,
    rate: float,
    polynomials: Array,
    query: Array,
    points: Array,
    columns: Array,
    before: NDArray[np.int64],
    out: Array,
) -> None:
    """Fills out (s, m): for each query the sum over so many points before it. Distances are times scale."""
    degrees, c, n = polynomials.shape[1], columns.shape[0], len(points)
    # Those of the points since the origin moved are apart: rounding goes by their sum, not by that of all.
    moments, newer = np.zeros((degrees, c)), np.zeros((degrees, c))
    powers = np.empty(degrees)
    origin, since, j = points[0] if n > 0 else 0.0, 0, 0
    for i in range(len(query)):
        while j < before[i]:
            t = (points[j] - origin) * scale
            if t > 1.0 or since == _MOST:
                moments += newer
                _move(moments, rate, min(t, _BEYOND))
                newer[:] = 0.0
                origin, since, t = points[j], 0, 0.0
            factor = math.exp(rate * t)
            for d in range(degrees):
                for r in range(c):
                    newer[d, r] += factor * columns[r, j]
                factor *= t
            since += 1
            j += 1
        if j == 0:
            continue
        t = min((query[i] - origin) * scale, _BEYOND)
        decay = math.exp(-rate * t)
        for p in range(polynomials.shape[0]):
            # Powers of −t_j in Σ_k p_k (t − t_j)^k.
            for d in range(degrees):
                binomial, power, total = 1.0, 1.0, 0.0
                for k in range(d, degrees):
                    total += polynomials[p, k] * binomial * power
                    binomial *= (k + 1.0) / (k + 1.0 - d)
                    power *= t
                powers[d] = -total * decay if d % 2 else total * decay
            for r in range(c):
                total = 0.0
                for d in range(degrees):
                    total += powers[d] * (moments[d, r] + newer[d, r])
                out[p * c + r, i] = total


@compiled(error_model="numpy")
def _move(moments: Array, rate: float, t: float) -> None:
    """The moments (degrees, c) of places about a new origin at t."""
    decay = math.exp(-rate * t)
    for d in range(moments.shape[0] - 1, -1, -1):
        for r in range(moments.shape[1]):
            binomial, power, total = 1.0, 1.0, 0.0
            for k in range(d, -1, -1):
                total += binomial * power * moments[k, r]
                binomial *= k / (d - k + 1.0)
                power *= -t
            moments[d, r] = total * decay


_LEFT_OUT = 1e-17  # of the weight of a query
_FARTHEST = 1e100  # lengths: greater distances count as this, whose cube is finite
_TIE = 1e-12  # relative difference of two distances that count as equal


def far_sums(
    kernel: LineKernel, query: Array, points: Array, columns: Array, exclude_self: bool
) -> tuple[Array, Array]:
    """Sums relative to κ at the nearest point with weight; of nearest points alone for compact kernels.

    Queries (m,) are in any order; with exclude_self they are points, alone in their place. Returns sums (s,
    m), slopes from c on, and log_scale (m,), −inf where no point has weight and for compact kernels.
    """
    weighted = columns[0] > 0.0
    places, first = np.unique(points[weighted], return_index=True)
    s = len(columns) * (2 if kernel.slopes else 1)
    if len(places) == 0:
        return np.zeros((s, len(query))), np.full(len(query), -np.inf)
    totals = np.add.reduceat(columns[:, weighted], first, axis=1)
    left = np.searchsorted(places, query, side="left") - 1
    right = np.searchsorted(places, query, side="right" if exclude_self else "left")
    rest = np.stack([np.cumsum(totals[0]), np.cumsum(totals[0][::-1])[::-1]])
    return _walk_outward(kernel, query, places, totals, rest, np.stack([left, right]), s)


@compiled(parallel=True, error_model="numpy")
def _walk_outward(
    kernel: LineKernel,
    query: Array,
    places: Array,
    totals: Array,
    rest: Array,
    beside: NDArray[np.int64],
    s: int,
) -> tuple[Array, Array]:
    """From each query outward, until what is left cannot count.

    rest (2, n) is the weight from each place on to the left, and to the right; beside (2, m) are the places
    next to each query, −1 or n where there is none.
    """
    c, n, m = totals.shape[0], len(places), len(query)
    compact = kernel.family >= FIRST_COMPACT
    sums, log_scale = np.zeros((s, m)), np.full(m, -math.inf)
    for i in prange(m):
        q, left, right = query[i], beside[0, i], beside[1, i]
        nearest = left if left >= 0 else right
        if left >= 0 and right < n and _farther(q, places[left], places[right]) > 0.0:
            nearest = right
        if nearest >= n:
            continue
        distance = min(abs(q - places[nearest]) / kernel.length, _FARTHEST)
        if not compact:
            log_scale[i] = log_kernel(kernel, distance)
        for side in range(2):
            j = beside[side, i]
            while 0 <= j < n:
                excess = min(_farther(q, places[j], places[nearest]) / kernel.length, _FARTHEST)
                if compact:
                    weight, slope = (1.0 if excess <= _TIE * distance else 0.0), 0.0
                else:
                    weight, slope = relative(kernel, distance, excess)
                if weight * rest[side, j] <= _LEFT_OUT * sums[0, i]:
                    break
                for r in range(c):
                    sums[r, i] += weight * totals[r, j]
                    if s > c:
                        sums[c + r, i] += slope * totals[r, j]
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
