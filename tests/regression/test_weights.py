"""Weights are precisions: only their ratios matter; an observation that is drawn twice is one observation."""

import numpy as np
import pytest
from sklearn.ensemble import BaggingRegressor

from nadaraya.regression import NadarayaWatson
from nadaraya.regression.repeats import distinct_observations

CHOICES = ["aic", "loo", "silverman", "scott"]
GRID = np.linspace(0.1, 6.1, 200)[:, None]


def wave(n=200, seed=0, noise=0.3):
    random = np.random.default_rng(seed)
    X = random.uniform(0, 2 * np.pi, (n, 1))
    return X, np.sin(2 * X[:, 0]) + noise * random.normal(size=n)


def error(model):
    return np.sqrt(np.mean((model.predict(GRID) - np.sin(2 * GRID[:, 0])) ** 2))


@pytest.mark.parametrize("choice", CHOICES)
@pytest.mark.parametrize("degree", [0, 1])
@pytest.mark.parametrize("scale", [1.5, 1e-12, 1e200])
def test_the_scale_of_weights_does_not_matter(choice, degree, scale):
    X, y = wave(80)
    weight = np.random.default_rng(1).uniform(0.5, 2.0, 80)
    one = NadarayaWatson(bandwidth=choice, degree=degree, n_starts=1).fit(X, y, weight)
    other = NadarayaWatson(bandwidth=choice, degree=degree, n_starts=1).fit(X, y, scale * weight)
    np.testing.assert_allclose(other.bandwidth_, one.bandwidth_, rtol=1e-6)
    np.testing.assert_allclose(
        other.predict(GRID, return_std=True), one.predict(GRID, return_std=True), rtol=1e-5
    )
    np.testing.assert_allclose(other.band(GRID), one.band(GRID), rtol=1e-5, atol=1e-8)


def test_weights_above_one_do_not_make_corrected_aic_interpolate():
    X, y = wave()
    plain = NadarayaWatson().fit(X, y)
    weighted = NadarayaWatson().fit(X, y, np.full(200, 1.5))
    assert weighted.bandwidth_[0] == pytest.approx(plain.bandwidth_[0], rel=1e-6)
    assert error(weighted) < 0.1
    assert (weighted.predict(GRID, return_std=True)[1] > 0.1).all()


@pytest.mark.parametrize("choice", ["aic", "loo"])
def test_draws_with_replacement_choose_like_the_observations_drawn(choice):
    X, y = wave()
    drawn = np.random.default_rng(2).integers(0, 200, 200)
    distinct, counts = np.unique(drawn, return_counts=True)
    repeated = NadarayaWatson(bandwidth=choice).fit(X[drawn], y[drawn])
    weighted = NadarayaWatson(bandwidth=choice).fit(X[distinct], y[distinct], counts)
    np.testing.assert_allclose(repeated.bandwidth_, weighted.bandwidth_, rtol=1e-4)
    assert repeated.bandwidth_[0] > 0.05
    np.testing.assert_allclose(repeated.loo_predictions(), weighted.loo_predictions()[np.searchsorted(distinct, drawn)], rtol=1e-3)  # fmt: skip # noqa: E501


def test_bagging_is_no_worse_than_one_fit():
    X, y = wave()
    bagged = BaggingRegressor(NadarayaWatson(n_starts=1), n_estimators=10, random_state=0).fit(X, y)
    assert error(bagged) < 1.3 * error(NadarayaWatson().fit(X, y))


def test_inverse_variances_are_the_weights_of_unequal_noise():
    """A tenth of the targets is precise; weighting by 1 / σ² follows it, and the band narrows."""
    random, errors = np.random.default_rng(3), []
    X = random.uniform(0, 2 * np.pi, (300, 1))
    sigma = np.where(random.random(300) < 0.3, 0.05, 1.0)
    y = np.sin(2 * X[:, 0]) + sigma * random.normal(size=300)
    weighted = NadarayaWatson().fit(X, y, sigma**-2)
    errors = [error(NadarayaWatson().fit(X, y)), error(weighted)]
    assert errors[1] < 0.4 * errors[0]
    average = np.mean(sigma**-2) ** -0.5  # the noise of an observation of average weight
    assert np.median(weighted.predict(GRID, return_std=True)[1]) == pytest.approx(average, rel=0.25)


def test_replications_are_observations():
    random = np.random.default_rng(4)
    X = np.repeat(np.arange(7.0), 300)[:, None]
    y = np.sin(X[:, 0]) + 0.1 * random.normal(size=len(X))
    assert len(distinct_observations(X, y[:, None], np.ones(len(X)))[0]) == len(X)
    model = NadarayaWatson().fit(X, y)
    np.testing.assert_allclose(model.predict(np.arange(7.0)[:, None]), np.sin(np.arange(7)), atol=0.03)


def test_copies_are_found_in_any_order_and_rows_without_weight_are_none():
    X = np.array([[1.0, 2.0], [0.0, 5.0], [1.0, 2.0], [1.0, 3.0], [0.0, 5.0], [1.0, 2.0], [0.0, 5.0]])
    y = np.array([[4.0], [6.0], [4.0], [4.0], [6.0], [4.0], [7.0]])
    weight = np.array([1.0, 2.0, 3.0, 4.0, 5.0, 6.0, 0.0])
    points, targets, totals, row_of = distinct_observations(X, y, weight)
    assert points.tolist() == [[0, 5], [1, 2], [1, 3]]
    assert targets.tolist() == [[6], [4], [4]]
    assert totals.tolist() == [7, 10, 4]
    assert row_of.tolist() == [1, 0, 1, 2, 0, 1, -1]


def test_a_row_without_weight_is_predicted_from_all():
    X, y = wave(50)
    weight = np.ones(50)
    weight[7] = 0
    model = NadarayaWatson(bandwidth=0.3).fit(X, y, weight)
    assert model.loo_predictions()[7] == pytest.approx(model.predict(X[7:8])[0], rel=1e-12)


def test_a_fit_through_every_observation_has_no_error_estimate():
    X, y = wave(40)
    model = NadarayaWatson(bandwidth=1e-9).fit(X, y)
    with pytest.warns(UserWarning, match="goes through every observation"):
        _, deviation = model.predict(X, return_std=True)
    assert np.isnan(deviation).all()
    for method in ("pointwise", "bootstrap", "simultaneous"):
        assert np.isnan(model.band(X, method=method, n_bootstrap=9)).all()
