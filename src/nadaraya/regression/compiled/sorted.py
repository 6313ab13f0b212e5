"""Exact sums of kernels over points on a line in O((n + m) log(n + m)) time and O(n + m) memory.

Sorted points make the sums over all pairs unnecessary: kernels of the form polynomial times exponential go by
two sweeps (`sorted_exponential`), polynomials of compact support by differences of prefix sums
(`sorted_compact`).
"""

import math
from collections.abc import Sequence
from fractions import Fraction
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from nadaraya.regression.compiled.sorted_compact import LEFT, RIGHT, CompactKernel, compact_windows
from nadaraya.regression.compiled.sorted_exponential import exponential_sweeps

Array = NDArray[np.float64]
Coefficients = Sequence[float] | Array


def exponential_sums(
    query: Array,
    points: Array,
    columns: Array,
    length: float,
    coefficients: Coefficients,
    *,
    exclude_self: bool = False,
) -> tuple[Array, Array]:
    """Σ_j κ(|q_i − x_j| / l) C_rj for κ(u) = (Σ_k a_k u^k) exp(−u).

    The sums are relative to exp(−u) of the nearest point that has a column other than zero, so that none
    underflows however far a query is from all points. Nothing is subtracted: where no column and no
    coefficient is negative every sum is good to about 1e-14.

    Args:
        query: (m,) q, float64, finite, in any order; ascending input is not sorted again.
        points: (n,) x, n ≥ 1, likewise.
        columns: (c, n) C, float64, finite.
        length: l > 0, in units of x.
        coefficients: a_0, a_1, …: (1,) is the exponential, (1, 1) and (1, 1, 1/3) are Matérn 3/2 and 5/2 with
            l = length / √(2ν).
        exclude_self: query i leaves out point i, and only that one; query is then the points. Default False.

    Returns:
        sums (c, m) and log_scale (m,), both float64: the true sums are sums · exp(log_scale). Where no point
        counts the sums are 0 and log_scale is −inf.
    """
    a = _trimmed(coefficients)
    line = sorted_line(query, points, columns, exclude_self)
    binomials = np.array([[math.comb(k, i) for i in range(len(a))] for k in range(len(a))], np.float64)
    sums, log_scale = exponential_sweeps(
        line.query, line.points, line.columns, line.before, int(exclude_self), float(length), a, binomials
    )
    return line.in_given_order(sums), line.in_given_order(log_scale)


def compact_sums(
    query: Array,
    points: Array,
    columns: Array,
    bandwidth: float,
    coefficients: Coefficients,
    *,
    exclude_self: bool = False,
) -> Array:
    """Σ_j κ(|q_i − x_j| / h) C_rj for κ(u) = Σ_k a_k u^k where u ≤ 1, otherwise 0.

    A distance of exactly h belongs to the support, with the tolerance of 8 units in the last place that
    `nadaraya.kernels.Boxcar` has; a kernel that vanishes at its edge needs none.

    Columns of weights of one sign are summed to about 1e-12 or better. The error is relative to the sum of
    |κ C|, and there is an absolute part of about 1e-26 of the largest sum of |C| over a width 2h.

    Args:
        query: (m,) q, float64, finite, in any order; ascending input is not sorted again.
        points: (n,) x, n ≥ 1, likewise.
        columns: (c, n) C, float64, finite.
        bandwidth: h > 0, in units of x.
        coefficients: a_0, a_1, …: (1,) is the boxcar, (1, 0, −1) Epanechnikov's kernel,
            (1, 0, 0, −3, 0, 0, 3, 0, 0, −1) the tricube.
        exclude_self: query i leaves out point i, and only that one; query is then the points. Default False.

    Returns:
        (c, m) float64, exactly 0 where no point is within h.
    """
    kernel = _compact_kernel(float(bandwidth), _trimmed(coefficients))
    line = sorted_line(query, points, columns, exclude_self)
    sums = compact_windows(line.query, line.points, line.columns, line.before, int(exclude_self), kernel)
    return line.in_given_order(sums)


class _Line(NamedTuple):
    """Queries and points in ascending order.

    Attributes:
        query: (m,).
        points: (n,).
        columns: (c, n).
        before: (m,) how many points stand on the left of each query, equal ones included; with exclude_self
            those that come before the query itself in the order.
        query_order: (m,) where each query was given, None where they were ascending.
    """

    query: Array
    points: Array
    columns: Array
    before: NDArray[np.int64]
    query_order: NDArray[np.int64] | None

    def in_given_order(self, values: Array) -> Array:
        """Results (…, m) by query as given."""
        if self.query_order is None:
            return values
        out = np.empty_like(values)
        out[..., self.query_order] = values
        return out


def sorted_line(query: Array, points: Array, columns: Array, exclude_self: bool) -> _Line:
    order = _ascending_order(points)
    x, c = _taken(points, order), _taken(columns, order)
    if exclude_self:
        return _Line(x, x, c, np.arange(len(x)), order)
    query_order = order if query is points else _ascending_order(query)
    q = x if query is points else _taken(query, query_order)
    return _Line(q, x, c, np.searchsorted(x, q, side="right"), query_order)


def _ascending_order(values: Array) -> NDArray[np.int64] | None:
    return None if np.all(values[:-1] <= values[1:]) else np.argsort(values)


def _taken(values: Array, order: NDArray[np.int64] | None) -> Array:
    """A copy (compiled code is then made for writeable arrays only) along the last axis in the order."""
    return values.copy() if order is None else np.take(values, order, axis=-1)


def _trimmed(coefficients: Coefficients) -> Array:
    """The coefficients up to the last that is not zero, one at least."""
    trimmed = np.trim_zeros(np.asarray(coefficients, np.float64), "b")
    return trimmed if len(trimmed) else np.zeros(1)


def _compact_kernel(bandwidth: float, a: Array) -> CompactKernel:
    exact = [Fraction(value) for value in a.tolist()]
    size = len(exact)
    outer = [(-1) ** k * sum(exact[d] * math.comb(d, k) for d in range(k, size)) for k in range(size)]
    if outer[0] == 0:  # without points at the very edge no window consists of nothing but zeros
        reach = math.nextafter(bandwidth, 0.0)
    else:
        reach = bandwidth * (1.0 + 8.0 * np.finfo(np.float64).eps)
    unit = math.ldexp(1.0, math.frexp(bandwidth)[1])
    ratio = Fraction(unit) / Fraction(bandwidth)
    degrees = np.flatnonzero(a)
    expansion = np.zeros((2, len(degrees), size, 2))
    for index, d in enumerate(degrees.tolist()):
        for k in range(d + 1):
            value = exact[d] * ratio**d * (-1) ** k * math.comb(d, k)
            high = float(value)
            expansion[LEFT, index, k] = high, float(value - Fraction(high))
            expansion[RIGHT, index, k] = (-1) ** d * expansion[LEFT, index, k]
    return CompactKernel(
        bandwidth=bandwidth,
        inverse=1.0 / bandwidth,
        reach=reach,
        unit=unit,
        even=not np.any(degrees % 2),
        inner=a,
        outer=np.array([float(value) for value in outer]),
        degrees=degrees,
        expansion=expansion,
    )
