"""Conditional densities: statsmodels' numbers, the definition of quantiles, draws, selection."""

import numpy as np
import pytest
from scipy import stats
from scipy.optimize import approx_fprime

from nadaraya.errors import InputError
from nadaraya.regression import NadarayaWatson, NadarayaWatsonConditionalDensity
from nadaraya.regression.conditional import _likelihood

BANDWIDTH = [0.4, 0.6, 0.2]


def data(n=120, seed=0):
    random = np.random.default_rng(seed)
    X = random.normal(size=(n, 2))
    return X, np.sin(X[:, 0]) + 0.3 * random.normal(size=n) + 2.0 * (random.random(n) > 0.5)


def fitted(bandwidth=BANDWIDTH, **options):
    return NadarayaWatsonConditionalDensity(bandwidth, **options).fit(*data())


def theirs(bandwidth=BANDWIDTH):
    density = pytest.importorskip("statsmodels.nonparametric.kernel_density")
    X, y = data()
    order = [bandwidth[-1], *bandwidth[:-1]] if not isinstance(bandwidth, str) else bandwidth
    return density.KDEMultivariateConditional(endog=y, exog=X, dep_type="c", indep_type="cc", bw=order)


def test_statsmodels():
    queries, targets = data(25, seed=1)
    model, reference = fitted(), theirs()
    scores = model.score_samples(queries, targets)
    np.testing.assert_allclose(np.exp(scores), reference.pdf(targets, queries), rtol=1e-8)
    np.testing.assert_allclose(
        model.predict_cdf(queries, targets), reference.cdf(targets, queries), rtol=1e-8
    )
    assert model.score(queries, targets) == pytest.approx(scores.sum(), rel=1e-12)
    for column, level in enumerate((0.01, 0.5, 0.9)):
        quantiles = model.predict_quantiles(queries, [0.01, 0.5, 0.9])[:, column]
        np.testing.assert_allclose(reference.cdf(quantiles, queries), level, atol=1e-8)


@pytest.mark.slow
def test_selection_is_at_least_as_good():
    X, y = data()
    reference = theirs("cv_ml")
    chosen = np.abs([*reference.bw[1:], reference.bw[0]])
    best = leave_one_out(NadarayaWatsonConditionalDensity().fit(X, y))
    assert best >= leave_one_out(NadarayaWatsonConditionalDensity(chosen).fit(X, y)) - 1e-5


def leave_one_out(model):
    """Mean log-density of each target given its features and the others, from dense sums."""
    X, y, weight = model.X_, model.y_, model.sample_weight_
    r2 = (((X[:, None] - X) / model.bandwidth_) ** 2).sum(axis=-1)
    weights = np.exp(-r2 / 2) * weight
    np.fill_diagonal(weights, 0.0)
    density = (weights * stats.norm.pdf(y[:, None], y, model.target_bandwidth_)).sum(axis=1) / weights.sum(
        axis=1
    )
    return np.average(np.log(density), weights=weight)


def test_criterion_and_its_gradient():
    X, y = data(60)
    weight = np.random.default_rng(0).random(60)
    first = second = None
    for bandwidth in (BANDWIDTH, [0.3, 2.0, 0.5]):
        model = NadarayaWatsonConditionalDensity(bandwidth).fit(X, y, weight)
        criterion = _likelihood(model._joint, model._smoother)
        place = np.log(bandwidth / model._joint.sample.unit)
        value, gradient = criterion(place)
        numerical = approx_fprime(place, lambda z, f=criterion: f(z)[0], 1e-6)
        np.testing.assert_allclose(gradient, numerical, atol=2e-5)
        first, second = second, value + leave_one_out(model)
    assert second == pytest.approx(first, abs=1e-9)  # the criterion lacks a constant


def test_selected_bandwidths():
    """At a minimum, with a wide bandwidth for the feature that tells nothing."""
    X, y = data()
    model = NadarayaWatsonConditionalDensity(n_starts=1).fit(X, y)
    best = leave_one_out(model)
    chosen = [*model.bandwidth_, model.target_bandwidth_]
    for factor in ([0.8, 1, 1], [1, 0.2, 1], [1, 1, 0.8], [1.25, 1, 1], [1, 1, 1.25]):
        other = NadarayaWatsonConditionalDensity(np.multiply(chosen, factor)).fit(X, y)
        assert leave_one_out(other) <= best + 1e-9
    assert model.bandwidth_[1] > 3 * X[:, 1].std() > 5 * model.bandwidth_[0]
    assert model.selection_.criterion == "loo"


def test_mean_is_kernel_regression():
    queries, _ = data(20, seed=1)
    expected = NadarayaWatson(bandwidth=BANDWIDTH[:2]).fit(*data()).predict(queries)
    np.testing.assert_allclose(fitted().predict(queries), expected, rtol=1e-10)


@pytest.mark.parametrize("bandwidth", [[1e-3, 1e-3, 1e-6], [0.4, 0.6, 0.2], [50.0, 50.0, 30.0]])
def test_quantiles_invert_the_distribution(bandwidth):
    """Also where it has steps that are narrow against the gaps between them."""
    queries, _ = data(30, seed=1)
    model = fitted(bandwidth)
    for level in (1e-9, 0.1, 0.5, 1 - 1e-9):
        at = model.predict_quantiles(queries, level)
        step = 1e-6 * model.target_bandwidth_
        assert (model.predict_cdf(queries, at - step) <= level + 1e-12).all()
        assert (model.predict_cdf(queries, at + step) >= level - 1e-12).all()
    low, high = model.predict_interval(queries, 0.8)
    expected = model.predict_quantiles(queries, [0.1, 0.9])
    np.testing.assert_allclose(np.stack([low, high], axis=1), expected, rtol=1e-9, atol=1e-12)


def test_blocks_and_order_change_nothing(monkeypatch):
    queries, targets = data(40, seed=1)
    model = fitted()
    expected = model.predict_quantiles(queries, [0.2, 0.7]), model.predict_cdf(queries, targets)
    drawn = model.sample(queries, 3, random_state=0)
    monkeypatch.setattr("nadaraya.regression.torch_sums._PAIRS_CPU", 2800)
    np.testing.assert_allclose(model.predict_quantiles(queries, [0.2, 0.7]), expected[0], rtol=1e-9)
    np.testing.assert_allclose(model.predict_cdf(queries, targets), expected[1], rtol=1e-12)
    np.testing.assert_array_equal(model.sample(queries, 3, random_state=0), drawn)


def test_draws():
    queries = np.array([[0.0, 0.0], [1.5, -0.5]])
    X, y = data()
    counts = np.random.default_rng(0).integers(0, 3, len(X))
    model = NadarayaWatsonConditionalDensity(BANDWIDTH).fit(X, y, counts)
    drawn = model.sample(queries, 4000, random_state=0)
    assert drawn.shape == (2, 4000)
    for query, row in zip(queries, drawn, strict=True):
        result = stats.kstest(row, lambda at, q=query: model.predict_cdf(np.tile(q, (len(at), 1)), at))
        assert result.pvalue > 1e-3


def test_coverage_of_intervals():
    """90 % intervals have 87 to 95 % of 2000 others, and are narrow where these scatter little."""
    random = np.random.default_rng(0)

    def draw(n):
        x = random.uniform(-2, 2, size=(n, 1))
        return x, np.sin(x[:, 0]) + (0.1 + 0.4 * (x[:, 0] > 0)) * random.normal(size=n)

    model = NadarayaWatsonConditionalDensity(n_starts=1).fit(*draw(400))
    x, y = draw(2000)
    low, high = model.predict_interval(x, 0.9)
    assert 0.87 < ((low <= y) & (y <= high)).mean() < 0.95
    assert (high - low)[x[:, 0] > 0.3].mean() > 2 * (high - low)[x[:, 0] < -0.3].mean()


def test_far_away():
    """Where all weights underflow, the nearest point's; and log p where p is zero in floating point."""
    X, y = [[0.0], [1.0]], [0.0, 3.0]
    model = NadarayaWatsonConditionalDensity([0.1, 0.5]).fit(X, y)
    assert model.predict_quantiles([[1000.0]]) == pytest.approx(3.0)
    expected = stats.norm(3.0, 0.5).logpdf([3.0, 500.0])
    np.testing.assert_allclose(model.score_samples([[1000.0], [1000.0]], [3.0, 500.0]), expected, rtol=1e-9)


def test_weights_without_selection_count_observations():
    X, y = data(50)
    counts = np.random.default_rng(0).integers(0, 3, 50)
    weighted = NadarayaWatsonConditionalDensity("scott").fit(X, y, counts)
    repeated = NadarayaWatsonConditionalDensity("scott").fit(np.repeat(X, counts, 0), np.repeat(y, counts))
    np.testing.assert_allclose(weighted.predict_quantiles(X), repeated.predict_quantiles(X), rtol=1e-9)
    np.testing.assert_allclose(weighted.score_samples(X, y), repeated.score_samples(X, y), rtol=1e-9)


def test_feature_that_does_not_vary():
    X, y = data(60)
    constant = np.insert(X, 1, 3.0, axis=1)
    for bandwidth in ("scott", "loo"):
        model = NadarayaWatsonConditionalDensity(bandwidth, n_starts=1).fit(constant, y)
        other = NadarayaWatsonConditionalDensity(bandwidth, n_starts=1).fit(X, y)
        assert np.isinf(model.bandwidth_[1])
        scores = other.score_samples(X, y)
        np.testing.assert_allclose(model.score_samples(constant, y), scores, rtol=1e-6, atol=1e-9)


def test_refusals():
    X, y = data(20)
    with pytest.raises(InputError, match="y must vary to have a density"):
        NadarayaWatsonConditionalDensity("scott").fit(X, np.ones(20))
    with pytest.raises(InputError, match=r"shape of bandwidth must be \(\) or \(3,\)"):
        NadarayaWatsonConditionalDensity([1.0, 1.0]).fit(X, y)
    model = NadarayaWatsonConditionalDensity(1.0).fit(X, y)
    for q in (0.0, [0.5, 1.0], "median", [[0.5]]):
        with pytest.raises(InputError, match="q must be"):
            model.predict_quantiles(X, q)
    with pytest.raises(InputError, match="level must be a number between 0 and 1"):
        model.predict_interval(X, 90)
    with pytest.raises(ValueError, match="inconsistent numbers of samples"):
        model.score_samples(X, y[:5])
