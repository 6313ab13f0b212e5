"""Pictures of fitted models, in the manner of scikit-learn's displays; matplotlib is imported when they draw.

A display holds what a picture shows. `from_estimator` computes it from a fitted model and draws; `plot` draws
it again, on other axes or in another style.
"""

import warnings
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Self

import numpy as np
from numpy.typing import NDArray
from sklearn.utils.validation import check_is_fitted

from nadaraya.errors import InputError, check_name, must_be
from nadaraya.kernels.drawing import axes_and_figure
from nadaraya.regression.checks import whole_number
from nadaraya.regression.requests import Array

# The hues of nadaraya.report.palette, whose package needs more than these figures do.
BLUE, INK, MUTED = "#0068a8", "#1c2128", "#5f6873"
CLASSES = ("#0068a8", "#c94f00", "#00805d", "#a14585", "#97690a", "#2b8fc4", "#7c2348", "#59636f")
# More points than these tell the eye nothing more: evenly spaced rows of the data stand for all.
_MOST_POINTS = 5000


@dataclass(kw_only=True, eq=False, repr=False)
class RegressionDisplay:
    """A regression curve with its band: of the only feature over the points, or of one among several.

    Of several features the others stay at their medians, and the curve is that section of the fitted surface
    (Hayfield and Racine 2008); ticks at the foot show where the feature has points.

    Args:
        x: (m,) where the curve is drawn.
        mean: (m,) the curve.
        lower: (m,) the band's lower end; None for no band. Default None.
        upper: (m,) its upper end. Default None.
        points: (n,) the feature of the observations. Default none.
        targets: (n,) their targets; None shows ticks in their place. Default None.
        feature_name: label of the horizontal axis. Default "x0".
        target_name: label of the vertical axis. Default "y".
        band_label: what the legend says of the band. Default "band".

    Attributes:
        line_: the curve (matplotlib's `Line2D`).
        band_: the band (`PolyCollection`), or None.
        points_: points or ticks, or None.
        ax_: the axes.
        figure_: their figure.

    See Also:
        NadarayaWatson.plot: the same from the model.
        DensityDisplay: for `NadarayaWatsonDensity`.
        ClassifierDisplay: for `NadarayaWatsonClassifier`.

    >>> from nadaraya.regression import NadarayaWatson, RegressionDisplay
    >>> model = NadarayaWatson(bandwidth=1.0).fit([[0.0], [1.0], [2.0]], [0.0, 1.0, 4.0])
    >>> display = RegressionDisplay.from_estimator(model, level=None, grid_resolution=3)
    >>> display.x.tolist(), display.ax_.get_xlabel()
    ([0.0, 1.0, 2.0], 'x0')
    """

    x: Array
    mean: Array
    lower: Array | None = None
    upper: Array | None = None
    points: Array | None = None
    targets: Array | None = None
    feature_name: str = "x0"
    target_name: str = "y"
    band_label: str = "band"

    @classmethod
    def from_estimator(
        cls,
        estimator: Any,
        feature: int | str = 0,
        *,
        level: float | None = 0.95,
        method: str = "pointwise",
        target: int = 0,
        grid_resolution: int = 200,
        ax: Any = None,
    ) -> Self:
        """Evaluates a fitted regression along one feature, and draws it.

        Args:
            estimator: a fitted model of this package: without a level any that has targets in numbers.
            feature: which, by number or name. Default 0.
            level: probability of covering of the band; None for no band. Default 0.95.
            method: of the band, as for `NadarayaWatson.band`. Default "pointwise".
            target: which, by number, if there are several. Default 0.
            grid_resolution: points of the curve, from the feature's least to its largest value. Default 200.
            ax: matplotlib's axes; None makes a new figure. Default None.

        Returns:
            The display.

        Raises:
            InputError: there is no such feature or target, an argument of the band is not accepted, or
                matplotlib is not installed.

        See Also:
            NadarayaWatson.band: the band, and its methods.

        >>> from nadaraya.regression import NadarayaWatson, RegressionDisplay
        >>> X, y = [[0.0, 1.0], [1.0, 0.0], [2.0, 3.0], [3.0, 1.0]], [0.0, 1.0, 4.0, 2.0]
        >>> model = NadarayaWatson(bandwidth=1.0).fit(X, y)
        >>> RegressionDisplay.from_estimator(model, 1).ax_.get_title("left")
        'others at their medians'
        """
        check_is_fitted(estimator)
        names, points = feature_names(estimator), estimator.X_
        column = column_of(feature, names)
        x = grid(points[:, column], whole_number("grid_resolution", grid_resolution, 2))
        queries = np.tile(
            medians(points, getattr(estimator, "sample_weight_", np.ones(len(points)))), (len(x), 1)
        )
        queries[:, column] = x
        targets = estimator.y_.reshape(len(estimator.y_), -1)
        whole_number("target", target, 0, targets.shape[1] - 1)

        def chosen(values: Array) -> Array:
            return values.reshape(len(x), -1)[:, target]

        mean = chosen(unnamed(estimator.predict, queries))
        lower = upper = None
        if level is not None:
            if not hasattr(estimator, "band"):
                raise must_be("level", f"None for {type(estimator).__name__}, which has no bands", level)
            lower, upper = map(chosen, unnamed(estimator.band, queries, level=level, method=method))
        display = cls(
            x=x,
            mean=mean,
            lower=lower,
            upper=upper,
            points=points[:, column],
            targets=targets[:, target] if len(names) == 1 else None,
            feature_name=names[column],
            target_name="y" if targets.shape[1] == 1 else f"y{target}",
            band_label="" if level is None else f"{100 * float(level):.4g} % band, {method}",
        )
        display.plot(ax)
        if len(names) > 1:
            display.ax_.set_title("others at their medians", loc="left", fontsize="medium")
        return display

    def plot(self, ax: Any = None, **line_options: Any) -> Self:
        """Draws the curve.

        Args:
            ax: matplotlib's axes; None makes a new figure. Default None.
            **line_options: of matplotlib's `plot`, for the curve.

        Returns:
            The display.

        See Also:
            RegressionDisplay.from_estimator: computes what is drawn.

        >>> from nadaraya.regression import RegressionDisplay
        >>> display = RegressionDisplay(x=[0.0, 1.0], mean=[1.0, 3.0]).plot(color="black")
        >>> display.line_.get_color()
        'black'
        """
        self.ax_, self.figure_ = axes_and_figure(ax)
        self.points_ = self.band_ = None
        if self.points is not None:
            rows = shown_rows(len(self.points))
            if self.targets is None:
                self.points_ = rug(self.ax_, self.points[rows])
            else:
                options = {"color": MUTED, "s": 9, "alpha": 0.5, "linewidths": 0}
                self.points_ = self.ax_.scatter(self.points[rows], self.targets[rows], **options)
        if self.lower is not None:
            self.band_ = self.ax_.fill_between(
                self.x, self.lower, self.upper, color=BLUE, alpha=0.22, linewidth=0, label=self.band_label
            )
            if self.band_label:
                self.ax_.legend(frameon=False)
        (self.line_,) = self.ax_.plot(self.x, self.mean, **{"color": BLUE, **line_options})
        self.ax_.set(xlabel=self.feature_name, ylabel=self.target_name)
        return self


class PlotsCurve:
    """A regression with bands."""

    def plot(
        self, feature: int | str = 0, *, level: float | None = 0.95, method: str = "pointwise", ax: Any = None
    ) -> RegressionDisplay:
        """Draws the curve with its band: of the only feature, or of one with the others at their medians.

        Args:
            feature: which, by number or name. Default 0.
            level: probability of covering of the band; None for no band. Default 0.95.
            method: of the band, as for `band`. Default "pointwise".
            ax: matplotlib's axes; None makes a new figure. Default None.

        Returns:
            The display, whose `ax_`, `figure_` and `line_` can be altered.

        See Also:
            RegressionDisplay.from_estimator: has further options.

        >>> from nadaraya.regression import NadarayaWatson
        >>> model = NadarayaWatson(bandwidth=1.0).fit([[0.0], [1.0], [2.0], [3.0]], [0.0, 1.0, 4.0, 3.0])
        >>> model.plot(method="simultaneous").ax_.get_xlabel()
        'x0'
        """
        return RegressionDisplay.from_estimator(self, feature, level=level, method=method, ax=ax)


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


def feature_names(estimator: Any) -> list[str]:
    if getattr(estimator, "levels_", None) or np.isnan(estimator.X_).any():
        raise InputError(
            "displays must be of models without categories and missing values: scikit-learn's "
            "PartialDependenceDisplay draws such models"
        )
    names = getattr(estimator, "feature_names_in_", None)
    return [f"x{f}" for f in range(estimator.n_features_in_)] if names is None else [str(n) for n in names]


def column_of(feature: int | str, names: list[str]) -> int:
    if isinstance(feature, str):
        check_name("feature", feature, names)
        return names.index(feature)
    return whole_number("feature", feature, 0, len(names) - 1)


def unnamed(ask: Callable[..., Any], queries: Array, **options: Any) -> Any:
    """The answer for queries made here, whose columns are the estimator's features in their order."""
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message="X does not have valid feature names")
        return ask(queries, **options)
