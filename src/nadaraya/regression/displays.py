"""Pictures of fitted models, in the manner of scikit-learn's displays; matplotlib is imported when they draw.

A display holds what a picture shows. `from_estimator` computes it from a fitted model and draws; `plot` draws
it again, on other axes or in another style.
"""

import warnings
from collections.abc import Callable, Sequence
from typing import Any, Self

import numpy as np
from numpy.typing import NDArray
from sklearn.utils.validation import check_is_fitted

from nadaraya.errors import InputError, must_be, unknown_name
from nadaraya.regression.checks import whole_number
from nadaraya.regression.requests import Array

# The hues of nadaraya.report.palette, whose package needs more than these figures do.
_BLUE, _INK, _MUTED = "#0068a8", "#1c2128", "#5f6873"
_CLASSES = ("#0068a8", "#c94f00", "#00805d", "#a14585", "#97690a", "#2b8fc4", "#7c2348", "#59636f")
# More points than these tell the eye nothing more: evenly spaced rows of the data stand for all.
_MOST_POINTS = 5000
# Densities are drawn this many bandwidths beyond the points.
_BEYOND = 3.0


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

    def __init__(
        self,
        *,
        x: Array,
        mean: Array,
        lower: Array | None = None,
        upper: Array | None = None,
        points: Array | None = None,
        targets: Array | None = None,
        feature_name: str = "x0",
        target_name: str = "y",
        band_label: str = "band",
    ) -> None:
        self.x, self.mean, self.lower, self.upper = x, mean, lower, upper
        self.points, self.targets = points, targets
        self.feature_name, self.target_name, self.band_label = feature_name, target_name, band_label

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
        names, points = _feature_names(estimator), estimator.X_
        column = _column(feature, names)
        x = _grid(points[:, column], whole_number("grid_resolution", grid_resolution, 2))
        queries = np.tile(
            _medians(points, getattr(estimator, "sample_weight_", np.ones(len(points)))), (len(x), 1)
        )
        queries[:, column] = x
        targets = estimator.y_.reshape(len(estimator.y_), -1)
        whole_number("target", target, 0, targets.shape[1] - 1)

        def chosen(values: Array) -> Array:
            return values.reshape(len(x), -1)[:, target]

        mean = chosen(_unnamed(estimator.predict, queries))
        lower = upper = None
        if level is not None:
            lower, upper = map(chosen, _unnamed(estimator.band, queries, level=level, method=method))
        display = cls(
            x=x,
            mean=mean,
            lower=lower,
            upper=upper,
            points=points[:, column],
            targets=targets[:, target] if len(names) == 1 else None,
            feature_name=names[column],
            target_name="y" if targets.shape[1] == 1 else f"y{target}",
            band_label="" if level is None else f"{100 * level:.4g} % band, {method}",
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
        self.ax_, self.figure_ = _axes(ax)
        self.points_ = self.band_ = None
        if self.points is not None:
            rows = _shown(len(self.points))
            if self.targets is None:
                self.points_ = _rug(self.ax_, self.points[rows])
            else:
                options = {"color": _MUTED, "s": 9, "alpha": 0.5, "linewidths": 0}
                self.points_ = self.ax_.scatter(self.points[rows], self.targets[rows], **options)
        if self.lower is not None:
            self.band_ = self.ax_.fill_between(
                self.x, self.lower, self.upper, color=_BLUE, alpha=0.22, linewidth=0, label=self.band_label
            )
            if self.band_label:
                self.ax_.legend(frameon=False)
        (self.line_,) = self.ax_.plot(self.x, self.mean, **{"color": _BLUE, **line_options})
        self.ax_.set(xlabel=self.feature_name, ylabel=self.target_name)
        return self


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

    def __init__(
        self,
        *,
        axes: Sequence[Array],
        density: Array,
        points: Array | None = None,
        feature_names: tuple[str, ...] = ("x0", "x1"),
    ) -> None:
        self.axes, self.density, self.points, self.feature_names = axes, density, points, feature_names

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
        names = _one_or_two_features(estimator)
        m = whole_number("grid_resolution", grid_resolution or (400 if len(names) == 1 else 80), 2)
        margins = _BEYOND * estimator.bandwidth_
        axes = [_grid(column, m, margin) for column, margin in zip(estimator.X_.T, margins, strict=True)]
        density = np.exp(_unnamed(estimator.score_samples, _pairs(axes)))
        display = cls(
            axes=axes,
            density=density.reshape([m] * len(names)),
            points=estimator.X_,
            feature_names=tuple(names),
        )
        return display.plot(ax)

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
        self.ax_, self.figure_ = _axes(ax)
        self.line_ = self.contours_ = self.points_ = None
        rows = slice(0) if self.points is None else _shown(len(self.points))
        if len(self.axes) == 1:
            if self.points is not None:
                self.points_ = _rug(self.ax_, self.points[rows, 0])
            (self.line_,) = self.ax_.plot(self.axes[0], self.density, **{"color": _BLUE, **options})
            self.ax_.set(xlabel=self.feature_names[0], ylabel="density", ylim=(0, None))
            return self
        if self.points is not None:
            style = {"color": _MUTED, "s": 6, "alpha": 0.4, "linewidths": 0}
            self.points_ = self.ax_.scatter(*self.points[rows].T, **style)
        style = {} if {"colors", "cmap"} & options.keys() else {"colors": _BLUE}
        self.contours_ = self.ax_.contour(
            *self.axes, self.density, **{"levels": 8, "linewidths": 1.0, **style, **options}
        )
        self.ax_.set(xlabel=self.feature_names[0], ylabel=self.feature_names[1])
        return self


class ClassifierDisplay:
    """Probabilities of classes: of one feature as curves, of two as a map.

    In the map every class has a colour, a place has the mixture of these in proportion to the probabilities,
    and lines part the regions where different classes are likeliest.

    Args:
        axes: (m,) values of each feature, as many as there are features, 1 or 2.
        probability: (m, K) or, for two features, (m, m, K), the second feature by row.
        classes: (K,) the classes.
        points: (n, d) the points. Default none.
        labels: (n,) their classes. Default none.
        feature_names: labels. Default "x0", "x1".

    Attributes:
        lines_: curves of one feature (`Line2D`, one per class), or None for two.
        image_: the map of two features (`AxesImage`), or None for one.
        points_: points or ticks, one collection per class.
        ax_: the axes.
        figure_: their figure.

    See Also:
        NadarayaWatsonClassifier.plot: the same from the model.

    >>> from nadaraya.regression import ClassifierDisplay, NadarayaWatsonClassifier
    >>> model = NadarayaWatsonClassifier(bandwidth=1.0).fit([[0.0], [1.0], [4.0]], ["a", "a", "b"])
    >>> display = ClassifierDisplay.from_estimator(model, grid_resolution=3)
    >>> display.probability.round(2).tolist()
    [[1.0, 0.0], [0.85, 0.15], [0.01, 0.99]]
    """

    def __init__(
        self,
        *,
        axes: Sequence[Array],
        probability: Array,
        classes: NDArray[Any],
        points: Array | None = None,
        labels: NDArray[Any] | None = None,
        feature_names: tuple[str, ...] = ("x0", "x1"),
    ) -> None:
        self.axes, self.probability, self.classes = axes, probability, classes
        self.points, self.labels, self.feature_names = points, labels, feature_names

    @classmethod
    def from_estimator(cls, estimator: Any, *, grid_resolution: int | None = None, ax: Any = None) -> Self:
        """Evaluates a fitted classifier on a grid, and draws it.

        Args:
            estimator: a fitted `NadarayaWatsonClassifier` of one or two features.
            grid_resolution: values per feature, over the range of the points. Default 400 for one feature,
                120 for two.
            ax: matplotlib's axes; None makes a new figure. Default None.

        Returns:
            The display.

        Raises:
            InputError: there are more than two features, or matplotlib is not installed.

        See Also:
            NadarayaWatsonClassifier.predict_proba: what is drawn.

        >>> from nadaraya.regression import ClassifierDisplay, NadarayaWatsonClassifier
        >>> model = NadarayaWatsonClassifier().fit([[0.0, 1.0], [1.0, 3.0], [2.0, 0.0]], [0, 1, 1])
        >>> ClassifierDisplay.from_estimator(model, grid_resolution=20).probability.shape
        (20, 20, 2)
        """
        names = _one_or_two_features(estimator)
        m = whole_number("grid_resolution", grid_resolution or (400 if len(names) == 1 else 120), 2)
        axes = [_grid(column, m) for column in estimator.X_.T]
        probability = _unnamed(estimator.predict_proba, _pairs(axes))
        display = cls(
            axes=axes,
            probability=probability.reshape([m] * len(names) + [-1]),
            classes=estimator.classes_,
            points=estimator.X_,
            labels=estimator.y_,
            feature_names=tuple(names),
        )
        return display.plot(ax)

    def plot(self, ax: Any = None) -> Self:
        """Draws the probabilities.

        Args:
            ax: matplotlib's axes; None makes a new figure. Default None.

        Returns:
            The display.

        See Also:
            ClassifierDisplay.from_estimator: computes what is drawn.

        >>> import numpy as np
        >>> from nadaraya.regression import ClassifierDisplay
        >>> probability = np.array([[1.0, 0.0], [0.5, 0.5]])
        >>> display = ClassifierDisplay(axes=[[0.0, 1.0]], probability=probability, classes=["a", "b"])
        >>> len(display.plot().lines_)
        2
        """
        self.ax_, self.figure_ = _axes(ax)
        self.lines_ = self.image_ = None
        colours = [_CLASSES[k % len(_CLASSES)] for k in range(len(self.classes))]
        if len(self.axes) == 1:
            self.lines_ = [
                self.ax_.plot(self.axes[0], column, color=colour, label=str(name))[0]
                for column, colour, name in zip(self.probability.T, colours, self.classes, strict=True)
            ]
            self.ax_.set(xlabel=self.feature_names[0], ylabel="probability", ylim=(-0.05, 1.05))
        else:
            self._draw_map(colours)
        self.points_ = [] if self.points is None else self._draw_points(colours)
        if self.lines_ or self.points_:
            self.ax_.legend(frameon=True, framealpha=0.8, edgecolor="none")
        return self

    def _draw_map(self, colours: list[str]) -> None:
        from matplotlib.colors import to_rgb

        # Half-way to white, so that points of the same colours stand out.
        mixture = 0.5 + 0.5 * self.probability @ np.array([to_rgb(colour) for colour in colours])
        (left, right), (low, high) = ((axis[0], axis[-1]) for axis in self.axes)
        self.image_ = self.ax_.imshow(
            mixture, origin="lower", extent=(left, right, low, high), aspect="auto", interpolation="bilinear"
        )
        for k in range(len(self.classes)):
            lead = self.probability[..., k] - np.delete(self.probability, k, axis=-1).max(axis=-1, initial=0)
            if lead.min() < 0 < lead.max():
                self.ax_.contour(*self.axes, lead, levels=[0.0], colors=_INK, linewidths=0.8)
        self.ax_.set(xlabel=self.feature_names[0], ylabel=self.feature_names[1])

    def _draw_points(self, colours: list[str]) -> list[Any]:
        assert self.points is not None
        rows = _shown(len(self.points))
        points, drawn = self.points[rows], []
        labels = None if self.labels is None else np.asarray(self.labels)[rows]
        for k, (name, colour) in enumerate(zip(self.classes, colours, strict=True)):
            own = points if labels is None else points[labels == name]
            if len(self.axes) == 1:
                drawn.append(_rug(self.ax_, own[:, 0], colour, height=0.02 * (1 + 1.5 * k)))
            else:
                style = {"color": colour, "s": 14, "linewidths": 0.5, "edgecolors": "white"}
                drawn.append(self.ax_.scatter(*own.T, label=str(name), **style))
        return drawn


def _axes(ax: Any) -> tuple[Any, Any]:
    try:
        import matplotlib.pyplot as plt
    except ImportError as missing:
        raise InputError('plots need matplotlib: pip install "nadaraya[report]"') from missing
    if ax is None:
        _, ax = plt.subplots(layout="constrained")
    return ax, ax.figure


def _rug(ax: Any, x: Array, colour: str = _MUTED, height: float = 0.02) -> Any:
    """One tick per point at the foot of the axes; `height` of its middle, a part of theirs."""
    across = ax.get_xaxis_transform()
    style = {"color": colour, "markersize": 6, "markeredgewidth": 0.6, "alpha": 0.5}
    return ax.plot(x, np.full(len(x), height), "|", transform=across, **style)[0]


def _shown(n: int) -> NDArray[np.intp]:
    """The rows that are drawn, all of them unless they are very many."""
    return np.linspace(0, n - 1, min(n, _MOST_POINTS)).astype(np.intp)


def _grid(column: Array, m: int, margin: float = 0.0) -> NDArray[np.float64]:
    low, high = float(column.min()) - margin, float(column.max()) + margin
    if low == high:
        low, high = low - 0.5, high + 0.5
    return np.linspace(low, high, m)


def _medians(points: Array, weight: Array) -> NDArray[np.float64]:
    """(d,) where half of the weight is on either side."""
    order = np.argsort(points, axis=0)
    reached = np.cumsum(weight[order], axis=0)
    half = reached[-1] / 2
    middle = np.stack([(reached < half).sum(axis=0), (reached <= half).sum(axis=0)])
    ordered = np.take_along_axis(points, order, axis=0)
    medians: NDArray[np.float64] = np.take_along_axis(ordered, middle, axis=0).mean(axis=0)
    return medians


def _pairs(axes: Sequence[Array]) -> Array:
    """(m^d, d) the places of a grid, the last feature by row."""
    return np.stack([values.ravel() for values in np.meshgrid(*axes)], axis=1)


def _feature_names(estimator: Any) -> list[str]:
    if getattr(estimator, "levels_", None) or np.isnan(estimator.X_).any():
        raise InputError(
            "displays are for features that are numbers and not missing: plot predictions instead"
        )
    names = getattr(estimator, "feature_names_in_", None)
    return [f"x{f}" for f in range(estimator.n_features_in_)] if names is None else [str(n) for n in names]


def _column(feature: int | str, names: list[str]) -> int:
    if isinstance(feature, str):
        if feature not in names:
            raise unknown_name("feature", feature, names)
        return names.index(feature)
    return whole_number("feature", feature, 0, len(names) - 1)


def _one_or_two_features(estimator: Any) -> list[str]:
    check_is_fitted(estimator)
    names = _feature_names(estimator)
    if len(names) > 2:
        raise must_be("the number of features of a plot", "1 or 2", len(names))
    return names


def _unnamed(ask: Callable[..., Any], queries: Array, **options: Any) -> Any:
    """The answer for queries made here, whose columns are the estimator's features in their order."""
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message="X does not have valid feature names")
        return ask(queries, **options)
