"""The sums in one dimension, sorted, O(n log n): Gaussian, compact kernels, polynomial times exponential."""

import math
from typing import Any

import numpy as np
from numpy.polynomial import polynomial
from numpy.typing import NDArray

from nadaraya.regression.compiled.profiles import (
    BOXCAR,
    EPANECHNIKOV,
    EXPONENTIAL,
    GAUSSIAN,
    MATERN32,
    MATERN52,
    TRICUBE,
    Profile,
)
from nadaraya.regression.compiled.sorted import compact_sums, exponential_sums
from nadaraya.regression.compiled.sorted_gaussian import gaussian_sums
from nadaraya.regression.sums import PairSums

Array = NDArray[Any]

# κ(u) = (Σ a_k u^k) exp(−u) or, on u ≤ 1, Σ a_k u^k; and what a length of 1 is in units of u.
_POLYNOMIALS = {
    EXPONENTIAL: ([1.0], 1.0),
    MATERN32: ([1.0, 1.0], math.sqrt(3.0)),
    MATERN52: ([1.0, 1.0, 1.0 / 3.0], math.sqrt(5.0)),
    EPANECHNIKOV: ([1.0, 0.0, -1.0], 1.0),
    TRICUBE: ([1.0, 0.0, 0.0, -3.0, 0.0, 0.0, 3.0, 0.0, 0.0, -1.0], 1.0),
    BOXCAR: ([1.0], 1.0),
}


def can_sort(profile: Profile) -> bool:
    """Whether the kernel has a sum over sorted points."""
    return profile.family == GAUSSIAN or profile.family in _POLYNOMIALS


def pair_sums(
    query: Array,
    points: Array,
    columns: Array,
    profile: Profile,
    bandwidth: float,
    what: str,
    power: int,
    exclude_self: bool,
) -> PairSums:
    """The sums of `nadaraya.regression.sums.pair_sums` for "values" and "bandwidth", d = 1.

    Args:
        query: (m, 1).
        points: (n, 1).
        columns: (c, n).
        profile: a kernel that `can_sort`.
        bandwidth: h, finite.
        what: "values" or "bandwidth".
        power: 1 or 2.
        exclude_self: query i does not see point i.

    Returns:
        The sums.
    """
    q = np.ascontiguousarray(query[:, 0], dtype=np.float64)
    x = q if query is points else np.ascontiguousarray(points[:, 0], dtype=np.float64)
    c = np.ascontiguousarray(columns, dtype=np.float64)
    log_factor = power * profile.log_factor
    if profile.family == GAUSSIAN:
        sigma = bandwidth * profile.length / math.sqrt(power)  # κ² has the kernel's form
        values, slopes, log_scale = gaussian_sums(
            q, x, c, sigma, exclude_self=exclude_self, derivative=what == "bandwidth"
        )
        by_feature = slopes.T.reshape(-1, 1, len(c)).copy()
        return PairSums(values.T.copy(), by_feature, np.zeros((0, 1, 1)), log_scale + log_factor)
    polynomial_of_kernel, units = _POLYNOMIALS[profile.family]
    coefficients: Array = np.array(polynomial_of_kernel)
    length = bandwidth * profile.length / units
    if power == 2:
        coefficients = polynomial.polymul(coefficients, coefficients)
        if not profile.compact:  # (Σ a_k u^k)² exp(−2u) in terms of 2u
            coefficients = coefficients / 2.0 ** np.arange(len(coefficients))
            length /= 2.0

    def sums(a: Array) -> tuple[Array, Array]:
        if profile.compact:
            return compact_sums(q, x, c, length, a, exclude_self=exclude_self), np.zeros(len(q))
        return exponential_sums(q, x, c, length, a, exclude_self=exclude_self)

    values, log_scale = sums(coefficients)
    values = values.T.copy()
    by_feature = np.zeros((0, 1, len(c)))
    if what == "bandwidth":
        derivative, derivative_scale = sums(_by_log_length(coefficients, profile.compact))
        by_feature = (derivative * np.exp(derivative_scale - log_scale)).T[:, None, :].copy()
    if profile.compact:
        alone = values[:, 0] <= 0.0
        values[alone] = _nearest_columns(q, x, c, alone, exclude_self)
        log_scale[alone] = -np.inf
        if what == "bandwidth":
            by_feature[alone] = 0.0
    return PairSums(values, by_feature, np.zeros((0, 1, 1)), log_scale + log_factor)


def _by_log_length(a: Array, compact: bool) -> Array:
    """Coefficients of ∂κ/∂log l = −u κ'(u), times the same exponential where there is one."""
    falling = -np.arange(len(a)) * a
    return falling if compact else polynomial.polyadd(np.append(0.0, a), falling)


def _nearest_columns(
    q: Array, x: Array, columns: Array, rows: NDArray[np.bool_], exclude_self: bool
) -> Array:
    """(rows, c) sums of the columns over the nearest points that have weight, for queries that see none."""
    weighted = columns[0] > 0
    locations, where = np.unique(x[weighted], return_inverse=True)
    if len(locations) == 0:
        return np.zeros((int(rows.sum()), len(columns)))
    totals = np.stack([np.bincount(where, column[weighted]) for column in columns], axis=1)
    asked = q[rows]
    left = np.searchsorted(locations, asked, side="left") - 1
    # A query that is a point itself, and alone in its support, stands between its neighbours.
    right = np.searchsorted(locations, asked, side="right" if exclude_self else "left")
    to_left = np.where(left >= 0, asked - locations[np.maximum(left, 0)], np.inf)
    to_right = np.where(
        right < len(locations), locations[np.minimum(right, len(locations) - 1)] - asked, np.inf
    )
    reach = np.minimum(to_left, to_right) * (1 + 1e-12)
    result: Array = np.where(to_left <= reach, totals[left].T, 0.0).T
    return result + np.where(to_right <= reach, totals[np.minimum(right, len(locations) - 1)].T, 0.0).T
