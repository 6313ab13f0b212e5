"""Local lines: what they reproduce exactly, and where points do not determine a line."""

import numpy as np
import pytest

from nadaraya.kernels import Gaussian, Matern, Periodic
from nadaraya.regression import NadarayaWatson

NAMES = ("gaussian", "exponential", "matern32", "matern52", "epanechnikov", "tricube", "boxcar")


def points(n=150, d=2, seed=0):
    return np.random.default_rng(seed).random((n, d)) * np.linspace(1.0, 4.0, d)


@pytest.mark.parametrize("kernel", [*NAMES, Gaussian(0.5) + Matern(1.0), Periodic(0.5, 1.0) * Gaussian(2.0)])
@pytest.mark.parametrize("d", [1, 2])
def test_linear_functions_are_reproduced(kernel, d):
    """Everywhere in the data, on its boundary and, for kernels of unbounded support, beyond it."""
    X, slope = points(d=d), np.array([2.0, -0.7])[:d]
    y = 1e3 + X @ slope
    corners = np.stack([np.zeros(d), np.linspace(1.0, 4.0, d)])
    model = NadarayaWatson(kernel, np.linspace(0.4, 1.6, d), degree=1).fit(X, y)
    for queries in (X, corners):
        np.testing.assert_allclose(model.predict(queries), 1e3 + queries @ slope, rtol=1e-9)
        np.testing.assert_allclose(
            model.marginal_effects(queries), np.tile(slope, (len(queries), 1)), atol=1e-6
        )
    np.testing.assert_allclose(model.loo_predictions(), y, rtol=1e-9)
    assert model.predict(X, return_std=True)[1].max() < 1e-6


def test_weighted_least_squares():
    """Against NumPy's solution of each weighted problem."""
    random = np.random.default_rng(1)
    X, weight = points(), random.random(150)
    Y = np.stack([np.sin(5 * X[:, 0]) + X[:, 1] ** 2, X[:, 0] * X[:, 1]], axis=1)
    queries = 1.1 * points(20, seed=2)
    h = np.array([0.3, 0.9])
    model = NadarayaWatson("matern32", h, degree=1).fit(X, Y, weight)
    mean, effects = model.predict(queries), model.marginal_effects(queries)
    for i, query in enumerate(queries):
        r = np.sqrt(3) * np.linalg.norm((X - query) / h, axis=1)
        root = np.sqrt(weight * (1 + r) * np.exp(-r))[:, None]
        design = np.column_stack([np.ones(150), X - query])
        coefficients = np.linalg.lstsq(root * design, root * Y, rcond=None)[0]
        np.testing.assert_allclose(mean[i], coefficients[0], rtol=1e-8)
        np.testing.assert_allclose(effects[i], coefficients[1:], rtol=1e-7, atol=1e-8)


@pytest.mark.parametrize("name", NAMES)
def test_global_line(name):
    """With a bandwidth far wider than the data every line is that of least squares."""
    X = points()
    y = np.sin(5 * X[:, 0]) + X[:, 1]
    line = np.linalg.lstsq(np.column_stack([np.ones(150), X]), y, rcond=None)[0]
    model = NadarayaWatson(name, 1e5, degree=1).fit(X, y)
    np.testing.assert_allclose(model.predict(X), line[0] + X @ line[1:], atol=2e-4)


@pytest.mark.parametrize("name", NAMES)
def test_a_constant_feature_has_no_slope(name):
    """Off the value that all points share, too, the fit is that without the feature: its weight is common."""
    X = points(d=1)
    y = np.sin(5 * X[:, 0]) + 5
    flat = np.column_stack([X, np.full(150, 3.0)])
    model = NadarayaWatson(name, [0.3, 2.0], degree=1).fit(flat, y)
    bare = NadarayaWatson(name, 0.3, degree=1).fit(X, y)
    # The Gaussian factorises, so it is unaffected anywhere; the others at the shared value.
    for offset in (0.0, 1.0, 3.0) if name == "gaussian" else (0.0,):
        queries = np.column_stack([X, np.full(150, 3.0 + offset)])
        np.testing.assert_allclose(model.predict(queries), bare.predict(X), rtol=1e-8)
        np.testing.assert_allclose(model.marginal_effects(queries)[:, 1], 0.0, atol=1e-8)


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("shift", [0.0, 100.0])
def test_one_point_in_reach_gives_its_value(name, shift):
    """No line is determined where one point outweighs all others: the fit is constant there."""
    X = np.array([[0.0], [1.0], [2.0], [3.0]])
    y = np.array([0.0, 1.0, 4.0, 9.0]) + shift
    model = NadarayaWatson(name, 0.008 if name != "boxcar" else 0.2, degree=1).fit(X, y)
    queries = np.array([[0.1], [0.9], [2.1], [3.15]])
    np.testing.assert_allclose(model.predict(queries), y, rtol=1e-6, atol=1e-6)
    np.testing.assert_allclose(model.marginal_effects(queries)[:, 0], 0.0, atol=1e-6)


def test_predictions_do_not_depend_on_what_is_far_away():
    """The mean of the targets is no part of a local line, determined or not."""
    random = np.random.default_rng(3)
    X = np.concatenate([random.random((30, 1)), 100 + random.random((30, 1)), [[50.0]]])
    y = np.concatenate([random.random(30), np.full(30, 1000.0), [7.0]])
    model = NadarayaWatson("tricube", 1.5, degree=1).fit(X, y)
    near = NadarayaWatson("tricube", 1.5, degree=1).fit(X[:30], y[:30])
    np.testing.assert_allclose(model.predict(X[:30]), near.predict(X[:30]), rtol=1e-8)
    np.testing.assert_allclose(model.predict([[49.5], [50.0], [50.5]]), 7.0, rtol=1e-8)


def test_boundary_bias():
    """At the edge a local constant is off by the slope, a local line is not."""
    random = np.random.default_rng(0)
    X = np.sort(random.random((400, 1)), axis=0)
    y = 10 * X[:, 0] + 0.1 * random.normal(size=400)
    constant, line = (NadarayaWatson(bandwidth=0.1, degree=degree).fit(X, y) for degree in (0, 1))
    edge = np.array([[0.0], [1.0]])
    assert (np.abs(constant.predict(edge) - [0, 10]) > 0.5).all()
    assert (np.abs(line.predict(edge) - [0, 10]) < 0.1).all()


def test_copies_and_few_points():
    X, y = np.array([[1.0, 2.0]] * 3), np.array([1.0, 2.0, 6.0])
    for bandwidth in (0.5, "loo", "aic", "scott"):
        model = NadarayaWatson(bandwidth=bandwidth, degree=1).fit(X, y)
        np.testing.assert_allclose(model.predict([[1.0, 2.0], [3.0, -1.0]]), 3.0, rtol=1e-9)
    two = NadarayaWatson(bandwidth=1.0, degree=1).fit([[0.0], [1.0]], [0.0, 2.0])
    np.testing.assert_allclose(two.predict([[0.5], [2.0]]), [1.0, 4.0], rtol=1e-9)
