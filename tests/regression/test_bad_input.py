"""What users get wrong: every message is one line and names what was given and what is accepted."""

from functools import partial

import numpy as np
import pytest
import torch
from grids import covering
from sklearn.exceptions import NotFittedError

from nadaraya.errors import InputError
from nadaraya.kernels import ALiBi, Gaussian, KernelBank
from nadaraya.regression import (
    ChunkedNadarayaWatson,
    GridMeans,
    KernelQuantileRegressor,
    MultiHeadKernelRegression,
    NadarayaWatson,
    NadarayaWatsonClassifier,
    NadarayaWatsonConditionalDensity,
    NadarayaWatsonDensity,
)

ESTIMATORS = (NadarayaWatson, NadarayaWatsonClassifier, NadarayaWatsonDensity)
EVERY = {
    "regression": NadarayaWatson,
    "classifier": NadarayaWatsonClassifier,
    "density": NadarayaWatsonDensity,
    "conditional": partial(NadarayaWatsonConditionalDensity, 0.5),
    "quantile": partial(KernelQuantileRegressor, bandwidth=0.5),
    "heads": partial(MultiHeadKernelRegression, 2, n_steps=2),
    "chunks": partial(ChunkedNadarayaWatson, 0.5),
}
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
        (0, r"bandwidth must be positive and finite, got 0\.0"),
        (-1.5, r"bandwidth must be positive and finite, got -1\.5"),
        (np.nan, "bandwidth must be positive and finite, got nan"),
        (np.inf, "bandwidth must be positive and finite, got inf"),
        (None, "bandwidth must be numbers, got None"),
        (True, "bandwidth must be numbers, got True"),
        ([True, False], "bandwidth must be numbers, got \\[True, False\\]"),
        (["1", "2"], "bandwidth must be numbers, got \\['1', '2'\\]"),
        (1 + 2j, "bandwidth must be numbers, got \\(1\\+2j\\)"),
        ([1.0, 0.0], r"bandwidth must be positive and finite, got \[1\.0, 0\.0\]"),
        ([1.0, 2.0, 3.0], r"shape of bandwidth must be \(\) or \(2,\), one per feature, got \(3,\)"),
        (np.ones((2, 2)), r"shape of bandwidth must be .*, got \(2, 2\)"),
        ([], r"shape of bandwidth must be .*, got \(0,\)"),
        ([[1.0], [1.0, 2.0]], r"bandwidth must be numbers, got \[\[1\.0\], \[1\.0, 2\.0\]\]"),
        (np.array([["a"], ["b"]]), "bandwidth must be numbers, got array"),
        ({}, "bandwidth must be numbers, got {}"),
        (
            "sillverman",
            "bandwidth, if it is no number, must be one of .*'silverman', got 'sillverman': "
            "did you mean 'silverman'\\?",
        ),
        ("lo", "bandwidth.* must be one of .*, got 'lo': did you mean 'loo'\\?"),
        ("0.5", "bandwidth, if it is no number, must be one of .*, got '0.5'"),
    ],
)
def test_bandwidth(estimator, bandwidth, match):
    with raises(match):
        estimator(bandwidth=bandwidth).fit(X, Y)


@pytest.mark.parametrize("estimator", [NadarayaWatsonClassifier, NadarayaWatsonDensity])
def test_criteria_of_other_estimators(estimator):
    with raises("bandwidth.* must be one of .*'loo', 'scott', .*'silverman', got 'aic'"):
        estimator(bandwidth="aic").fit(X, Y)


@pytest.mark.parametrize("estimator", ESTIMATORS)
@pytest.mark.parametrize(
    ("kernel", "match"),
    [
        ("gausian", "kernel must be one of 'boxcar', .*'tricube', got 'gausian': did you mean 'gaussian'\\?"),
        ("", "kernel must be one of 'boxcar', .*got ''"),
        (3, "kernel must be one of .*gaussian.* or a kernel of nadaraya.kernels, got 3"),
        (None, "kernel must be one of .*, got None"),
        (torch.nn.Sequential(torch.nn.Linear(1, 1)), "kernel must be one of .*, got Sequential"),
        (Gaussian(torch.ones(3)), "kernel must be symmetric and without heads of its own, got Gaussian"),
        (KernelBank(2, 3), "kernel must be symmetric and without heads of its own, got"),
        (ALiBi(4), "kernel must be symmetric and without heads of its own, got"),
        (Signed(1.0), "kernel must be symmetric .*, got Signed"),
    ],
)
def test_kernel(estimator, kernel, match):
    with raises(match):
        estimator(kernel).fit(X, Y)


@pytest.mark.parametrize(
    ("parameters", "match"),
    [
        ({"degree": 4}, "degree must be a whole number from 0 to 3, got 4"),
        ({"degree": -1}, "degree must be .*, got -1"),
        ({"degree": 0.5}, "degree must be .*, got 0.5"),
        ({"degree": True}, "degree must be .*, got True"),
        ({"adaptive": 0}, "adaptive must be a whole number of at least 1, got 0"),
        ({"adaptive": 2.5}, "adaptive must be a whole number of at least 1, got 2.5"),
        ({"adaptive": 30}, "adaptive must be a whole number below n_samples = 30, got 30"),
        ({"n_starts": 0}, "n_starts must be a whole number of at least 1, got 0"),
        ({"selection_size": 49}, "selection_size must be a whole number of at least 50, got 49"),
        ({"n_starts": "three"}, "n_starts must be a whole number of at least 1, got 'three'"),
        (
            {"empty": "neares"},
            "empty must be one of 'mean', 'nan', 'nearest', 'raise', got 'neares': did you mean 'nearest'\\?",
        ),
        ({"empty": "error"}, "empty must be one of 'mean', 'nan', 'nearest', 'raise', got 'error'"),
        ({"empty": None}, "empty must be one of .*, got None"),
        ({"fit_kernel": "no"}, "fit_kernel must be True or False, got 'no'"),
        ({"verbose": "no"}, "verbose must be a whole number of at least 0, got 'no'"),
        ({"device": "nosuch"}, "device must be one that PyTorch has here, such as .*, got 'nosuch'"),
        ({"device": 1.5}, "device must be one that PyTorch has here, .*, got 1.5"),
    ],
)
def test_parameters(parameters, match):
    with raises(match):
        NadarayaWatson(**parameters).fit(X, Y)


@pytest.mark.parametrize("estimator", [NadarayaWatsonClassifier, NadarayaWatsonDensity])
def test_parameters_that_all_share(estimator):
    with raises("n_starts must be a whole number of at least 1, got 0"):
        estimator(n_starts=0).fit(X, Y)
    with raises("device must be one that PyTorch has here, .*, got 'nosuch'"):
        estimator(device="nosuch").fit(X, Y)


@pytest.mark.parametrize("estimator", ESTIMATORS)
@pytest.mark.parametrize(
    ("weight", "match"),
    [
        (-np.ones(30), "sample_weight must be finite numbers of at least 0, got -1.0"),
        (np.full(30, np.nan), "sample_weight must be finite numbers of at least 0, got nan"),
        (np.full(30, np.inf), "sample_weight must be finite numbers of at least 0, got inf"),
        (np.zeros(30), "sample_weight must be above zero for at least one point, got 0.0"),
        (np.ones(29), r"shape of sample_weight must be \(30,\), one number per point, got \(29,\)"),
        (np.ones((30, 1)), r"shape of sample_weight must be \(30,\), .*, got \(30, 1\)"),
        (np.array([["a"]] * 30), "sample_weight must be numbers, got array"),
        ("balanced", "sample_weight must be numbers, got 'balanced'"),
        (["1"] * 30, "sample_weight must be numbers, got"),
        (np.ones(30, complex), "sample_weight must be numbers, got"),
        (np.ma.masked_equal(np.arange(30.0), 3), "sample_weight must be without masked values, got"),
    ],
)
def test_sample_weight(estimator, weight, match):
    with raises(match):
        estimator().fit(X, Y, sample_weight=weight)


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


@pytest.mark.parametrize("name", EVERY)
@pytest.mark.parametrize(
    "points",
    [X.astype(str), X.astype(str).astype(object), X.astype("S"), (1e9 * X).astype("datetime64[s]")],
    ids=["texts", "objects", "bytes", "dates"],
)
def test_texts_and_dates_are_no_numbers(name, points):
    with raises("X must be numbers, got array"):
        EVERY[name]().fit(points, Y)
    with raises("X must be numbers, got array"):
        GridMeans(0.5).add(points)


@pytest.mark.parametrize("name", EVERY)
def test_masked_values(name):
    with raises("X must be without masked values"):
        EVERY[name]().fit(np.ma.masked_greater(X, 1.0), Y)
    if name != "density":
        with raises("y must be without masked values"):
            EVERY[name]().fit(X, np.ma.masked_equal(Y, 1))
    model = EVERY[name]().fit(X, Y)
    with raises("X must be without masked values"):
        getattr(model, "predict", getattr(model, "score_samples", None))(np.ma.masked_greater(X, 1.0))


def test_masked_values_are_in_no_cell():
    with raises("X must be without masked values"):
        GridMeans(0.5).add(np.ma.masked_greater(X, 1.0))
    with raises("y must be without masked values"):
        GridMeans(0.5).add(X, np.ma.masked_equal(Y, 1))


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
    with raises(f"level must be a number between 0 and 1, got {level!r}"):
        NadarayaWatson(bandwidth=1.0).fit(X, Y).band(X, level=level)


def test_bands():
    model = NadarayaWatson(bandwidth=1.0).fit(X, Y)
    with raises(
        "method must be one of 'bootstrap', .*'simultaneous', got 'botstrap': did you mean 'bootstrap'\\?"
    ):
        model.band(X, method="botstrap")
    with raises("n_bootstrap must be a whole number of at least 1, got 0"):
        model.band(X, method="bootstrap", n_bootstrap=0)
    with raises("degree must be 1 or more for marginal_effects with adaptive bandwidths, got 0"):
        NadarayaWatson(bandwidth=1.0, adaptive=3).fit(X, Y).marginal_effects(X)


@pytest.mark.parametrize(
    ("kernel", "bandwidth", "degree"),
    covering(
        ["gaussian", "exponential", "tricube", "boxcar"], [0.5, "loo", "aic", "scott", "silverman"], [0, 1]
    ),
)
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
