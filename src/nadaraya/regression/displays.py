"""Pictures of fitted models, in the manner of scikit-learn's displays; matplotlib is imported when they draw.

A display holds what a picture shows. `from_estimator` computes it from a fitted model and draws; `plot` draws
it again, on other axes or in another style.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Self

import numpy as np
from sklearn.utils.validation import check_is_fitted

from nadaraya.regression.checks import whole_number
from nadaraya.regression.drawing import (
    BLUE,
    MUTED,
    axes_and_figure,
    column_of,
    feature_names,
    grid,
    medians,
    names_and_axes,
    pairs,
    rug,
    shown_rows,
    unnamed,
)
from nadaraya.regression.requests import Array

# Densities are drawn this many bandwidths beyond the points.
_BEYOND = 3.0


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


@dataclass(kw_only=True, eq=False, repr=False)
class DensityDisplay:
    """A density: of one feature as a curve with a tick per point, of two as contours over the points.

    Args:
        axes: (m,) values of each feature, as many as there are features, 1 or 2.
        density: (m,) or, for two features, (m, m), the second feature by row.
        points: (n, d) the points. Default none.
        feature_names: labels. Default "x0", "x1".

    Attributes:
        line_: the curve (`Line2D`), or None for two features.
        contours_: the contours (`QuadContourSet`), or None for one.
        points_: points or ticks, or None.
        ax_: the axes.
        figure_: their figure.

    See Also:
        NadarayaWatsonDensity.plot: the same from the model.

    >>> from nadaraya.regression import DensityDisplay, NadarayaWatsonDensity
    >>> model = NadarayaWatsonDensity(bandwidth=1.0).fit([[0.0], [1.0]])
    >>> display = DensityDisplay.from_estimator(model, grid_resolution=3)
    >>> display.axes[0].tolist(), display.density.round(3).tolist()
    ([-3.0, 0.5, 4.0], [0.002, 0.352, 0.002])
    """

    axes: Sequence[Array]
    density: Array
    points: Array | None = None
    feature_names: tuple[str, ...] = ("x0", "x1")

    @classmethod
    def from_estimator(cls, estimator: Any, *, grid_resolution: int | None = None, ax: Any = None) -> Self:
        """Evaluates a fitted density on a grid, and draws it.

        Args:
            estimator: a fitted `NadarayaWatsonDensity` of one or two features.
            grid_resolution: values per feature, from three bandwidths below the points to three above.
                Default 400 for one feature, 80 for two.
            ax: matplotlib's axes; None makes a new figure. Default None.

        Returns:
            The display.

        Raises:
            InputError: there are more than two features, or matplotlib is not installed.

        See Also:
            NadarayaWatsonDensity.score_samples: the logarithm of what is drawn.

        >>> from nadaraya.regression import DensityDisplay, NadarayaWatsonDensity
        >>> model = NadarayaWatsonDensity().fit([[0.0, 1.0], [1.0, 3.0], [2.0, 0.0]])
        >>> DensityDisplay.from_estimator(model, grid_resolution=20).density.shape
        (20, 20)
        """
        names, axes = names_and_axes(estimator, grid_resolution, 80, _BEYOND)
        density = np.exp(unnamed(estimator.score_samples, pairs(axes))).reshape([*map(len, axes)])
        return cls(axes=axes, density=density, points=estimator.X_, feature_names=names).plot(ax)

    def plot(self, ax: Any = None, **options: Any) -> Self:
        """Draws the density.

        Args:
            ax: matplotlib's axes; None makes a new figure. Default None.
            **options: of matplotlib's `plot` for one feature, of `contour` for two.

        Returns:
            The display.

        See Also:
            DensityDisplay.from_estimator: computes what is drawn.

        >>> from nadaraya.regression import DensityDisplay
        >>> DensityDisplay(axes=[[0.0, 1.0]], density=[1.0, 1.0]).plot().ax_.get_ylabel()
        'density'
        """
        self.ax_, self.figure_ = axes_and_figure(ax)
        self.line_ = self.contours_ = self.points_ = None
        rows = slice(0) if self.points is None else shown_rows(len(self.points))
        if len(self.axes) == 1:
            if self.points is not None:
                self.points_ = rug(self.ax_, self.points[rows, 0])
            (self.line_,) = self.ax_.plot(self.axes[0], self.density, **{"color": BLUE, **options})
            self.ax_.set(xlabel=self.feature_names[0], ylabel="density", ylim=(0, None))
            return self
        if self.points is not None:
            style = {"color": MUTED, "s": 6, "alpha": 0.4, "linewidths": 0}
            self.points_ = self.ax_.scatter(*self.points[rows].T, **style)
        style = {} if {"colors", "cmap"} & options.keys() else {"colors": BLUE}
        self.contours_ = self.ax_.contour(
            *self.axes, self.density, **{"levels": 8, "linewidths": 1.0, **style, **options}
        )
        self.ax_.set(xlabel=self.feature_names[0], ylabel=self.feature_names[1])
        return self
