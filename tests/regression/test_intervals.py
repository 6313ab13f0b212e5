"""Local standard deviations of the targets, and bands for the curve."""

import warnings

import numpy as np
import pytest
from scipy.stats import t

from nadaraya.errors import InputError
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
    """Residuals over √((1 − 2 L_ii) / w_i + Σ L_ij² / w_j), squares smoothed; bands are t √(σ² Σ L² / w)."""
    X, y = sample(80, 0, d=2)
    weight = np.random.default_rng(1).uniform(0.2, 2.0, 80) if weighted else np.ones(80)
    queries = X[:15] + 0.01
    model = NadarayaWatson("gaussian", [0.2, 0.4], degree=degree).fit(X, y, weight)
    own, at = smoother_matrix(model, X, X, weight), smoother_matrix(model, X, queries, weight)
    relative = weight.mean() / weight
    left = (1 - 2 * own.diagonal()) * relative + own**2 @ relative
    gram = weight * np.exp(-0.5 * (((queries[:, None] - X) / [0.2, 0.4]) ** 2).sum(axis=2))
    share = gram / gram.sum(axis=1, keepdims=True)
    scatter = np.sqrt(share @ ((y - own @ y) ** 2 / left))
    deviation = model.predict(queries, return_std=True)[1]
    np.testing.assert_allclose(deviation, scatter, rtol=1e-9)
    freedom = 1 / (share**2 @ (relative / left))
    quadratic = quadratic_weights(X, queries, gram)
    for of, rows in (("smooth", at), ("curve", quadratic)):
        half = t.ppf(0.9, freedom) * scatter * np.sqrt(rows**2 @ relative)
        lower, upper = model.band(queries, level=0.8, of=of)
        np.testing.assert_allclose((upper - lower) / 2, half, rtol=1e-7)
        np.testing.assert_allclose((upper + lower) / 2, rows @ y, rtol=1e-7)


def quadratic_weights(X, queries, gram):
    """(m, n): those of the targets in weighted least squares of all monomials up to degree 2."""
    rows = []
    for query, weight in zip(queries, gram, strict=True):
        a, b = (X - query).T
        design = np.column_stack([np.ones(len(X)), a, b, a * a, a * b, b * b])
        root = np.sqrt(weight)[:, None]
        rows.append(np.linalg.lstsq(root * design, np.diag(root[:, 0]), rcond=None)[0][0])
    return np.array(rows)


@pytest.mark.parametrize("degree", [0, 1])
def test_wide_bandwidths_give_the_classical_interval(degree):
    """Of the mean or the least-squares line, with n − p degrees of freedom; exact for equal leverages."""
    X, y = sample(12, 0)
    design = np.column_stack([np.ones(12), X])[:, : degree + 1]
    at = np.column_stack([np.ones(17), GRID])[:, : degree + 1]
    coefficients, squares, *_ = np.linalg.lstsq(design, y, rcond=None)
    freedom = 12 - degree - 1
    norm = np.sqrt(np.einsum("mk,kl,ml->m", at, np.linalg.inv(design.T @ design), at))
    half = t.ppf(0.975, freedom) * np.sqrt(squares[0] / freedom) * norm
    lower, upper = NadarayaWatson(bandwidth=1e6, degree=degree).fit(X, y).band(GRID, of="smooth")
    np.testing.assert_allclose((lower + upper) / 2, at @ coefficients, rtol=1e-6)
    np.testing.assert_allclose((upper - lower) / 2, half, rtol=0.05 if degree else 1e-6)


@pytest.mark.parametrize("of", ["smooth", "curve"])
@pytest.mark.parametrize("degree", [0, 1])
def test_coverage(degree, of):
    """Over 200 targets at the same 60 points; `experiments/coverage.py` has more."""
    random = np.random.default_rng(0)
    X = random.random((60, 1))
    Y = curve(X)[:, None] + noise(X)[:, None] * random.normal(size=(60, 200))
    expected = NadarayaWatson(bandwidth=0.1, degree=degree).fit(X, curve(X)).predict(GRID)
    if of == "curve":
        assert np.abs(expected - curve(GRID)).max() > 0.05
        expected = curve(GRID)
    model = NadarayaWatson(bandwidth=0.1, degree=degree, random_state=0).fit(X, Y)
    for method in METHODS:
        lower, upper = model.band(GRID, method=method, n_bootstrap=99, of=of)
        covered = (lower <= expected[:, None]) & (expected[:, None] <= upper)
        share = covered.all(axis=0).mean() if method == "simultaneous" else covered.mean()
        assert 0.91 < share < 0.985, method
        if method == "pointwise":
            assert covered.all(axis=0).mean() < 0.85


@pytest.mark.parametrize("degree", [0, 1])
def test_standard_errors_of_slopes(degree):
    """Weights of the targets by central differences of the fit (degree 0) or of least squares (degree 1)."""
    X, y = sample(80, 0, d=2)
    queries, h = X[:15] + 0.01, np.array([0.2, 0.4])
    model = NadarayaWatson(bandwidth=h, degree=degree).fit(X, y)
    unit = NadarayaWatson(bandwidth=h, degree=degree).fit(X, np.eye(80))
    effects, deviation = model.marginal_effects(queries, return_std=True)
    scatter = model.predict(queries, return_std=True)[1]
    assert effects.shape == deviation.shape == (15, 2)
    weights = unit.marginal_effects(queries)
    np.testing.assert_allclose(weights @ y, effects, rtol=1e-8)
    np.testing.assert_allclose(deviation, scatter[:, None] * np.sqrt((weights**2).sum(axis=2)), rtol=1e-7)
    both = NadarayaWatson(bandwidth=h, degree=degree).fit(X, np.stack([y, 2 * y], axis=1))
    np.testing.assert_allclose(
        both.marginal_effects(queries, return_std=True)[1],
        deviation[:, :, None] * [1.0, 2.0],
        rtol=1e-9,
    )


@pytest.mark.parametrize("degree", [0, 1])
def test_coverage_of_slopes(degree):
    random = np.random.default_rng(0)
    X = random.random((200, 1))
    Y = curve(X)[:, None] + noise(X)[:, None] * random.normal(size=(200, 300))
    model = NadarayaWatson(bandwidth=0.1, degree=degree).fit(X, Y)
    expected = NadarayaWatson(bandwidth=0.1, degree=degree).fit(X, curve(X)).marginal_effects(GRID)
    effects, deviation = model.marginal_effects(GRID, return_std=True)
    assert 0.93 < (np.abs(effects - expected[..., None]) <= 1.96 * deviation).mean() < 0.97


@pytest.mark.parametrize("of", ["smooth", "curve"])
@pytest.mark.parametrize("degree", [0, 1])
def test_methods_compare(degree, of):
    X, y = sample(400, 1)
    model = NadarayaWatson(bandwidth=0.06, degree=degree, random_state=0).fit(X, y)
    width = {}
    for method in METHODS:
        lower, upper = model.band(GRID, method=method, of=of)
        assert lower.shape == upper.shape == (17,)
        width[method] = upper - lower
    np.testing.assert_allclose(width["bootstrap"], width["pointwise"], rtol=0.2)
    assert (width["simultaneous"] > 1.15 * width["pointwise"]).all()
    for method in METHODS:
        wide, narrow = (np.subtract(*model.band(GRID, level, method, of=of)[::-1]) for level in (0.99, 0.5))
        assert (wide > width[method]).all()
        assert (width[method] > narrow).all()


def test_bands_of_the_curve_are_wider_and_unbiased():
    """At a peak: the smooth passes below it, the band of the curve is about the local quadratic."""
    X = np.linspace(0, 1, 101)[:, None]
    y = -((X[:, 0] - 0.5) ** 2)
    model = NadarayaWatson(bandwidth=0.1, degree=1).fit(X, y)
    lower, upper = model.band([[0.5]])
    assert (lower + upper) / 2 == pytest.approx(0.0, abs=1e-9)
    smooth = model.band([[0.5]], of="smooth")
    assert smooth[1] < -0.005
    assert upper - lower > np.subtract(*smooth[::-1])
    with pytest.raises(InputError, match="of"):
        model.band(X, of="truth")


def test_ordinary_data_warn_of_nothing():
    X, y = sample(40, 6, d=2)
    X[0] = 30.0
    queries = np.concatenate([X, np.linspace(-10, 40, 60)[:, None] * [1.0, 1.0]])
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        for kernel in ("gaussian", "exponential", "tricube"):
            for degree in (0, 1):
                model = NadarayaWatson(kernel, 1.5, degree=degree, random_state=0).fit(X, y)
                model.predict(queries, return_std=True)
                model.marginal_effects(queries, return_std=True)
                for method in METHODS:
                    for of in ("smooth", "curve"):
                        band = model.band(queries, method=method, n_bootstrap=19, of=of)
                        assert kernel == "tricube" or np.isfinite(band).all()


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
