"""Pictures of densities and of probabilities of classes, on grids of one or two features."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Generic, Self, TypeVar

import numpy as np
from numpy.typing import NDArray
from sklearn.utils.validation import check_is_fitted

from nadaraya.errors import must_be
from nadaraya.kernels.drawing import axes_and_figure
from nadaraya.regression.checks import whole_number
from nadaraya.regression.displays import (
    BLUE,
    CLASSES,
    INK,
    MUTED,
    feature_names,
    grid,
    rug,
    shown_rows,
    unnamed,
)
from nadaraya.regression.requests import Array

# Densities are drawn this many bandwidths beyond the points.
_BEYOND = 3.0

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


@dataclass(kw_only=True, eq=False, repr=False)
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

    axes: Sequence[Array]
    probability: Array
    classes: NDArray[Any]
    points: Array | None = None
    labels: NDArray[Any] | None = None
    feature_names: tuple[str, ...] = ("x0", "x1")

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
        names, axes = names_and_axes(estimator, grid_resolution, 120)
        probability = unnamed(estimator.predict_proba, pairs(axes)).reshape([*map(len, axes), -1])
        shown = {"points": estimator.X_, "labels": estimator.y_, "feature_names": names}
        return cls(axes=axes, probability=probability, classes=estimator.classes_, **shown).plot(ax)

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
        self.ax_, self.figure_ = axes_and_figure(ax)
        self.lines_ = self.image_ = None
        colours = [CLASSES[k % len(CLASSES)] for k in range(len(self.classes))]
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
                self.ax_.contour(*self.axes, lead, levels=[0.0], colors=INK, linewidths=0.8)
        self.ax_.set(xlabel=self.feature_names[0], ylabel=self.feature_names[1])

    def _draw_points(self, colours: list[str]) -> list[Any]:
        assert self.points is not None
        rows = shown_rows(len(self.points))
        points, drawn = self.points[rows], []
        labels = None if self.labels is None else np.asarray(self.labels)[rows]
        for k, (name, colour) in enumerate(zip(self.classes, colours, strict=True)):
            own = points if labels is None else points[labels == name]
            if len(self.axes) == 1:
                drawn.append(rug(self.ax_, own[:, 0], colour, height=0.02 * (1 + 1.5 * k)))
            else:
                style = {"color": colour, "s": 14, "linewidths": 0.5, "edgecolors": "white"}
                drawn.append(self.ax_.scatter(*own.T, label=str(name), **style))
        return drawn


def pairs(axes: Sequence[Array]) -> Array:
    """(m^d, d) the places of a grid, the last feature by row."""
    return np.stack([values.ravel() for values in np.meshgrid(*axes)], axis=1)


def names_and_axes(
    estimator: Any, grid_resolution: int | None, of_two: int, margin: float = 0.0
) -> tuple[tuple[str, ...], list[Array]]:
    """Names and grids of the features, one or two, over the points and so many bandwidths beyond."""
    check_is_fitted(estimator)
    names = feature_names(estimator)
    if len(names) > 2:
        raise must_be("the number of features of a plot", "1 or 2", len(names))
    default = 400 if len(names) == 1 else of_two
    m = whole_number("grid_resolution", default if grid_resolution is None else grid_resolution, 2)
    widths = zip(estimator.X_.T, estimator.bandwidth_, strict=True)
    return tuple(names), [grid(column, m, margin * h if margin else 0.0) for column, h in widths]
