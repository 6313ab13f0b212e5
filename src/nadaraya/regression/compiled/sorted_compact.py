"""Sums over windows of sorted points for kernels that are a polynomial on a compact support.

With t = x − z about the centre z of a cell of points and s = q − z, the kernel of a distance q − x = s − t is

    p(s − t) = Σ_k w_k(s) t^k      w_k(s) = (−1)^k Σ_d a_d C(d, k) s^(d − k)

so that a run of points needs only its moments Σ_j c_j t_j^k, the difference of two prefix sums. Both the
prefix sums and the expansion cancel, hence double-double: the error left is about 1e-26 of the weight of the
cell. Runs of few points are summed one by one, and so are windows without a point well inside the support,
where the kernel may be as small as that against the weight of the cell.

Prefix sums are kept for every `BLOCK`-th point, and only in cells with enough points to use them.
"""

import math
from typing import NamedTuple

import numpy as np
from numba import prange
from numpy.typing import NDArray

from nadaraya.regression.compiled.double_double import add_product, multiply, two_sum
from nadaraya.regression.compiled.jit import compiled

BLOCK = 8  # points between two prefix sums
_FEWEST_BLOCKS = 4  # in fewer, points are summed one by one
_CELL = 2.0  # width of a cell in bandwidths: a window then touches at most two
_WELL_INSIDE = 0.999  # of the bandwidth
_QUERIES = 2048  # of one task

LEFT, RIGHT = 0, 1


class CompactKernel(NamedTuple):
    """κ(u) = Σ_k a_k u^k for u ≤ 1, in the forms in which it is evaluated.

    Attributes:
        bandwidth: h; u = |q − x| / h.
        inverse: 1 / h.
        reach: greatest distance that belongs to the support.
        unit: power of two near h, the unit of t and s.
        even: whether only even powers occur, so that the two sides need no telling apart.
        inner: (K + 1,) a_k, for u ≤ ½.
        outer: (K + 1,) coefficients of the same polynomial in 1 − u, for u > ½.
        degrees: (D,) powers with a_d ≠ 0.
        expansion: (2, D, K + 1, 2) a_d (unit / h)^d (−1)^k C(d, k) in double-double, for points on the
            left and (times (−1)^d) on the right.
    """

    bandwidth: float
    inverse: float
    reach: float
    unit: float
    even: bool
    inner: NDArray[np.float64]
    outer: NDArray[np.float64]
    degrees: NDArray[np.int64]
    expansion: NDArray[np.float64]


class _Cells(NamedTuple):
    """Neighbouring points together.

    Attributes:
        starts: (cells + 1,) first point of each cell, and n.
        of_point: (n,) cell of each point.
        centres: (cells,).
        rows: (cells,) where the prefix sums of a cell begin, −1 for a cell too small to have any.
        prefix: (rows, c, K + 1, 2) moments of the first 0, BLOCK, 2 BLOCK, … and of all points of a cell, in
            double-double.
    """

    starts: NDArray[np.int64]
    of_point: NDArray[np.int64]
    centres: NDArray[np.float64]
    rows: NDArray[np.int64]
    prefix: NDArray[np.float64]


@compiled()
def _blocks(count: int) -> int:
    """How many blocks hold so many points, the last of them perhaps not full."""
    return (count + BLOCK - 1) // BLOCK


@compiled(error_model="numpy")
def _divide_into_cells(
    points: NDArray[np.float64], width: float
) -> tuple[NDArray[np.int64], NDArray[np.int64], NDArray[np.float64], NDArray[np.int64], NDArray[np.int64]]:
    """starts, of_point, centres and rows of the cells, and (rows,) the cell of each row."""
    n = len(points)
    of_point = np.empty(n, np.int64)
    cells = 0
    first = points[0]
    for j in range(n):
        if points[j] - first > width:
            cells += 1
            first = points[j]
        of_point[j] = cells
    cells += 1
    starts = np.full(cells + 1, n, np.int64)
    for j in range(n - 1, -1, -1):
        starts[of_point[j]] = j
    centres = np.empty(cells)
    rows = np.full(cells, -1, np.int64)
    count = 0
    for cell in range(cells):
        low, high = points[starts[cell]], points[starts[cell + 1] - 1]
        centres[cell] = low + 0.5 * (high - low)
        blocks = _blocks(starts[cell + 1] - starts[cell])
        if blocks >= _FEWEST_BLOCKS:
            rows[cell] = count
            count += blocks + 1
    cell_of_row = np.empty(count, np.int64)
    for cell in range(cells):
        if rows[cell] >= 0:
            cell_of_row[rows[cell] : rows[cell] + _blocks(starts[cell + 1] - starts[cell]) + 1] = cell
    return starts, of_point, centres, rows, cell_of_row


@compiled(parallel=True, error_model="numpy")
def _prefix_moments(
    points: NDArray[np.float64],
    columns: NDArray[np.float64],
    unit: float,
    size: int,
    starts: NDArray[np.int64],
    centres: NDArray[np.float64],
    rows: NDArray[np.int64],
    cell_of_row: NDArray[np.int64],
) -> NDArray[np.float64]:
    c = columns.shape[0]
    prefix = np.zeros((len(cell_of_row), c, size, 2))
    scale = 1.0 / unit
    for row in prange(len(cell_of_row)):
        cell = cell_of_row[row]
        block = row - rows[cell] - 1  # the first row of a cell is zero
        if block < 0:
            continue
        first = starts[cell] + block * BLOCK
        for j in range(first, min(first + BLOCK, starts[cell + 1])):
            t, t_low = two_sum(points[j], -centres[cell])
            t, t_low = t * scale, t_low * scale
            power, power_low = 1.0, 0.0
            for k in range(size):
                for r in range(c):
                    prefix[row, r, k, 0], prefix[row, r, k, 1] = add_product(
                        prefix[row, r, k, 0], prefix[row, r, k, 1], power, power_low, columns[r, j], 0.0
                    )
                power, power_low = multiply(power, power_low, t, t_low)
    for r in prange(c):
        for row in range(1, len(cell_of_row)):
            if cell_of_row[row] == cell_of_row[row - 1]:
                for k in range(size):
                    total, carried = two_sum(prefix[row - 1, r, k, 0], prefix[row, r, k, 0])
                    prefix[row, r, k, 0] = total
                    prefix[row, r, k, 1] += prefix[row - 1, r, k, 1] + carried
    return prefix


@compiled(error_model="numpy")
def _kernel_value(distance: float, error: float, kernel: CompactKernel) -> float:
    """κ of the distance distance + error ≥ 0; near the edge in powers of 1 − u, which cannot cancel there."""
    u = distance * kernel.inverse
    if u <= 0.5:
        coefficients = kernel.inner
    else:
        u = max(((kernel.bandwidth - distance) - error) * kernel.inverse, 0.0)
        coefficients = kernel.outer
    value = 0.0
    for k in range(len(coefficients) - 1, -1, -1):
        value = value * u + coefficients[k]
    return value


@compiled(error_model="numpy")
def _add_points(
    totals: NDArray[np.float64],
    q: float,
    first: int,
    last: int,
    points: NDArray[np.float64],
    columns: NDArray[np.float64],
    kernel: CompactKernel,
) -> None:
    """Adds the points first … last − 1 one by one to totals (c, 2)."""
    for j in range(first, last):
        distance, error = two_sum(q, -points[j])
        weight = _kernel_value(abs(distance), math.copysign(1.0, distance) * error, kernel)
        for r in range(totals.shape[0]):
            totals[r, 0] += weight * columns[r, j]


@compiled(error_model="numpy")
def _add_moments(
    totals: NDArray[np.float64],
    q: float,
    centre: float,
    low: int,
    high: int,
    side: int,
    prefix: NDArray[np.float64],
    kernel: CompactKernel,
    powers: NDArray[np.float64],
    weights: NDArray[np.float64],
) -> None:
    """Adds the points between two prefix sums of one cell; powers and weights are buffers of (K + 1, 2)."""
    scale = 1.0 / kernel.unit
    s, s_low = two_sum(q, -centre)
    s, s_low = s * scale, s_low * scale
    size = powers.shape[0]
    powers[0, 0], powers[0, 1] = 1.0, 0.0
    powers[1:2, 0], powers[1:2, 1] = s, s_low
    for k in range(2, size):
        a, b = k // 2, k - k // 2
        powers[k, 0], powers[k, 1] = multiply(powers[a, 0], powers[a, 1], powers[b, 0], powers[b, 1])
    for k in range(size):
        high_part, low_part = 0.0, 0.0
        for index in range(len(kernel.degrees)):
            rest = kernel.degrees[index] - k
            if rest >= 0:
                factor, factor_low = kernel.expansion[side, index, k, 0], kernel.expansion[side, index, k, 1]
                high_part, low_part = add_product(
                    high_part, low_part, factor, factor_low, powers[rest, 0], powers[rest, 1]
                )
        weights[k, 0], weights[k, 1] = high_part, low_part
    for r in range(totals.shape[0]):
        high_part, low_part = totals[r, 0], totals[r, 1]
        for k in range(size):
            moment, error = two_sum(prefix[high, r, k, 0], -prefix[low, r, k, 0])
            error += prefix[high, r, k, 1] - prefix[low, r, k, 1]
            high_part, low_part = add_product(
                high_part, low_part, weights[k, 0], weights[k, 1], moment, error
            )
        totals[r, 0], totals[r, 1] = high_part, low_part


@compiled(error_model="numpy")
def _add_range(
    totals: NDArray[np.float64],
    q: float,
    first: int,
    last: int,
    side: int,
    points: NDArray[np.float64],
    columns: NDArray[np.float64],
    cells: _Cells,
    kernel: CompactKernel,
    one_by_one: bool,
    powers: NDArray[np.float64],
    weights: NDArray[np.float64],
) -> None:
    """Adds the points first … last − 1, all of them on one side of q or the kernel even."""
    while first < last:
        stop = last
        if not one_by_one:
            cell = cells.of_point[first]
            start, next_start = cells.starts[cell], cells.starts[cell + 1]
            stop = min(last, next_start)
            low = _blocks(first - start)
            high = (stop - start) // BLOCK if stop < next_start else _blocks(stop - start)
            if high - low >= _FEWEST_BLOCKS:
                stop = start + low * BLOCK
                if stop == first:
                    row = cells.rows[cell]
                    _add_moments(
                        totals,
                        q,
                        cells.centres[cell],
                        row + low,
                        row + high,
                        side,
                        cells.prefix,
                        kernel,
                        powers,
                        weights,
                    )
                    first = min(start + high * BLOCK, next_start)
                    continue
        _add_points(totals, q, first, stop, points, columns, kernel)
        first = stop


@compiled(error_model="numpy")
def _window_start(points: NDArray[np.float64], q: float, reach: float) -> int:
    """The first point that is at most `reach` to the left of q, or to the right of it."""
    low, high = 0, len(points)
    while low < high:
        middle = (low + high) // 2
        if q - points[middle] > reach:
            low = middle + 1
        else:
            high = middle
    return low


@compiled(parallel=True, error_model="numpy")
def _window_sums(
    query: NDArray[np.float64],
    points: NDArray[np.float64],
    columns: NDArray[np.float64],
    before: NDArray[np.int64],
    gap: int,
    cells: _Cells,
    kernel: CompactKernel,
) -> NDArray[np.float64]:
    n, m, c = len(points), len(query), columns.shape[0]
    sums = np.empty((c, m))
    inside = _WELL_INSIDE * kernel.bandwidth
    for task in prange((m + _QUERIES - 1) // _QUERIES):
        powers = np.empty((kernel.expansion.shape[2], 2))
        weights = np.empty_like(powers)
        totals = np.empty((c, 2))
        earliest = task * _QUERIES
        first = _window_start(points, query[earliest], kernel.reach)
        last = before[earliest]
        for i in range(earliest, min(m, earliest + _QUERIES)):
            q = query[i]
            left, right = before[i], before[i] + gap
            while first < left and q - points[first] > kernel.reach:
                first += 1
            last = max(last, right)
            while last < n and points[last] - q <= kernel.reach:
                last += 1
            totals[:] = 0.0
            one_by_one = not (
                (first < left and q - points[left - 1] <= inside)
                or (right < last and points[right] - q <= inside)
            )
            together = kernel.even and gap == 0
            for side in range(1 if together else 2):
                begin = right if side == RIGHT else first
                end = left if side == LEFT and not together else last
                _add_range(
                    totals, q, begin, end, side, points, columns, cells, kernel, one_by_one, powers, weights
                )
            for r in range(c):
                sums[r, i] = totals[r, 0] + totals[r, 1]
    return sums


def compact_windows(
    query: NDArray[np.float64],
    points: NDArray[np.float64],
    columns: NDArray[np.float64],
    before: NDArray[np.int64],
    gap: int,
    kernel: CompactKernel,
) -> NDArray[np.float64]:
    """The sums of `compact_sums` for ascending queries and points.

    Args:
        query: (m,) ascending.
        points: (n,) ascending.
        columns: (c, n) in the order of the points.
        before: (m,) how many points stand on the left of each query; the others, except the next `gap`,
            stand on its right.
        gap: 0, or 1 where a query leaves out the point that is itself.
        kernel: the polynomial.

    Returns:
        (c, m).
    """
    starts, of_point, centres, rows, cell_of_row = _divide_into_cells(points, _CELL * kernel.bandwidth)
    size = kernel.expansion.shape[2]
    prefix = _prefix_moments(points, columns, kernel.unit, size, starts, centres, rows, cell_of_row)
    cells = _Cells(starts, of_point, centres, rows, prefix)
    return _window_sums(query, points, columns, before, gap, cells, kernel)
