"""Sums on a line for queries from which every weight underflows, or is 0: relative to the nearest point's."""

import math

import numpy as np
from numba import prange
from numpy.typing import NDArray

from nadaraya.regression.compiled.jit import compiled
from nadaraya.regression.compiled.line_kernels import LineKernel, log_kernel, relative, two_sum
from nadaraya.regression.compiled.profiles import FIRST_COMPACT

Array = NDArray[np.float64]

_LEFT_OUT = 1e-17  # of the weight of a query
_FARTHEST = 1e100  # lengths: greater distances count as this, whose cube is finite
_TIE = 1e-12  # relative difference of two distances that count as equal


def far_sums(
    kernel: LineKernel, query: Array, points: Array, columns: Array, exclude_self: bool
) -> tuple[Array, Array]:
    """Sums relative to κ at the nearest point with weight; of nearest points alone for compact kernels.

    Args:
        kernel: κ.
        query: (m,) in any order; with exclude_self they are points, alone in their place.
        points: (n,) ascending.
        columns: (c, n); columns[0] are the weights.
        exclude_self: whether a query leaves out its own place.

    Returns:
        sums (s, m), slopes from c on; log_scale (m,), −inf where no point has weight and for compact kernels.
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
    return _walk(kernel, query, places, totals, rest, np.stack([left, right]), s)


@compiled(parallel=True, error_model="numpy")
def _walk(
    kernel: LineKernel,
    query: Array,
    places: Array,
    totals: Array,
    rest: Array,
    beside: NDArray[np.int64],
    s: int,
) -> tuple[Array, Array]:
    """From each query outward, until what is left cannot count.

    Args:
        kernel: κ.
        query: (m,).
        places: (n,) ascending.
        totals: (c, n).
        rest: (2, n) weight from each place on to the left, and to the right.
        beside: (2, m) the places next to each query, −1 or n where there is none.
        s: how many sums there are.
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
