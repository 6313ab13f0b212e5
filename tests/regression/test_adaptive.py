"""Bandwidths that follow the distance to the k-th nearest neighbour."""

import numpy as np
import pytest

from nadaraya.regression import NadarayaWatson


def data(n=80, d=2, seed=0):
    random = np.random.default_rng(seed)
    X = random.normal(size=(n, d)) * np.linspace(1.0, 2.0, d)
    return X, np.sin(2 * X[:, 0]) + 0.2 * random.normal(size=n)


def kth_distance(queries, X, k, exclude_self=False):
    scaled = X / X.std(axis=0)
    distances = np.linalg.norm((queries / X.std(axis=0))[:, None] - scaled, axis=2)
    if exclude_self:
        np.fill_diagonal(distances, np.inf)
    return np.sort(distances, axis=1)[:, k - 1]


@pytest.mark.parametrize("degree", [0, 1])
@pytest.mark.parametrize("k", [1, 7])
def test_definition(k, degree):
    """At every query the fit is that with the bandwidth there."""
    X, y = data()
    queries = 1.3 * X[:12] + 0.1
    own = kth_distance(X, X, k, exclude_self=True)
    scale = np.maximum(kth_distance(queries, X, k), own.min()) / np.exp(np.log(own).mean())
    h = np.array([0.6, 0.9])
    adaptive = NadarayaWatson("matern32", h, adaptive=k, degree=degree).fit(X, y)
    expected = [
        NadarayaWatson("matern32", h * factor, degree=degree).fit(X, y).predict(query[None])[0]
        for query, factor in zip(queries, scale, strict=True)
    ]
    np.testing.assert_allclose(adaptive.predict(queries), expected, rtol=1e-7)


def test_leave_one_out_has_the_scale_of_each_point():
    X, y = data(40)
    own = kth_distance(X, X, 3, exclude_self=True)
    scale = own / np.exp(np.log(own).mean())
    adaptive = NadarayaWatson(bandwidth=0.8, adaptive=3).fit(X, y)
    expected = [
        NadarayaWatson(bandwidth=0.8 * scale[i])
        .fit(np.delete(X, i, 0), np.delete(y, i))
        .predict(X[i : i + 1])[0]
        for i in range(40)
    ]
    np.testing.assert_allclose(adaptive.loo_predictions(), expected, rtol=1e-9)


def test_points_evenly_spaced_get_one_bandwidth():
    X = np.arange(400.0)[:, None]
    y = np.sin(X[:, 0] / 20)
    inside = X[50:350]
    plain, adaptive = (NadarayaWatson(bandwidth=5.0, adaptive=k).fit(X, y) for k in (None, 2))
    away = np.abs(plain.loo_predictions() - adaptive.loo_predictions())[50:350]
    assert away.max() < 2e-3
    assert np.abs(plain.predict(inside) - y[50:350]).max() > 1e-2


@pytest.mark.parametrize("criterion", ["loo", "aic"])
@pytest.mark.parametrize("degree", [0, 1])
def test_units_and_order(criterion, degree):
    X, y = data()
    units = np.array([1e3, 1e-2])
    order = np.random.default_rng(1).permutation(len(X))
    model = NadarayaWatson(bandwidth=criterion, adaptive=5, degree=degree, n_starts=1).fit(X, y)
    other = NadarayaWatson(bandwidth=criterion, adaptive=5, degree=degree, n_starts=1)
    other.fit(units * X[order] - 4.0, y[order])
    np.testing.assert_allclose(other.bandwidth_, units * model.bandwidth_, rtol=1e-3)


def test_copies_and_points_without_weight():
    X, y = data(30)
    X[:10] = X[0]
    weight = np.ones(30)
    weight[20:] = 0.0
    model = NadarayaWatson(bandwidth=0.5, adaptive=4).fit(X, y, weight)
    other = NadarayaWatson(bandwidth=0.5, adaptive=4).fit(X[:20], y[:20])
    assert np.isfinite(model.predict(X)).all()
    np.testing.assert_allclose(model.predict(X + 0.1), other.predict(X + 0.1), rtol=1e-9)
    equal = NadarayaWatson(bandwidth=0.5, adaptive=4).fit(np.ones((8, 2)), np.arange(8.0))
    np.testing.assert_allclose(equal.predict([[1.0, 1.0], [5.0, 5.0]]), 3.5)


def test_sparse_regions_are_smoothed_more():
    random = np.random.default_rng(2)
    X = np.concatenate([random.random((300, 1)) * 0.3, 1 + 300 * random.random((300, 1))])
    y = np.concatenate([np.sin(200 * X[:300, 0]), np.sin(0.2 * X[300:, 0])]) + 0.3 * random.normal(size=600)
    plain, adaptive = (NadarayaWatson(bandwidth="loo", adaptive=k).fit(X, y).loo_score() for k in (None, 6))
    assert adaptive < 0.5 * plain
