"""Densities with bounds: unit integrals, the bias that theory gives at an edge, reflected likelihoods."""

import math

import numpy as np
import pytest
from scipy.optimize import approx_fprime
from scipy.stats import norm

from nadaraya.errors import InputError
from nadaraya.kernels import Gaussian, RationalQuadratic
from nadaraya.regression import NadarayaWatsonDensity
from nadaraya.regression.smoother import Smoother
from nadaraya.regression.support import Support, likelihood

NAMES = ("gaussian", "exponential", "matern52", "epanechnikov", "boxcar")


def integral(model, low, high):
    """By Gauss-Legendre in pieces between everything where a compact kernel begins or ends."""
    ends = np.concatenate([model.X_[:, 0] + t * model.bandwidth_[0] for t in (-1, 0, 1)])
    kinks = np.concatenate(
        [s * (ends - low) + low + 2 * k * (high - low) for s in (-1, 1) for k in range(-3, 4)]
    )
    inner = kinks[(kinks > low) & (kinks < high)]
    edges = np.unique(np.concatenate([np.linspace(low, high, 200), inner]))
    nodes, weights = np.polynomial.legendre.leggauss(12)
    middle, half = (edges[1:] + edges[:-1])[:, None] / 2, np.diff(edges)[:, None] / 2
    density = np.exp(model.score_samples((middle + half * nodes).reshape(-1, 1))).reshape(len(middle), -1)
    return float((half * weights * density).sum())


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("h", [0.05, 0.4, 1.5])
def test_integral_between_two_bounds(name, h):
    x = np.random.default_rng(0).random((7, 1))
    model = NadarayaWatsonDensity(name, h, support=(0, 1)).fit(x, sample_weight=np.arange(7.0))
    assert integral(model, 0.0, 1.0) == pytest.approx(1.0, abs=1e-9)


@pytest.mark.parametrize("name", NAMES)
def test_integral_beyond_one_bound(name):
    x = np.random.default_rng(0).exponential(size=(7, 1))
    for support, sign in ((0, None), 1.0), ((None, 0), -1.0):
        model = NadarayaWatsonDensity(name, 0.4, support=support).fit(sign * x)
        mirrored = NadarayaWatsonDensity(name, 0.4, support=(0, None)).fit(x)
        np.testing.assert_allclose(model.score_samples(sign * x), mirrored.score_samples(x), rtol=1e-12)
    assert integral(mirrored, 0.0, 40.0) == pytest.approx(1.0, abs=1e-9)


def test_integral_in_a_box():
    X = np.random.default_rng(0).random((20, 2)) * [1.0, 3.0]
    model = NadarayaWatsonDensity(bandwidth=[0.3, 0.5], support=[(0, 1), (0, None)]).fit(X)
    a, b = (np.arange(100) + 0.5) / 100, (np.arange(700) + 0.5) / 100
    grid = np.stack(np.meshgrid(a, b), axis=-1).reshape(-1, 2)
    assert np.exp(model.score_samples(grid)).sum() * 1e-4 == pytest.approx(1.0, abs=1e-4)


def test_every_image_counts():
    """The sum over images, written out, also where the kernel is wider than the support."""
    x, queries, h = np.array([0.1, 0.7]), np.linspace(0, 1, 9), 0.8
    images = np.concatenate([s * x + 2.0 * k for s in (-1, 1) for k in range(-12, 13)])
    expected = norm(images, h).pdf(queries[:, None]).sum(axis=1) / 2
    model = NadarayaWatsonDensity(bandwidth=h, support=(0, 1)).fit(x[:, None])
    np.testing.assert_allclose(np.exp(model.score_samples(queries[:, None])), expected, rtol=1e-12)
    wide = NadarayaWatsonDensity(bandwidth=3.0, support=(0, 1)).fit(x[:, None])
    np.testing.assert_allclose(wide.score_samples(queries[:, None]), 0.0, atol=1e-12)


@pytest.mark.parametrize("h", [0.2, 0.1, 0.05])
def test_bias_at_the_edge(h):
    """At 0 and for large n: none for the uniform, O(h²) for the half-normal, O(h) for the exponential."""
    u = (np.arange(20000) + 0.5) / 20000

    def at_zero(x, support):
        model = NadarayaWatsonDensity(bandwidth=h, support=support).fit(x[:, None])
        return float(np.exp(model.score_samples([[0.0]]))[0])

    assert at_zero(u, (0, 1)) == pytest.approx(1.0, abs=1e-6)
    half_normal = norm.ppf(0.5 + u / 2)
    assert at_zero(half_normal, (0, None)) / (2 * norm.pdf(0)) == pytest.approx(1 - h**2 / 2, abs=h**4)
    assert at_zero(-np.log(u), (0, None)) == pytest.approx(1 - math.sqrt(2 / math.pi) * h, abs=h**2)


def dense_criterion(X, weight, h, low, high):
    """Minus the mean leave-one-out log-density less its constants, with the images nearest to the bounds."""
    total = np.zeros((len(X), len(X)))
    for first in (X[:, 0], 2 * low - X[:, 0], 2 * high - X[:, 0]):
        r2 = ((first[:, None] - X[:, 0]) / h[0]) ** 2 + ((X[:, 1, None] - X[:, 1]) / h[1]) ** 2
        total += np.exp(-r2 / 2)
    np.fill_diagonal(total, 0.0)
    mass = total @ (weight / weight.max())
    return np.log(h).sum() - np.average(np.log(mass), weights=weight)


@pytest.mark.parametrize("kernel", ["gaussian", "matern52"])
def test_likelihood_and_its_gradient(kernel):
    random = np.random.default_rng(0)
    X, weight = random.random((40, 2)) * [1.0, 5.0], random.random(40)
    X[0, 0] = 0.0  # its own image
    X = X[np.lexsort(X.T[::-1])]  # as the smoother has them
    model = NadarayaWatsonDensity(kernel, [0.1, 0.8], support=[(0, 1), None]).fit(X, sample_weight=weight)
    criterion = likelihood(model._smoother, model._support, X)
    for h in ([0.1, 0.8], [0.03, 2.0], [0.5, 0.4]):
        unit = model._smoother.sample.unit
        place = np.log(h / unit)
        value, gradient = criterion(place)
        numerical = approx_fprime(place, lambda z: criterion(z)[0], 1e-6)
        np.testing.assert_allclose(gradient, numerical, atol=2e-5)
        if kernel == "gaussian" and h[0] < 0.2:
            expected = dense_criterion(X, weight, np.array(h), 0.0, 1.0) - np.log(unit).sum()
            assert value == pytest.approx(expected, rel=1e-10)


def test_likelihood_of_an_isolated_point_at_the_edge():
    """What it gives its own image is 10^300 times what the others give: it must not stay as rounding."""
    X = np.array([[0.0], [37.0], [37.5], [38.0]])
    model = NadarayaWatsonDensity(bandwidth=1.0, support=(0, None)).fit(X)
    value, gradient = likelihood(model._smoother, model._support, X)(np.zeros(1))
    free = NadarayaWatsonDensity(bandwidth=1.0).fit(X)
    without = likelihood(free._smoother, None, X)(np.zeros(1))[0]
    assert without - math.log(2) <= value <= without
    assert np.isfinite(gradient).all()


def test_images_far_from_all_points_cost_nothing(monkeypatch):
    """Of 216 images in a box of three features all but a few are beyond the kernel's reach."""
    X = np.random.default_rng(0).beta(2.0, 3.0, (150, 3))
    X = X[np.lexsort(X.T[::-1])]  # as the smoother has them
    model = NadarayaWatsonDensity(bandwidth=0.05, support=(0, 1)).fit(X)
    request, queries = Smoother.request, []

    def counted(self, *arguments, **options):
        made = request(self, *arguments, **options)
        queries.append(len(made.query))
        return made

    monkeypatch.setattr(Smoother, "request", counted)
    value, _ = likelihood(model._smoother, model._support, X)(np.log(model._smoother.bandwidth))
    density = model.score_samples(X)
    assert sum(queries) < 12 * len(X)
    # Written out: the product over features of the sum over images.
    centres = np.stack([2.0 * k + sign * X for sign in (-1, 1) for k in (-1, 0, 1)])
    terms = norm(centres[:, None], 0.05).pdf(X[:, None]).sum(axis=0).prod(axis=2)
    np.testing.assert_allclose(density, np.log(terms.mean(axis=1)), rtol=1e-12, atol=1e-12)
    others = np.log((terms.sum(axis=1) - np.diag(terms)) * 0.05**3 * (2 * np.pi) ** 1.5)
    assert value == pytest.approx(
        -others.mean() + 3 * np.log(0.05) - np.log(model._smoother.sample.unit).sum()
    )


def test_selected_bandwidth():
    """For draws from a uniform density a wide window wins if reflected, and a narrow one if not."""
    x = np.random.default_rng(1).random((300, 1))
    free = NadarayaWatsonDensity(bandwidth="loo", n_starts=1).fit(x)
    bounded = NadarayaWatsonDensity(bandwidth="loo", n_starts=1, support=(0, 1)).fit(x)
    queries = np.linspace(0, 1, 101)[:, None]
    errors = [np.abs(np.exp(m.score_samples(queries)) - 1).mean() for m in (bounded, free)]
    assert bounded.bandwidth_[0] > 2 * free.bandwidth_[0]
    assert errors[0] < errors[1] / 2


def test_outside():
    x = np.random.default_rng(0).random((30, 1))
    model = NadarayaWatsonDensity(support=(0, 1)).fit(x)
    scores = model.score_samples([[-0.01], [0.0], [1.0], [1.01]])
    assert np.isneginf(scores[[0, 3]]).all()
    assert np.isfinite(scores[[1, 2]]).all()
    with pytest.raises(InputError, match=r"feature 0 of X must be in its support \[0, 1\], got 1\.5"):
        NadarayaWatsonDensity(support=(0, 1)).fit(np.append(x, [[1.5]], axis=0))


def test_bounds_are_rounded_as_the_points_are():
    x = np.array([[0.1], [0.5], [0.9]], np.float32)
    model = NadarayaWatsonDensity(support=(0.1, 0.9)).fit(x)
    assert np.isfinite(model.score_samples(x)).all()
    drawn = model.sample(2000, random_state=0)
    assert drawn.dtype == np.float32
    assert np.isfinite(model.score_samples(drawn)).all()


@pytest.mark.parametrize(
    "support", [(1, 0), (0, 0), 3.0, "ab", (0, 1, 2), [(0, 1)], (0, np.nan), [(0, 1), (1,)]]
)
def test_bad_support(support):
    with pytest.raises(InputError, match=r"support must be \(low, high\) with low < high"):
        NadarayaWatsonDensity(support=support).fit(np.random.default_rng(0).random((9, 2)))


def test_too_many_images():
    x = np.random.default_rng(0).random((9, 1))
    with pytest.raises(InputError, match="too wide for the support and this kernel"):
        NadarayaWatsonDensity(RationalQuadratic(1.0, 1.0), 1.0, support=(0, 1)).fit(x).score_samples(x)


def test_folding():
    support = Support.of([(0, 1), (2, None), (None, 3), None], np.zeros((1, 4)))
    X = np.array([[-0.25, 1.0, 5.0, 9.0], [2.25, 2.5, 1.0, -9.0], [-3.75, 2.0, 3.0, 0.0]])
    expected = [[0.25, 3.0, 1.0, 9.0], [0.25, 2.5, 1.0, -9.0], [0.25, 2.0, 3.0, 0.0]]
    np.testing.assert_allclose(support.folded(X), expected)
    for sign, offset in support.reflections(Gaussian(1.0), np.full(4, 0.1)):
        np.testing.assert_allclose(support.folded(sign * X + offset), expected)
