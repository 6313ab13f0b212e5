"""Robust fits: LOESS iterations, as statsmodels has them, and outliers that do no harm."""

import numpy as np
import pytest
from statsmodels.nonparametric.smoothers_lowess import lowess

from nadaraya.errors import InputError
from nadaraya.regression import NadarayaWatson


@pytest.fixture(scope="module")
def contaminated() -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    rng = np.random.default_rng(0)
    x = np.sort(rng.uniform(0, 6, 200))
    y = np.sin(x) + 0.1 * rng.standard_normal(200)
    outliers = rng.choice(200, 20, replace=False)
    y[outliers] += rng.choice([-1, 1], 20) * rng.uniform(3, 30, 20)
    return x[:, None], y, outliers


@pytest.mark.parametrize("iterations", [0, 1, 3])
def test_iterations_are_those_of_lowess(contaminated: tuple[np.ndarray, ...], iterations: int) -> None:
    X, y, _ = contaminated
    k = 40
    reach = np.sort(np.abs(X - X.T), axis=1)
    # lowess's window reaches to its k-th nearest point, the point itself counted.
    model = NadarayaWatson(
        "tricube",
        bandwidth=float(np.exp(np.log(reach[:, k - 1]).mean())),
        degree=1,
        adaptive=k - 1,
        robust_iterations=iterations,
    ).fit(X, y)
    theirs = lowess(y, X[:, 0], frac=k / len(y), it=iterations, delta=0.0, return_sorted=False)
    ours = (model._smoother.fit(None, model._targets.T).mean[:, 0] + model._centre) * model._unit
    np.testing.assert_allclose(ours, theirs, atol=1e-8)


def test_outliers_have_no_weight_and_do_no_harm(contaminated: tuple[np.ndarray, ...]) -> None:
    X, y, outliers = contaminated
    plain, robust = (NadarayaWatson(robust_iterations=n).fit(X, y) for n in (0, 3))
    assert (robust.robust_weight_[outliers] == 0).all()
    assert np.median(robust.robust_weight_) > 0.8
    assert (plain.robust_weight_ == 1).all()
    error, error_of_plain = (np.sqrt(np.mean((m.predict(X) - np.sin(X[:, 0])) ** 2)) for m in (robust, plain))
    assert error < 0.06
    assert error_of_plain > 5 * error
    lower, upper = robust.band(X)
    assert np.mean(upper - lower) < 0.3


def test_a_perfect_fit_leaves_every_weight() -> None:
    X = np.linspace(0, 1, 30)[:, None]
    model = NadarayaWatson(bandwidth=0.2, degree=1, robust_iterations=2).fit(X, np.full(30, 3.0))
    assert (model.robust_weight_ == 1).all()


def test_rows_without_weight_have_no_robust_weight() -> None:
    X, y = np.arange(8.0)[:, None], np.array([0, 1, 2, 3, 4, 50, 6, 7.0])
    weight = np.array([1, 1, 0, 1, 1, 1, 1, 1.0])
    model = NadarayaWatson(bandwidth=1.5, degree=1, robust_iterations=3).fit(X, y, weight)
    assert model.robust_weight_[[2, 5]].tolist() == [0, 0]


def test_bad_iterations_are_refused() -> None:
    X = np.arange(6.0)[:, None]
    with pytest.raises(InputError, match="robust_iterations must be a whole number of at least 0, got -1"):
        NadarayaWatson(robust_iterations=-1).fit(X, X[:, 0])
    with pytest.raises(InputError, match="robust_iterations must be 0 with 2 targets, got 1"):
        NadarayaWatson(robust_iterations=1).fit(X, np.hstack([X, X]))


def test_scatter_and_bands_are_those_of_normal_noise() -> None:
    places, found, covered = np.linspace(0.5, 2.5, 5)[:, None], [], []
    for seed in range(40):
        random = np.random.default_rng(seed)
        X = random.uniform(0, 3, (200, 1))
        y = np.sin(3 * X[:, 0]) + 0.3 * random.normal(size=200)
        model = NadarayaWatson(bandwidth=0.15, degree=1, robust_iterations=3).fit(X, y)
        found.append(model.predict(places, return_std=True)[1])
        low, high = model.band(places)
        covered.append((low <= np.sin(3 * places[:, 0])) & (np.sin(3 * places[:, 0]) <= high))
    assert np.mean(found) == pytest.approx(0.3, rel=0.03)  # 0.25 without a factor
    assert np.mean(covered) > 0.93
