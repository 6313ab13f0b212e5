"""Plug-in bandwidths: the same equations solved with all pairs, without bins or Fourier transforms."""

import math

import numpy as np
import pytest
from numpy.polynomial.hermite_e import hermeval
from scipy.fft import dct
from scipy.optimize import brentq

from nadaraya.errors import InputError
from nadaraya.regression import NadarayaWatsonDensity

RULES = ("sheather-jones", "improved-sheather-jones")


def samples():
    random = np.random.default_rng(0)
    normal = random.normal(size=150)
    return {
        "normal": normal,
        "two modes": np.concatenate([normal, 8.0 + 0.2 * random.normal(size=90)]),
        "exponential": 1e5 + 1e-3 * random.exponential(size=120),
        "outliers": random.standard_cauchy(130),
    }


def roughness(x, order, variance):
    """∫ (f^(s))² as (−1)^s Σ_ij φ_g^(2s)(x_i − x_j) / n² with g² = 2 · variance."""
    g = math.sqrt(2 * variance)
    z = (x[:, None] - x) / g
    he = hermeval(z, np.eye(2 * order + 1)[2 * order])  # φ^(k) = (−1)^k He_k φ
    total = (he * np.exp(-(z**2) / 2)).mean() / math.sqrt(2 * math.pi)
    return (-1) ** order * total / g ** (2 * order + 1)


def sheather_jones(x):
    n = len(x)
    quartiles = np.subtract(*np.quantile(x, [0.75, 0.25])) / 1.349
    scale, unbiased = min(x.std(), quartiles), n / (n - 1)
    fourth = roughness(x, 2, (1.2407 * scale * n ** (-1 / 7)) ** 2 / 2) * unbiased
    sixth = roughness(x, 3, (1.2304 * scale * n ** (-1 / 9)) ** 2 / 2) * unbiased

    def excess(h):
        pilot = 1.3572 * (fourth / sixth) ** (1 / 7) * h ** (5 / 7)
        return (0.28209479 / (n * roughness(x, 2, pilot**2 / 2) * unbiased)) ** 0.2 - h

    return excess


def improved_sheather_jones(x):
    n = len(x)

    def excess(h):
        f = roughness(x, 7, h**2)
        for s in range(6, 1, -1):
            odd = math.prod(range(1, 2 * s, 2))
            time = (2 * (1 + 2 ** -(s + 0.5)) / 3 * odd / (n * math.sqrt(math.pi / 2) * 2 * f)) ** (
                2 / (3 + 2 * s)
            )
            f = roughness(x, s, time)
        return (2 * n * math.sqrt(math.pi) * f) ** -0.2 - h

    return excess


def bandwidth(x, rule, **options):
    model = NadarayaWatsonDensity(bandwidth=rule, **options).fit(x[:, None])
    return float(model.bandwidth_[0])


@pytest.mark.parametrize("name", ["normal", "two modes", "exponential", "outliers"])
@pytest.mark.parametrize("rule", RULES)
def test_equation_over_all_pairs(rule, name):
    x = samples()[name]
    scaled = (x - np.median(x)) / x.std()
    excess = {"sheather-jones": sheather_jones, "improved-sheather-jones": improved_sheather_jones}[rule]
    ours = bandwidth(x, rule) / x.std()
    expected = brentq(excess(scaled), 0.9 * ours, 1.1 * ours, rtol=1e-10)
    assert ours == pytest.approx(expected, rel=2e-4)


def by_cosine_transform(x, bins=2**13):
    """Improved Sheather-Jones as Botev, Grotowski and Kroese (2010) compute it: bins and cosines."""
    n, length = len(x), 3 * np.ptp(x)  # reflection at the ends is far from the points
    low = x.min() - np.ptp(x)
    counts = np.histogram(x, bins, (low, low + length))[0]
    power, k = (dct(counts / n)[1:] / 2) ** 2, np.pi * np.arange(1, bins)

    def roughness(s, time):
        return 2 * (k ** (2 * s) * power * np.exp(-(k**2) * time)).sum()

    def excess(time):
        f = roughness(7, time)
        for s in range(6, 1, -1):
            constant = (1 + 0.5 ** (s + 0.5)) / 3 * math.prod(range(1, 2 * s, 2)) / math.sqrt(2 * math.pi)
            f = roughness(s, (2 * constant / (n * f)) ** (2 / (3 + 2 * s)))
        return time - (2 * n * math.sqrt(math.pi) * f) ** -0.4

    return length * math.sqrt(brentq(excess, 1e-7, 1e-2))


@pytest.mark.parametrize(("n", "seed"), [(150, 0), (2000, 1)])
def test_improved_sheather_jones_by_another_way(n, seed):
    x = np.random.default_rng(seed).normal(size=n)
    assert bandwidth(x, "improved-sheather-jones") == pytest.approx(by_cosine_transform(x), rel=5e-3)


@pytest.mark.parametrize("rule", RULES)
def test_scale_and_kernel(rule):
    x = samples()["two modes"]
    h = bandwidth(x, rule)
    assert bandwidth(50.0 - 7.0 * x, rule) == pytest.approx(7.0 * h, rel=1e-4)
    assert bandwidth(x, rule, kernel="boxcar") == pytest.approx(h * math.sqrt(3), rel=1e-9)


@pytest.mark.parametrize("rule", RULES)
def test_weights_count_observations(rule):
    x, counts = samples()["normal"], np.random.default_rng(3).integers(0, 3, 150)
    weighted = NadarayaWatsonDensity(bandwidth=rule).fit(x[:, None], sample_weight=counts)
    assert weighted.bandwidth_[0] == pytest.approx(bandwidth(np.repeat(x, counts), rule), rel=1e-6)


@pytest.mark.parametrize("rule", RULES)
def test_better_than_the_rule_of_thumb_with_two_modes(rule):
    x = np.concatenate([np.random.default_rng(s).normal(m, 0.1, 400) for s, m in ((0, -3.0), (1, 3.0))])
    held_out = np.random.default_rng(2).normal(3.0, 0.1, (200, 1))
    scores = [NadarayaWatsonDensity(bandwidth=b).fit(x[:, None]).score(held_out) for b in (rule, "scott")]
    assert scores[0] > scores[1] + 100


@pytest.mark.parametrize("rule", RULES)
def test_refusals(rule):
    X = np.random.default_rng(0).normal(size=(30, 2))
    with pytest.raises(InputError, match=f"bandwidth='{rule}' is for one feature, got 2"):
        NadarayaWatsonDensity(bandwidth=rule).fit(X)
    with pytest.raises(InputError, match="needs at least 3 observations"):
        NadarayaWatsonDensity(bandwidth=rule).fit(X[:2, :1])
    with pytest.raises(InputError, match="feature 0 must vary"):
        NadarayaWatsonDensity(bandwidth=rule).fit(np.ones((5, 1)))


def test_no_solution():
    """A thousand copies of ten numbers: no bandwidth at which they look like draws from a density."""
    x = np.tile(np.arange(10.0), 1000)
    with pytest.raises(InputError, match="has no solution for these 10000 points: give a number"):
        NadarayaWatsonDensity(bandwidth="improved-sheather-jones").fit(x[:, None])
