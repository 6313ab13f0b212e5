"""`NadarayaWatsonDensity`: scikit-learn's densities where it has them, unit integrals, likelihoods."""

import math
import warnings

import numpy as np
import pytest
import torch
from scipy.stats import gaussian_kde, norm, t
from sklearn.neighbors import KernelDensity

from nadaraya.errors import InputError
from nadaraya.kernels import Boxcar, ExponentialDecay, Gaussian, Matern, Periodic, RationalQuadratic
from nadaraya.regression import NadarayaWatsonDensity
from nadaraya.regression.rules import spread_of_kernel

NAMES = ("gaussian", "exponential", "matern32", "matern52", "epanechnikov", "tricube", "boxcar")
THEIRS = {
    "gaussian": "gaussian",
    "exponential": "exponential",
    "epanechnikov": "epanechnikov",
    "boxcar": "tophat",
}


def data(n=150, d=2, seed=0):
    return np.random.default_rng(seed).normal(size=(n, d)) * np.linspace(1.0, 2.0, d)


@pytest.mark.parametrize("d", [1, 2, 5])
@pytest.mark.parametrize("name", THEIRS)
@pytest.mark.parametrize("weighted", [False, True])
def test_scikit_learn(name, d, weighted):
    X, queries = data(d=d), 1.5 * data(60, d, seed=1)
    weight = np.random.default_rng(2).random(len(X)) if weighted else None
    theirs = KernelDensity(bandwidth=0.9, kernel=THEIRS[name], rtol=0, atol=0).fit(X, sample_weight=weight)
    expected = theirs.score_samples(queries)
    ours = NadarayaWatsonDensity(name, 0.9).fit(X, sample_weight=weight)
    reached = expected > -30  # scikit-learn is inexact below
    got = ours.score_samples(queries)
    np.testing.assert_allclose(got[reached], expected[reached], rtol=1e-8, atol=1e-8)
    assert (got[~reached] < -29).all()
    assert ours.score(queries[reached]) == pytest.approx(expected[reached].sum(), rel=1e-8)


@pytest.mark.parametrize("rule", ["scott", "silverman"])
def test_scipy(rule):
    """In one dimension, where scipy's covariance is a bandwidth but for n against n − 1."""
    X = data(d=1)
    ours = NadarayaWatsonDensity(bandwidth=rule).fit(X)
    theirs = gaussian_kde(X.T, bw_method=gaussian_kde(X.T, rule).factor * np.sqrt(149 / 150))
    np.testing.assert_allclose(np.exp(ours.score_samples(X)), theirs(X.T), rtol=1e-9)


@pytest.mark.parametrize("kernel", [*NAMES, 3.0 * Gaussian(0.4) + Matern(2.0), ExponentialDecay(0.5, 7.0)])
def test_integral_on_the_line(kernel):
    X = data(12, 1)
    model = NadarayaWatsonDensity(kernel, 0.6).fit(X, sample_weight=np.arange(12.0))
    edges = np.unique(np.concatenate([X[:, 0] + s for s in (-40, -12, -6, -3, -0.6, 0, 0.6, 3, 6, 12, 40)]))
    nodes, weights = np.polynomial.legendre.leggauss(40)
    middle, half = (edges[1:] + edges[:-1])[:, None] / 2, np.diff(edges)[:, None] / 2
    x = middle + half * nodes
    density = np.exp(model.score_samples(x.reshape(-1, 1))).reshape(x.shape)
    assert (half * weights * density).sum() == pytest.approx(1.0, abs=1e-6)


@pytest.mark.parametrize("kernel", NAMES)
def test_integral_in_the_plane(kernel):
    X = data(20)
    model = NadarayaWatsonDensity(kernel, [0.8, 1.5]).fit(X)
    axes = np.linspace(-14, 14, 251), np.linspace(-24, 24, 251)
    grid = np.stack(np.meshgrid(*axes), axis=-1).reshape(-1, 2)
    cell = (axes[0][1] - axes[0][0]) * (axes[1][1] - axes[1][0])
    assert np.exp(model.score_samples(grid)).sum() * cell == pytest.approx(1.0, abs=5e-3)


def test_far_away():
    """log p where p itself underflows, and −∞ beyond a support."""
    model = NadarayaWatsonDensity(bandwidth=0.5).fit([[0.0], [0.0]])
    expected = norm(0, 0.5).logpdf([100.0, -1e4, 1e6])
    np.testing.assert_allclose(model.score_samples([[100.0], [-1e4], [1e6]]), expected, rtol=1e-12)
    compact = NadarayaWatsonDensity("epanechnikov", 0.5).fit([[0.0], [0.0]])
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert compact.score_samples([[9.0], [0.0]]).tolist() == [-np.inf, pytest.approx(np.log(1.5))]


@pytest.mark.parametrize("name", NAMES)
def test_likelihood(name):
    """The criterion is the leave-one-out log-density up to a constant, and the choice is its maximum."""
    X = data(80)
    model = NadarayaWatsonDensity(name, "loo").fit(X)

    def mean_log_density(bandwidth):
        alone = NadarayaWatsonDensity(name, bandwidth).fit(np.zeros((1, 2))).score_samples(np.zeros((1, 2)))
        others = 80 * np.exp(NadarayaWatsonDensity(name, bandwidth).fit(X).score_samples(X)) - np.exp(alone)
        return np.log(others.clip(1e-300) / 79).mean()

    assert model.selection_.criterion in ("likelihood", "loo")
    best = mean_log_density(model.bandwidth_)
    assert np.isfinite(best)
    for factor in ([0.8, 1], [1, 0.8], [1.25, 1], [1, 1.25], [3, 3], [0.3, 0.3]):
        assert mean_log_density(model.bandwidth_ * factor) <= best + (0.0 if name in NAMES[:4] else 0.03)


@pytest.mark.parametrize("name", NAMES)
def test_points_without_weight_change_nothing(name):
    X = data(60)
    weight = np.ones(61)
    weight[-1] = 0.0
    outlier = np.concatenate([X, [[50.0, 90.0]]])
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        for bandwidth in ("loo", "scott", 0.5):
            model = NadarayaWatsonDensity(name, bandwidth, n_starts=1).fit(X)
            other = NadarayaWatsonDensity(name, bandwidth, n_starts=1).fit(outlier, sample_weight=weight)
            np.testing.assert_allclose(other.bandwidth_, model.bandwidth_, rtol=1e-3)
            np.testing.assert_allclose(
                other.set_params(bandwidth=model.bandwidth_)
                .fit(outlier, sample_weight=weight)
                .score_samples(X),
                model.score_samples(X),
                rtol=1e-8,
            )


def test_float32():
    X = data()
    single, double = (NadarayaWatsonDensity().fit(X.astype(dtype)) for dtype in (np.float32, np.float64))
    assert single.score_samples(X).dtype == np.float32
    np.testing.assert_allclose(single.score_samples(X), double.score_samples(X), rtol=1e-4)


@pytest.mark.parametrize("alpha", [2.0, 4.0])
def test_power_tails(alpha):
    """A rational quadratic of α > d/2 has an integral; on the line it is Student's t of 2α − 1 degrees."""
    x = np.array([[0.0], [1.5], [-20.0]])
    model = NadarayaWatsonDensity(RationalQuadratic(1.0, alpha), 1.0).fit([[0.0]])
    freedom = 2 * alpha - 1
    expected = t(freedom, scale=np.sqrt(2 * alpha / freedom)).logpdf(x[:, 0])
    np.testing.assert_allclose(model.score_samples(x), expected, rtol=1e-6)


@pytest.mark.parametrize("bandwidth", [1.0, "scott", "loo"])
def test_kernels_without_integral(bandwidth):
    with pytest.raises(InputError, match="kernel must be one with a finite integral"):
        NadarayaWatsonDensity(Periodic(1.0, 1.0), bandwidth).fit(data())
    with pytest.raises(InputError, match="finite integral in"):
        NadarayaWatsonDensity(RationalQuadratic(1.0, 0.5), bandwidth).fit(data())


def test_features_that_do_not_vary():
    X = np.insert(data(), 1, 3.0, axis=1)
    for bandwidth in ("scott", "silverman", "loo"):
        with pytest.raises(
            InputError, match=r"feature 1 must vary .* leave it out, or give bandwidth as a number"
        ):
            NadarayaWatsonDensity(bandwidth=bandwidth).fit(X)
    assert np.isfinite(NadarayaWatsonDensity(bandwidth=1.0).fit(X).score(X))


@pytest.mark.parametrize("dimension", [1, 2, 30, 100, 151, 1000])
def test_integrals_in_many_dimensions(dimension):
    """∫ κ over R^d, by the closed forms of the Gaussian, the exponential and the ball."""
    surface = math.log(2) + dimension / 2 * math.log(math.pi) - math.lgamma(dimension / 2)
    expected = {
        Gaussian: dimension / 2 * math.log(2 * math.pi),
        ExponentialDecay: surface + math.lgamma(dimension),
        Boxcar: surface - math.log(dimension),
    }
    points = np.random.default_rng(0).normal(size=(3, dimension))
    for kernel, log_integral in expected.items():
        model = NadarayaWatsonDensity(kernel(1.0), bandwidth=1e3).fit(points)
        own = model.score_samples(points[:1])[0]
        r = np.linalg.norm(points - points[0], axis=1) / 1e3
        log_kernel = {Gaussian: -(r**2) / 2, ExponentialDecay: -r, Boxcar: 0 * r}[kernel]
        mass = np.log(np.mean(np.exp(log_kernel)))
        assert own == pytest.approx(mass - log_integral - dimension * math.log(1e3), rel=1e-12)


@pytest.mark.parametrize("width", [1e-30, 1e-15, 1e-3, 1e15, 1e30])
def test_kernels_of_any_width(width):
    """A rule of thumb takes the width out; the integral goes with its power."""
    for kernel, deviation in (
        (Gaussian, 1.0),
        (ExponentialDecay, math.sqrt(2.0)),
        (Boxcar, 1 / math.sqrt(3.0)),
    ):
        scaled = kernel(torch.tensor(width, dtype=torch.float64))
        assert spread_of_kernel(scaled) == pytest.approx(width * deviation, rel=1e-12)
        model = NadarayaWatsonDensity(scaled).fit(data())
        expected = NadarayaWatsonDensity(kernel(1.0)).fit(data())
        np.testing.assert_allclose(model.bandwidth_ * width, expected.bandwidth_, rtol=1e-12)
        np.testing.assert_allclose(model.score_samples(data()), expected.score_samples(data()), rtol=1e-9)
