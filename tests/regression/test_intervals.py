"""Local standard deviations of the targets, and bands for the curve."""

import numpy as np
import pytest
from scipy.stats import norm

from nadaraya.regression import NadarayaWatson

METHODS = ("pointwise", "bootstrap", "simultaneous")
GRID = np.linspace(0.1, 0.9, 17)[:, None]


def curve(x):
    return np.sin(4 * x[:, 0])


def noise(x):
    return 0.1 + 0.4 * x[:, 0]


def sample(n, seed, d=1):
    random = np.random.default_rng(seed)
    X = random.random((n, d))
    return X, curve(X) + noise(X) * random.normal(size=n)


def smoother_matrix(model, X, queries, weight=None):
    """(m, n), the predictions of the unit vectors."""
    refit = NadarayaWatson(model.kernel, model.bandwidth_, degree=model.degree)
    return refit.fit(X, np.eye(len(X)), weight).predict(queries)


@pytest.mark.parametrize("degree", [0, 1])
@pytest.mark.parametrize("kernel", ["gaussian", "matern32", "epanechnikov"])
def test_the_noise_curve_is_recovered(kernel, degree):
    errors = []
    for seed in range(3):
        X, y = sample(3000, seed)
        model = NadarayaWatson(
            kernel, {"gaussian": 0.05, "matern32": 0.03}.get(kernel, 0.1), degree=degree
        ).fit(X, y)
        errors.append(model.predict(GRID, return_std=True)[1] / noise(GRID) - 1)
    assert np.abs(np.mean(errors)) < 0.03
    assert np.abs(errors).mean() < 0.08


@pytest.mark.parametrize("degree", [0, 1])
@pytest.mark.parametrize("weighted", [False, True])
def test_definitions(degree, weighted):
    """Residuals over √((1 − 2 L_ii) / w_i + Σ L_ij² / w_j), squares smoothed; the band from Σ L² σ² / w."""
    X, y = sample(80, 0, d=2)
    weight = np.random.default_rng(1).uniform(0.2, 2.0, 80) if weighted else np.ones(80)
    queries = X[:15] + 0.01
    model = NadarayaWatson("gaussian", [0.2, 0.4], degree=degree).fit(X, y, weight)
    own, at = smoother_matrix(model, X, X, weight), smoother_matrix(model, X, queries, weight)
    relative = weight.mean() / weight
    squares = (y - own @ y) ** 2 / ((1 - 2 * own.diagonal()) * relative + own**2 @ relative)
    gram = [weight * np.exp(-0.5 * (((q[:, None] - X) / [0.2, 0.4]) ** 2).sum(axis=2)) for q in (X, queries)]
    at_points, at_queries = (g @ squares / g.sum(axis=1) for g in gram)
    mean, deviation = model.predict(queries, return_std=True)
    np.testing.assert_allclose(deviation, np.sqrt(at_queries), rtol=1e-9)
    for level in (0.5, 0.95):
        half = norm.ppf(0.5 + level / 2) * np.sqrt(at**2 @ (at_points * relative))
        lower, upper = model.band(queries, level=level)
        np.testing.assert_allclose(upper - mean, half, rtol=1e-8)
        np.testing.assert_allclose(mean - lower, half, rtol=1e-8)


@pytest.mark.slow
@pytest.mark.parametrize("degree", [0, 1])
def test_coverage(degree):
    """Of E f(x), over targets drawn again at the same points; at level 0.9."""
    random = np.random.default_rng(0)
    X = random.random((300, 1))
    model = NadarayaWatson(bandwidth=0.05, degree=degree, random_state=0)
    expected = model.fit(X, curve(X)).predict(GRID)
    covered = {method: [] for method in METHODS}
    for draw in range(100):
        model.fit(X, curve(X) + noise(X) * random.normal(size=300))
        for method in METHODS[: 3 if draw < 40 else 1]:
            lower, upper = model.band(GRID, level=0.9, method=method, n_bootstrap=149)
            covered[method].append((lower <= expected) & (expected <= upper))
    assert 0.85 < np.mean(covered["pointwise"]) < 0.94
    assert 0.82 < np.mean(covered["bootstrap"]) < 0.95
    assert 0.75 < np.all(covered["simultaneous"], axis=1).mean() <= 1.0
    assert np.all(covered["pointwise"], axis=1).mean() < 0.65


@pytest.mark.parametrize("degree", [0, 1])
def test_methods_compare(degree):
    X, y = sample(400, 1)
    model = NadarayaWatson(bandwidth=0.06, degree=degree, random_state=0).fit(X, y)
    width = {}
    for method in METHODS:
        lower, upper = model.band(GRID, method=method)
        assert lower.shape == upper.shape == (17,)
        width[method] = upper - lower
    np.testing.assert_allclose(width["bootstrap"], width["pointwise"], rtol=0.2)
    assert (width["simultaneous"] > 1.15 * width["pointwise"]).all()
    for method in METHODS:
        wide, narrow = (np.subtract(*model.band(GRID, level, method)[::-1]) for level in (0.99, 0.5))
        assert (wide > width[method]).all()
        assert (width[method] > narrow).all()


@pytest.mark.parametrize("method", METHODS)
def test_several_targets(method):
    X, y = sample(100, 2)
    both = NadarayaWatson(bandwidth=0.1, random_state=0).fit(X, np.stack([y, 10 - 5 * y], axis=1))
    alone = NadarayaWatson(bandwidth=0.1, random_state=0).fit(X, y)
    lower, upper = both.band(GRID, method=method)
    assert lower.shape == upper.shape == (17, 2)
    for got, wanted in zip((lower, upper), alone.band(GRID, method=method), strict=True):
        np.testing.assert_allclose(got[:, 0], wanted, rtol=1e-9)
    np.testing.assert_allclose(upper[:, 1], 10 - 5 * lower[:, 0], rtol=1e-9)
    np.testing.assert_allclose(lower[:, 1], 10 - 5 * upper[:, 0], rtol=1e-9)
    deviation = both.predict(GRID, return_std=True)[1]
    np.testing.assert_allclose(deviation[:, 1], 5 * deviation[:, 0], rtol=1e-9)


def test_random_state():
    X, y = sample(50, 3)
    bands = [
        NadarayaWatson(bandwidth=0.1, random_state=seed).fit(X, y).band(GRID, method="bootstrap")[0]
        for seed in (0, 0, 1)
    ]
    np.testing.assert_array_equal(bands[0], bands[1])
    assert (bands[0] != bands[2]).any()


@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize("degree", [0, 1])
def test_without_residuals(method, degree):
    """Points that determine their own fit say nothing of the noise, and a warning says so."""
    for X, y in (([[1.0]], [3.0]), ([[0.0], [1.0], [2.0]], [1.0, 2.0, 4.0])):
        model = NadarayaWatson("epanechnikov", 0.5, degree=degree).fit(X, y)
        with pytest.warns(UserWarning, match="goes through every observation"):
            assert np.isnan(model.predict(X, return_std=True)[1]).all()
        assert np.isnan(model.band(X, method=method, n_bootstrap=9)).all()


@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize("degree", [0, 1])
def test_beyond_the_support_there_is_no_band(method, degree):
    """Where every weight is zero nothing is known of the curve, by any method, and nothing is warned of."""
    X, y = sample(60, 4)
    model = NadarayaWatson("tricube", 0.2, degree=degree, random_state=0).fit(X, y)
    lower, upper = model.band([[9.0]], method=method, n_bootstrap=49)
    assert np.isnan(lower).all()
    assert np.isnan(upper).all()


def test_noise_does_not_see_points_without_weight():
    X, y = sample(60, 5)
    weight = np.ones(60)
    weight[::4] = 0.0
    wild = np.where(weight == 0, 1e6, y)
    model = NadarayaWatson(bandwidth=0.1).fit(X, wild, weight)
    other = NadarayaWatson(bandwidth=0.1).fit(X[weight > 0], y[weight > 0])
    for got, wanted in zip(
        (*model.predict(GRID, return_std=True), *model.band(GRID)),
        (*other.predict(GRID, return_std=True), *other.band(GRID)),
        strict=True,
    ):
        np.testing.assert_allclose(got, wanted, rtol=1e-8)
