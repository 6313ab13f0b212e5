"""Many points by few: those in the same cell of a grid are replaced by their weighted mean."""

from dataclasses import dataclass
from typing import Self

import numpy as np
from numpy.typing import ArrayLike, NDArray
from sklearn.utils import check_array

from nadaraya.errors import InputError, must_be
from nadaraya.regression.checks import given_bandwidth, refuse_other_than_numbers, weights_of
from nadaraya.regression.requests import Array
from nadaraya.regression.sample import power_of_two

# Rows that are taken at a time: so many are copied, whatever the length of a chunk.
_ROWS = 1 << 17
# Numbers of cells beyond this are no whole numbers of float64.
_FARTHEST = 2.0**52


@dataclass(frozen=True)
class CellMoments:
    """Moments of the points in each of c cells: the arrays of `GridMeans.cells`."""

    cell: NDArray[np.int64]
    x: Array
    y: Array
    weight: Array
    count: NDArray[np.int64]
    spread: Array

    @classmethod
    def joined(cls, parts: list["CellMoments"]) -> "CellMoments":
        """One row per cell, from parts that may share cells (Chan, Golub and LeVeque 1983)."""
        cell = np.concatenate([part.cell for part in parts])
        order = np.lexsort(cell.T[::-1])
        cell = cell[order]
        starts = np.flatnonzero(np.append(True, (cell[1:] != cell[:-1]).any(axis=1)))
        group = np.repeat(np.arange(len(starts)), np.diff(np.append(starts, len(cell))))
        x, y, weight, count, spread = (
            np.concatenate([getattr(part, name) for part in parts])[order]
            for name in ("x", "y", "weight", "count", "spread")
        )
        unit = power_of_two(np.maximum(np.abs(y), spread))  # in which no square overflows
        y, spread = y / unit, spread / unit
        total = np.add.reduceat(weight, starts)

        def mean(values: Array) -> Array:
            first = values[starts]  # differences from it keep the digits of a cell far from 0
            sums = np.add.reduceat(weight[:, None] * (values - first[group]), starts)
            return first + sums / total[:, None]

        means = mean(y)
        squares = weight[:, None] * (spread**2 + (y - means[group]) ** 2)
        return cls(
            cell[starts],
            mean(x),
            means * unit,
            total,
            np.add.reduceat(count, starts),
            np.sqrt(np.add.reduceat(squares, starts) / total[:, None]) * unit,
        )


class GridMeans:
    """Weighted means of the points in each cell of a grid, from chunks of any number of points.

    Kernel sums of the means differ from those of the points by O((side / h)²): about its mean, the points of
    a cell have no first moment. Memory is that of the occupied cells, at most twice.

    With `X`, `y` and `weight` as data and `h` as bandwidth every estimator of this package takes the means
    for the points; `ChunkedNadarayaWatson` also keeps the noise right.

    Args:
        side: of the cells, in units of the features: a positive number, or (d,), one per feature. An eighth
            of the bandwidth is fine enough for most ends.

    Attributes:
        n_samples_seen: points of weight above zero so far.

    See Also:
        ChunkedNadarayaWatson: regression from such means.

    A density of three chunks:

    >>> import numpy as np
    >>> from nadaraya.regression import GridMeans, NadarayaWatsonDensity
    >>> means, h = GridMeans(0.4 / 8), 0.4
    >>> for seed in range(3):
    ...     means = means.add(np.random.default_rng(seed).normal(size=(5000, 1)))
    >>> len(means.X) < 200, float(means.weight.sum())
    (True, 15000.0)
    >>> density = NadarayaWatsonDensity(bandwidth=h).fit(means.X, sample_weight=means.weight)
    >>> np.exp(density.score_samples([[0.0]])).round(2).tolist()  # of a normal of variance 1 + h²
    [0.37]
    """

    def __init__(self, side: ArrayLike) -> None:
        self._side = side
        self._stored: list[CellMoments] = []
        self._shape: tuple[int, ...] = ()
        self.n_samples_seen = 0

    def add(self, X: ArrayLike, y: ArrayLike | None = None, sample_weight: ArrayLike | None = None) -> Self:
        """Takes in a chunk of points.

        Args:
            X: (n, d) points. Arrays in files (`numpy.memmap`) are read piece by piece.
            y: (n,) or (n, p) targets. Default none.
            sample_weight: (n,) weights ≥ 0. Default 1 each.

        Returns:
            The means.

        Raises:
            InputError: shapes do not fit with one another or with those of earlier chunks, sample_weight is
                out of its range, or points are too far from 0 for cells so small.
            ValueError: X or y is no finite numerical array (scikit-learn's checks).

        See Also:
            ChunkedNadarayaWatson.partial_fit: the same for a regression.

        >>> from nadaraya.regression import GridMeans
        >>> means = GridMeans(1.0).add([[0.2], [0.4], [1.5]], [1.0, 3.0, 5.0])
        >>> means.X.round(1).tolist(), means.y.tolist(), means.weight.tolist()
        ([[0.3], [1.5]], [2.0, 5.0], [2.0, 1.0])
        """
        refuse_other_than_numbers("X", X)
        refuse_other_than_numbers("y", y)
        points = check_array(X, dtype=(np.float64, np.float32))
        targets = (
            np.zeros((len(points), 0)) if y is None else check_array(y, ensure_2d=False, dtype="numeric")
        )
        shape = (points.shape[1], *targets.shape[1:])
        if len(targets) != len(points) or targets.ndim > 2:
            raise must_be("shape of y", f"({len(points)},) or ({len(points)}, p)", targets.shape)
        if self._stored and shape != self._shape:
            raise must_be("shape of a row of X and y", f"{self._shape} as in earlier chunks", shape)
        side, weight = given_bandwidth(self._side, points.shape[1]), weights_of(sample_weight, len(points))
        farthest = np.maximum(points.max(axis=0), -points.min(axis=0)).astype(np.float64)
        if (farthest / side).max() > _FARTHEST:
            raise must_be("side of the cells", "above 2^-52 of the distance of points from 0", side.tolist())
        self._shape = shape
        columns = targets[:, None] if targets.ndim == 1 else targets
        for start in range(0, len(points), _ROWS):
            rows = slice(start, start + _ROWS)
            self._add(points[rows], columns[rows], weight[rows], side)
        return self

    @property
    def X(self) -> Array:
        """(c, d) the means of the points in the c occupied cells."""
        return self.cells().x

    @property
    def y(self) -> Array:
        """(c,) or (c, p) the means of their targets."""
        means = self.cells().y
        return means[:, 0] if len(self._shape) == 1 else means

    @property
    def weight(self) -> Array:
        """(c,) the sums of their weights."""
        return self.cells().weight

    def cells(self) -> CellMoments:
        """All that is kept of each of the c occupied cells.

        Returns:
            Arrays: cell (c, d), the numbers of the cells, in lexicographic order; x (c, d) and y (c, p), the
            weighted means of points and targets; weight (c,), the sums of weights; count (c,) of points;
            spread (c, p), the standard deviation of the targets within the cell, √(Σ w (y − ȳ)² / Σ w).

        See Also:
            GridMeans.X: the means of the points.

        >>> from nadaraya.regression import GridMeans
        >>> cells = GridMeans(1.0).add([[0.2], [0.4], [1.5]], [1.0, 3.0, 5.0]).cells()
        >>> cells.count.tolist(), cells.spread.tolist()
        ([2, 1], [[1.0], [0.0]])
        """
        if not self._stored:
            raise InputError("there are no points yet: call add first")
        if len(self._stored) != 1:
            self._stored = [CellMoments.joined(self._stored)]
        return self._stored[0]

    def _add(self, points: Array, targets: Array, weight: Array, side: Array) -> None:
        counted = weight > 0
        x, y, w = points[counted].astype(np.float64), targets[counted].astype(np.float64), weight[counted]
        if len(x) == 0:
            return
        self.n_samples_seen += len(x)
        place, count = np.floor(x / side).astype(np.int64), np.ones(len(x), np.int64)
        part = CellMoments(place, x, y, w, count, np.zeros_like(y))
        self._stored.append(CellMoments.joined([part]))
        # Joined when they are as many as the cells known: however many the chunks, rows are sorted few times.
        if sum(len(each.cell) for each in self._stored[1:]) > len(self._stored[0].cell):
            self.cells()
