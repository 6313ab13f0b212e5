"""Draws from densities: the distribution function on the line, moments in space, weights and bounds."""

import math

import numpy as np
import pytest
import torch
from scipy import stats

from nadaraya.errors import InputError
from nadaraya.kernels import (
    ExponentialDecay,
    Gaussian,
    GaussianWithoutHalf,
    Matern,
    Periodic,
    RationalQuadratic,
)
from nadaraya.regression import NadarayaWatsonDensity
from nadaraya.regression.checks import fixed_kernel
from nadaraya.regression.density import _distances
from nadaraya.regression.rules import log_radial_moment

KERNELS = {
    "gaussian": "gaussian",
    "exponential": "exponential",
    "matern32": "matern32",
    "matern52": "matern52",
    "epanechnikov": "epanechnikov",
    "tricube": "tricube",
    "boxcar": "boxcar",
    "power tail": RationalQuadratic(1.0, 6.0),
    "two scales": Gaussian(1e-4) + 1e-5 * ExponentialDecay(30.0),
    "ripples": Periodic(1.0, 0.3) * Matern(2.0),
}


@pytest.mark.parametrize("name", KERNELS)
def test_distribution_on_the_line(name):
    """Kolmogorov-Smirnov against the integral of the density itself."""
    x = [[-1.0], [0.5], [0.7]]
    model = NadarayaWatsonDensity(KERNELS[name], 0.4).fit(x, sample_weight=[1.0, 0.0, 3.0])
    drawn = np.sort(model.sample(4000, random_state=0)[:, 0])
    ends = np.concatenate([[-1e3], drawn, [1e3]])
    away = 2.0 ** np.arange(-14, 10)
    fine = np.unique(
        np.concatenate([ends, *(p + s * away for p in (-1.0, 0.7) for s in (-1, 1)), [-1.4, 1.1]])
    )
    nodes, weights = np.polynomial.legendre.leggauss(20)
    middle, half = (fine[1:] + fine[:-1])[:, None] / 2, np.diff(fine)[:, None] / 2
    density = np.exp(model.score_samples((middle + half * nodes).reshape(-1, 1))).reshape(len(middle), -1)
    distribution = np.append(0.0, np.cumsum((half * weights * density).sum(axis=1)))
    assert distribution[-1] == pytest.approx(1.0, abs=1e-3)
    result = stats.kstest(drawn, lambda at: np.interp(at, fine, distribution))
    assert result.pvalue > 1e-3


@pytest.mark.parametrize("name", KERNELS)
def test_moments_in_space(name):
    """Mean, and the covariance σ_f² h_f² with σ² = ∫ r⁴ κ / (3 ∫ r² κ), at distances that are independent."""
    n, h = 20000, np.array([0.2, 1.0, 5.0])
    model = NadarayaWatsonDensity(KERNELS[name], h).fit([[1.0, 2.0, 3.0]])
    z = (model.sample(n, random_state=1) - [1.0, 2.0, 3.0]) / h
    kernel = model.kernel_
    second, fourth, sixth = (math.exp(log_radial_moment(kernel, order)) for order in (2, 4, 6))
    variance, fourth = fourth / second / 3, sixth / second / 5
    error = 5 * np.sqrt((fourth - variance**2) / n)
    np.testing.assert_allclose(z.mean(axis=0), 0.0, atol=5 * np.sqrt(variance / n))
    np.testing.assert_allclose(np.cov(z.T), variance * np.eye(3), atol=error)


@pytest.mark.parametrize("d", [1, 3, 20])
def test_distances(d):
    """Quantiles of the distance, where SciPy has its distribution."""
    p = np.array([1e-5, 1e-3, 0.2, 0.5, 0.9, 1 - 1e-5])
    laws = {
        "gaussian": stats.chi(d).ppf(p),
        "exponential": stats.gamma(d).ppf(p),
        "boxcar": p ** (1 / d),
        "epanechnikov": np.sqrt(stats.beta(d / 2, 2).ppf(p)),
        "tricube": stats.beta(d / 3, 4).ppf(p) ** (1 / 3),
    }
    for name, expected in laws.items():
        np.testing.assert_allclose(_distances(fixed_kernel(name), d, p), expected, rtol=1e-9)
    narrow = fixed_kernel(GaussianWithoutHalf(torch.tensor(1e-3, dtype=torch.float64)))
    np.testing.assert_allclose(_distances(narrow, d, p), laws["gaussian"] * 1e-3 / np.sqrt(2), rtol=1e-9)
    freedom = 40 - d  # Student's t: (1 + r² / 40)^(−20) has 2α − d degrees of freedom
    squares = stats.f(d, freedom).ppf(p) * d * 40 / freedom
    tail = fixed_kernel(RationalQuadratic(1.0, torch.tensor(20.0, dtype=torch.float64)))
    np.testing.assert_allclose(_distances(tail, d, p), np.sqrt(squares), rtol=1e-8)


def test_weights_and_directions():
    X = np.array([[0.0, 0.0], [100.0, 0.0], [0.0, 100.0]])
    model = NadarayaWatsonDensity("boxcar", 1.0).fit(X, sample_weight=[1.0, 0.0, 3.0])
    drawn = model.sample(8000, random_state=2)
    high = drawn[:, 1] > 50
    assert high.mean() == pytest.approx(0.75, abs=0.02)
    assert (drawn[:, 0] < 50).all()
    angle = np.arctan2(*(drawn - X[[0, 2]][high.astype(int)]).T)
    assert stats.kstest(angle, stats.uniform(-np.pi, 2 * np.pi).cdf).pvalue > 1e-3


def test_within_the_support():
    """Folded draws have the reflected density: its distribution function is that of the images."""
    x = np.array([[0.05], [0.9]])
    model = NadarayaWatsonDensity(bandwidth=0.6, support=(0, 1)).fit(x)
    drawn = model.sample(5000, random_state=3)[:, 0]

    def distribution(at):
        images = np.concatenate([s * x[:, 0] + 2.0 * k for s in (-1, 1) for k in range(-8, 9)])
        steps = stats.norm.cdf(at[:, None], images, 0.6) - stats.norm.cdf(0.0, images, 0.6)
        return steps.sum(axis=1) / 2

    assert stats.kstest(drawn, distribution).pvalue > 1e-3


def test_interface():
    X = np.random.default_rng(0).normal(size=(30, 2)).astype(np.float32)
    model = NadarayaWatsonDensity().fit(X)
    assert model.sample().shape == (1, 2)
    assert model.sample(5, random_state=1).dtype == np.float32
    np.testing.assert_array_equal(model.sample(5, random_state=1), model.sample(5, random_state=1))
    with pytest.raises(InputError, match="n_samples must be a whole number of at least 1, got 0"):
        model.sample(0)
