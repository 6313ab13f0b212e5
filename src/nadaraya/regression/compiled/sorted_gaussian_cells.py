"""Gaussian sums around a place on a line, from the moments of narrow cells of points.

About the centre z of a cell, with a = (q − z) / σ and t = (x − z) / σ,

    exp(−(a − t)² / 2) = exp(−a² / 2) exp(−t² / 2) exp(a t)

so that a cell acts through the moments M_k = Σ_j C_j exp(−t_j² / 2) t_j^k / k!, as exp(−a² / 2) Σ_k M_k a^k
(the fast Gauss transform of Greengard and Strain 1991, on one side). Cells are so narrow that exp(a t) is of
order 1 wherever a cell counts: each is then right to rounding relative to its own sum of |C| exp(−u² / 2),
and so is the whole. The derivative's u² = a² − 2 a t + t² makes another polynomial in a, with coefficients
M_{k − 2} − 2 k M_k + (k + 1) (k + 2) M_{k + 2}.
"""

import math
from typing import NamedTuple

import numpy as np
from numba import prange
from numpy.typing import NDArray

from nadaraya.regression.compiled.exponential import exp_nonpositive
from nadaraya.regression.compiled.jit import compiled

LANES = 16  # queries evaluated together
WIDTH = 0.125  # of a cell, in σ
MOST = 4096  # points of a cell
_FEWEST_WITH_MOMENTS = 8  # fewer are summed one by one
_NEAR = 9.0  # |a| up to which the first terms of the series reach rounding
_NEAR_TERMS = 18
_TERMS = 28
_BLOCK = 64  # points between two additions to the moments: rounding grows with the number of these
_ALWAYS = 5.0  # σ within which a cell is visited without asking
_UNSEEN = 38.6  # σ at which exp(−u² / 2) is 0
_LEFT_OUT = 1e-17  # of the weight


class Cells(NamedTuple):
    """Neighbouring points together, in ascending order.

    Attributes:
        sigma: σ.
        points: (n,) ascending.
        columns: (c, n).
        starts: (cells + 1,) first point of each cell, and n.
        first: (cells,) leftmost point.
        last: (cells,) rightmost point.
        up_to: (cells,) weight, Σ columns[0], of the cells up to and with this one.
        from_on: (cells,) weight of this cell and those after it.
        rows: (cells,) row of a cell in `moments`, −1 where it has none.
        moments: (rows, s, terms) coefficients of a^k for the sums and, from c on, for their derivatives.
    """

    sigma: float
    points: NDArray[np.float64]
    columns: NDArray[np.float64]
    starts: NDArray[np.int64]
    first: NDArray[np.float64]
    last: NDArray[np.float64]
    up_to: NDArray[np.float64]
    from_on: NDArray[np.float64]
    rows: NDArray[np.int64]
    moments: NDArray[np.float64]


@compiled()
def divide(values: NDArray[np.float64], width: float, few: int, wide: float) -> NDArray[np.int64]:
    """(runs + 1,) starts of runs of ascending values: no wider than `width`, or few and no wider than `wide`.

    A run has at most MOST values, for equal values may be any number.
    """
    starts = np.empty(len(values) + 1, np.int64)
    runs, start = 0, -MOST
    for j in range(len(values)):
        count = j - start
        if count >= MOST or values[j] - values[start] > (wide if count < few else width):
            starts[runs] = start = j
            runs += 1
    starts[runs] = len(values)
    return starts[: runs + 1].copy()


@compiled()
def middle(low: float, high: float) -> float:
    """A number about half way; only that it is the same everywhere matters."""
    return low + 0.5 * (high - low)


@compiled()
def running_sums(values: NDArray[np.float64]) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """(n,) sums of the values up to and with each, and of those from it on."""
    n = len(values)
    up_to, from_on = values.copy(), values.copy()
    for j in range(1, n):
        up_to[j] += up_to[j - 1]
        from_on[n - 1 - j] += from_on[n - j]
    return up_to, from_on


@compiled(fastmath=True)
def _total(values: NDArray[np.float64], count: int) -> float:
    total = 0.0
    for j in range(count):
        total += values[j]
    return total


@compiled(error_model="numpy", fastmath={"contract"})
def _fill_moments(
    out: NDArray[np.float64],
    points: NDArray[np.float64],
    columns: NDArray[np.float64],
    start: int,
    stop: int,
    sigma: float,
) -> None:
    """One row of `Cells.moments`."""
    c, s, terms = columns.shape[0], out.shape[0], out.shape[1]
    t, power = np.empty(_BLOCK), np.empty(_BLOCK)
    raw = np.zeros((c, terms + 2))
    centre = middle(points[start], points[stop - 1])
    for begin in range(start, stop, _BLOCK):
        count = min(_BLOCK, stop - begin)
        for j in range(count):
            t[j] = (points[begin + j] - centre) / sigma
        for r in range(c):
            for j in range(count):
                power[j] = columns[r, begin + j] * exp_nonpositive(-0.5 * t[j] * t[j])
            for k in range(terms + 2):
                raw[r, k] += _total(power, count)
                for j in range(count):
                    power[j] *= t[j] / (k + 1.0)
    for r in range(c):
        for k in range(terms):
            out[r, k] = raw[r, k]
            if s > c:
                slope = (k + 1.0) * (k + 2.0) * raw[r, k + 2] - 2.0 * k * raw[r, k]
                out[c + r, k] = slope + raw[r, k - 2] if k > 1 else slope


@compiled(parallel=True)
def cells_of(
    points: NDArray[np.float64], columns: NDArray[np.float64], sigma: float, derivative: bool
) -> Cells:
    """The cells of ascending points (n,), n ≥ 1, with their moments."""
    starts = divide(points, WIDTH * sigma, 0, 0.0)
    cells, c = len(starts) - 1, columns.shape[0]
    rows = np.full(cells, -1, np.int64)
    count = 0
    for cell in range(cells):
        if starts[cell + 1] - starts[cell] >= _FEWEST_WITH_MOMENTS:
            rows[cell] = count
            count += 1
    moments = np.empty((count, 2 * c if derivative else c, _TERMS))
    first, last, mass = np.empty(cells), np.empty(cells), np.zeros(cells)
    for cell in prange(cells):
        start, stop = starts[cell], starts[cell + 1]
        first[cell], last[cell] = points[start], points[stop - 1]
        for j in range(start, stop):
            mass[cell] += columns[0, j]
        if rows[cell] >= 0:
            _fill_moments(moments[rows[cell]], points, columns, start, stop, sigma)
    up_to, from_on = running_sums(mass)
    return Cells(sigma, points, columns, starts, first, last, up_to, from_on, rows, moments)


@compiled(error_model="numpy", fastmath=True)
def _add_points(
    totals: NDArray[np.float64],
    base: float,
    offsets: NDArray[np.float64],
    own: NDArray[np.int64],
    cell: int,
    cells: Cells,
    weight: NDArray[np.float64],
    square: NDArray[np.float64],
) -> None:
    """Adds a cell point by point, without the point that is a query's own."""
    c, lanes = cells.columns.shape[0], len(offsets)
    start, stop = cells.starts[cell], cells.starts[cell + 1]
    one_is_own = own[0] < stop and own[lanes - 1] >= start
    for j in range(start, stop):
        distance = (base - cells.points[j]) / cells.sigma
        for lane in range(lanes):
            u = distance + offsets[lane]
            square[lane] = u * u
        for lane in range(lanes):
            weight[lane] = exp_nonpositive(-0.5 * square[lane])
        if one_is_own:
            for lane in range(lanes):
                if own[lane] == j:
                    weight[lane] = 0.0
        for r in range(c):
            for lane in range(lanes):
                totals[r, lane] += cells.columns[r, j] * weight[lane]
        for r in range(c, totals.shape[0]):
            for lane in range(lanes):
                totals[r, lane] += cells.columns[r - c, j] * weight[lane] * square[lane]


@compiled(error_model="numpy", fastmath=True)
def _add_moments(
    totals: NDArray[np.float64],
    base: float,
    offsets: NDArray[np.float64],
    cell: int,
    cells: Cells,
    a: NDArray[np.float64],
    weight: NDArray[np.float64],
) -> None:
    """Adds a cell through its moments."""
    lanes = len(offsets)
    distance = (base - middle(cells.first[cell], cells.last[cell])) / cells.sigma
    for lane in range(lanes):
        a[lane] = distance + offsets[lane]
    for lane in range(lanes):
        weight[lane] = exp_nonpositive(-0.5 * a[lane] * a[lane])
    row, moments = cells.rows[cell], cells.moments
    near = max(abs(a[0]), abs(a[lanes - 1])) <= _NEAR
    for r in range(totals.shape[0]):
        if near:
            for lane in range(lanes):
                value = moments[row, r, _NEAR_TERMS - 1]
                for k in range(_NEAR_TERMS - 2, -1, -1):
                    value = value * a[lane] + moments[row, r, k]
                totals[r, lane] += weight[lane] * value
        else:
            for lane in range(lanes):
                value = moments[row, r, _TERMS - 1]
                for k in range(_TERMS - 2, -1, -1):
                    value = value * a[lane] + moments[row, r, k]
                totals[r, lane] += weight[lane] * value


@compiled(error_model="numpy")
def _counts(gap: float, rest: float, totals: NDArray[np.float64]) -> bool:
    """Whether a weight `rest`, no nearer than `gap`, can be seen beside what has been summed."""
    if gap <= _ALWAYS:
        return True
    least = math.inf
    for lane in range(LANES):
        least = min(least, totals[0, lane])
    return gap < _UNSEEN and math.exp(-0.5 * gap * gap) * rest > _LEFT_OUT * least


@compiled(error_model="numpy")
def add_around(
    totals: NDArray[np.float64],
    base: float,
    offsets: NDArray[np.float64],
    own: NDArray[np.int64],
    cells: Cells,
    scratch: NDArray[np.float64],
) -> float:
    """Adds all cells that count, outward from the queries base + σ offsets.

    Args:
        totals: (s, LANES) increased by the sums and, from c on, by their derivatives.
        base: a place among the queries.
        offsets: (LANES,) ascending, in σ.
        own: (LANES,) the point that each query leaves out, ascending; or −1 in all places.
        cells: of the points.
        scratch: (2, LANES).

    Returns:
        How far from a query, in σ, the farthest visited cell begins.
    """
    right = int(np.searchsorted(cells.first, base, side="right"))
    left = right - 1
    left_gap = right_gap = 0.0
    farthest = 0.0
    moved_left = moved_right = True
    first_own, last_own = own[0], own[LANES - 1]
    while True:
        if moved_left:
            left_gap = math.inf
            if left >= 0:
                left_gap = max((base - cells.last[left]) / cells.sigma + offsets[0], 0.0)
        if moved_right:
            right_gap = math.inf
            if right < len(cells.first):
                right_gap = max((cells.first[right] - base) / cells.sigma - offsets[LANES - 1], 0.0)
        moved_left = left_gap <= right_gap
        moved_right = not moved_left
        gap = min(left_gap, right_gap)
        if gap == math.inf:
            return farthest
        cell = left if moved_left else right
        if not _counts(gap, cells.up_to[cell] if moved_left else cells.from_on[cell], totals):
            # Nothing farther on this side counts; the other side may have more weight.
            if moved_left:
                left = -1
            else:
                right = len(cells.first)
            continue
        farthest = gap
        has_own = cells.starts[cell] <= last_own and first_own < cells.starts[cell + 1]
        if cells.rows[cell] < 0 or has_own:
            _add_points(totals, base, offsets, own, cell, cells, scratch[0], scratch[1])
        else:
            _add_moments(totals, base, offsets, cell, cells, scratch[0], scratch[1])
        if moved_left:
            left -= 1
        else:
            right += 1
