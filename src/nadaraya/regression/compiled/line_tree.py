"""A tree of cells over ascending points on a line, each cell with Chebyshev nodes that stand for its points.

A smooth f is known on a cell from its values at `NODES` Chebyshev nodes y_k, so that Σ_j C_j f(x_j) =
Σ_k W_k f(y_k) with weights W_k that do not depend on f. `gather` makes W from points, and those of a cell
from those of its halves; `interpolate` is its transpose and takes values at the nodes of a cell to places in
it. Both are exact for polynomials of a degree below `NODES`.
"""

import math
from typing import NamedTuple

import numpy as np
from numba import prange
from numpy.typing import NDArray

from nadaraya.compiled.jit import compiled

Array = NDArray[np.float64]

NODES = 16
LEAF = 48  # most points of a cell that is not divided
DEEPEST = 4096  # a float64 can be halved about 2,100 times, a number of points 60 times
_ANGLES = (np.arange(NODES) + 0.5) * (math.pi / NODES)
PLACES = np.cos(_ANGLES)  # of the nodes in [−1, 1]
# T_n at the nodes, times the weights of the inverse transform.
_TRANSFORM = np.cos(np.arange(NODES)[:, None] * _ANGLES) * (2.0 / NODES)
_TRANSFORM[0] /= 2.0


class Tree(NamedTuple):
    """Cells in depth-first order: the cells below cell i are i + 1 … end[i] − 1."""

    points: Array  # (n,) ascending
    start: NDArray[np.int64]  # (cells,) first point of each cell
    stop: NDArray[np.int64]  # (cells,) one beyond its last point
    # (cells,) its right half, −1 where it is not divided; its left half is the next cell
    right: NDArray[np.int64]
    end: NDArray[np.int64]  # (cells,)
    centre: Array  # (cells,)
    half: Array  # (cells,) greatest distance of its points from the centre


@compiled(nogil=True)
def build(points: Array) -> Tree:
    """The tree of (n,) ascending points; equal ones are divided by number."""
    n = len(points)
    start, stop = np.empty(2 * n, np.int64), np.empty(2 * n, np.int64)
    right = np.full(2 * n, -1, np.int64)
    parent = np.empty(DEEPEST, np.int64)
    centre, half = np.empty(2 * n), np.empty(2 * n)
    first, last = np.empty(DEEPEST, np.int64), np.empty(DEEPEST, np.int64)
    cells, waiting = 0, 0
    if n > 0:
        first[0], last[0], parent[0], waiting = 0, n, -1, 1
    while waiting > 0:
        waiting -= 1
        begin, end, above = first[waiting], last[waiting], parent[waiting]
        if above >= 0:
            right[above] = cells
        low, high = points[begin], points[end - 1]
        middle = low + 0.5 * (high - low)
        start[cells], stop[cells], centre[cells] = begin, end, middle
        half[cells] = max(middle - low, high - middle)
        if end - begin > LEAF:
            if low == high:
                cut = (begin + end) // 2
            else:
                cut = begin + np.searchsorted(points[begin:end], middle if middle > low else high)
            first[waiting], last[waiting], parent[waiting] = cut, end, cells
            first[waiting + 1], last[waiting + 1], parent[waiting + 1] = begin, cut, -1
            waiting += 2
        cells += 1
    below = np.empty(cells, np.int64)
    for cell in range(cells - 1, -1, -1):
        below[cell] = cell + 1 if right[cell] < 0 else below[right[cell]]
    return Tree(
        points,
        start[:cells].copy(),
        stop[:cells].copy(),
        right[:cells].copy(),
        below,
        centre[:cells].copy(),
        half[:cells].copy(),
    )


@compiled()
def roots(tree: Tree, most: int) -> NDArray[np.int64]:
    """The largest cells with at most so many points, or undivided: between them they hold every point."""
    found = np.empty(len(tree.start), np.int64)
    count, cell = 0, 0
    while cell < len(tree.start):
        if tree.stop[cell] - tree.start[cell] <= most or tree.right[cell] < 0:
            found[count] = cell
            count += 1
            cell = tree.end[cell]
        else:
            cell += 1
    return found[:count].copy()


@compiled(error_model="numpy", fastmath=True)
def _gather(out: Array, places: Array, columns: Array, start: int, polynomials: Array) -> None:
    """Adds to out (c, NODES) what stands for columns from `start` on at places (k,) in [−1, 1]."""
    for j in range(len(places)):
        polynomials[0, j] = 1.0
        polynomials[1, j] = places[j]
    for n in range(2, NODES):
        for j in range(len(places)):
            polynomials[n, j] = 2.0 * places[j] * polynomials[n - 1, j] - polynomials[n - 2, j]
    for n in range(NODES):
        for r in range(out.shape[0]):
            moment = 0.0
            for j in range(len(places)):
                moment += columns[r, start + j] * polynomials[n, j]
            for k in range(out.shape[1]):
                out[r, k] += _TRANSFORM[n, k] * moment


@compiled(error_model="numpy", fastmath=True)
def interpolate(out: Array, start: int, values: Array, places: Array) -> None:
    """Adds to out, for places (k,), what has values (s, NODES) at the nodes, by Clenshaw's recurrence."""
    series = np.empty(NODES)
    for r in range(out.shape[0]):
        for n in range(NODES):
            series[n] = 0.0
            for k in range(values.shape[1]):
                series[n] += _TRANSFORM[n, k] * values[r, k]
        for i in range(len(places)):
            twice = 2.0 * places[i]
            later, value = 0.0, series[NODES - 1]
            for n in range(NODES - 2, 0, -1):
                later, value = value, series[n] + twice * value - later
            out[r, start + i] += series[0] + places[i] * value - later


@compiled()
def _inverse(half: float) -> float:
    return 1.0 / half if half > 0.0 else 0.0


@compiled(error_model="numpy")
def points_in(tree: Tree, cell: int, begin: int, stop: int, out: Array) -> None:
    """Indices of points begin … stop − 1 in a cell, in [−1, 1]."""
    scale = _inverse(tree.half[cell])
    for j in range(begin, stop):
        out[j - begin] = (tree.points[j] - tree.centre[cell]) * scale


@compiled(error_model="numpy")
def nodes_in(tree: Tree, cell: int, inner: int, out: Array) -> None:
    """Positions of the nodes of an inner cell in a cell, in [−1, 1]."""
    scale = _inverse(tree.half[cell])
    for k in range(NODES):
        out[k] = (tree.centre[inner] - tree.centre[cell] + tree.half[inner] * PLACES[k]) * scale


@compiled(error_model="numpy")
def _gather_cell(tree: Tree, columns: Array, cell: int, weights: Array, buffer: Array) -> None:
    places, polynomials = buffer[0], buffer[1:]
    right = tree.right[cell]
    if right < 0:
        points_in(tree, cell, tree.start[cell], tree.stop[cell], places)
        count = tree.stop[cell] - tree.start[cell]
        _gather(weights[cell], places[:count], columns, tree.start[cell], polynomials)
    else:
        nodes_in(tree, cell, cell + 1, places)
        _gather(weights[cell], places[:NODES], weights[cell + 1], 0, polynomials)
        nodes_in(tree, cell, right, places)
        _gather(weights[cell], places[:NODES], weights[right], 0, polynomials)


@compiled(parallel=True, error_model="numpy")
def gather(tree: Tree, columns: Array, most: int) -> Array:
    """(cells, c, NODES) the weights of the nodes that stand for columns (c, n) of the points."""
    weights = np.zeros((len(tree.start), columns.shape[0], NODES))
    tops = roots(tree, most)
    for task in prange(len(tops)):
        buffer = np.empty((NODES + 1, LEAF))
        for cell in range(tree.end[tops[task]] - 1, tops[task] - 1, -1):
            _gather_cell(tree, columns, cell, weights, buffer)
    buffer = np.empty((NODES + 1, LEAF))
    for cell in range(len(tree.start) - 1, -1, -1):
        if tree.right[cell] >= 0 and tree.stop[cell] - tree.start[cell] > most:
            _gather_cell(tree, columns, cell, weights, buffer)
    return weights
