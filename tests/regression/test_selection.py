"""Choice of bandwidths and kernels: criteria, their gradients, rules of thumb, and how good the choice is."""

import copy

import numpy as np
import pytest
import torch
from grids import covering
from scipy.stats import gaussian_kde

from nadaraya.kernels import Gaussian, Matern, Periodic, RationalQuadratic
from nadaraya.kernels.base import Sum
from nadaraya.regression import NadarayaWatson, selection
from nadaraya.regression.checks import fixed_kernel
from nadaraya.regression.criteria import SCORES, DifferentiableCriterion, regression_criterion
from nadaraya.regression.sample import NeighbourScale, Sample
from nadaraya.regression.smoother import Smoother

NAMES = ("gaussian", "exponential", "matern32", "matern52", "epanechnikov", "tricube", "boxcar")


def data(n=60, d=2, seed=0):
    random = np.random.default_rng(seed)
    X = random.normal(size=(n, d)) * np.linspace(1.0, 2.0, d)
    return X, np.sin(2 * X[:, 0]) + 0.3 * X[:, -1] ** 2 + 0.2 * random.normal(size=n)


def regression(kernel, degree, adaptive, n=60):
    """A weighted smoother with any bandwidth, and targets less their means."""
    X, y = data(n)
    random = np.random.default_rng(1)
    weight = random.random(n) * (random.random(n) > 0.1)
    weight *= n / weight.sum()
    targets = np.stack([y, y**2], axis=1)
    targets = targets - np.average(targets, axis=0, weights=weight)
    sample = Sample.of(X, weight)
    neighbours = NeighbourScale(sample, 5) if adaptive else None
    return Smoother(sample, kernel, np.ones(2), degree, neighbours), targets


@pytest.mark.parametrize("criterion", SCORES)
@pytest.mark.parametrize("degree", [0, 1])
@pytest.mark.parametrize("name", NAMES)
def test_gradients(name, degree, criterion):
    for adaptive in (False, True):
        function = regression_criterion(criterion, *regression(fixed_kernel(name), degree, adaptive))
        at, step = np.log([2.1, 3.3]), 1e-6
        score, gradient = function(at)
        assert np.isfinite(score)
        numerical = [(function(at + e)[0] - function(at - e)[0]) / (2 * step) for e in step * np.eye(2)]
        np.testing.assert_allclose(gradient, numerical, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("criterion", SCORES)
@pytest.mark.parametrize("degree", [0, 1])
@pytest.mark.parametrize("name", NAMES)
def test_ways_to_compute_criteria_agree(name, degree, criterion):
    """Compiled loops, blocks (which a sum of kernels takes) and automatic differentiation."""
    at = np.log([2.1, 3.3])
    compiled = regression(fixed_kernel(name), degree, True)
    score, gradient = regression_criterion(criterion, *compiled)(at)
    others = (
        regression_criterion(criterion, *regression(Sum(fixed_kernel(name)), degree, True)),
        DifferentiableCriterion(criterion, *compiled),
    )
    parameters = torch.nn.utils.parameters_to_vector(compiled[0].kernel.parameters()).tolist()
    for other, arguments in zip(others, (at, np.append(at, parameters)), strict=True):
        value, slope = other(arguments)
        assert value == pytest.approx(score, abs=1e-8)
        np.testing.assert_allclose(slope[:2], gradient, rtol=1e-6, atol=1e-7)


def test_gradients_by_kernel_parameters():
    kernel = fixed_kernel(Periodic(0.7, 0.4) * Gaussian(2.0) + 0.5 * RationalQuadratic(1.0, 0.5))
    function = DifferentiableCriterion("aic", *regression(kernel, 1, False))
    at = np.concatenate(
        [np.log([1.1, 2.0]), torch.nn.utils.parameters_to_vector(kernel.parameters()).tolist()]
    )
    gradient, step = function(at)[1], 1e-6
    numerical = [(function(at + e)[0] - function(at - e)[0]) / (2 * step) for e in step * np.eye(len(at))]
    np.testing.assert_allclose(gradient, numerical, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("degree", [0, 1])
def test_leave_one_out_is_refitting(name, degree):
    X, y = data(40)
    weight = np.random.default_rng(2).uniform(0.5, 2.0, 40)
    # A line that its points do not determine is flattest in units of the spread, which refits change.
    bandwidth = [4.0, 6.0] if degree else [1.2, 1.7]
    model = NadarayaWatson(name, bandwidth, degree=degree).fit(X, y, weight)
    refits = [
        NadarayaWatson(name, bandwidth, degree=degree)
        .fit(X[keep], y[keep], weight[keep])
        .predict(X[~keep])[0]
        for keep in ~np.eye(40, dtype=bool)
    ]
    np.testing.assert_allclose(model.loo_predictions(), refits, rtol=1e-8, atol=1e-8)
    expected = np.average((y - refits) ** 2, weights=weight)
    assert model.loo_score() == pytest.approx(expected, rel=1e-8)


def aic(model, X, y, weight):
    """AIC_c from the smoother's matrix: the predictions of the unit vectors."""
    refit = NadarayaWatson(model.kernel, model.bandwidth_, degree=model.degree)
    smoother = refit.fit(X, np.eye(len(X)), weight).predict(X)
    n = len(X)
    trace = smoother.trace()
    return np.log(np.average((y - smoother @ y) ** 2, weights=weight)) + (1 + trace / n) / (
        1 - (trace + 2) / n
    )


@pytest.mark.parametrize("name", ["gaussian", "matern32", "epanechnikov", "boxcar"])
@pytest.mark.parametrize("degree", [0, 1])
def test_scores_of_selections(name, degree):
    X, y = data(50)
    weight = np.random.default_rng(2).uniform(0.5, 1.5, 50)
    model = NadarayaWatson(name, "aic", degree=degree, n_starts=1).fit(X, y, weight)
    assert model.selection_.criterion == "aic"
    assert model.selection_.score == pytest.approx(aic(model, X, y, weight), abs=1e-6)
    model = NadarayaWatson(name, "loo", degree=degree, n_starts=1).fit(X, y, weight)
    assert model.selection_.criterion == "loo"
    variance = np.average((y - np.average(y, weights=weight)) ** 2, weights=weight)
    assert model.selection_.score == pytest.approx(np.log(model.loo_score() / variance), abs=1e-6)


@pytest.mark.parametrize(("name", "degree", "criterion"), covering(NAMES, [0, 1], list(SCORES)))
def test_selections_are_as_good_as_a_grid(name, degree, criterion):
    random = np.random.default_rng(4)
    X = np.sort(random.random((80, 1)), axis=0)
    y = np.sin(8 * X[:, 0]) + 0.2 * random.normal(size=80)
    chosen = NadarayaWatson(name, criterion, degree=degree).fit(X, y)
    targets = (y - y.mean())[:, None]
    smoother = Smoother(Sample.of(X, np.ones(80)), fixed_kernel(name), np.ones(1), degree)
    function = regression_criterion(criterion, smoother, targets)
    least = min(function(np.log([h]))[0] for h in np.geomspace(0.005, 2.0, 40))
    # Compact kernels make the criterion jump, so that a descent may end a little off.
    assert chosen.selection_.score <= least + (1e-6 if name in NAMES[:4] else 0.03)


def test_selection_is_recorded():
    X, y = data()
    model = NadarayaWatson(bandwidth="loo", n_starts=5, random_state=3).fit(X, y)
    starts = model.selection_.starts
    assert len(starts) == 5
    assert [run.score for run in starts] == sorted(run.score for run in starts)
    assert all(run.evaluations >= 1 for run in starts)
    np.testing.assert_array_equal(starts[0].end, model.bandwidth_)
    again = NadarayaWatson(bandwidth="loo", n_starts=5, random_state=3).fit(X, y).selection_.starts
    np.testing.assert_array_equal([run.start for run in again], [run.start for run in starts])
    assert NadarayaWatson(bandwidth="scott").fit(X, y).selection_ is None
    assert model.selection_.size == len(X)
    assert model.selection_.evaluations >= 5


def waves(n, seed, d=4, scale=0.3):
    """Two features that matter together and one by itself, the rest noise: most bandwidths are no use."""
    random = np.random.default_rng(seed)
    X = random.uniform(-1, 1, (n, d))
    return X, np.sin(4 * X[:, 0]) * X[:, 1] + np.cos(6 * X[:, 2]) + scale * random.normal(size=n)


def test_the_plateau_of_wide_bandwidths_is_left():
    """Descents from common multiples of the rule of thumb end there: AIC_c 0.324."""
    X, y = waves(200, 2)
    model = NadarayaWatson().fit(X, y)
    assert model.selection_.score < -0.42
    queries, _ = waves(500, 3)
    expected = np.sin(4 * queries[:, 0]) * queries[:, 1] + np.cos(6 * queries[:, 2])
    assert model.score(queries, expected) > 0.6


@pytest.mark.parametrize(("criterion", "degree"), [("aic", 1), ("loo", 0)])
def test_a_search_in_stages_ends_at_a_minimum_over_all_points(criterion, degree):
    X, y = data(1300, d=2)
    weight = np.random.default_rng(3).uniform(0.5, 1.5, len(X))
    model = NadarayaWatson(bandwidth=criterion, degree=degree).fit(X, y, weight)
    assert model.selection_.size == len(X)
    smoother = model._smoother
    function = regression_criterion(criterion, smoother, model._targets)
    score, gradient = function(np.log(smoother.bandwidth))
    unit = np.log(model._unit[0]) if criterion == "aic" else 0.0  # AIC_c has the variance of the targets
    assert score + 2 * unit == pytest.approx(model.selection_.score, abs=1e-12)
    np.testing.assert_allclose(gradient, 0.0, atol=1e-3)
    wider = [function(np.log(factor * smoother.bandwidth))[0] for factor in (0.5, 0.8, 1.25, 2.0)]
    assert score < min(wider)


@pytest.mark.parametrize("adaptive", [None, 5])
def test_some_of_the_points_choose_for_all(adaptive):
    X, y = data(900, d=2)
    whole = NadarayaWatson(adaptive=adaptive).fit(X, y)
    part = NadarayaWatson(adaptive=adaptive, selection_size=300).fit(X, y)
    assert part.selection_.size == 300
    np.testing.assert_allclose(part.bandwidth_, whole.bandwidth_, rtol=0.6)
    rule = NadarayaWatson(bandwidth="scott", adaptive=adaptive).fit(X, y)
    assert part.loo_score() < rule.loo_score()
    again = NadarayaWatson(adaptive=adaptive, selection_size=300).fit(X, y)
    np.testing.assert_array_equal(again.bandwidth_, part.bandwidth_)
    np.testing.assert_array_equal(
        NadarayaWatson(adaptive=adaptive, selection_size=5000).fit(X, y).bandwidth_, whole.bandwidth_
    )


def test_a_long_search_says_how_far_it_is(capsys, monkeypatch):
    monkeypatch.setattr(selection, "_SECONDS_BETWEEN_REPORTS", 0.0)
    X, y = data(100)
    model = NadarayaWatson(verbose=1, n_starts=2).fit(X, y)
    *running, last = capsys.readouterr().out.splitlines()
    assert len(running) == model.selection_.evaluations
    counts = [int(line.split()[3]) for line in running]
    assert counts == list(range(1, len(running) + 1))
    best = [float(line.split(" aic ")[1].split()[0]) for line in running]
    assert best == sorted(best, reverse=True)
    assert last.startswith(f"[NadarayaWatson] 100 points: {len(running)} evaluations, best aic ")


def test_a_narrow_valley_is_found():
    """A season beside a trend: descents from the rule of thumb end in the wide valley of the trend."""
    x = np.linspace(0, 40, 480)[:, None]
    y = 0.5 * x[:, 0] + np.sin(2 * np.pi * x[:, 0]) + 0.05 * np.random.default_rng(0).normal(size=480)
    assert NadarayaWatson(bandwidth="loo", n_starts=1).fit(x, y).bandwidth_[0] < 0.1


@pytest.mark.parametrize(
    ("name", "degree", "bandwidth"),
    covering(["gaussian", "tricube"], [0, 1], ["loo", "aic", "scott", "silverman"]),
)
def test_units(name, degree, bandwidth):
    """Bandwidths follow the units of the features, and none of those of the target."""
    X, y = data()
    units = np.array([1e-3, 250.0])
    model = NadarayaWatson(name, bandwidth, degree=degree, n_starts=1).fit(X, y)
    other = NadarayaWatson(name, bandwidth, degree=degree, n_starts=1).fit(units * X + 7.0, 40.0 - 3.0 * y)
    # Local lines under a compact kernel have many neighbouring minima: rounding decides which one is found.
    rough = name == "tricube" and degree == 1
    np.testing.assert_allclose(other.bandwidth_, units * model.bandwidth_, rtol=0.1 if rough else 5e-3)
    if bandwidth == "loo":  # in units of the target's variance
        assert other.selection_.score == pytest.approx(model.selection_.score, abs=0.01)
    fixed = NadarayaWatson(name, units * model.bandwidth_, degree=degree).fit(units * X + 7.0, 40.0 - 3.0 * y)
    queries = X + 0.1
    np.testing.assert_allclose(
        fixed.predict(units * queries + 7.0), 40.0 - 3.0 * model.predict(queries), rtol=1e-7, atol=1e-6
    )


@pytest.mark.parametrize("d", [1, 2, 4])
@pytest.mark.parametrize("rule", ["scott", "silverman"])
def test_rules_of_thumb_are_those_of_scipy(rule, d):
    X, y = data(d=d)
    factor = gaussian_kde(X.T, bw_method=rule).factor
    model = NadarayaWatson(bandwidth=rule).fit(X, y)
    np.testing.assert_allclose(model.bandwidth_, factor * X.std(axis=0), rtol=1e-12)


@pytest.mark.parametrize(
    ("name", "variance"),
    [
        ("exponential", 2),
        ("matern32", 4 / 3),
        ("matern52", 6 / 5),
        ("epanechnikov", 1 / 5),
        ("tricube", 35 / 243),
        ("boxcar", 1 / 3),
        (Gaussian(torch.tensor(0.3, dtype=torch.float64)), 0.09),
        (RationalQuadratic(1.0, 0.5), 1),  # no variance: as the Gaussian
    ],
)
def test_rules_of_thumb_for_other_kernels(name, variance):
    X, y = data()
    gaussian, other = (NadarayaWatson(kernel, "scott").fit(X, y).bandwidth_ for kernel in ("gaussian", name))
    np.testing.assert_allclose(other, gaussian / np.sqrt(variance), rtol=1e-9)


@pytest.mark.parametrize("bandwidth", ["loo", "aic", "scott", "silverman"])
@pytest.mark.parametrize("degree", [0, 1])
def test_features_that_do_not_vary(bandwidth, degree):
    X, y = data()
    constant = np.insert(X, 1, 0.1, axis=1)
    model = NadarayaWatson(bandwidth=bandwidth, degree=degree, n_starts=1).fit(X, y)
    other = NadarayaWatson(bandwidth=bandwidth, degree=degree, n_starts=1).fit(constant, y)
    assert other.bandwidth_[1] == np.inf
    np.testing.assert_allclose(other.bandwidth_[[0, 2]], model.bandwidth_, rtol=1e-6)
    elsewhere = np.insert(X, 1, 9.0, axis=1)
    np.testing.assert_allclose(other.predict(elsewhere), model.predict(X), rtol=1e-5)
    np.testing.assert_allclose(other.marginal_effects(elsewhere)[:, 1], 0.0, atol=1e-12)


def test_a_feature_without_bearing_gets_a_wide_bandwidth():
    X, _ = data(150, d=3)
    y = np.sin(2 * X[:, 0]) + 0.1 * np.random.default_rng(5).normal(size=150)
    model = NadarayaWatson(bandwidth="loo").fit(X, y)
    assert (model.bandwidth_[1:] > 2 * X[:, 1:].std(axis=0)).all()
    assert model.bandwidth_[0] < X[:, 0].std()


@pytest.mark.parametrize(("bandwidth", "degree"), [(0.7, 0), (0.7, 1), ("loo", 0), ("aic", 1)])
def test_fitted_kernels(bandwidth, degree):
    X, y = data(40)
    given = Gaussian(0.5) + 0.2 * Matern(2.0, 1.5)
    before = copy.deepcopy(given.state_dict())
    plain = NadarayaWatson(given, bandwidth, degree=degree, n_starts=1).fit(X, y)
    model = NadarayaWatson(given, bandwidth, degree=degree, n_starts=1, fit_kernel=True).fit(X, y)
    assert all(torch.equal(value, before[name]) for name, value in given.state_dict().items())
    assert all(parameter.requires_grad for parameter in given.parameters())
    assert model.kernel_ is not given
    assert all(parameter.dtype == torch.float64 for parameter in model.kernel_.parameters())
    if bandwidth == 0.7:
        assert model.loo_score() < plain.loo_score()
        np.testing.assert_array_equal(model.bandwidth_, [0.7, 0.7])
        assert model.selection_.criterion == "loo"
        assert model.selection_.score == pytest.approx(np.log(model.loo_score() / y.var()), abs=1e-6)
    else:
        assert model.selection_.score < plain.selection_.score
    assert str(model.kernel_) != str(plain.kernel_)


def test_a_period_is_found():
    random = np.random.default_rng(6)
    X = np.sort(random.random((150, 1)) * 10, axis=0)
    y = np.sign(np.sin(2 * np.pi * X[:, 0] / 1.3)) + 0.1 * random.normal(size=150)
    model = NadarayaWatson(Periodic(2.0, 1.25 / np.pi), 1.0, fit_kernel=True, n_starts=1).fit(X, y)
    assert float(model.kernel_.tau) * np.pi == pytest.approx(1.3, rel=0.01)


@pytest.mark.parametrize("criterion", SCORES)
@pytest.mark.parametrize(("kernel", "seed"), [("gaussian", 3), ("gaussian", 8), ("boxcar", 1)])
def test_more_starts_never_end_at_a_worse_criterion(kernel, seed, criterion):
    X, y = waves(100, seed)
    scores = [
        NadarayaWatson(kernel, criterion, n_starts=n, random_state=0).fit(X, y).selection_.score
        for n in (1, 2, 3, 4, 7, 30)
    ]
    assert scores == sorted(scores, reverse=True)


@pytest.mark.slow
@pytest.mark.parametrize("criterion", SCORES)
def test_more_starts_never_end_at_a_worse_criterion_over_more_points(criterion):
    """The first stage has some of the points only, where other bandwidths are best."""
    for seed in range(3):
        X, y = waves(1000, seed, d=5)
        scores = [
            NadarayaWatson(bandwidth=criterion, n_starts=n, random_state=seed).fit(X, y).selection_.score
            for n in range(1, 9)
        ]
        assert scores == sorted(scores, reverse=True)


def test_every_start_that_led_the_first_stage_is_carried_to_the_next():
    """Two valleys of which the stage of few points prefers the one that is worse for all points."""

    def valleys(better):
        def criterion(at, with_gradient=True):
            near, far = (at - 1.0) ** 2, (at + 1.0) ** 2 + better
            least = near if near.sum() < far.sum() else far
            center = 1.0 if near.sum() < far.sum() else -1.0
            return float(least.sum()), 2.0 * (at - center)

        return criterion

    stages = [selection.Stage(valleys(-0.2), 10), selection.Stage(valleys(0.2), 20)]
    scores = [
        selection.select("loo", stages, np.ones(2), selection.Search(n, np.random.RandomState(0))).score
        for n in range(1, 12)
    ]
    assert scores == sorted(scores, reverse=True)
