"""Sweeps over sorted points for kernels that are a polynomial times an exponential.

With the points before a query summed up in the moments M_k = Σ_j c_j u_j^k exp(−u_j), u_j = (z − x_j) / l,
about the last of them, z, a step of d lengths to the right is

    M_k ← exp(−d) Σ_i C(k, i) d^(k − i) M_i

and a query D lengths to the right of z has the sum Σ_k a_k Σ_i C(k, i) D^(k − i) M_i times exp(−D), a factor
that is kept apart as a logarithm. No term changes sign, so nothing cancels. The points after the query are
the mirror image.
"""

import math

import numpy as np
from numba import prange
from numpy.typing import NDArray

from nadaraya.regression.compiled.double_double import normalized, two_sum
from nadaraya.regression.compiled.jit import compiled

_SHORT_STEP = 0.5  # in lengths


@compiled(error_model="numpy")
def _step(moments: NDArray[np.float64], binomials: NDArray[np.float64], d: float) -> None:
    """Moves the point about which the moments are taken by d ≥ 0 lengths; moments is (c, K + 1, 2)."""
    shrinkage = math.expm1(-d)
    decay = math.exp(-d)
    if decay == 0.0:
        moments[:] = 0.0
        return
    for r in range(moments.shape[0]):
        for k in range(moments.shape[1] - 1, -1, -1):  # downwards: the lower moments must be the old ones
            growth = 0.0
            for i in range(k):
                growth = (growth + binomials[k, i] * moments[r, i, 0]) * d
            high, low = moments[r, k, 0], moments[r, k, 1]
            if d < _SHORT_STEP:
                # exp(−d) is rounded relative to 1, not to d: over many short steps only the difference
                # from 1, and a second float64 for what a sum drops, keep the error from growing with n.
                high, low = two_sum(high, shrinkage * high + decay * (growth + low))
            else:
                high, low = decay * (high + growth), decay * low
            moments[r, k, 0], moments[r, k, 1] = high, low


@compiled(error_model="numpy")
def _sweep(
    query: NDArray[np.float64],
    points: NDArray[np.float64],
    columns: NDArray[np.float64],
    before: NDArray[np.int64],
    gap: int,
    length: float,
    coefficients: NDArray[np.float64],
    binomials: NDArray[np.float64],
    from_left: bool,
    sums: NDArray[np.float64],
    nearest: NDArray[np.int64],
) -> None:
    """Sums of one side, scaled to the nearest point that counts, and its index (−1 where there is none)."""
    n, m, size = len(points), len(query), len(coefficients)
    moments = np.zeros((columns.shape[0], size, 2))
    shifted = np.empty(size)
    anchor = -1
    absorbed = 0
    for t in range(m):
        i = t if from_left else m - 1 - t
        count = before[i] if from_left else n - before[i] - gap
        while absorbed < count:
            j = absorbed if from_left else n - 1 - absorbed
            absorbed += 1
            if not np.any(columns[:, j]):  # a point without weight must not set the scale
                continue
            if anchor >= 0:
                _step(moments, binomials, abs(points[j] - points[anchor]) / length)
            anchor = j
            for r in range(columns.shape[0]):
                high, low = two_sum(moments[r, 0, 0], columns[r, j])
                moments[r, 0, 0], moments[r, 0, 1] = normalized(high, low + moments[r, 0, 1])
        nearest[i] = anchor
        if anchor < 0:
            sums[:, i] = 0.0
            continue
        distance = abs(query[i] - points[anchor]) / length
        for k in range(size):
            shifted[k] = 0.0
            for degree in range(size - 1, k - 1, -1):
                shifted[k] = shifted[k] * distance + coefficients[degree] * binomials[degree, k]
        for r in range(columns.shape[0]):
            total = 0.0
            for k in range(size):
                total += shifted[k] * moments[r, k, 0]
            sums[r, i] = total


@compiled(parallel=True, error_model="numpy")
def exponential_sweeps(
    query: NDArray[np.float64],
    points: NDArray[np.float64],
    columns: NDArray[np.float64],
    before: NDArray[np.int64],
    gap: int,
    length: float,
    coefficients: NDArray[np.float64],
    binomials: NDArray[np.float64],
) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """The sums of `exponential_sums` for ascending queries and points.

    Args:
        query: (m,) ascending.
        points: (n,) ascending.
        columns: (c, n) in the order of the points.
        before: (m,) how many points stand on the left of each query; the others, except the next `gap`,
            stand on its right.
        gap: 0, or 1 where a query leaves out the point that is itself.
        length: l, in units of x.
        coefficients: (K + 1,) a_k.
        binomials: (K + 1, K + 1) Pascal's triangle, C(k, i) in row k.

    Returns:
        sums (c, m) and log_scale (m,), −inf where no point counts.
    """
    c, m = columns.shape[0], len(query)
    sides = np.empty((2, c, m))
    nearest = np.empty((2, m), np.int64)
    for side in prange(2):
        _sweep(
            query,
            points,
            columns,
            before,
            gap,
            length,
            coefficients,
            binomials,
            side == 0,
            sides[side],
            nearest[side],
        )
    sums = np.empty((c, m))
    log_scale = np.empty(m)
    for i in prange(m):
        left, right = nearest[0, i], nearest[1, i]
        left_factor, right_factor = 1.0 if left >= 0 else 0.0, 1.0 if right >= 0 else 0.0
        distance = math.inf
        if left >= 0 and right >= 0:
            # How much further the left point is: exact differences, for two distances that almost agree.
            to_left, left_error = two_sum(query[i], -points[left])
            to_right, right_error = two_sum(points[right], -query[i])
            excess = ((to_left - to_right) + (left_error - right_error)) / length
            distance = min(to_left, to_right) / length
            left_factor = math.exp(-max(excess, 0.0))
            right_factor = math.exp(min(excess, 0.0))
        elif left >= 0:
            distance = (query[i] - points[left]) / length
        elif right >= 0:
            distance = (points[right] - query[i]) / length
        log_scale[i] = -distance
        for r in range(c):
            total = 0.0
            # A side that is too far to count is skipped, for its polynomial may have overflowed.
            if left_factor > 0.0:
                total += left_factor * sides[0, r, i]
            if right_factor > 0.0:
                total += right_factor * sides[1, r, i]
            sums[r, i] = total
    return sums, log_scale
