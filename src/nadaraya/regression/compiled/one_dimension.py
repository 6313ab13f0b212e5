"""Sums in one dimension: sorted, then by recurrences or by cells of points, O(n log n) for every profile."""

import math
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np
from numba import prange
from numpy.typing import NDArray

from nadaraya.regression.compiled.jit import compiled
from nadaraya.regression.compiled.line_far import far_sums
from nadaraya.regression.compiled.line_kernels import LineKernel
from nadaraya.regression.compiled.line_recurrence import RECURRENT, recurrent_sums
from nadaraya.regression.compiled.line_sums import line_sums
from nadaraya.regression.compiled.profiles import FIRST_COMPACT, GAUSSIAN, MATERN32, MATERN52, Profile
from nadaraya.regression.requests import Array, BandwidthGradients, Request, Sums

# Matérn kernels are functions of √(2ν) distance / length.
_UNITS = {MATERN32: math.sqrt(3.0), MATERN52: math.sqrt(5.0)}
_TINY = 1e-280  # weights below may consist of underflow


def compute(request: Request[Any], profile: Profile) -> Any:
    """The answer to a request for Sums or BandwidthGradients, d = 1, with a finite bandwidth.

    Args:
        request: what to sum.
        profile: its kernel.

    Returns:
        The answer, of the type `request.quantity`.
    """
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
    kernel: LineKernel, query: Array, points: Array, columns: Array, exclude_self: bool = False
) -> tuple[Array, Array, Array]:
    """Σ_j κ(|q_i − x_j| / length) C_rj and its derivative by log length.

    They are right to 1e-12 of Σ |C| κ and, the derivatives, of Σ |C| (κ + |∂κ/∂log length|); for a query u
    lengths from all points to the u² eps (Gaussian) or u eps that the rounding of u makes in κ(u), where that
    is more. Points with less than 1e-17 of a query's weight (columns[0] counts) may be left out.

    Args:
        kernel: κ; with `slopes` the derivatives are computed.
        query: (m,) q, finite, in any order.
        points: (n,) x, n ≥ 1, likewise.
        columns: (c, n) C, finite; columns[0] ≥ 0 are weights, and where they are zero so are the others.
        exclude_self: query i leaves out point i, and only that one; query is then `points`. Default False.

    Returns:
        values (m, c), derivatives (m, c), or (m, 0) without `slopes`, and log_scale (m,), all float64: the
        true sums are those times exp(log_scale). It is 0 but for queries so far from all weighted points that
        κ underflows, whose sums are relative to κ at the nearest of them, and for queries without support,
        where it is −inf and the sums are those of the nearest points (0 if there is none), derivatives 0.
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


def _in_order(values: Array) -> tuple[NDArray[np.float64], NDArray[np.int64]]:
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
