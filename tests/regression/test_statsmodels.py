"""The same numbers as statsmodels' `KernelReg`, which computes them pair by pair."""

import numpy as np
import pytest

from nadaraya.regression import NadarayaWatson

kernel_regression = pytest.importorskip("statsmodels.nonparametric.kernel_regression")


def data(n=70, d=2, seed=0):
    random = np.random.default_rng(seed)
    X = random.normal(size=(n, d)) * np.linspace(1.0, 2.0, d)
    return X, np.sin(2 * X[:, 0]) + 0.3 * X[:, -1] ** 2 + 0.2 * random.normal(size=n)


def theirs(X, y, bandwidth, reg_type="lc"):
    return kernel_regression.KernelReg(
        y,
        X,
        "c" * X.shape[1],
        reg_type,
        bw=bandwidth if isinstance(bandwidth, str) else np.array(bandwidth),
        rng=0,
    )


PROBLEMS = [(1, [0.35]), (2, [0.4, 0.7]), (3, [0.9, 0.8, 1.1])]


@pytest.mark.parametrize(("d", "bandwidth"), PROBLEMS)
@pytest.mark.parametrize("degree", [0, 1])
def test_predictions_and_criteria(d, bandwidth, degree):
    X, y = data(d=d)
    queries = data(25, d, seed=1)[0]
    reference = theirs(X, y, bandwidth, ("lc", "ll")[degree])
    ours = NadarayaWatson(bandwidth=bandwidth, degree=degree).fit(X, y)
    np.testing.assert_allclose(ours.predict(queries), reference.fit(queries)[0], rtol=1e-9, atol=1e-10)
    loo = reference.cv_loo(np.array(bandwidth), reference.est[reference.reg_type])
    assert ours.loo_score() == pytest.approx(float(np.squeeze(loo)), rel=1e-9)


@pytest.mark.parametrize(("d", "bandwidth"), PROBLEMS)
def test_corrected_aic(d, bandwidth):
    X, y = data(d=d)
    reference = theirs(X, y, bandwidth)
    expected = float(np.squeeze(reference.aic_hurvich(np.array(bandwidth))))
    assert aic(X, y, bandwidth) == pytest.approx(expected, abs=1e-10)


@pytest.mark.parametrize(("d", "bandwidth"), PROBLEMS)
def test_slopes_of_local_lines(d, bandwidth):
    X, y = data(d=d)
    queries = data(25, d, seed=1)[0] / 2
    ours = NadarayaWatson(bandwidth=bandwidth, degree=1).fit(X, y)
    slopes = theirs(X, y, bandwidth, "ll").fit(queries)[1]
    np.testing.assert_allclose(ours.marginal_effects(queries), slopes, rtol=1e-8, atol=1e-8)


@pytest.mark.parametrize(("d", "bandwidth"), PROBLEMS)
def test_derivatives_of_local_constants(d, bandwidth):
    """Ours are the numerical derivatives of statsmodels' own fit; its `mfx` are not, by n/2 in one dimension.

    There the derivative of the kernel, `d_gaussian`, has a factor 2 and the result a factor 1/n too many; in
    several dimensions it multiplies the derivatives by all features with each other and gives one number.
    """
    X, y = data(d=d)
    queries = data(10, d, seed=1)[0] / 2
    reference = theirs(X, y, bandwidth)
    effects = NadarayaWatson(bandwidth=bandwidth).fit(X, y).marginal_effects(queries)
    step = 1e-5
    for feature in range(d):
        shift = step * np.eye(d)[feature]
        numerical = (reference.fit(queries + shift)[0] - reference.fit(queries - shift)[0]) / (2 * step)
        np.testing.assert_allclose(effects[:, feature], numerical, rtol=1e-6, atol=1e-6)
    if d == 1:
        stated = reference.fit(queries)[1]
        np.testing.assert_allclose(effects, stated * len(X) / 2, rtol=1e-8, atol=1e-10)


def aic(X, y, bandwidth):
    """AIC_c from the smoother's matrix: the predictions of the unit vectors."""
    smoother = NadarayaWatson(bandwidth=bandwidth).fit(X, np.eye(len(X))).predict(X)
    mean_trace = smoother.trace() / len(X)
    return np.log(np.mean((y - smoother @ y) ** 2)) + (1 + mean_trace) / (1 - mean_trace - 2 / len(X))


@pytest.mark.parametrize("degree", [0, 1])
@pytest.mark.parametrize("d", [1, 2])
def test_bandwidths_by_leave_one_out_are_at_least_as_good(d, degree):
    X, y = data(n=40, d=d)
    reference = theirs(X, y, "cv_ls", ("lc", "ll")[degree])
    ours = NadarayaWatson(bandwidth="loo", degree=degree, random_state=0).fit(X, y)
    chosen = NadarayaWatson(bandwidth=np.abs(reference.bw), degree=degree).fit(X, y)
    assert ours.loo_score() <= chosen.loo_score() + 1e-8
    assert ours.selection_.score == pytest.approx(np.log(ours.loo_score() / y.var()), abs=1e-6)


@pytest.mark.parametrize("d", [1, 2])
def test_bandwidths_by_aic_are_at_least_as_good(d):
    X, y = data(n=40, d=d)
    reference = theirs(X, y, "aic")
    ours = NadarayaWatson(bandwidth="aic", random_state=0).fit(X, y)
    assert aic(X, y, ours.bandwidth_) <= aic(X, y, np.abs(reference.bw)) + 1e-8
    assert ours.selection_.score == pytest.approx(aic(X, y, ours.bandwidth_), abs=1e-9)
