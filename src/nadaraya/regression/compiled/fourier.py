"""Sums of Gaussians over points in two or three dimensions by Fourier transforms, O(n + m) and a grid.

A bump spreads points over a grid, whose transform is multiplied by the Gaussian's over the bump's squared,
and interpolates at the queries: nonuniform transforms there and back, with the bump of Barnett, Magland and
af Klinteberg (2019). The error is a small part of the largest sum; queries whose own sum is small against it
are left to the loop over pairs.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass, fields
from typing import Any

import numpy as np
import scipy.fft
from numba import get_num_threads, prange
from numpy.typing import NDArray

from nadaraya.compiled.jit import compiled
from nadaraya.regression.compiled.profiles import GAUSSIAN, Profile
from nadaraya.regression.requests import Array, BandwidthGradients, Request, Sums

# Errors are 1e-13 and 1e-9 of the largest sum: those of means 1e-9 and 1e-5 of the targets' root mean square.
# Width of the bump in cells; side of a cell and reach of a weight that counts, in standard deviations.
_ACCURACY = {np.dtype(np.float64): (14, 0.35, 7.9), np.dtype(np.float32): (10, 0.4, 6.7)}
_LEAST = 3e-4  # part of the largest sum below which sums are made from pairs
_MOST_CELLS = 2**26  # of all columns: 512 MiB, and as much for each transform
# Time of a term of spreading and of a cell's transform over that of a pair's weight; how far ahead to be:
# estimates are low for pairs, so that near the threshold they take two to five times as long.
_TERM, _CELL, _AHEAD = 0.7, 30.0, 2.0
_SHARPNESS = 2.3  # of the bump, over its width


@dataclass(frozen=True)
class Grid:
    """A grid about the points of a request."""

    features: NDArray[np.intp]  # indices of those that play a part, two or three
    sigma: Array  # (d,) their standard deviations of the Gaussian
    low: Array  # (d,) coordinates of the first cell
    shape: tuple[int, ...]  # three numbers of cells, the first 1 in two dimensions
    width: int  # this and the next two as in `_ACCURACY`
    side: float
    reach: float

    @staticmethod
    def of(request: Request[Any], profile: Profile) -> "Grid | None":
        """The grid that serves a request; None where none does, or only one of too many cells."""
        features = np.flatnonzero(np.isfinite(request.bandwidth))
        served = profile.family == GAUSSIAN and request.quantity in (Sums, BandwidthGradients)
        if not served or request.query_scale is not None or len(features) not in (2, 3):
            return None
        width, side, reach = _ACCURACY[request.points.dtype]
        sigma = request.bandwidth[features] * profile.length / math.sqrt(request.power)
        x = request.points[:, features].astype(np.float64)
        # Queries may lie half the reach outside; from there the copy of the points beyond is out of reach.
        extent = (x.max(axis=0) - x.min(axis=0)) / sigma + reach
        cells = np.ceil(extent / side) + max(width + 2, math.ceil(0.5 * reach / side))
        if len(request.columns) * math.prod(cells.tolist()) > _MOST_CELLS:
            return None
        shape = [1] * (3 - len(cells)) + [scipy.fft.next_fast_len(int(count), real=True) for count in cells]
        low = x.min(axis=0) - (0.5 * reach + (width / 2 + 1) * side) * sigma
        return Grid(features, sigma, low, tuple(shape), width, side, reach)

    def pays(self, request: Request[Any]) -> bool:
        """Return whether transforms should take less than half of the time of the loop over pairs."""
        (n, d), m, c = request.points.shape, len(request.query), len(request.columns)
        some, query = (
            array[:: len(array) // most + 1, self.features] / self.sigma
            for array, most in ((request.points, 2048), (request.query, 256))
        )
        square = ((query[:, None] - some) ** 2).sum(axis=2)
        backward = 1 if request.quantity is Sums else 1 + d
        pairs = m * n * float(np.mean(square < self.reach**2)) * (1 + 0.2 * c * backward)
        terms = (n + backward * m) * c * self.width ** len(self.features)
        cells = (1 + backward) * c * math.prod(self.shape)
        return pairs > _AHEAD * (_TERM * terms + _CELL * cells)

    def places(self, x: Array) -> tuple[Array, NDArray[np.bool_]]:
        """Points (n, ...) in cells, (n, 3), and (n,) whether the grid has room for them."""
        z = np.zeros((len(x), 3))
        z[:, -len(self.sigma) :] = (x[:, self.features] - self.low) / (self.side * self.sigma)
        edge = np.where(np.array(self.shape) > 1, self.width / 2, -1.0)
        return z, np.all((z >= edge) & (z < np.array(self.shape) - edge - 1), axis=1)

    def order(self, z: Array) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        """(n,) an order of points by blocks of cells, and where in it the slabs of the second axis start."""
        block = (z[:, [1, 0, 2]] // self.width).astype(np.int64).T
        blocks = [self.shape[axis] // self.width + 1 for axis in (1, 0, 2)]
        order = np.argsort(np.ravel_multi_index(tuple(block), blocks), kind="stable")
        return order, np.searchsorted(block[0][order], np.arange(blocks[0] + 1))

    def bump_transform(self, frequency: Array) -> Array:
        """The transform of the bump at frequencies in radians per cell."""
        node, weight = np.polynomial.legendre.leggauss(4 * self.width)
        bump = weight * np.exp(_SHARPNESS * self.width * (np.sqrt(1 - node**2) - 1))
        return np.cos(np.outer(frequency, node * self.width / 2)) @ bump * (self.width / 2)

    def multiply(self, transform: Array, feature: int | None) -> None:
        """Multiplies by the transform of the Gaussian, or of its gradient by a bandwidth, in place."""
        for axis, name in zip(range(3 - len(self.sigma), 3), self.features, strict=True):
            frequencies = scipy.fft.rfftfreq if axis == 2 else scipy.fft.fftfreq
            frequency = 2 * math.pi * frequencies(self.shape[axis])
            k = frequency / self.side
            factor = math.sqrt(2 * math.pi) / self.side * np.exp(-0.5 * k**2)
            factor *= 1 - k**2 if name == feature else 1.0
            factor /= self.bump_transform(frequency) ** 2
            transform *= factor.reshape(-1, *[1] * (2 - axis))


def compute(request: Request[Any], grid: Grid, log_factor: float, pairs: Callable[[Any], Any]) -> Any:
    """The sums of a request; `pairs` makes those of the queries at some rows."""
    width, (m, d), c = grid.width, request.query.shape, len(request.columns)
    z = grid.places(request.points)[0]
    order, start = grid.order(z)
    q, inside = grid.places(request.query)
    rows = np.flatnonzero(inside)[grid.order(q[inside])[0]]
    columns, threads = np.ascontiguousarray(request.columns, np.float64), get_num_threads()
    cells, values, gradients = np.zeros((c, *grid.shape)), np.zeros((m, c)), np.zeros((m, d, c))
    spread(z, columns, start, order, width, cells)
    transform = scipy.fft.rfftn(cells, axes=(1, 2, 3), workers=threads)
    for feature in [None] if request.quantity is Sums else [*grid.features, None]:
        product = transform if feature is None else transform.copy()
        grid.multiply(product, feature)
        cells = scipy.fft.irfftn(product, grid.shape, (1, 2, 3), overwrite_x=True, workers=threads)
        interpolate(q, rows, width, cells, values)
        if feature is not None:
            gradients[:, feature] = values
    largest = np.maximum(cells.max(axis=(1, 2, 3)), -cells.min(axis=(1, 2, 3)))
    if request.exclude_self:
        values -= columns.T
    squares = np.divide(columns**2, columns[0], out=np.zeros_like(columns), where=columns[0] > 0)
    units = np.sqrt(squares.sum(axis=1) / max(columns[0].sum(), 1e-300))
    error = np.divide(largest, units, out=np.zeros(c), where=units > 0).max()
    error *= grid.bump_transform(np.zeros(1)) ** len(grid.sigma)
    rest = np.flatnonzero(~(inside & (values[:, 0] > _LEAST * error)))
    more = () if request.quantity is Sums else (gradients,)
    answer = request.quantity(values, np.full(m, request.power * log_factor), *more)
    if len(rest):
        exact = pairs(rest)
        for field in fields(answer):
            getattr(answer, field.name)[rest] = getattr(exact, field.name)
    return answer


@compiled(fastmath=True)
def _bumps(x: Any, planes: int, width: int, values: Any) -> tuple[int, int, int]:
    """Fills (3, width) with the bumps about a point x (3,) along each axis, and returns their first cells."""
    values[0, 0] = 1.0
    for axis in range(1 if planes == 1 else 0, 3):
        first = math.ceil(x[axis] - width / 2)
        for a in range(width):
            t = 1.0 - ((first + a - x[axis]) * 2.0 / width) ** 2
            values[axis, a] = math.exp(_SHARPNESS * width * (math.sqrt(t) - 1.0)) if t > 0.0 else 0.0
    return math.ceil(x[0] - planes / 2), math.ceil(x[1] - width / 2), math.ceil(x[2] - width / 2)


@compiled(parallel=True, fastmath=True)
def spread(x: Any, columns: Any, start: Any, order: Any, width: int, grid: Any) -> None:
    """Adds columns (c, n) to the grid (c, ...), first in even, then in odd slabs: those do not meet."""
    planes = min(grid.shape[1], width)  # 1 in two dimensions
    for odd in range(2):
        for half in prange((len(start) - odd) // 2):
            bump = np.empty((3, width))
            for k in range(start[2 * half + odd], start[2 * half + odd + 1]):
                i, j, g = _bumps(x[order[k]], planes, width, bump)
                for c in range(len(columns)):
                    for a in range(planes):
                        for b in range(width):
                            weight = columns[c, order[k]] * bump[0, a] * bump[1, b]
                            row = grid[c, i + a, j + b]
                            for e in range(width):
                                row[g + e] += weight * bump[2, e]


@compiled(parallel=True, fastmath=True)
def interpolate(x: Any, order: Any, width: int, grid: Any, values: Any) -> None:
    """Values (m, c) at the points of an order."""
    planes = min(grid.shape[1], width)
    for block in prange((len(order) + 255) // 256):
        bump = np.empty((3, width))
        for k in range(block * 256, min(len(order), (block + 1) * 256)):
            i, j, g = _bumps(x[order[k]], planes, width, bump)
            for c in range(len(grid)):
                total = 0.0
                for a in range(planes):
                    for b in range(width):
                        row, part = grid[c, i + a, j + b], 0.0
                        for e in range(width):
                            part += row[g + e] * bump[2, e]
                        total += bump[0, a] * bump[1, b] * part
                values[order[k], c] = total
