"""What users get wrong: every message is one line and names what was given and what is accepted."""

import numpy as np
import pytest
import torch
from sklearn.exceptions import NotFittedError

from nadaraya.errors import InputError
from nadaraya.kernels import ALiBi, Gaussian, KernelBank
from nadaraya.regression import NadarayaWatson, NadarayaWatsonClassifier, NadarayaWatsonDensity

ESTIMATORS = (NadarayaWatson, NadarayaWatsonClassifier, NadarayaWatsonDensity)
RANDOM = np.random.default_rng(0)
X = RANDOM.normal(size=(30, 2))
Y = RANDOM.integers(0, 2, 30)


class Signed(Gaussian):
    symmetric = False


def raises(match):
    return pytest.raises(InputError, match=rf"^[^\n]*{match}[^\n]*$")


@pytest.mark.parametrize("estimator", ESTIMATORS)
@pytest.mark.parametrize(
    ("bandwidth", "match"),
    [
        (0, r"bandwidth is 0\.0: accepted are positive finite numbers"),
        (-1.5, r"bandwidth is -1\.5: accepted are positive finite numbers"),
        (np.nan, "bandwidth is nan: accepted are positive"),
        (np.inf, "bandwidth is inf: accepted are positive"),
        (None, "bandwidth is .*: accepted are"),
        ([1.0, 0.0], r"bandwidth is \[1\.0, 0\.0\]: accepted are positive"),
        ([1.0, 2.0, 3.0], r"bandwidth has shape \(3,\): accepted are a number, or \(2,\), one a feature"),
        (np.ones((2, 2)), r"bandwidth has shape \(2, 2\)"),
        ([], r"bandwidth has shape \(0,\)"),
        ([[1.0], [1.0, 2.0]], "bandwidth is .*: accepted are numbers"),
        (np.array([["a"], ["b"]]), "bandwidth is .*: accepted are numbers"),
        ({}, "bandwidth is {}: accepted are numbers"),
        ("sillverman", "unknown bandwidth 'sillverman': did you mean 'silverman'\\? accepted are .*scott"),
        ("lo", "unknown bandwidth 'lo': did you mean 'loo'\\?"),
        ("0.5", "unknown bandwidth '0.5': accepted are .*a positive number"),
    ],
)
def test_bandwidth(estimator, bandwidth, match):
    with raises(match):
        estimator(bandwidth=bandwidth).fit(X, Y)


@pytest.mark.parametrize("estimator", [NadarayaWatsonClassifier, NadarayaWatsonDensity])
def test_criteria_of_other_estimators(estimator):
    with raises("unknown bandwidth 'aic'.*accepted are .*loo, .*scott, silverman"):
        estimator(bandwidth="aic").fit(X, Y)


@pytest.mark.parametrize("estimator", ESTIMATORS)
@pytest.mark.parametrize(
    ("kernel", "match"),
    [
        ("gausian", "unknown kernel 'gausian': did you mean 'gaussian'\\? accepted are boxcar, .*tricube"),
        ("", "unknown kernel ''.*accepted are boxcar"),
        (3, "kernel is 3: accepted are .*gaussian.* or a kernel of nadaraya.kernels"),
        (None, "kernel is None: accepted are"),
        (torch.nn.Sequential(torch.nn.Linear(1, 1)), "kernel is .*: accepted are"),
        (Gaussian(torch.ones(3)), "kernel is Gaussian.*: accepted are symmetric kernels without heads"),
        (KernelBank(2, 3), "kernel is .*: accepted are symmetric kernels without heads"),
        (ALiBi(4), "kernel is .*: accepted are symmetric kernels without heads"),
        (Signed(1.0), "kernel is Signed.*: accepted are symmetric kernels"),
    ],
)
def test_kernel(estimator, kernel, match):
    with raises(match):
        estimator(kernel).fit(X, Y)


@pytest.mark.parametrize(
    ("parameters", "match"),
    [
        ({"degree": 2}, "degree is 2: accepted are whole numbers from 0 to 1"),
        ({"degree": -1}, "degree is -1: accepted"),
        ({"degree": 0.5}, "degree is 0.5: accepted"),
        ({"degree": True}, "degree is True: accepted"),
        ({"adaptive": 0}, "adaptive is 0: accepted are whole numbers from 1"),
        ({"adaptive": 2.5}, "adaptive is 2.5: accepted are whole numbers from 1"),
        ({"adaptive": 30}, "adaptive is 30 with n_samples = 30: accepted are whole numbers below"),
        ({"n_starts": 0}, "n_starts is 0: accepted are whole numbers from 1"),
        ({"n_starts": "three"}, "n_starts is 'three': accepted are whole numbers from 1"),
        ({"empty": "neares"}, "'neares': did you mean 'nearest'\\? accepted are error, mean, nan, nearest"),
        ({"empty": "foo"}, "unknown .*'foo': accepted are error, mean, nan, nearest"),
        ({"empty": None}, "None.*accepted are error, mean, nan, nearest"),
        ({"device": "nosuch"}, "device is 'nosuch': accepted are the devices PyTorch has here"),
        ({"device": 1.5}, "device is 1.5: accepted are the devices"),
    ],
)
def test_parameters(parameters, match):
    with raises(match):
        NadarayaWatson(**parameters).fit(X, Y)


@pytest.mark.parametrize("estimator", [NadarayaWatsonClassifier, NadarayaWatsonDensity])
def test_parameters_that_all_share(estimator):
    with raises("n_starts is 0: accepted are whole numbers from 1"):
        estimator(n_starts=0).fit(X, Y)
    with raises("device is 'nosuch': accepted are the devices"):
        estimator(device="nosuch").fit(X, Y)


@pytest.mark.parametrize("estimator", ESTIMATORS)
@pytest.mark.parametrize(
    ("weight", "match"),
    [
        (-np.ones(30), "sample_weight has an entry that is negative or not finite"),
        (np.full(30, np.nan), "sample_weight has an entry that is negative or not finite"),
        (np.full(30, np.inf), "sample_weight has an entry that is negative or not finite"),
        (np.zeros(30), "sample_weight is zero everywhere: at least one point must count"),
        (np.ones(29), r"sample_weight has shape \(29,\): accepted is \(30,\), one number a point"),
        (np.ones((30, 1)), r"sample_weight has shape \(30, 1\): accepted is \(30,\)"),
        (np.array([["a"]] * 30), "sample_weight is .*: accepted are numbers"),
        ("balanced", "sample_weight is 'balanced': accepted are numbers"),
    ],
)
def test_sample_weight(estimator, weight, match):
    with raises(match):
        estimator().fit(X, Y, sample_weight=weight)


def test_weights_that_are_no_counts():
    with raises("sample_weight sums to 1: bandwidth='aic' counts observations by their weights; .*'loo'"):
        NadarayaWatson(bandwidth="aic").fit(X, Y, np.full(30, 1 / 30))
    NadarayaWatson(bandwidth="loo", n_starts=1).fit(X, Y, np.full(30, 1 / 30))


@pytest.mark.parametrize("estimator", ESTIMATORS)
@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf])
def test_numbers_that_are_none(estimator, bad):
    spoilt = X.copy()
    spoilt[3, 1] = bad
    what = "NaN" if np.isnan(bad) else "infinity"
    with pytest.raises(ValueError, match=f"Input X contains {what}"):
        estimator().fit(spoilt, Y)
    model = estimator().fit(X, Y)
    method = model.predict if estimator is not NadarayaWatsonDensity else model.score_samples
    with pytest.raises(ValueError, match=f"Input X contains {what}"):
        method(spoilt)
    if estimator is NadarayaWatson:
        with pytest.raises(ValueError, match=f"Input y contains {what}"):
            estimator().fit(X, spoilt[:, 1])
        with pytest.raises(ValueError, match=f"Input y contains {what}"):
            estimator().fit(X, spoilt)


def test_queries():
    model = NadarayaWatson(bandwidth=1.0).fit(X, Y)
    for method in (model.predict, model.marginal_effects, model.band):
        with pytest.raises(ValueError, match="X has 3 features, but NadarayaWatson is expecting 2"):
            method(np.ones((4, 3)))
        with pytest.raises(ValueError, match="Expected 2D array, got 1D array"):
            method(np.ones(2))
        with pytest.raises(ValueError, match="0 sample"):
            method(np.ones((0, 2)))


def test_before_fit():
    model = NadarayaWatson()
    for call in (
        lambda: model.predict(X),
        lambda: model.marginal_effects(X),
        lambda: model.band(X),
        model.loo_predictions,
        model.loo_score,
        lambda: NadarayaWatsonClassifier().predict(X),
        lambda: NadarayaWatsonClassifier().predict_proba(X),
        lambda: NadarayaWatsonDensity().score_samples(X),
        lambda: NadarayaWatsonDensity().score(X),
    ):
        with pytest.raises(NotFittedError):
            call()


@pytest.mark.parametrize("level", [0, 1, 2, -0.5, 95, "0.9", None, True, np.nan])
def test_level(level):
    with raises(f"level is {level!r}: accepted are numbers between 0 and 1"):
        NadarayaWatson(bandwidth=1.0).fit(X, Y).band(X, level=level)


def test_bands():
    model = NadarayaWatson(bandwidth=1.0).fit(X, Y)
    with raises(
        "unknown method of a band 'botstrap': did you mean 'bootstrap'\\? accepted are .*simultaneous"
    ):
        model.band(X, method="botstrap")
    with raises("n_bootstrap is 0: accepted are whole numbers from 1"):
        model.band(X, method="bootstrap", n_bootstrap=0)
    with raises("adaptive bandwidths needs degree=1"):
        NadarayaWatson(bandwidth=1.0, adaptive=3).fit(X, Y).marginal_effects(X)


@pytest.mark.parametrize("bandwidth", [0.5, "loo", "aic", "scott", "silverman"])
@pytest.mark.parametrize("kernel", ["gaussian", "exponential", "tricube", "boxcar"])
@pytest.mark.parametrize("degree", [0, 1])
@pytest.mark.filterwarnings("error")
def test_few_points(kernel, bandwidth, degree):
    """One point, two, three, copies, constant features: no error, no warning, and what one would expect."""
    model = NadarayaWatson(kernel, bandwidth, degree=degree, n_starts=1)
    one = model.fit([[1.0, 2.0]], [3.0])
    np.testing.assert_allclose(one.predict([[1.0, 2.0], [50.0, -7.0]]), 3.0)
    assert one.loo_predictions() == pytest.approx(3.0)
    two = model.fit([[0.0], [1.0]], [2.0, 4.0])
    assert 2.0 - 1e-9 <= two.predict([[0.5]])[0] <= 4.0 + 1e-9
    assert np.isfinite(two.predict([[-9.0], [0.0], [9.0]])).all()
    np.testing.assert_allclose(model.fit([[0.0], [1.0], [2.0]], [1.0, 1.0, 1.0]).predict([[0.3], [7.0]]), 1.0)
    assert np.isfinite(model.fit([[0.0], [1.0], [3.0]], [1.0, 2.0, 0.0]).predict([[0.3], [7.0]])).all()
    constant = model.fit(np.ones((5, 2)), [1.0, 2.0, 3.0, 4.0, 10.0])
    np.testing.assert_allclose(constant.predict([[1.0, 1.0]]), 4.0)
    copies = model.fit(np.repeat([[0.0], [1e6]], 4, axis=0), [1.0, 2.0, 3.0, 6.0, 10.0, 10.0, 10.0, 14.0])
    if bandwidth == 0.5:
        np.testing.assert_allclose(copies.predict([[0.0], [1e6]]), [3.0, 11.0], rtol=1e-9)
