"""Weights are precisions: only their ratios matter; an observation that is drawn twice is one observation."""

import numpy as np
import pytest
from sklearn.base import clone
from sklearn.ensemble import BaggingRegressor

from nadaraya import regression
from nadaraya.regression import (
    KernelQuantileRegressor,
    NadarayaWatson,
    NadarayaWatsonClassifier,
    NadarayaWatsonConditionalDensity,
    NadarayaWatsonDensity,
)
from nadaraya.regression.sample import distinct_observations

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


LEAVE_ONE_OUT = {
    "constant": NadarayaWatson(bandwidth="loo"),
    "linear": NadarayaWatson(bandwidth="loo", degree=1),
    "categories": NadarayaWatson(bandwidth="loo", categorical=[1]),
    "kernel": NadarayaWatson("exponential", bandwidth="loo", fit_kernel=True),
    "some of the points": NadarayaWatson(bandwidth="loo", selection_size=50),
    "classifier": NadarayaWatsonClassifier(bandwidth="loo"),
    "classifier, categories": NadarayaWatsonClassifier(bandwidth="loo", categorical=[1]),
    "density": NadarayaWatsonDensity(bandwidth="loo"),
    "density, compact": NadarayaWatsonDensity("epanechnikov", "loo"),
    "density, bounds": NadarayaWatsonDensity(bandwidth="loo", support=(0, None)),
    "conditional": NadarayaWatsonConditionalDensity(bandwidth="loo"),
    "quantile": KernelQuantileRegressor(0.3, bandwidth="loo"),
    "quantile, line": KernelQuantileRegressor(0.3, bandwidth="loo", degree=1),
}

LEAVING_ONE_OUT = pytest.mark.parametrize(
    "name",
    [
        pytest.param(name, marks=pytest.mark.slow if name in ("kernel", "quantile, line") else ())
        for name in LEAVE_ONE_OUT
    ],
)


def table(n=60):
    random = np.random.default_rng(7)
    X = np.column_stack([random.uniform(0, 6, n), random.integers(0, 3, n)])
    return X, np.sin(X[:, 0]) + 0.3 * random.normal(size=n)


def fitted(name, X, y, weight=None):
    """Bandwidths, what chose them and answers of the model fitted to these rows."""
    model = clone(LEAVE_ONE_OUT[name])
    if "," not in name and "density" in name:
        X = X[:, :1]
    model.set_params(n_starts=2).fit(X, y > 0 if "classifier" in name else y, sample_weight=weight)
    asked = X[: len(table()[0])]
    if "conditional" in name:
        answers = model.score_samples(asked, table()[1])
    else:
        kind = ("predict_proba", "score_samples", "predict")
        answers = next(getattr(model, method) for method in kind if hasattr(model, method))(asked)
    return model.bandwidth_, model.selection_.score, answers


def test_every_estimator_that_leaves_one_out_is_among_these():
    kinds = {type(model) for model in LEAVE_ONE_OUT.values()}
    takes = {
        item
        for item in map(regression.__dict__.get, regression.__all__)
        if '"loo"' in (getattr(item, "__doc__", None) or "") and hasattr(item, "fit")
    }
    assert takes == kinds


@LEAVING_ONE_OUT
def test_a_row_that_is_there_twice_is_a_row_of_weight_two(name):
    X, y = table()
    weight = np.where(np.arange(len(X)) % 4 == 0, 2.0, 1.0)
    twice = np.append(np.arange(len(X)), np.flatnonzero(weight == 2))
    for repeated, weighted in zip(fitted(name, X[twice], y[twice]), fitted(name, X, y, weight), strict=True):
        np.testing.assert_allclose(repeated, weighted, rtol=1e-9, atol=1e-12)


@LEAVING_ONE_OUT
def test_a_row_of_weight_zero_is_not_there(name):
    X, y = table()
    strange = np.append(X, X[:9] + np.array([1.7, 0.0]), axis=0), np.append(y, y[:9] + 50.0)
    weight = np.append(np.ones(len(X)), np.zeros(9))
    for with_strange, without in zip(fitted(name, *strange, weight), fitted(name, X, y), strict=True):
        np.testing.assert_allclose(with_strange, without, rtol=1e-9, atol=1e-12)


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


def test_one_replication_leaves_other_copies_together():
    X = np.array([[0.0], [0.0], [1.0], [1.0], [1.0], [2.0], [2.0]])
    y = np.array([[3.0], [3.0], [4.0], [4.0], [5.0], [6.0], [6.0]])
    points, targets, totals, row_of = distinct_observations(X, y, np.ones(7))
    assert points[:, 0].tolist() == [0, 1, 1, 1, 2]
    assert targets[:, 0].tolist() == [3, 4, 4, 5, 6]
    assert totals.tolist() == [2, 1, 1, 1, 2]
    assert row_of.tolist() == [0, 0, 1, 2, 3, 4, 4]


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
