"""Sums on a line of kernels that are a polynomial times exp(−rate u): one walk to the right, one to the left.

With t the places relative to an origin, Σ_j C_j p(t − t_j) exp(−rate (t − t_j)) over the points before t is a
polynomial in t times exp(−rate t), whose coefficients come from the moments Σ_j C_j t_j^d exp(rate t_j).
Adding a point and moving the origin both are cheap: O(n + m) after sorting. The origin moves along with the
points, so that moments neither grow nor cancel, and seldom enough for rounding not to add up.
"""

import math
from typing import Any

import numpy as np
from numba import prange
from numpy.typing import NDArray

from nadaraya.regression.compiled.jit import compiled
from nadaraya.regression.compiled.line_kernels import LineKernel
from nadaraya.regression.compiled.profiles import EXPONENTIAL, MATERN32, MATERN52

Array = NDArray[np.float64]

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
    """Sums over ascending points for ascending queries.

    Args:
        kernel: κ, of a family in `RECURRENT`.
        query: (m,).
        points: (n,).
        columns: (c, n).
        apart: whether the queries are the points, each of which leaves out its own place.

    Returns:
        (s, m) sums, and with `kernel.slopes` their derivatives by log length from c on.
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
