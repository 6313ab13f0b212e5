"""Local quadratic and cubic regression agree with weighted least squares, point by point."""

import pickle
from itertools import combinations_with_replacement

import numpy as np
import pytest
from scipy.optimize import approx_fprime

from nadaraya.errors import InputError
from nadaraya.regression import NadarayaWatson
from nadaraya.regression.criteria import DifferentiableCriterion, aic_score, loo_score, target_scale


def data(n, d, seed=0):
    random = np.random.default_rng(seed)
    X = random.uniform(-2, 2, (n, d))
    return X, np.sin(2 * X[:, 0]) + 0.5 * X[:, -1] ** 2 + 0.1 * random.normal(size=n)


def terms(offsets, degree):
    d = offsets.shape[1]
    which = [w for order in range(degree + 1) for w in combinations_with_replacement(range(d), order)]
    return np.stack([offsets[:, list(w)].prod(axis=1) for w in which], axis=1)


def least_squares(X, y, h, degree, query, weight=1.0):
    """Coefficients at the query, and the row of the hat matrix of the value."""
    root = np.sqrt(weight * np.exp(-0.5 * (((X - query) / h) ** 2).sum(axis=1)))
    design = terms(X - query, degree) * root[:, None]
    inverse = np.linalg.pinv(design, rcond=1e-14)
    return inverse @ (root * y), inverse[0] * root


@pytest.mark.parametrize("degree", [2, 3])
@pytest.mark.parametrize("d", [1, 2])
def test_predictions_and_slopes(degree, d):
    X, y = data(150, d)
    weight = np.random.default_rng(1).uniform(0.5, 2.0, len(X))
    h = np.array([0.6, 0.9])[:d]
    model = NadarayaWatson(bandwidth=h, degree=degree).fit(X, y, weight)
    queries = np.random.default_rng(2).uniform(-2, 2, (20, d))
    fits = [least_squares(X, y, h, degree, query, weight)[0] for query in queries]
    np.testing.assert_allclose(model.predict(queries), [fit[0] for fit in fits], atol=1e-8)
    np.testing.assert_allclose(model.marginal_effects(queries), [fit[1 : 1 + d] for fit in fits], atol=1e-7)


@pytest.mark.parametrize("degree", [2, 3])
def test_polynomials_of_the_degree_come_back(degree):
    X = np.linspace(-1, 1, 60)[:, None]
    y = 1.0 + X[:, 0] - 2 * X[:, 0] ** 2 + (X[:, 0] ** 3 if degree == 3 else 0.0)
    model = NadarayaWatson(bandwidth=0.3, degree=degree).fit(X, y)
    at = np.array([[-1.0], [0.2], [1.0]])
    expected = 1.0 + at[:, 0] - 2 * at[:, 0] ** 2 + (at[:, 0] ** 3 if degree == 3 else 0.0)
    np.testing.assert_allclose(model.predict(at), expected, atol=1e-9)


@pytest.mark.parametrize("degree", [2, 3])
def test_leave_one_out_and_its_criteria(degree):
    X, y = data(60, 1)
    h = np.array([0.7])
    model = NadarayaWatson(bandwidth=h, degree=degree).fit(X, y)
    left_out = [
        least_squares(np.delete(X, i, 0), np.delete(y, i), h, degree, X[i])[0][0] for i in range(len(y))
    ]
    np.testing.assert_allclose(model.loo_predictions(), left_out, atol=1e-7)
    smoother, targets = model._smoother, model._targets
    place, scale = np.log(smoother.bandwidth), target_scale(targets, np.ones(len(y)))
    errors = (y - left_out)[:, None] / model._unit
    loo = DifferentiableCriterion("loo", smoother, targets, trains_kernel=False)
    assert loo(place)[0] == pytest.approx(loo_score(errors**2, 0.0, np.ones(len(y)), scale).value)
    hat = np.array([least_squares(X, y, h, degree, query)[1] for query in X])
    residuals = (y - hat @ y)[:, None] / model._unit
    aic = DifferentiableCriterion("aic", smoother, targets, trains_kernel=False)
    expected = aic_score(residuals**2, np.trace(hat), np.ones(len(y)), scale)
    assert aic(place)[0] == pytest.approx(expected.value)
    for criterion in (loo, aic):
        numerical = approx_fprime(place, lambda z, f=criterion: f(z)[0], 1e-6)
        np.testing.assert_allclose(criterion(place)[1], numerical, atol=1e-4)


@pytest.mark.parametrize("criterion", ["aic", "loo"])
def test_selection_and_what_follows(criterion):
    X, y = data(150, 1)
    model = NadarayaWatson(bandwidth=criterion, degree=2, n_starts=2).fit(X, y)
    truth = np.sin(2 * X[:, 0]) + 0.5 * X[:, 0] ** 2
    assert np.abs(model.predict(X) - truth).mean() < 0.05
    hat = np.array([least_squares(X, y, model.bandwidth_, 2, query)[1] for query in X])
    assert model.summary().fit.trace == pytest.approx(np.trace(hat), rel=1e-6)
    assert "local quadratic" in str(model.summary())
    for of in ("curve", "smooth"):
        lower, upper = model.band(X, of=of)
        assert np.mean((lower < truth) & (truth < upper)) > 0.85
    effects, errors = model.marginal_effects(X, return_std=True)
    slope = 2 * np.cos(2 * X[:, 0]) + X[:, 0]
    inside = np.abs(X[:, 0]) < 1.5
    assert np.abs(effects[inside, 0] - slope[inside]).mean() < 0.3
    assert ((errors > 0) & (errors < 1)).all()
    again = pickle.loads(pickle.dumps(model))
    np.testing.assert_array_equal(again.predict(X), model.predict(X))


@pytest.mark.parametrize("adaptive", [None, 10])
def test_adaptive_bandwidths_and_places_without_points(adaptive):
    X, y = data(80, 1)
    model = NadarayaWatson("epanechnikov", 0.5, degree=2, adaptive=adaptive).fit(X, y)
    assert np.isfinite(model.predict([[-2.0], [0.0], [50.0]])).all()
    assert np.isfinite(model.loo_predictions()).all()
    if adaptive is None:
        assert model.predict([[50.0]])[0] == pytest.approx(y[X[:, 0].argmax()])
        assert model.marginal_effects([[50.0]])[0, 0] == 0.0


@pytest.mark.parametrize("bandwidth", [1e-200, 1e-300])
def test_a_bandwidth_of_next_to_nothing_sees_the_nearest_point(bandwidth):
    X, y = np.arange(6.0)[:, None], np.array([5.0, 1.0, 4.0, 2.0, 9.0, 3.0])
    model = NadarayaWatson(bandwidth=bandwidth, degree=2).fit(X, y)
    np.testing.assert_allclose(model.predict(X + 0.1), y, rtol=1e-12)


def test_degrees_that_are_refused():
    X, y = data(30, 2)
    with pytest.raises(InputError, match="degree must be a whole number from 0 to 3, got 4"):
        NadarayaWatson(degree=4).fit(X, y)
    table = np.column_stack([X[:, 0], np.arange(30) % 3])
    with pytest.raises(InputError, match="degree must be 0 or 1 where features are categories"):
        NadarayaWatson(degree=2, categorical=[1]).fit(table, y)


def test_bands_follow_a_cubic_to_the_edge():
    """Even points determine a quartic seen from their edge, whose damping would level the band off."""
    random, places = np.random.default_rng(0), np.array([[0.0], [0.02], [1.0]])
    covered = []
    for _ in range(20):
        X = random.uniform(0, 1, (300, 1))
        y = 5 * (X[:, 0] - 0.3) ** 3 + 0.02 * random.normal(size=300)
        low, high = NadarayaWatson(degree=3, bandwidth=0.56).fit(X, y).band(places)
        curve = 5 * (places[:, 0] - 0.3) ** 3
        covered.append((low <= curve) & (curve <= high))
    assert np.mean(covered) > 0.8
