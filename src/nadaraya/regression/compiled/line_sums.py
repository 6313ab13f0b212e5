"""Sums of a kernel over points on a line: cells of queries meet cells of points (see `line_tree`).

Two cells far enough from each other and from where the kernel is not smooth act through their nodes, small
ones by direct sums, others by their halves: O(n + m) after sorting. A pair of cells is only taken
together where the kernel is of one order of magnitude on it, so that every part of a sum, and with it the
whole, is right to rounding relative to its own Σ |C| κ.
"""

import math
from typing import NamedTuple

import numpy as np
from numba import prange
from numpy.typing import NDArray

from nadaraya.compiled.exponential import exp_nonpositive
from nadaraya.compiled.jit import compiled
from nadaraya.regression.compiled.line_tree import (
    DEEPEST,
    LEAF,
    NODES,
    PLACES,
    Tree,
    build,
    gather,
    interpolate,
    nodes_in,
    points_in,
    roots,
)
from nadaraya.regression.compiled.profiles import (
    EPANECHNIKOV,
    FIRST_COMPACT,
    GAUSSIAN,
    MATERN32,
    MATERN52,
    TRICUBE,
)

Array = NDArray[np.float64]

EDGE = 8 * np.finfo(np.float64).eps  # how far beyond its bandwidth a boxcar reaches, relative to it


class LineKernel(NamedTuple):
    """κ(u) at u = |q − x| / length."""

    family: int  # one of `profiles`
    length: float  # unit of distance, in units of x
    squared: bool  # whether κ² takes the place of κ
    slopes: bool  # whether ∂κ/∂log length is summed as well; not with κ²


@compiled()
def two_sum(a: float, b: float) -> tuple[float, float]:
    """a + b exactly: the rounded sum and its error (Knuth, The Art of Computer Programming 2, 4.2.2)."""
    total = a + b
    of_b = total - a
    return total, (a - (total - of_b)) + (b - of_b)


@compiled(error_model="numpy", fastmath=True)
def weigh(kernel: LineKernel, count: int, z: Array, w: Array, slope: Array) -> None:
    """κ, Gaussian or compact, and with slopes ∂κ/∂log length at z: u, or 1 − u for compact kernels."""
    family = kernel.family
    if family == GAUSSIAN:
        for j in range(count):
            w[j] = exp_nonpositive(-0.5 * z[j] * z[j])
            slope[j] = z[j] * z[j] * w[j]
    elif family == EPANECHNIKOV:
        for j in range(count):
            rest = max(z[j], 0.0)
            u = 1.0 - rest
            w[j] = rest * (1.0 + u)
            slope[j] = 2.0 * u * u if rest > 0.0 else 0.0
    elif family == TRICUBE:
        for j in range(count):
            rest = max(z[j], 0.0)
            u = 1.0 - rest
            rest *= 1.0 + u + u * u  # 1 − u³
            w[j] = rest * rest * rest
            slope[j] = 9.0 * u * u * u * rest * rest
    else:
        for j in range(count):
            w[j] = 1.0 if z[j] >= -EDGE else 0.0
            slope[j] = 0.0
    if kernel.squared:
        for j in range(count):
            w[j] *= w[j]


@compiled(error_model="numpy")
def log_kernel(kernel: LineKernel, u: float) -> float:
    """log κ(u) where the support is unbounded."""
    value = -u
    if kernel.family == GAUSSIAN:
        value = -0.5 * u * u
    elif kernel.family == MATERN32:
        value = math.log1p(u) - u
    elif kernel.family == MATERN52:
        value = math.log1p(u * (1.0 + u / 3.0)) - u
    return 2.0 * value if kernel.squared else value


@compiled(error_model="numpy")
def relative(kernel: LineKernel, near: float, excess: float) -> tuple[float, float]:
    """κ(near + excess) / κ(near) and ∂κ/∂log length over the same, where the support is unbounded."""
    u = near + excess
    weight, slope = math.exp(-excess), u
    if kernel.family == GAUSSIAN:
        weight, slope = math.exp(-0.5 * excess * (u + near)), u * u
    elif kernel.family == MATERN32:
        weight *= (1.0 + u) / (1.0 + near)
        slope = u * u / (1.0 + u)
    elif kernel.family == MATERN52:
        polynomial = 1.0 + u * (1.0 + u / 3.0)
        weight *= polynomial / (1.0 + near * (1.0 + near / 3.0))
        slope = u * u * (1.0 + u) / 3.0 / polynomial
    if kernel.squared:
        weight *= weight
    return weight, weight * slope


_TASKS = 256
_PAIRS = max(LEAF * LEAF, NODES * NODES)
_LEFT_OUT = 1e-17  # of the weight of a query
_LAST = 39.0  # lengths: the Gaussian is 0 there
_BEYOND = 1e30  # lengths: κ and its slope are 0 there


@compiled(error_model="numpy", fastmath=True)
def _add(out: Array, start: int, stop: int, columns: Array, first: int, last: int, w: Array) -> None:
    """out (c, start … stop − 1) += columns (c, first … last − 1) · w, one query after the other."""
    count = last - first
    for r in range(columns.shape[0]):
        column = columns[r, first:last]
        for i in range(stop - start):
            total = 0.0
            for j in range(count):
                total += column[j] * w[i * count + j]
            out[r, start + i] += total


@compiled(error_model="numpy")
def _add_weighed(
    kernel: LineKernel,
    out: Array,
    start: int,
    stop: int,
    columns: Array,
    first: int,
    last: int,
    buffer: Array,
) -> None:
    """Adds columns times the kernel at buffer[0], and its slope to the second half of out."""
    z, w, slope = buffer[0], buffer[1], buffer[2]
    weigh(kernel, (stop - start) * (last - first), z, w, slope)
    _add(out, start, stop, columns, first, last, w)
    if kernel.slopes:
        _add(out[columns.shape[0] :], start, stop, columns, first, last, slope)


@compiled(error_model="numpy")
def _nodes_to_nodes(
    kernel: LineKernel, centre: float, half: float, other_centre: float, other_half: float, z: Array
) -> None:
    """Distances between the nodes of two cells, or what is left of them to the edge."""
    scale = 1.0 / kernel.length
    difference, error = two_sum(centre, -other_centre)
    sign = math.copysign(1.0, difference)
    if kernel.family >= FIRST_COMPACT:
        base, direction = ((kernel.length - abs(difference)) - sign * error) * scale, -sign * scale
    else:
        base, direction = abs(difference) * scale, sign * scale
    half *= direction
    other_half *= direction
    for i in range(NODES):
        here = base + half * PLACES[i]
        row = z[i * NODES : (i + 1) * NODES]
        for j in range(NODES):
            row[j] = here - other_half * PLACES[j]


@compiled(error_model="numpy")
def _points_to_points(kernel: LineKernel, q: Array, x: Array, z: Array) -> None:
    scale, count = 1.0 / kernel.length, len(x)
    for i in range(len(q)):
        row = z[i * count : (i + 1) * count]
        if kernel.family >= FIRST_COMPACT:
            for j in range(count):
                difference, error = two_sum(q[i], -x[j])
                signed = error if difference >= 0.0 else -error
                row[j] = ((kernel.length - abs(difference)) - signed) * scale
        else:
            for j in range(count):
                row[j] = min(abs(q[i] - x[j]) * scale, _BEYOND)


@compiled(error_model="numpy")
def _smooth(kernel: LineKernel, distance: float, half: float, other: float) -> bool:
    """Return whether two cells can act through their nodes."""
    if kernel.family == GAUSSIAN:
        far = max(distance + half + other, 3.0 * kernel.length) / kernel.length
        return max(half, other) / kernel.length * far <= 1.25
    # So far from the edge that no part of the cells weighs much less than the rest; κ² is of degree 18.
    share = 0.2 if kernel.squared else 2.0 / 3.0
    if half + other > share * (kernel.length * (1.0 + EDGE) - distance):
        return False
    return kernel.family != TRICUBE or half + other <= distance  # u³ is not smooth at 0


@compiled(parallel=True, error_model="numpy")
def _reaches(kernel: LineKernel, a: Tree, x: Array, weight: Array, apart: bool) -> Array:
    """(cells,) the distance from which on points cannot count for any query of a cell.

    All farther points together weigh nothing beside the points, ascending x (n,), within one length of the
    cell, or beside the two next to its centre. With `apart` one of either may be the query itself.
    """
    reach = np.empty(len(a.start))
    if kernel.family >= FIRST_COMPACT:
        reach.fill(kernel.length * (1.0 + EDGE))
        return reach
    up_to = np.append(0.0, np.cumsum(weight))
    total = up_to[-1]
    own = weight.max() if apart and len(x) > 0 else 0.0
    for cell in prange(len(reach)):
        if a.right[cell] >= 0:
            continue
        centre, half = a.centre[cell], a.half[cell]
        place = np.searchsorted(x, centre)
        first = max(0, min(place - 1, len(x) - 2))
        least, most = math.inf, -math.inf
        for j in range(first, min(first + 2, len(x))):
            u = (abs(x[j] - centre) + half) / kernel.length
            smallness = math.log(total / weight[j]) + 0.5 * u * u
            least, most = min(least, smallness), max(most, smallness)
        smallness = most if apart else least
        first = np.searchsorted(x, centre - half - kernel.length)
        last = np.searchsorted(x, centre + half + kernel.length)
        mass = up_to[last] - up_to[first] - own
        if mass > 1e-6 * total:  # smaller ones may be rounding
            u = 2.0 * half / kernel.length + 1.0
            smallness = min(smallness, math.log(total / mass) + 0.5 * u * u)
        reach[cell] = kernel.length * min(math.sqrt(2.0 * (smallness - math.log(_LEFT_OUT))), _LAST)
    for cell in range(len(reach) - 1, -1, -1):
        if a.right[cell] >= 0:
            reach[cell] = max(reach[cell + 1], reach[a.right[cell]])
    return reach


@compiled(error_model="numpy")
def _meet(
    kernel: LineKernel,
    a: Tree,
    root: int,
    reach: Array,
    b: Tree,
    columns: Array,
    weights: Array,
    apart: bool,
    values: Array,
    out: Array,
) -> None:
    """Adds what the points give to the queries of a cell, to values at the nodes below it and to out."""
    cells_a, cells_b = np.empty(2 * DEEPEST, np.int64), np.empty(2 * DEEPEST, np.int64)
    buffer = np.empty((3, _PAIRS))
    z = buffer[0]
    hidden = -1.0 if kernel.family >= FIRST_COMPACT else _BEYOND
    cells_a[0], cells_b[0] = root, 0
    waiting = 1
    while waiting > 0:
        waiting -= 1
        i, j = cells_a[waiting], cells_b[waiting]
        distance = abs(a.centre[i] - b.centre[j])
        if distance - (a.half[i] + b.half[j]) * (1.0 + EDGE) > reach[i]:
            continue
        start, stop, first, last = a.start[i], a.stop[i], b.start[j], b.stop[j]
        few = (stop - start) * (last - first) <= NODES * NODES
        own = apart and start < last and first < stop
        if not (few or own) and _smooth(kernel, distance, a.half[i], b.half[j]):
            _nodes_to_nodes(kernel, a.centre[i], a.half[i], b.centre[j], b.half[j], z)
            # Lengths, not the constant NODES, with which the compiler makes slower code.
            nodes = values.shape[2]
            _add_weighed(kernel, values[i - root], 0, nodes, weights[j], 0, nodes, buffer)
        elif few or (a.right[i] < 0 and b.right[j] < 0):
            _points_to_points(kernel, a.points[start:stop], b.points[first:last], z)
            if own:
                for k in range(max(start, first), min(stop, last)):
                    z[(k - start) * (last - first) + k - first] = hidden
            _add_weighed(kernel, out, start, stop, columns, first, last, buffer)
        elif a.right[i] >= 0 and (a.half[i] >= b.half[j] or b.right[j] < 0):
            cells_a[waiting], cells_b[waiting] = a.right[i], j
            cells_a[waiting + 1], cells_b[waiting + 1] = i + 1, j
            waiting += 2
        else:
            cells_a[waiting], cells_b[waiting] = i, b.right[j]
            cells_a[waiting + 1], cells_b[waiting + 1] = i, j + 1
            waiting += 2


@compiled(error_model="numpy")
def _hand_down(a: Tree, root: int, values: Array, out: Array) -> None:
    """Adds values at the nodes of cells to the queries in them."""
    places = np.empty(LEAF)
    for cell in range(root, a.end[root]):
        own = values[cell - root]
        if a.right[cell] < 0:
            start, stop = a.start[cell], a.stop[cell]
            points_in(a, cell, start, stop, places)
            interpolate(out, start, own, places[: stop - start])
        else:
            for inner in (cell + 1, a.right[cell]):
                nodes_in(a, cell, inner, places)
                interpolate(values[inner - root], 0, own, places[:NODES])


def line_sums(kernel: LineKernel, query: Array, points: Array, columns: Array, apart: bool) -> Array:
    """(s, m) sums over ascending points for ascending queries; with `kernel.slopes` derivatives from c on.

    κ is Gaussian and not squared, or compact; `apart` as for `recurrent_sums`.
    """
    tree = build(points)
    return meet_all(kernel, tree if apart else build(query), tree, columns, apart)


@compiled(parallel=True, error_model="numpy")
def meet_all(kernel: LineKernel, a: Tree, b: Tree, columns: Array, apart: bool) -> Array:
    """The sums of `line_sums`, over the cells of both trees."""
    c = columns.shape[0]
    s = 2 * c if kernel.slopes else c
    out = np.zeros((s, len(a.points)))
    weights = gather(b, columns, max(LEAF, len(b.points) // _TASKS))
    weighted = columns[0] > 0.0
    reach = _reaches(kernel, a, b.points[weighted], columns[0][weighted], apart)
    tops = roots(a, max(LEAF, len(a.points) // _TASKS))
    for task in prange(len(tops)):
        root = tops[task]
        values = np.zeros((a.end[root] - root, s, NODES))
        _meet(kernel, a, root, reach, b, columns, weights, apart, values, out)
        _hand_down(a, root, values, out)
    return out
