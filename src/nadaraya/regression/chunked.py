"""`ChunkedNadarayaWatson`: kernel regression of more points than memory holds."""

from dataclasses import KW_ONLY, dataclass
from typing import Any, Self

import numpy as np
import torch
from numpy.typing import ArrayLike
from sklearn.base import BaseEstimator, MultiOutputMixin, RegressorMixin
from sklearn.utils.validation import check_is_fitted

from nadaraya.kernels import Kernel
from nadaraya.regression.checks import given_bandwidth, real_number, truth_value
from nadaraya.regression.displays import PlotsCurve
from nadaraya.regression.estimator import checked, over_blocks
from nadaraya.regression.grid_means import GridMeans
from nadaraya.regression.nadaraya_watson import NadarayaWatson
from nadaraya.regression.requests import Array


@dataclass(eq=False, repr=False)
class ChunkedNadarayaWatson(PlotsCurve, MultiOutputMixin, RegressorMixin, BaseEstimator):
    r"""Kernel regression from chunks of points, in memory that does not grow with their number.

    Points in the same cell of a grid, whose side is a part of the bandwidth, are replaced by their weighted
    mean: f is then

        f(x) = Σ_c W_c κ(‖(x − x̄_c) / h‖) ȳ_c / Σ_c W_c κ(‖(x − x̄_c) / h‖)

    with one term per occupied cell. For a smooth kernel and many points per cell it differs from
    `NadarayaWatson` on all points by O((side / h)²), as if the bandwidth were h √(1 + (side / h)² / 12):
    0.07 % larger for the default. A cell with one point changes nothing. The variance within cells is kept,
    so that standard deviations and bands are those of the observations.

    Cells multiply with every feature that varies by many bandwidths: this is for a few of them.

    Args:
        bandwidth: a positive number, or (d,), one per feature, in units of the features. Select it with
            `NadarayaWatson` on m of the n points, and multiply by (m / n)^(1/(d + 4)).
        kernel: as in `NadarayaWatson`. Default "gaussian".
        degree: 0, local constant; 1, local linear. Default 0.
        cell_side: side of the cells over the bandwidth, between 0 and 1. Default 1/8.
        empty: as in `NadarayaWatson`. Default "nearest".
        device: where PyTorch computes. Default None: the fastest way on the CPU.
        random_state: seed or generator of the bootstrap. Default None.

    Attributes:
        bandwidth_: (d,) h.
        n_features_in_: d.
        feature_names_in_: (d,) names of the features, where X had them.

    See Also:
        NadarayaWatson: for points that fit in memory.
        GridMeans: the means, for densities and other estimators.

    >>> import numpy as np
    >>> from nadaraya.regression import ChunkedNadarayaWatson
    >>> model = ChunkedNadarayaWatson(bandwidth=0.2)
    >>> for seed in range(4):  # chunks, as they come from a file
    ...     random = np.random.default_rng(seed)
    ...     X = random.uniform(0, 3, size=(10_000, 1))
    ...     model = model.partial_fit(X, np.sin(X[:, 0]) + 0.1 * random.normal(size=10_000))
    >>> model.n_samples_seen_, model.n_cells_
    (40000, 120)
    >>> mean, scatter = model.predict([[1.0]], return_std=True)
    >>> mean.round(2).tolist(), scatter.round(2).tolist()
    ([0.83], [0.1])
    """

    bandwidth: float | ArrayLike
    kernel: str | Kernel = "gaussian"
    _: KW_ONLY
    degree: int = 0
    cell_side: float = 0.125
    empty: str = "nearest"
    device: str | torch.device | None = None
    random_state: int | np.random.RandomState | None = None

    def fit(self, X: ArrayLike, y: ArrayLike, sample_weight: ArrayLike | None = None) -> Self:
        """Forgets what was seen, and takes in these points; arguments are those of `partial_fit`.

        See Also:
            ChunkedNadarayaWatson.partial_fit: adds points.

        >>> from nadaraya.regression import ChunkedNadarayaWatson
        >>> ChunkedNadarayaWatson(bandwidth=1.0).fit([[0.0], [0.1], [2.0]], [0.0, 1.0, 4.0]).n_cells_
        2
        """
        self._means: GridMeans | None = None
        return self.partial_fit(X, y, sample_weight)

    def partial_fit(self, X: ArrayLike, y: ArrayLike, sample_weight: ArrayLike | None = None) -> Self:
        """Takes in more points.

        Args:
            X: (n, d) points; a `numpy.memmap` is read piece by piece.
            y: (n,) or (n, p) targets.
            sample_weight: (n,) precisions of the targets, ≥ 0; their ratios across chunks count. Rows that
                repeat another are observations of their own. Default 1 each.

        Returns:
            The estimator.

        Raises:
            InputError: a parameter or sample_weight is out of its range or has a shape that does not fit.
            ValueError: X or y is no finite numerical array, their lengths differ, or X has other features
                than before (scikit-learn's checks).

        See Also:
            ChunkedNadarayaWatson.fit: starts anew.

        >>> from nadaraya.regression import ChunkedNadarayaWatson
        >>> model = ChunkedNadarayaWatson(bandwidth=1.0).partial_fit([[0.0], [2.0]], [0.0, 4.0])
        >>> model.partial_fit([[2.1]], [3.0]).n_samples_seen_
        3
        """
        first = not self.__sklearn_is_fitted__()
        checks = {"multi_output": True, "y_numeric": True, "dtype": (np.float64, np.float32)}
        points, targets = checked(self, X, y, reset=first, **checks)
        if first:
            self.bandwidth_ = given_bandwidth(self.bandwidth, points.shape[1])
            side = real_number("cell_side", self.cell_side, "a number between 0 and 1", 0, 1)
        means = GridMeans(side * self.bandwidth_) if first else self._seen()
        self._means = means.add(points, targets, sample_weight)
        options: dict[str, Any] = {
            name: getattr(self, name) for name in ("degree", "empty", "device", "random_state")
        }
        self._regression = _OfCells(self.kernel, self.bandwidth_, **options)
        return self

    @over_blocks
    def predict(self, X: ArrayLike, return_std: bool = False) -> Any:
        """f(x), and how far targets scatter about it.

        Args:
            X: (m, d) points; a Dask array or DataFrame is answered lazily, with a Dask array.
            return_std: also return the local standard deviation of an observation of average weight, as in
                `NadarayaWatson.predict`. Default False.

        Returns:
            (m,) or (m, p), float64; with `return_std` a pair of such arrays.

        See Also:
            NadarayaWatson.predict: the same from points that were not replaced.

        >>> from nadaraya.regression import ChunkedNadarayaWatson
        >>> model = ChunkedNadarayaWatson(bandwidth=1.0).fit([[0.0], [1.0], [2.0]], [0.0, 1.0, 4.0])
        >>> model.predict([[1.0]]).round(3).tolist()
        [1.548]
        """
        query = self._validated(X)
        if not truth_value("return_std", return_std):
            return self._fitted().predict(query)
        mean, scatter = self._fitted().predict(query, return_std=True)  # of a cell of average weight
        return mean, scatter * np.sqrt(self.n_samples_seen_ / self.n_cells_)

    @over_blocks
    def marginal_effects(self, X: ArrayLike) -> Array:
        """∂f/∂x, (m, d) or (m, d, p), as `NadarayaWatson.marginal_effects` at points X (m, d).

        See Also:
            NadarayaWatson.marginal_effects: the same from points that were not replaced.

        >>> from nadaraya.regression import ChunkedNadarayaWatson
        >>> model = ChunkedNadarayaWatson(bandwidth=1.0, degree=1).fit([[0.0], [1.0], [2.0]], [0.0, 2.0, 4.0])
        >>> model.marginal_effects([[1.0]]).round(6).tolist()
        [[2.0]]
        """
        return self._fitted().marginal_effects(self._validated(X))

    def band(self, X: ArrayLike, **options: Any) -> tuple[Array, Array]:
        """A band for the curve, lower and upper, as `NadarayaWatson.band` with the same options.

        See Also:
            NadarayaWatson.band: the options.

        >>> from nadaraya.regression import ChunkedNadarayaWatson
        >>> model = ChunkedNadarayaWatson(bandwidth=1.0).fit([[0.0], [1.0], [2.0]], [0.0, 1.0, 4.0])
        >>> lower, upper = model.band([[1.0]], level=0.9)
        >>> bool(lower < 1.548 < upper)
        True
        """
        return self._fitted().band(self._validated(X), **options)

    @property
    def n_samples_seen_(self) -> int:
        """Points of weight above zero so far."""
        return self._seen().n_samples_seen

    @property
    def n_cells_(self) -> int:
        """Occupied cells."""
        return len(self._seen().cells().cell)

    @property
    def X_(self) -> Array:
        """(c, d) means of the points in the occupied cells."""
        return self._seen().X

    @property
    def y_(self) -> Array:
        """(c,) or (c, p) means of their targets."""
        return self._seen().y

    @property
    def sample_weight_(self) -> Array:
        """(c,) sums of their weights."""
        return self._seen().weight

    def __sklearn_is_fitted__(self) -> bool:
        return getattr(self, "_means", None) is not None

    def _validated(self, X: ArrayLike) -> Array:
        check_is_fitted(self)
        return checked(self, X, reset=False, dtype=(np.float64, np.float32))

    def _seen(self) -> GridMeans:
        check_is_fitted(self)
        assert self._means is not None
        return self._means

    def _fitted(self) -> "_OfCells":
        """The regression of the cells, fitted when it is first asked for."""
        means = self._seen()
        return self._regression if hasattr(self._regression, "X_") else self._regression.fit_cells(means)


class _OfCells(NadarayaWatson):
    """Regression of the cells' means with the noise of the points within them."""

    def fit_cells(self, means: GridMeans) -> Self:
        self._cells = means.cells()
        return self.fit(self._cells.x, means.y, self._cells.weight)

    def _within(self) -> tuple[Array, Array]:
        weight = self._cells.weight * (len(self._targets) / self._cells.weight.sum())
        parts = weight[:, None] * (self._cells.spread / self._unit) ** 2
        squares = [np.bincount(self._row_of, column) for column in parts.T]
        return np.stack(squares, axis=1), np.bincount(self._row_of, self._cells.count) - 1.0
