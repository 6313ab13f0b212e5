"""Conditional quantiles agree with NumPy's weighted quantiles and with linear programming."""

from typing import Any

import numpy as np
import pytest
from sklearn.linear_model import QuantileRegressor
from sklearn.metrics import mean_pinball_loss

from nadaraya.errors import InputError
from nadaraya.regression import KernelQuantileRegressor


@pytest.fixture(scope="module")
def data() -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    rng = np.random.default_rng(0)
    X = rng.uniform(-2, 2, (150, 2))
    y = np.sin(2 * X[:, 0]) + 0.3 * (1 + np.abs(X[:, 0])) * rng.standard_exponential(150)
    return X, y, rng.uniform(0.2, 3.0, 150)


def weights_at(query: np.ndarray, X: np.ndarray, h: np.ndarray) -> np.ndarray:
    return np.exp(-0.5 * (((query - X) / h) ** 2).sum(axis=1))


@pytest.mark.parametrize("tau", [0.05, 0.5, 0.9])
def test_local_constants_are_weighted_quantiles(data: Any, tau: float) -> None:
    X, y, weight = data
    h = np.array([0.3, 0.8])
    model = KernelQuantileRegressor(tau, bandwidth=h).fit(X, y, weight)
    queries = np.random.default_rng(1).uniform(-2, 2, (30, 2))
    expected = [
        np.quantile(y, tau, weights=weight * weights_at(query, X, h), method="inverted_cdf")
        for query in queries
    ]
    np.testing.assert_allclose(model.predict(queries), expected, rtol=1e-12)


@pytest.mark.parametrize("tau", [0.1, 0.5, 0.8])
def test_local_lines_have_the_least_check_loss(data: Any, tau: float) -> None:
    X, y, _ = data
    h = np.array([0.5, 1.0])
    model = KernelQuantileRegressor(tau, bandwidth=h, degree=1).fit(X, y)
    for query in np.random.default_rng(2).uniform(-1.5, 1.5, (8, 2)):
        weights = weights_at(query, X, h)
        programme = QuantileRegressor(quantile=tau, alpha=0.0).fit(X - query, y, sample_weight=weights)
        assert model.predict(query[None])[0] == pytest.approx(programme.intercept_, abs=1e-10)


def test_lines_are_exact_on_a_line() -> None:
    X = np.linspace(0, 1, 40)[:, None]
    model = KernelQuantileRegressor(0.7, bandwidth=0.1, degree=1).fit(X, 3 * X[:, 0] + 5)
    np.testing.assert_allclose(model.predict([[0.0], [0.33], [1.2]]), [5.0, 5.99, 8.6], rtol=1e-4)


@pytest.mark.parametrize("degree", [0, 1])
def test_several_quantiles_do_not_cross(data: Any, degree: int) -> None:
    X, y, _ = data
    model = KernelQuantileRegressor(bandwidth=0.4, degree=degree).fit(X, y)
    found = model.predict(X[:40], quantile=[0.9, 0.1, 0.5])
    assert (found[:, 1] <= found[:, 2]).all()
    assert (found[:, 2] <= found[:, 0]).all()
    if degree == 0:
        np.testing.assert_array_equal(found[:, 2], model.predict(X[:40]))


def test_leave_one_out_is_the_least_of_its_criterion() -> None:
    rng = np.random.default_rng(3)
    X = rng.uniform(0, 6, (120, 1))
    y = np.sin(2 * X[:, 0]) + 0.2 * rng.standard_t(2, 120)
    model = KernelQuantileRegressor(0.5, bandwidth="loo").fit(X, y)

    def loss(h: float) -> float:
        fits = [
            KernelQuantileRegressor(0.5, bandwidth=h).fit(np.delete(X, i, 0), np.delete(y, i))
            for i in range(len(y))
        ]
        return mean_pinball_loss(y, [float(fit.predict(X[i : i + 1])[0]) for i, fit in enumerate(fits)])

    assert model.selection_ is not None
    assert model.selection_.score == pytest.approx(loss(float(model.bandwidth_[0])))
    assert all(model.selection_.score <= loss(h) + 1e-12 for h in (0.02, 0.1, 0.4, 1.0, 5.0))


def test_a_feature_that_does_not_vary_changes_nothing(data: Any) -> None:
    X, y = data[:2]
    more = np.column_stack([X, np.ones(len(X))])
    bandwidths = [KernelQuantileRegressor(0.9).fit(points, y).bandwidth_ for points in (X, more)]
    np.testing.assert_allclose(bandwidths[1][:-1], bandwidths[0], rtol=1e-6)


def test_a_share_tau_of_new_targets_lies_below() -> None:
    rng = np.random.default_rng(4)
    X = rng.uniform(-2, 2, (1500, 1))
    noise = (0.2 + 0.2 * np.abs(X[:, 0])) * rng.standard_normal(1500)
    model = KernelQuantileRegressor().fit(X[:500], (np.cos(X[:, 0]) + noise)[:500])
    below = (np.cos(X[500:, 0]) + noise[500:])[:, None] <= model.predict(X[500:], quantile=[0.1, 0.5, 0.9])
    np.testing.assert_allclose(below.mean(axis=0), [0.1, 0.5, 0.9], atol=0.05)


def test_outliers_do_not_move_the_median() -> None:
    X = np.linspace(0, 1, 101)[:, None]
    y = X[:, 0].copy()
    y[::10] = 1e6
    assert np.abs(KernelQuantileRegressor(bandwidth=0.1).fit(X, y).predict(X) - X[:, 0]).max() < 0.1


def test_a_query_that_nothing_reaches_takes_the_nearest() -> None:
    model = KernelQuantileRegressor(kernel="boxcar", bandwidth=0.5).fit([[0.0], [1.0]], [3.0, 4.0])
    assert model.predict([[-9.0], [9.0]]).tolist() == [3.0, 4.0]


@pytest.mark.parametrize("quantile", [0.0, 1.0, -1, "half", None, True])
def test_quantiles_outside_0_and_1_are_refused(quantile: Any) -> None:
    with pytest.raises(InputError, match="quantile must be a number between 0 and 1"):
        KernelQuantileRegressor(quantile).fit([[0.0], [1.0]], [0.0, 1.0])


@pytest.mark.parametrize("bandwidth", [1e-3, 1e-200, 1e-300])
def test_a_bandwidth_of_next_to_nothing_sees_the_nearest_point(bandwidth: float) -> None:
    X, y = np.arange(6.0)[:, None], np.array([5.0, 1.0, 4.0, 2.0, 9.0, 3.0])
    model = KernelQuantileRegressor(bandwidth=bandwidth).fit(X, y)
    assert model.predict(X + 0.1).tolist() == y.tolist()


def test_several_bad_quantiles_are_refused() -> None:
    model = KernelQuantileRegressor(bandwidth=1.0).fit([[0.0], [1.0]], [0.0, 1.0])
    with pytest.raises(InputError, match="quantile must be one or a list"):
        model.predict([[0.0]], quantile=[0.5, 1.0])


def test_lines_in_thinly_populated_places_are_level() -> None:
    model = KernelQuantileRegressor(kernel="boxcar", bandwidth=0.5, degree=1).fit(
        [[0.0], [1.0], [1.0]], [3.0, 4.0, 6.0]
    )
    assert model.predict([[0.1], [1.2]], quantile=[0.3, 0.9]).round(9).tolist() == [[3.0, 3.0], [4.0, 6.0]]
