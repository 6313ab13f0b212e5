"""Local lines: what they reproduce exactly, and where points do not determine a line."""

import numpy as np
import pytest
import torch

from nadaraya.kernels import Gaussian, Matern, Periodic
from nadaraya.regression import NadarayaWatson
from nadaraya.regression.criteria import DifferentiableCriterion, regression_criterion
from nadaraya.regression.local import damped_inverse, is_damped
from nadaraya.regression.requests import Moments

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


@pytest.mark.parametrize("kernel", ["gaussian", "matern32", "exponential"])
def test_beside_an_outlier_lines_level_off_without_jumps(kernel):
    """In the gap one point outweighs all others: the line through it and the next is not drawn for ever."""
    random = np.random.default_rng(0)
    X = np.append(10 * random.random(100), 100.0)[:, None]
    y = 5 * X[:, 0] + 5 * random.normal(size=101)
    model = NadarayaWatson(kernel, 1.0, degree=1).fit(X, y)
    gap = np.linspace(10, 100, 3001)[:, None]
    mean = model.predict(gap)
    assert np.abs(mean).max() < 1000
    finer = model.predict((gap[:-1] + gap[1:]) / 2)
    middle, step = (mean[:-1] + mean[1:]) / 2, np.abs(np.diff(mean))
    # Halving the distance between queries halves the steps: no jump is left between any two.
    assert np.abs(finer - middle).max() < 0.5 * step.max()
    place = step.argmax()
    fine = model.predict(np.linspace(gap[place, 0], gap[place + 1, 0], 1001)[:, None])
    assert np.abs(np.diff(fine)).max() < 0.05 * step.max()


def test_damping_does_not_count_where_points_determine_a_line():
    """Within 1e-10 of the inverse from a variance of 4.8e-4 of the squared offsets on; zero at zero."""
    random = np.random.default_rng(0)
    axes = np.linalg.qr(random.normal(size=(50, 3, 3)))[0]
    variances = np.sort(np.exp(random.uniform(np.log(4.8e-4), 0.0, size=(50, 3))), axis=1)
    matrices = torch.tensor((axes * variances[:, None]) @ axes.transpose(0, 2, 1))
    np.testing.assert_allclose(damped_inverse(matrices) @ matrices, np.tile(np.eye(3), (50, 1, 1)), atol=1e-9)
    assert (damped_inverse(torch.zeros(1, 2, 2)) == 0).all()
    small = damped_inverse(torch.tensor([[[1e-9, 0.0], [0.0, 1.0]]], dtype=torch.float64))
    np.testing.assert_allclose(small, [[[0.1, 0.0], [0.0, 1.0]]], rtol=1e-9)


@pytest.mark.parametrize("equal", [False, True])
def test_derivative_of_the_damped_inverse(equal):
    random = np.random.default_rng(1)
    axes = np.linalg.qr(random.normal(size=(3, 3)))[0]
    for variances in ([1e-5, 8e-5, 0.7], [2e-4, 2e-4, 0.5], [3e-9, 1e-4, 1.0]):
        matrix = (axes * variances) @ axes.T
        change = random.normal(size=(3, 3))
        change = change + change.T
        if equal:
            change = np.eye(3)
        step = 1e-10
        ends = damped_inverse(torch.tensor(np.stack([matrix - step * change, matrix + step * change])))
        at, along = torch.tensor(matrix[None]), torch.tensor(change[None])
        exact = torch.autograd.functional.jvp(damped_inverse, at, along)[1][0]
        np.testing.assert_allclose(
            (ends[1] - ends[0]) / (2 * step), exact, rtol=1e-3, atol=1e-3 * exact.abs().max()
        )


@pytest.mark.parametrize("criterion", ["loo", "aic"])
@pytest.mark.parametrize("d", [1, 2])
def test_gradients_where_lines_are_damped(d, criterion):
    """By formula, by automatic differentiation and by differences, with points that stand alone."""
    random = np.random.default_rng(0)
    X = random.random((25, d))
    X[:2] = [[5.0], [8.0]]
    y = np.sin(4 * X[:, 0]) + 0.3 * random.normal(size=25)
    model = NadarayaWatson(Gaussian(1.0), [0.05, 0.08][:d], degree=1).fit(X, y, random.random(25) + 0.5)
    smoother, targets = model._smoother, model._targets
    assert is_damped(smoother.answer(Moments, None, targets.T)).any()
    function = regression_criterion(criterion, smoother, targets)
    at = np.log(smoother.bandwidth)
    score, gradient = function(at)
    differences = [(function(at + e)[0] - function(at - e)[0]) / 2e-5 for e in 1e-5 * np.eye(d)]
    np.testing.assert_allclose(gradient, differences, rtol=1e-5)
    automatic = DifferentiableCriterion(criterion, smoother, targets)
    parameters = torch.nn.utils.parameters_to_vector(smoother.kernel.parameters()).tolist()
    value, by_all = automatic(np.append(at, parameters))
    assert value == pytest.approx(score, abs=1e-8)
    np.testing.assert_allclose(by_all[:d], gradient, rtol=1e-6)
