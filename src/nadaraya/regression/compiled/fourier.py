"""Sums of Gaussians over points in two or three dimensions by Fourier transforms, O(n + m) and a grid.

A bump spreads points over a grid, whose transform is multiplied by the Gaussian's over the bump's squared,
and interpolates at the queries: nonuniform transforms there and back, with the bump of Barnett, Magland and
af Klinteberg (2019). The error is a small part of the largest sum; queries whose own sum is small against it
are left to the loop over pairs.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
import scipy.fft
from numba import get_num_threads, prange
from numpy.typing import NDArray

from nadaraya.regression.compiled.jit import compiled
from nadaraya.regression.compiled.profiles import GAUSSIAN, Profile
from nadaraya.regression.requests import Array, BandwidthGradients, Request, Sums


class Accuracy(NamedTuple):
    """How finely Gaussians are resolved.

    Attributes:
        width: of the bump, in cells.
        cell: side of a cell, in standard deviations.
        reach: distance in standard deviations from which weights are below the error.
        least: sums below this part of the largest are made from pairs.
    """

    width: int
    cell: float
    reach: float
    least: float


# Errors are 1e-13 and 1e-9 of the largest sum: those of means 1e-9 and 1e-5 of the targets' root mean square.
_ACCURACY = {
    np.dtype(np.float64): Accuracy(14, 0.35, 7.9, 3e-4),
    np.dtype(np.float32): Accuracy(10, 0.4, 6.7, 3e-4),
}
# Of a grid for as many columns at once as it allows: 512 MiB, and as much for each transform of them.
_MOST_CELLS = 2**26
# Work in units of a weight of the loop over pairs: of one term of spreading, and of a cell in a transform.
_TERM, _CELL = 0.4, 20.0
# By how much the estimate must be ahead.
_AHEAD = 3.0
_SHARPNESS = 2.3  # of the bump, over its width


@dataclass(frozen=True)
class Grid:
    """A grid about the points of a request.

    Attributes:
        features: indices of those that play a part, two or three.
        sigma: (d,) their standard deviations of the Gaussian.
        low: (d,) coordinates of the first cell.
        shape: three numbers of cells, the first 1 in two dimensions.
        accuracy: how finely it resolves the Gaussian.
    """

    features: NDArray[np.intp]
    sigma: Array
    low: Array
    shape: tuple[int, ...]
    accuracy: Accuracy

    @staticmethod
    def of(request: Request[Any], profile: Profile) -> "Grid | None":
        """The grid that serves a request; None where none does, or only one of too many cells."""
        features = np.flatnonzero(np.isfinite(request.bandwidth))
        served = profile.family == GAUSSIAN and request.quantity in (Sums, BandwidthGradients)
        if not served or request.query_scale is not None or len(features) not in (2, 3):
            return None
        accuracy = _ACCURACY[request.points.dtype]
        sigma = request.bandwidth[features] * profile.length / math.sqrt(request.power)
        x = request.points[:, features].astype(np.float64)
        cell, margin = accuracy.cell * sigma, 0.5 * accuracy.reach * sigma
        low, high = x.min(axis=0) - margin, x.max(axis=0) + margin
        border = max(accuracy.width + 2, math.ceil(0.5 * accuracy.reach / accuracy.cell))
        cells = np.ceil((high - low) / cell) + border
        if cells.prod() > _MOST_CELLS:
            return None
        shape = [1] * (3 - len(cells)) + [scipy.fft.next_fast_len(int(count), real=True) for count in cells]
        return Grid(features, sigma, low - (accuracy.width / 2 + 1) * cell, tuple(shape), accuracy)

    def pays(self, request: Request[Any]) -> bool:
        """Return whether transforms should take less than a third of the time of the loop over pairs."""
        (n, d), m, c = request.points.shape, len(request.query), len(request.columns)
        some, query = (
            array[:: len(array) // most + 1, self.features] / self.sigma
            for array, most in ((request.points, 2048), (request.query, 256))
        )
        square = sum((query[:, None, f] - some[None, :, f]) ** 2 for f in range(some.shape[1]))
        backward = 1 if request.quantity is Sums else 1 + len(self.features)
        per_pair = 1 + 0.2 * c * (1 if request.quantity is Sums else 1 + d)
        pairs = per_pair * m * n * float(np.mean(square < self.accuracy.reach**2))
        terms = (n + backward * m) * c * self.accuracy.width ** len(self.features)
        cells = (1 + backward) * c * math.prod(self.shape)
        return pairs > _AHEAD * (_TERM * terms + _CELL * cells)

    def places(self, x: Array) -> tuple[Array, NDArray[np.bool_]]:
        """Points (n, ...) in cells, (n, 3), and (n,) whether the grid has room for them."""
        z = np.zeros((len(x), 3))
        z[:, -len(self.sigma) :] = (x[:, self.features] - self.low) / (self.accuracy.cell * self.sigma)
        edge = np.where(np.array(self.shape) > 1, self.accuracy.width / 2, -1.0)
        return z, ((z >= edge) & (z < self.shape - edge - 1)).all(axis=1)

    def order(self, z: Array) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        """(n,) an order of points by blocks of cells, and where in it the slabs of the second axis start."""
        width = self.accuracy.width
        block = (z // width).astype(np.int64)[:, [1, 0, 2]].T
        slabs, *others = (self.shape[axis] // width + 1 for axis in (1, 0, 2))
        order = np.argsort(np.ravel_multi_index(tuple(block), (slabs, *others)), kind="stable")
        return order, np.searchsorted(block[0][order], np.arange(slabs + 1))

    def bump_transform(self, frequency: Array) -> Array:
        """The transform of the bump at frequencies in radians per cell."""
        width = self.accuracy.width
        node, weight = np.polynomial.legendre.leggauss(4 * width)
        bump = weight * np.exp(_SHARPNESS * width * (np.sqrt(1 - node**2) - 1))
        return np.cos(np.outer(frequency, node * width / 2)) @ bump * (width / 2)

    def multiply(self, transform: Array, by_feature: int) -> None:
        """Multiplies by the transform of the Gaussian, or of its gradient by a bandwidth, in place."""
        first = 3 - len(self.sigma)
        for axis in range(first, 3):
            frequencies = scipy.fft.rfftfreq if axis == 2 else scipy.fft.fftfreq
            frequency = 2 * math.pi * frequencies(self.shape[axis])
            k = frequency / self.accuracy.cell
            factor = math.sqrt(2 * math.pi) / self.accuracy.cell * np.exp(-0.5 * k**2)
            if axis - first == by_feature:  # Δ² κ
                factor *= 1 - k**2
            factor /= self.bump_transform(frequency) ** 2
            transform *= factor.reshape(-1, *[1] * (2 - axis))


def compute(request: Request[Any], grid: Grid, log_factor: float, pairs: Callable[[Any], Any]) -> Any:
    """The sums of a request; `pairs` makes those of the queries at some rows."""
    width, (m, d), c = grid.accuracy.width, request.query.shape, len(request.columns)
    z, _ = grid.places(request.points)
    order, start = grid.order(z)
    q, inside = grid.places(request.query)
    rows = np.flatnonzero(inside)
    rows = rows[grid.order(q[rows])[0]]
    values, largest = np.zeros((m, c)), np.zeros(c)
    wanted = [-1] if request.quantity is Sums else [*range(len(grid.features)), -1]
    gradients = np.zeros((m, 0 if request.quantity is Sums else d, c))
    threads, step = get_num_threads(), max(1, _MOST_CELLS // math.prod(grid.shape))
    for part in (slice(first, first + step) for first in range(0, c, step)):
        columns = np.ascontiguousarray(request.columns[part], np.float64)
        cells = np.zeros((len(columns), *grid.shape))
        for parity in (0, 1):
            spread(z, columns, start, order, width, parity, cells)
        transform = scipy.fft.rfftn(cells, axes=(1, 2, 3), workers=threads)
        for feature in wanted:
            product = transform if feature < 0 else transform.copy()
            grid.multiply(product, feature)
            cells = scipy.fft.irfftn(product, grid.shape, (1, 2, 3), overwrite_x=True, workers=threads)
            found = np.zeros((m, len(columns)))
            interpolate(q, rows, width, cells, found)
            if feature < 0:
                values[:, part] = found
                largest[part] = np.abs(cells).max(axis=(1, 2, 3))
            else:
                gradients[:, grid.features[feature], part] = found
    if request.exclude_self:
        values -= request.columns.T
    with np.errstate(divide="ignore", invalid="ignore"):
        weight = request.columns[0]
        squares = np.where(weight > 0, request.columns**2 / weight, 0.0).sum(axis=1)
        units = np.sqrt(squares / weight.sum())
        units[0] = 1.0
        largest = np.where(units > 0, largest / units, 0.0)
    largest *= grid.bump_transform(np.zeros(1)) ** len(grid.sigma)
    answer = [values, np.full(m, request.power * log_factor)]
    if request.quantity is BandwidthGradients:
        answer.append(gradients)
    rest = np.flatnonzero(~(inside & (values[:, 0] > grid.accuracy.least * largest.max())))
    if len(rest):
        exact = pairs(rest)
        for array, name in zip(answer, ("values", "log_scale", "gradients"), strict=False):
            array[rest] = getattr(exact, name)
    return request.quantity(*answer)


@compiled(fastmath=True)
def _bump(x: float, first: int, width: int, values: Any) -> None:
    """The bump about x at the cells from `first` on; 1 along an axis of one cell."""
    for a in range(len(values)):
        t = 1.0 - ((first + a - x) * 2.0 / width) ** 2
        values[a] = math.exp(_SHARPNESS * width * (math.sqrt(t) - 1.0)) if t > 0.0 else 0.0


@compiled(parallel=True, fastmath=True)
def spread(x: Any, columns: Any, start: Any, order: Any, width: int, parity: int, grid: Any) -> None:
    """Adds columns (c, n) to the grid (c, ...): every other slab of the second axis, which do not meet."""
    flat = grid.shape[1] == 1
    for slab in prange((len(start) - parity) // 2):
        u, v, w = np.ones(1 if flat else width), np.empty(width), np.empty(width)
        i = 0
        for k in range(start[2 * slab + parity], start[2 * slab + parity + 1]):
            point = order[k]
            if not flat:
                i = math.ceil(x[point, 0] - width / 2)
                _bump(x[point, 0], i, width, u)
            j, g = math.ceil(x[point, 1] - width / 2), math.ceil(x[point, 2] - width / 2)
            _bump(x[point, 1], j, width, v)
            _bump(x[point, 2], g, width, w)
            for c in range(len(columns)):
                for a in range(len(u)):
                    for b in range(width):
                        weight = columns[c, point] * u[a] * v[b]
                        row = grid[c, i + a, j + b]
                        for e in range(width):
                            row[g + e] += weight * w[e]


@compiled(parallel=True, fastmath=True)
def interpolate(x: Any, order: Any, width: int, grid: Any, values: Any) -> None:
    """Values (m, c) at points in the grid."""
    flat, run = grid.shape[1] == 1, 256
    for block in prange((len(order) + run - 1) // run):
        u, v, w = np.ones(1 if flat else width), np.empty(width), np.empty(width)
        i = 0
        for k in range(block * run, min(len(order), (block + 1) * run)):
            point = order[k]
            if not flat:
                i = math.ceil(x[point, 0] - width / 2)
                _bump(x[point, 0], i, width, u)
            j, g = math.ceil(x[point, 1] - width / 2), math.ceil(x[point, 2] - width / 2)
            _bump(x[point, 1], j, width, v)
            _bump(x[point, 2], g, width, w)
            for c in range(len(grid)):
                total = 0.0
                for a in range(len(u)):
                    for b in range(width):
                        row, part = grid[c, i + a, j + b], 0.0
                        for e in range(width):
                            part += row[g + e] * w[e]
                        total += u[a] * v[b] * part
                values[point, c] = total
