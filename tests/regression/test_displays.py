"""What pictures of models show is what the models say."""

import subprocess
import sys

import numpy as np
import pandas as pd
import pytest
from sklearn.exceptions import NotFittedError

from nadaraya.errors import InputError
from nadaraya.regression import (
    ClassifierDisplay,
    MultiHeadKernelRegression,
    NadarayaWatson,
    NadarayaWatsonClassifier,
    NadarayaWatsonDensity,
    RegressionDisplay,
)

matplotlib = pytest.importorskip("matplotlib")
pyplot = pytest.importorskip("matplotlib.pyplot")


@pytest.fixture(autouse=True)
def _no_window():
    pyplot.switch_backend("agg")
    yield
    pyplot.close("all")


def data(n=60, d=1, seed=0):
    random = np.random.default_rng(seed)
    X = random.normal(size=(n, d)) * np.arange(1, d + 1)
    return X, np.sin(2 * X[:, 0]) + 0.1 * random.normal(size=n)


def ends(collection):
    """The lower and upper ends of a band by x, from its outline."""
    (outline,) = collection.get_paths()
    vertices = outline.vertices
    x = np.unique(vertices[:, 0])
    heights = [vertices[vertices[:, 0] == at, 1] for at in x]
    return x, np.array([h.min() for h in heights]), np.array([h.max() for h in heights])


@pytest.mark.parametrize(("level", "method"), [(0.8, "pointwise"), (0.95, "simultaneous")])
def test_the_only_feature(level, method):
    X, y = data()
    model = NadarayaWatson(bandwidth=0.3, random_state=0).fit(X, y)
    display = model.plot(level=level, method=method)
    x = np.linspace(X.min(), X.max(), 200)
    np.testing.assert_allclose(display.line_.get_xdata(), x)
    np.testing.assert_allclose(display.line_.get_ydata(), model.predict(x[:, None]))
    at, lower, upper = ends(display.band_)
    np.testing.assert_allclose(at, x)
    np.testing.assert_allclose([lower, upper], model.band(x[:, None], level, method))
    np.testing.assert_allclose(display.points_.get_offsets(), np.column_stack([X, y]))
    assert display.figure_ is display.ax_.figure


def test_a_feature_among_several_has_the_others_at_their_medians():
    X, y = data(d=3)
    frame = pd.DataFrame(X, columns=["age", "height", "weight"])
    model = NadarayaWatson(bandwidth=[0.5, 1.0, 1.5]).fit(frame, y)
    display = RegressionDisplay.from_estimator(model, "height", grid_resolution=7)
    queries = pd.DataFrame(np.tile(np.median(X, axis=0), (7, 1)), columns=frame.columns)
    queries["height"] = np.linspace(X[:, 1].min(), X[:, 1].max(), 7)
    np.testing.assert_allclose(display.line_.get_ydata(), model.predict(queries))
    np.testing.assert_allclose([display.lower, display.upper], model.band(queries))
    assert display.ax_.get_xlabel() == "height"
    np.testing.assert_array_equal(display.points_.get_xdata(), X[:, 1])
    np.testing.assert_allclose(model.plot(1).line_.get_ydata()[0], display.line_.get_ydata()[0])


def test_medians_are_those_of_the_weight():
    X, y = data(d=2)
    copies = np.arange(len(X)) % 4
    weighted = NadarayaWatson(bandwidth=0.5).fit(X, y, copies)
    X, y = np.repeat(X, copies, axis=0), np.repeat(y, copies)
    repeated = RegressionDisplay.from_estimator(NadarayaWatson(bandwidth=0.5).fit(X, y), level=None)
    expected = weighted.predict(np.column_stack([repeated.x, np.full(200, np.median(X[:, 1]))]))
    np.testing.assert_allclose(repeated.mean, expected)
    display = RegressionDisplay.from_estimator(weighted, level=None)
    np.testing.assert_allclose(np.interp(repeated.x, display.x, display.mean), expected, atol=1e-3)


def test_one_of_several_targets():
    X, y = data()
    model = NadarayaWatson(bandwidth=0.3).fit(X, np.column_stack([y, -y]))
    curves = [RegressionDisplay.from_estimator(model, target=t).mean for t in (0, 1)]
    np.testing.assert_allclose(curves[0], -curves[1])


def test_models_without_a_band():
    X, y = data(d=2)
    model = MultiHeadKernelRegression(2, n_steps=2, random_state=0).fit(X, y)
    display = RegressionDisplay.from_estimator(model, 1, level=None)
    queries = np.column_stack([np.full(200, np.median(X[:, 0])), display.x])
    np.testing.assert_allclose(display.mean, model.predict(queries))


def test_given_axes_and_no_band():
    X, y = data()
    figure, ax = pyplot.subplots()
    display = NadarayaWatson(bandwidth=0.3).fit(X, y).plot(ax=ax, level=None)
    assert (display.ax_, display.figure_, display.band_) == (ax, figure, None)
    assert pyplot.get_fignums() == [figure.number]
    again = display.plot(color="black", linestyle="--")
    assert again.ax_ is not ax
    assert again.line_.get_color() == "black"


def test_many_points_are_thinned():
    X, y = data(20_000)
    display = NadarayaWatson("epanechnikov", 0.3).fit(X, y).plot(level=None)
    drawn = display.points_.get_offsets()
    assert len(drawn) == 5000
    assert {*drawn[:, 0]} <= {*X[:, 0]}


def test_densities():
    X, _ = data()
    model = NadarayaWatsonDensity(bandwidth=0.3).fit(X)
    display = model.plot()
    x, height = display.line_.get_data()
    np.testing.assert_allclose(height, np.exp(model.score_samples(x[:, None])))
    assert np.trapezoid(height, x) == pytest.approx(1.0, abs=2e-3)
    np.testing.assert_array_equal(display.points_.get_xdata(), X[:, 0])
    plane, _ = data(d=2)
    model = NadarayaWatsonDensity(bandwidth=[0.3, 0.5]).fit(plane)
    display = model.plot()
    first, second = display.axes
    assert display.density[5, 40] == pytest.approx(
        np.exp(model.score_samples([[first[40], second[5]]])[0]), rel=1e-9
    )
    assert np.trapezoid(np.trapezoid(display.density, first), second) == pytest.approx(1.0, abs=5e-3)
    assert len(display.contours_.levels) > 3


def test_probabilities():
    X, y = data()
    labels = np.digitize(y, [-0.5, 0.5])
    model = NadarayaWatsonClassifier(bandwidth=0.3).fit(X, np.array(["low", "middle", "high"])[labels])
    display = model.plot()
    for line, name, column in zip(
        display.lines_, model.classes_, model.predict_proba(display.axes[0][:, None]).T, strict=True
    ):
        assert line.get_label() == name
        np.testing.assert_allclose(line.get_ydata(), column)
    plane, y = data(d=2)
    model = NadarayaWatsonClassifier(bandwidth=0.5).fit(plane, y > 0)
    display = ClassifierDisplay.from_estimator(model, grid_resolution=9)
    first, second = display.axes
    np.testing.assert_allclose(
        display.probability[2, 7], model.predict_proba([[first[7], second[2]]])[0], rtol=1e-9
    )
    mixture = display.image_.get_array()
    sure, unsure = np.unravel_index(
        [display.probability[..., 1].argmax(), display.probability[..., 1].argmin()], (9, 9)
    )
    assert not np.allclose(mixture[sure[0], unsure[0]], mixture[sure[1], unsure[1]], atol=0.1)
    assert [len(points.get_offsets()) for points in display.points_] == [(y <= 0).sum(), (y > 0).sum()]


def test_constant_features_and_classes():
    NadarayaWatson(bandwidth=1.0).fit([[2.0], [2.0]], [0.0, 1.0]).plot()
    display = NadarayaWatsonClassifier(bandwidth=1.0).fit([[2.0, 1.0], [2.0, 3.0]], ["a", "a"]).plot()
    assert (display.probability == 1).all()


def test_bad_input_is_one_line():
    X, y = data(d=3)
    model = NadarayaWatson(bandwidth=1.0).fit(X, y)
    with pytest.raises(InputError, match="feature must be one of 'x0', 'x1', 'x2', got 'x4'"):
        model.plot("x4")
    with pytest.raises(InputError, match="feature must be a whole number from 0 to 2, got 3"):
        model.plot(3)
    with pytest.raises(InputError, match="target must be a whole number from 0 to 0, got 1"):
        RegressionDisplay.from_estimator(model, target=1)
    with pytest.raises(InputError, match="level must be"):
        model.plot(level=2.0)
    for other in (NadarayaWatsonDensity(), NadarayaWatsonClassifier()):
        with pytest.raises(InputError, match="number of features of a plot must be 1 or 2, got 3"):
            other.fit(X, y > 0).plot()
    with pytest.raises(NotFittedError):
        NadarayaWatson().plot()


def test_the_colours_are_those_of_the_reports():
    from nadaraya.regression import displays
    from nadaraya.report.palette import COLOURS

    known = {colours[0] for colours in COLOURS.values()}
    assert {displays.BLUE, displays.INK, displays.MUTED, *displays.CLASSES} <= known


def test_matplotlib_is_imported_when_something_is_drawn():
    program = """
import sys
sys.modules["matplotlib"] = None  # importing it now raises
from nadaraya.regression import RegressionDisplay
try:
    RegressionDisplay(x=[0.0, 1.0], mean=[0.0, 1.0]).plot()
except ValueError as error:
    print(error)
"""
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert done.stdout == 'plots need matplotlib: pip install "nadaraya[report]"\n'
