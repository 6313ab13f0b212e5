"""What displays share: axes, colours, grids, and the names of features."""

import warnings
from collections.abc import Callable, Sequence
from typing import Any, Generic, TypeVar

import numpy as np
from numpy.typing import NDArray
from sklearn.utils.validation import check_is_fitted

from nadaraya.errors import InputError, must_be, unknown_name
from nadaraya.regression.checks import whole_number
from nadaraya.regression.requests import Array

# The hues of nadaraya.report.palette, whose package needs more than these figures do.
BLUE, INK, MUTED = "#0068a8", "#1c2128", "#5f6873"
CLASSES = ("#0068a8", "#c94f00", "#00805d", "#a14585", "#97690a", "#2b8fc4", "#7c2348", "#59636f")
# More points than these tell the eye nothing more: evenly spaced rows of the data stand for all.
_MOST_POINTS = 5000


Display = TypeVar("Display")


class Plots(Generic[Display]):
    """A model of one or two features that has a display."""

    _display: Any

    def plot(self, *, ax: Any = None) -> Display:
        """Draws the density or the probabilities: of one feature as curves, of two as contours or a map.

        Args:
            ax: matplotlib's axes; None makes a new figure. Default None.

        Returns:
            The display, whose `ax_` and `figure_` can be altered.

        Raises:
            InputError: there are more than two features, or matplotlib is not installed.

        See Also:
            DensityDisplay.from_estimator: has further options.
            ClassifierDisplay.from_estimator: has further options.

        >>> from nadaraya.regression import NadarayaWatsonDensity
        >>> NadarayaWatsonDensity().fit([[0.0], [1.0], [3.0]]).plot().ax_.get_ylabel()
        'density'
        """
        return self._display.from_estimator(self, ax=ax)


def axes_and_figure(ax: Any) -> tuple[Any, Any]:
    try:
        import matplotlib.pyplot as plt
    except ImportError as missing:
        raise InputError('plots need matplotlib: pip install "nadaraya[report]"') from missing
    if ax is None:
        _, ax = plt.subplots(layout="constrained")
    if not isinstance(ax, plt.Axes):
        raise must_be("ax", "matplotlib's axes, or None", ax)
    return ax, ax.figure


def rug(ax: Any, x: Array, colour: str = MUTED, height: float = 0.02) -> Any:
    """One tick per point at the foot of the axes; `height` of its middle, a part of theirs."""
    across = ax.get_xaxis_transform()
    style = {"color": colour, "markersize": 6, "markeredgewidth": 0.6, "alpha": 0.5}
    return ax.plot(x, np.full(len(x), height), "|", transform=across, **style)[0]


def shown_rows(n: int) -> NDArray[np.intp]:
    """The rows that are drawn, all of them unless they are very many."""
    return np.linspace(0, n - 1, min(n, _MOST_POINTS)).astype(np.intp)


def grid(column: Array, m: int, margin: float = 0.0) -> NDArray[np.float64]:
    low, high = float(column.min()) - margin, float(column.max()) + margin
    if low == high:
        low, high = low - 0.5, high + 0.5
    return np.linspace(low, high, m)


def medians(points: Array, weight: Array) -> NDArray[np.float64]:
    """(d,) where half of the weight is on either side."""
    order = np.argsort(points, axis=0)
    reached = np.cumsum(weight[order], axis=0)
    half = reached[-1] / 2
    middle = np.stack([(reached < half).sum(axis=0), (reached <= half).sum(axis=0)])
    ordered = np.take_along_axis(points, order, axis=0)
    return np.take_along_axis(ordered, middle, axis=0).mean(axis=0)


def pairs(axes: Sequence[Array]) -> Array:
    """(m^d, d) the places of a grid, the last feature by row."""
    return np.stack([values.ravel() for values in np.meshgrid(*axes)], axis=1)


def feature_names(estimator: Any) -> list[str]:
    if getattr(estimator, "levels_", None) or np.isnan(estimator.X_).any():
        raise InputError(
            "displays are for features that are numbers and not missing: plot predictions instead"
        )
    names = getattr(estimator, "feature_names_in_", None)
    return [f"x{f}" for f in range(estimator.n_features_in_)] if names is None else [str(n) for n in names]


def column_of(feature: int | str, names: list[str]) -> int:
    if isinstance(feature, str):
        if feature not in names:
            raise unknown_name("feature", feature, names)
        return names.index(feature)
    return whole_number("feature", feature, 0, len(names) - 1)


def names_and_axes(
    estimator: Any, grid_resolution: int | None, of_two: int, margin: float = 0.0
) -> tuple[tuple[str, ...], list[Array]]:
    """Names and grids of the features, one or two, over the points and so many bandwidths beyond.

    A grid has 400 values, or `of_two` of each of two features, unless another number is wanted.
    """
    check_is_fitted(estimator)
    names = feature_names(estimator)
    if len(names) > 2:
        raise must_be("the number of features of a plot", "1 or 2", len(names))
    default = 400 if len(names) == 1 else of_two
    m = whole_number("grid_resolution", default if grid_resolution is None else grid_resolution, 2)
    widths = zip(estimator.X_.T, estimator.bandwidth_, strict=True)
    return tuple(names), [grid(column, m, margin * h if margin else 0.0) for column, h in widths]


def unnamed(ask: Callable[..., Any], queries: Array, **options: Any) -> Any:
    """The answer for queries made here, whose columns are the estimator's features in their order."""
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message="X does not have valid feature names")
        return ask(queries, **options)
