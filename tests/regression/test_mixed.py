"""Sums where features are categories and numbers are missing, against the definition pair by pair."""

from dataclasses import replace

import numpy as np
import pytest

from nadaraya.errors import InputError
from nadaraya.kernels import Epanechnikov, Gaussian, Matern
from nadaraya.regression import mixed
from nadaraya.regression.categories import (
    CATEGORY_KERNELS,
    MISSING,
    UNSEEN,
    Category,
    Factors,
    codes_of,
    numbers_of,
)
from nadaraya.regression.requests import (
    BandwidthGradients,
    LineGradients,
    Lines,
    Means,
    Moments,
    PositionGradients,
    Request,
    Sums,
)
from nadaraya.regression.rules import log_values
from nadaraya.regression.sums import compute


@pytest.fixture(params=["by groups", "by pairs"], autouse=True)
def way(request, monkeypatch):
    """Both ways to make the sums; only the first has scales of 0."""
    monkeypatch.setattr(mixed, "_PAIRS_PER_GROUP", 0 if request.param == "by groups" else 10**9)


UNORDERED, ORDERED = Category(1, num_levels=3), Category(3, ordered=True, num_levels=4)
WHETHER_MISSING = Category(2, number=1)
MIXED = (UNORDERED, ORDERED, WHETHER_MISSING)
BANDWIDTH = np.array([0.7, 1.1])
SCALES = np.array([0.6, 1.5, 0.9])


def table(n, seed=0, missing=0.3):
    """A number, an unordered category, a number that may be missing, an ordered category."""
    random = np.random.default_rng(seed)
    columns = [
        random.normal(size=n),
        random.integers(0, 3, n),
        random.normal(size=n),
        random.integers(0, 4, n),
    ]
    result = np.stack(columns, axis=1).astype(float)
    result[random.random(n) < missing, 2] = np.nan
    return result


def request_of(quantity, query, points, columns, bandwidth, categories, scales, kernel=None, **options):
    x = numbers_of(categories, points)[0]
    q = x if query is points else numbers_of(categories, query)[0]
    factors = Factors(categories, np.array(scales), codes_of(categories, query), codes_of(categories, points))
    return Request(
        quantity, q, x, columns, kernel or Gaussian(1.0), np.array(bandwidth), factors=factors, **options
    )


def asked_for(quantity=Sums, m=17, n=60, categories=MIXED, bandwidth=BANDWIDTH, scales=SCALES, **options):
    random = np.random.default_rng(0)
    points = table(n, 0, options.pop("missing", 0.3))
    query = points if options.get("exclude_self") else table(m, 1)
    weight = random.random(n) * (random.random(n) < 0.9)
    columns = np.concatenate([weight[None], weight * random.normal(size=(2, n))])
    return request_of(quantity, query, points, columns, bandwidth, categories, scales, **options)


def pairs(asked):
    """Weights κ^power times the factors of categories, (m, n), and differences of numbers, (m, n, f)."""
    difference = asked.query[:, None] - asked.points
    difference = np.where(np.isfinite(asked.bandwidth), difference, 0.0)
    factor = 1.0
    for category, scale, a, b in zip(
        asked.factors.categories,
        asked.factors.scales,
        asked.factors.query.T[:, :, None],
        asked.factors.points.T,
        strict=True,
    ):
        if category.number is not None:
            difference[..., category.number] *= (a == 0) & (b == 0)
        ranked = category.ordered & (a >= 0) & (b >= 0)
        steps = np.where(ranked, np.abs(a - b), a != b)
        factor = factor * (np.exp(-1.0 / scale) if scale else 0.0) ** steps
        if category.ordered and category.kernel == "probability":
            factor = np.where(steps > 0, factor / 2, factor)
    r = np.sqrt(((difference / asked.bandwidth) ** 2).sum(axis=2))
    if asked.query_scale is not None:
        r = r / asked.query_scale[:, None]
    weight = np.exp(log_values(asked.kernel, r)) * factor
    if asked.exclude_self:
        np.fill_diagonal(weight, 0.0)
    return weight**asked.power, difference


def assert_is(found, expected):
    """Equal up to the factor exp(log_scale)."""
    shape = (-1,) + (1,) * (expected.ndim - 1)
    scale = np.exp(found[0].log_scale).reshape(shape)
    np.testing.assert_allclose(found[1] * scale, expected, rtol=1e-10, atol=1e-12)


OPTIONS = {
    "plain": {},
    "ordered by Wang and van Ryzin": {
        "categories": (UNORDERED, replace(ORDERED, kernel="probability"), WHETHER_MISSING)
    },
    "leave-one-out": {"exclude_self": True},
    "adaptive": {"query_scale": np.linspace(0.5, 2.0, 17)},
    "no number is missing": {"missing": 0.0},
    "smoothed out": {"bandwidth": [np.inf, 1.1], "scales": [np.inf, 1.5, np.inf]},
    "no kernel of numbers": {"bandwidth": [np.inf, np.inf]},
    "table": {"bandwidth": [np.inf, np.inf], "exclude_self": True},
    "PyTorch": {"kernel": 0.5 * Matern(1.0) + Gaussian(2.0)},
}


@pytest.mark.parametrize("options", OPTIONS.values(), ids=OPTIONS)
def test_sums_moments_and_means(options):
    asked = asked_for(**options)
    weight, difference = pairs(asked)
    sums = compute(asked)
    assert_is((sums, sums.values), weight @ asked.columns.T)
    moments = compute(replace(asked, quantity=Moments))
    assert_is((moments, moments.first), np.einsum("mn,mnf,cn->mfc", weight, difference, asked.columns))
    expected = np.einsum("mn,mnf,mng,n->mfg", weight, difference, difference, asked.columns[0])
    assert_is((moments, moments.second), expected)
    means = compute(replace(asked, quantity=Means))
    np.testing.assert_allclose(means.values, sums.values[:, 1:] / sums.values[:, :1], rtol=1e-12)


@pytest.mark.parametrize("power", [1, 2])
def test_powers(power):
    asked = asked_for(power=power)
    sums = compute(asked)
    assert_is((sums, sums.values), pairs(asked)[0] @ asked.columns.T)


def by_log_bandwidth(function, asked):
    """(m, f + K, ...) central differences by the logarithms of a request's bandwidths and scales."""
    step, changes, f = 1e-5, [], len(asked.bandwidth)
    both = np.append(asked.bandwidth, asked.factors.scales)
    for place in range(len(both)):
        ends = []
        for sign in (1, -1):
            moved = both.copy()
            moved[place] *= np.exp(sign * step)
            factors = replace(asked.factors, scales=moved[f:])
            ends.append(function(replace(asked, bandwidth=moved[:f], factors=factors)))
        changes.append((ends[0] - ends[1]) / (2 * step))
    return np.stack(changes, axis=1)


@pytest.mark.parametrize("options", OPTIONS.values(), ids=OPTIONS)
def test_gradients_by_bandwidths_and_scales(options):
    asked = asked_for(BandwidthGradients, **options)
    found = compute(asked)
    expected = by_log_bandwidth(lambda moved: pairs(moved)[0] @ asked.columns.T, asked)
    scale = np.exp(found.log_scale)[:, None, None]
    np.testing.assert_allclose(found.gradients * scale, expected, rtol=1e-6, atol=1e-8)
    smoothed_out = np.isinf(np.append(asked.bandwidth, asked.factors.scales))
    assert (found.gradients[:, smoothed_out] == 0).all()


@pytest.mark.parametrize("options", OPTIONS.values(), ids=OPTIONS)
def test_gradients_of_lines(options):
    asked = asked_for(LineGradients, **options)
    m, random = len(asked.query), np.random.default_rng(5)
    lines = Lines(random.normal(size=(m, 3)), random.normal(size=(m, 3, 2)))
    found = compute(replace(asked, lines=lines))

    def off_lines(moved):
        weight, difference = pairs(moved)
        z = np.concatenate([np.ones((*weight.shape, 1)), -difference], axis=2)
        lean = np.einsum("mnz,mz->mn", z, lines.row)
        line = np.einsum("mnz,mzc->mnc", z, lines.coefficients)
        rest = asked.columns[1:].T - asked.columns[0][:, None] * line
        rest = np.concatenate([(asked.columns[0] * lean)[:, :, None], rest], axis=2)
        return np.einsum("mn,mn,mnc->mc", weight, lean, rest)

    scale = np.exp(found.log_scale)[:, None, None]
    expected = by_log_bandwidth(off_lines, asked)
    np.testing.assert_allclose(found.gradients * scale, expected, rtol=1e-6, atol=1e-7)


def test_gradients_by_position():
    asked = asked_for(PositionGradients)
    found, step = compute(asked), 1e-6
    scale = np.exp(found.log_scale)[:, None]
    for number in range(2):
        shift = step * np.eye(2)[number]
        ends = [
            pairs(replace(asked, query=asked.query + sign * shift))[0] @ asked.columns.T for sign in (1, -1)
        ]
        expected = (ends[0] - ends[1]) / (2 * step)
        np.testing.assert_allclose(found.gradients[:, number] * scale, expected, rtol=1e-5, atol=1e-8)


def test_categories_alone():
    categories = (Category(0, num_levels=3), Category(1, ordered=True, num_levels=5))
    random = np.random.default_rng(0)
    x = np.stack([random.integers(0, 3, 50), random.integers(0, 5, 50)], axis=1).astype(float)
    columns, kernel = np.stack([np.ones(50), random.normal(size=50)]), 2.0 * Gaussian(1.0)
    for exclude_self in (False, True):
        asked = request_of(
            BandwidthGradients, x, x, columns, [], categories, [0.4, 0.8], kernel, exclude_self=exclude_self
        )
        found, (weight, _) = compute(asked), pairs(asked)
        assert_is((found, found.values), weight @ columns.T)
        expected = by_log_bandwidth(lambda moved: pairs(moved)[0] @ columns.T, asked)
        scale = np.exp(found.log_scale)[:, None, None]
        np.testing.assert_allclose(found.gradients * scale, expected, rtol=1e-6, atol=1e-8)


def with_levels(levels, numbers, query_level, scale=0.5, kernel=None, **options):
    x = np.stack([np.array(numbers, float), np.array(levels, float)], axis=1)
    columns = np.stack([np.ones(len(x)), np.arange(len(x)) + 1.0])
    q = x if options.get("exclude_self") else np.array([[0.0, query_level]])
    return request_of(Sums, q, x, columns, [1.0], (Category(1),), [scale], kernel, **options)


def mean(sums):
    return sums.values[:, 1] / sums.values[:, 0]


def test_unseen_levels_differ_from_all():
    seen = compute(with_levels([0, 0, 0], [0.0, 1.0, 2.0], 0))
    for code in (UNSEEN, MISSING):
        unseen = compute(with_levels([0, 0, 0], [0.0, 1.0, 2.0], code))
        np.testing.assert_allclose(mean(unseen), mean(seen), rtol=1e-14)
        np.testing.assert_allclose(unseen.log_scale, seen.log_scale - 2.0, rtol=1e-12)


def test_small_scales_do_not_underflow():
    """All levels differ from the query's: only ratios matter, be λ e^−2000."""
    sums = compute(with_levels([1, 1, 1], [0.0, 1.0, 2.0], 0, scale=5e-4))
    assert sums.log_scale[0] < -1900
    assert mean(sums) == pytest.approx(mean(compute(with_levels([0, 0, 0], [0.0, 1.0, 2.0], 0))))


def test_other_levels_that_do_not_count():
    """λ = 0: only equal levels; where there are none the fit has no support, and the fewest steps count."""
    assert mean(compute(with_levels([0, 1, 1], [0.5, 0.0, 0.0], 0, scale=0.0))) == 1.0
    unseen = compute(with_levels([1, 1, 0], [0.0, 0.0, 0.0], UNSEEN, scale=0.0))
    assert unseen.no_support.all()
    assert mean(unseen) == 2.0
    alone = compute(with_levels([0, 1, 1], [0.0, 0.0, 0.0], None, scale=0.0, exclude_self=True))
    assert alone.no_support.tolist() == [True, False, False]
    np.testing.assert_allclose(mean(alone), [2.5, 3.0, 2.0])


def test_nearest_point_where_every_weight_is_zero():
    """Whatever its level, and in leave-one-out another than the point itself."""
    kernel = Epanechnikov(1.0)
    far = compute(with_levels([0, 1, 0], [5.0, 4.0, 9.0], 0, kernel=kernel))
    assert far.no_support.all()
    assert mean(far) == 2.0
    apart = compute(with_levels([0, 1, 0], [0.0, 4.0, 9.0], None, kernel=kernel, exclude_self=True))
    assert apart.no_support.all()
    np.testing.assert_allclose(mean(apart), [2.0, 1.0, 2.0])


def test_float32():
    asked = asked_for(missing=0.1)
    single = replace(asked, query=asked.query.astype(np.float32), points=asked.points.astype(np.float32))
    np.testing.assert_allclose(mean(compute(single)), mean(compute(asked)), rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("kernel", CATEGORY_KERNELS)
@pytest.mark.parametrize("ordered", [False, True])
def test_smoothing_and_scale_are_inverse(kernel, ordered):
    category = Category(0, ordered, 4, kernel)
    for smoothing in np.linspace(0.0, 1.0, 11) * category.greatest:
        assert category.smoothing(category.scale(smoothing)) == pytest.approx(smoothing, rel=1e-14)
    assert category.scale(category.greatest) == np.inf
    assert category.scale(0.0) == 0.0
    for wrong in (-0.1, category.greatest + 0.01, np.nan):
        with pytest.raises(InputError, match="bandwidth of a category must be between 0 and"):
            category.scale(wrong)


def test_one_level_plays_no_part():
    for kernel in CATEGORY_KERNELS:
        category = Category(0, num_levels=1, kernel=kernel)
        assert category.scale(0.3) == np.inf
        assert category.smoothing(np.inf) == 1.0


def test_kernels_as_published():
    """Aitchison and Aitken: 1 − λ or λ / (c − 1); Wang and van Ryzin: 1 − λ or (1 − λ) λ^s / 2."""
    steps, smoothing = np.array([0, 1, 2, 3]), 0.3
    unordered = Category(0, num_levels=4, kernel="probability")
    factor = np.exp(unordered.log_factor(np.minimum(steps, 1), unordered.scale(smoothing)))
    np.testing.assert_allclose(0.7 * factor, [0.7, 0.1, 0.1, 0.1])
    ordered = Category(0, ordered=True, num_levels=4, kernel="probability")
    factor = np.exp(ordered.log_factor(steps, ordered.scale(smoothing)))
    np.testing.assert_allclose(0.7 * factor, [0.7, *(0.35 * smoothing ** steps[1:])])
    ordered = replace(ordered, kernel="li-racine")
    np.testing.assert_allclose(np.exp(ordered.log_factor(steps, ordered.scale(smoothing))), smoothing**steps)


def test_densities_as_statsmodels():
    """KDEMultivariate's kernels add up to 1 over levels: relative to them equal levels have 1 − λ."""
    nonparametric = pytest.importorskip("statsmodels.nonparametric.kernel_density")
    random, n = np.random.default_rng(0), 50
    x = np.stack([random.normal(size=n), random.integers(0, 3, n), random.integers(0, 4, n)], axis=1)
    smoothing = [0.2, 0.3]
    categories = (
        Category(1, num_levels=3, kernel="probability"),
        Category(2, ordered=True, num_levels=4, kernel="probability"),
    )
    scales = [category.scale(value) for category, value in zip(categories, smoothing, strict=True)]
    asked = request_of(Sums, x, x, np.ones((1, n)), [0.5], categories, scales)
    theirs = nonparametric.KDEMultivariate(x, "cuo", bw=[0.5, *smoothing])
    constant = np.log(0.8 * 0.7 / (0.5 * np.sqrt(2 * np.pi)))
    for exclude_self, expected in ((False, np.log(theirs.pdf() * n)), (True, None)):
        sums = compute(replace(asked, exclude_self=exclude_self))
        log_density = np.log(sums.values[:, 0]) + sums.log_scale + constant
        if expected is None:
            assert -log_density.sum() == pytest.approx(theirs.loo_likelihood(theirs.bw, np.log), rel=1e-12)
        else:
            np.testing.assert_allclose(log_density, expected, rtol=1e-12, atol=1e-12)
