"""Units by a power of two, however extreme: the same fit to the last digit."""

import numpy as np
import pytest

from nadaraya.regression import (
    ChunkedNadarayaWatson,
    GridMeans,
    MultiHeadKernelRegression,
    NadarayaWatson,
    NadarayaWatsonClassifier,
    NadarayaWatsonConditionalDensity,
    NadarayaWatsonDensity,
    masked_training,
)

pytestmark = pytest.mark.filterwarnings("error")

RANDOM = np.random.default_rng(0)
X = RANDOM.normal(size=(60, 2))
Y = np.sin(2 * X[:, 0]) + 0.1 * RANDOM.normal(size=60)
NEW = RANDOM.normal(size=(7, 2))
# 2^1000 is 1e301, 2^-660 is 1e-199, 2^-532 is 1e-160.
UNITS = [2.0**1000, 2.0**600, 2.0**-532, 2.0**-660, 2.0**-1000]
FITS = {
    "aic": {},
    "loo": {"bandwidth": "loo", "n_starts": 1},
    "scott": {"bandwidth": "scott", "kernel": "tricube"},
    "line": {"degree": 1, "n_starts": 1},
    "adaptive": {"adaptive": 5, "n_starts": 1},
    "given": {"bandwidth": 0.5},
}


@pytest.mark.parametrize("name", FITS)
@pytest.mark.parametrize("unit", UNITS)
def test_units_of_targets(name, unit):
    model, extreme = (NadarayaWatson(**FITS[name]).fit(X, u * Y) for u in (1.0, unit))
    np.testing.assert_array_equal(extreme.bandwidth_, model.bandwidth_)
    for result, expected in zip(results(extreme), results(model), strict=True):
        np.testing.assert_array_equal(result, unit * expected)
    if model.selection_ is not None:
        shift = 2 * np.log(unit) if model.selection_.criterion == "aic" else 0.0
        assert extreme.selection_.score == pytest.approx(model.selection_.score + shift, rel=1e-12)


def results(model, unit=1.0):
    query = unit * NEW
    predictions = [*model.predict(query, return_std=True), *model.band(query)]
    return [*predictions, model.predict(query), model.loo_predictions()]


@pytest.mark.parametrize("name", FITS)
@pytest.mark.parametrize("unit", UNITS)
def test_units_of_points(name, unit):
    models = []
    for u in (1.0, unit):
        model = NadarayaWatson(**FITS[name])
        if name == "given":
            model.set_params(bandwidth=0.5 * u)
        models.append(model.fit(u * X, Y))
    model, extreme = models
    np.testing.assert_array_equal(extreme.bandwidth_, unit * model.bandwidth_)
    for result, expected in zip(results(extreme, unit), results(model), strict=True):
        np.testing.assert_array_equal(result, expected)
    if model.selection_ is not None:
        assert extreme.selection_.score == model.selection_.score
        for start, expected in zip(extreme.selection_.starts, model.selection_.starts, strict=True):
            np.testing.assert_array_equal(start.end, unit * expected.end)
    if name != "adaptive" and unit != UNITS[0]:
        effects, expected = extreme.marginal_effects(unit * NEW), model.marginal_effects(NEW)
        np.testing.assert_allclose(effects, expected / unit, rtol=1e-15)


def test_features_in_units_of_their_own():
    units = np.array([2.0**1000, 2.0**-700])
    model, extreme = NadarayaWatson().fit(X, Y), NadarayaWatson().fit(units * X, Y)
    np.testing.assert_array_equal(extreme.bandwidth_, units * model.bandwidth_)
    np.testing.assert_array_equal(extreme.predict(units * NEW), model.predict(NEW))


@pytest.mark.parametrize("unit", UNITS)
def test_other_estimators(unit):
    classes = Y > 0
    model, extreme = (NadarayaWatsonClassifier(bandwidth="loo").fit(u * X, classes) for u in (1.0, unit))
    np.testing.assert_array_equal(extreme.predict_proba(unit * NEW), model.predict_proba(NEW))
    density, extreme = (NadarayaWatsonDensity(bandwidth="loo").fit(u * X) for u in (1.0, unit))
    expected = density.score_samples(NEW) - 2 * np.log(unit)
    np.testing.assert_allclose(extreme.score_samples(unit * NEW), expected, rtol=1e-12)
    heads, extreme = (
        MultiHeadKernelRegression(2, n_steps=20, random_state=0).fit(u * X, Y / u) for u in (1.0, unit)
    )
    np.testing.assert_allclose(extreme.predict(unit * NEW), heads.predict(NEW) / unit, rtol=1e-4)


@pytest.mark.parametrize("unit", UNITS)
def test_targets_in_chunks(unit):
    model, extreme = (ChunkedNadarayaWatson(0.5, cell_side=0.5).fit(X[:30], u * Y[:30]) for u in (1.0, unit))
    for each, u in ((model, 1.0), (extreme, unit)):
        each.partial_fit(X[30:], u * Y[30:])
    expected = [*model.predict(NEW, return_std=True), *model.band(NEW)]
    found = [*extreme.predict(NEW, return_std=True), *extreme.band(NEW)]
    for result, want in zip(found, expected, strict=True):
        np.testing.assert_allclose(result, unit * want, rtol=1e-12)
    opposite = GridMeans(9.0)
    for _ in range(2):  # chunks whose means are 0, which has no unit
        opposite.add([[0.0], [0.0]], [unit, -unit])
    assert opposite.cells().spread == unit
    ends = ChunkedNadarayaWatson(0.5).fit([[0.0], [0.01]], [1.7e308, -1.7e308])
    assert ends.predict([[0.0]]) == 0.0


@pytest.mark.parametrize("unit", UNITS)
def test_masked_training(unit):
    found = masked_training(1.0, X, Y, n_steps=20, random_state=0)
    extreme = masked_training(unit, unit * X, Y, n_steps=20, random_state=0)
    np.testing.assert_allclose(extreme.bandwidths, unit * found.bandwidths, rtol=1e-9)
    np.testing.assert_allclose(extreme.losses, found.losses, rtol=1e-9)


@pytest.mark.parametrize("unit", [*UNITS, 2.0**-1040])
def test_conditional_densities(unit):
    """2^-1040 is subnormal: targets have few digits left, but no quantile over- or underflows."""
    precision = 1e-9 if unit > 1e-308 else 1e-3
    y = (Y * 2**30).round() / 2**30 if unit > 1e-308 else (Y * 2**10).round() / 2**10
    model, extreme = (NadarayaWatsonConditionalDensity("scott").fit(X, u * y) for u in (1.0, unit))
    for usual, far in (
        (model.predict_quantiles(NEW, [0.1, 0.5, 0.9]), extreme.predict_quantiles(NEW, [0.1, 0.5, 0.9])),
        (model.predict(NEW), extreme.predict(NEW)),
        (model.sample(NEW, 3, random_state=0), extreme.sample(NEW, 3, random_state=0)),
    ):
        np.testing.assert_allclose(far / unit, usual, rtol=precision, atol=precision)
    np.testing.assert_allclose(
        extreme.predict_cdf(NEW, unit * y[:7]), model.predict_cdf(NEW, y[:7]), rtol=precision
    )
    shift = np.log(unit)
    scores = extreme.score_samples(NEW, unit * y[:7]) + shift
    np.testing.assert_allclose(scores, model.score_samples(NEW, y[:7]), rtol=precision)


@pytest.mark.parametrize("unit", [1e-320, 1e-300, 1e-100, 1e100, 1e300])
def test_units_of_weights(unit):
    weight = RANDOM.random(60)
    model, extreme = (NadarayaWatson(n_starts=1).fit(X, Y, u * weight) for u in (1.0, unit))
    np.testing.assert_allclose(extreme.predict(NEW), model.predict(NEW), rtol=1e-2 if unit < 1e-310 else 1e-6)
    for estimator in (NadarayaWatsonDensity(), NadarayaWatsonClassifier()):
        fitted = estimator.fit(X, Y > 0, unit * weight)
        assert np.isfinite(fitted.bandwidth_).all()
        assert (fitted.bandwidth_ > 0).all()


def test_far_queries_in_single_precision():
    """A query beyond all reason changes nothing for those beside it."""
    points = X.astype(np.float32)
    model = NadarayaWatson(bandwidth=1e-3).fit(points, Y)
    near = NEW.astype(np.float32)
    together = model.predict(np.append(near, [[1e37, -1e37]], axis=0).astype(np.float32))
    np.testing.assert_array_equal(together[:-1], model.predict(near))
    assert np.isfinite(together).all()


@pytest.mark.parametrize("unit", [1e307, 3e-308, 1e-312])
@pytest.mark.parametrize("name", FITS)
def test_at_the_end_of_the_numbers(name, unit):
    """No digit is promised where products overflow or numbers are subnormal, but the curve is."""
    parameters = FITS[name] | ({"bandwidth": 0.5 * unit} if name == "given" else {})
    expected = NadarayaWatson(**FITS[name]).fit(X, Y).predict(NEW)
    model = NadarayaWatson(**parameters).fit(unit * X, unit * Y)
    np.testing.assert_allclose(model.predict(unit * NEW) / unit, expected, rtol=1e-3, atol=1e-3)
