"""Targets that tie, one number that is out of all proportion, queries beyond all reason."""

from typing import Any

import numpy as np
import pytest
from scipy.optimize import linprog

from nadaraya import InputError
from nadaraya.regression import (
    ChunkedNadarayaWatson,
    GridMeans,
    KernelQuantileRegressor,
    NadarayaWatson,
    NadarayaWatsonClassifier,
    RegressionDisplay,
    non_local_means,
)


def best_line(x: Any, y: Any, weights: Any, tau: float) -> float:
    """The least check loss of any line, by linear programming."""
    n, design = len(y), np.column_stack([np.ones(len(y)), x])
    cost = np.concatenate([np.zeros(2), tau * weights, (1 - tau) * weights])
    equal = np.column_stack([design, np.eye(n), -np.eye(n)])
    bounds = [(None, None)] * 2 + [(0, None)] * (2 * n)
    return float(linprog(cost, A_eq=equal, b_eq=y, bounds=bounds).fun)


@pytest.mark.parametrize("seed", range(12))
def test_lines_of_tied_targets_have_the_least_check_loss(seed: int) -> None:
    rng = np.random.default_rng(seed)
    n, tau = int(rng.integers(6, 40)), float(rng.choice([0.1, 0.5, 0.75]))
    x, y = rng.integers(-3, 4, n).astype(float), rng.poisson(2.0, n).astype(float)
    model = KernelQuantileRegressor(tau, bandwidth=1.7, degree=1).fit(x[:, None], y)
    for query in (-1.0, 0.0, 0.4):
        weights = np.exp(-0.5 * ((x - query) / 1.7) ** 2)
        value = model.predict([[query]])[0]
        # Of all lines through this value at the query one must be best, whose loss is convex in the slope.
        slopes = np.concatenate([[0.0], (y - value)[x != query] / (x - query)[x != query]])
        residuals = y - value - slopes[:, None] * (x - query)
        losses = (weights * residuals * (tau - (residuals < 0))).sum(axis=1)
        assert losses.min() <= best_line(x, y, weights, tau) * (1 + 1e-6) + 1e-9


def test_a_curve_through_most_points_has_no_outliers_but_for_rounding() -> None:
    rng = np.random.default_rng(0)
    x, y = np.arange(40.0)[:, None] + 0.3 * rng.random((40, 1)), rng.integers(0, 50, 40).astype(float)
    model = NadarayaWatson(bandwidth=0.15, degree=1, robust_iterations=1).fit(x, y)
    assert (model.robust_weight_ == 1).all()
    y[7] = 1e9  # one that is none is found, however large
    model = NadarayaWatson(bandwidth=4.0, robust_iterations=1).fit(x, y)
    assert model.robust_weight_[7] == 0
    assert 0.3 < (model.robust_weight_ > 0).mean() < 1


@pytest.mark.parametrize(
    "model",
    [
        NadarayaWatson("epanechnikov", 0.1),
        NadarayaWatson("epanechnikov", 0.1, robust_iterations=2),
        NadarayaWatson("epanechnikov", 0.1, degree=1),
        ChunkedNadarayaWatson(0.1, kernel="epanechnikov"),
        KernelQuantileRegressor(kernel="epanechnikov", bandwidth=0.1),
        KernelQuantileRegressor(kernel="epanechnikov", bandwidth=0.1, degree=1),
    ],
)
@pytest.mark.parametrize("huge", [9.96921e36, -1e15])
def test_a_huge_target_out_of_reach_changes_nothing(model: Any, huge: float) -> None:
    x = np.linspace(0, 1, 100)[:, None]
    y = np.sin(5 * x[:, 0])
    want = model.fit(x, y).predict(x[50:])
    y[0] = huge
    np.testing.assert_allclose(model.fit(x, y).predict(x[50:]), want, rtol=0, atol=1e-3)


@pytest.mark.parametrize(("dtype", "huge"), [(np.float64, 1e17), (np.float32, 1e9)])
def test_a_huge_feature_changes_no_other_prediction(dtype: Any, huge: float) -> None:
    x = np.linspace(0, 1, 101)[1:, None].astype(dtype)
    y = np.sin(5 * x[:, 0])
    want = NadarayaWatson("epanechnikov", 0.1).fit(x, y).predict(x[50:])
    there = np.concatenate([x, np.full((1, 1), huge, dtype)])
    got = NadarayaWatson("epanechnikov", 0.1).fit(there, np.append(y, 3.0)).predict(x[50:])
    np.testing.assert_allclose(got, want, rtol=1e-4 if dtype == np.float32 else 1e-6)


def test_an_empty_prediction_is_the_mean() -> None:
    model = NadarayaWatson("epanechnikov", 0.5, empty="mean").fit([[0.0], [1.0], [2.0]], [0.0, 1.0, 8.0])
    np.testing.assert_allclose(model.predict([[9.0]]), [3.0])


@pytest.mark.parametrize("degree", [0, 1, 2, 3])
@pytest.mark.parametrize("dtype", [np.float64, np.float32])
def test_the_farthest_queries_are_answered(dtype: Any, degree: int) -> None:
    x = np.random.default_rng(0).normal(size=(30, 1)).astype(dtype)
    model = NadarayaWatson(bandwidth=1.0, degree=degree).fit(x, x[:, 0])
    far = np.array([[1e20], [-1e30], [1e37], [np.finfo(dtype).max / 2]], dtype)
    assert np.isfinite(model.predict(far)).all()
    assert not np.isnan(model.band(far)).any()


def test_images_are_smoothed_by_the_least_h_and_masks_refused() -> None:
    image = np.random.default_rng(0).random((4, 4)).astype(np.float32)
    np.testing.assert_array_equal(non_local_means(image, 1e-50), image)
    with pytest.raises(InputError, match="image must be without masked values"):
        non_local_means(np.ma.masked_less(image, 0.5), 0.1)


def test_what_cannot_be_compared_or_drawn_is_named() -> None:
    x, y = np.linspace(0, 1, 30)[:, None], np.arange(30.0)
    model = NadarayaWatson(categorical=[0], bandwidth=[0.5, 1.0])
    model.fit(np.array([["a", 1.0]] * 5, object), y[:5])
    with pytest.raises(InputError, match="feature 0 has levels that cannot be compared: unhashable"):
        model.predict(np.array([[["q"], 1.0]], object))
    with pytest.raises(InputError, match="y has classes that cannot be put in order"):
        NadarayaWatsonClassifier().fit(x, np.array(["a", 1] * 15, object))
    quantile = KernelQuantileRegressor(bandwidth=0.1).fit(x, y)
    with pytest.raises(InputError, match="level must be None for KernelQuantileRegressor, which has"):
        RegressionDisplay.from_estimator(quantile)
    RegressionDisplay.from_estimator(quantile, level=None)
    with pytest.raises(InputError, match="there are no points yet: call add first"):
        GridMeans(1.0).cells()
