"""Pictures of fitted classifiers; see `displays`."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Self

import numpy as np
from numpy.typing import NDArray

from nadaraya.regression.drawing import (
    CLASSES,
    INK,
    axes_and_figure,
    names_and_axes,
    pairs,
    rug,
    shown_rows,
    unnamed,
)
from nadaraya.regression.requests import Array


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
