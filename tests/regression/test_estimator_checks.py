"""The estimators among scikit-learn's tools."""

import pickle

import joblib
import numpy as np
import pandas as pd
import pytest
from sklearn.base import clone
from sklearn.model_selection import GridSearchCV, cross_val_score
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler
from sklearn.utils.estimator_checks import parametrize_with_checks

from nadaraya.kernels import Gaussian, Matern
from nadaraya.regression import (
    KernelQuantileRegressor,
    NadarayaWatson,
    NadarayaWatsonClassifier,
    NadarayaWatsonConditionalDensity,
    NadarayaWatsonDensity,
)

WEIGHTS = ("check_sample_weight_equivalence_on_dense_data", "check_sample_weight_equivalence")
METHODS = ("check_methods_sample_order_invariance", "check_methods_subset_invariance")
LEAVE_ONE_OUT = "leave-one-out leaves a point out, not its repetitions"


def expected_failures(estimator):
    """Where a weight of 2 is not the same as two points, or a method has more arguments, by definition."""
    if isinstance(estimator, NadarayaWatsonConditionalDensity):
        return dict.fromkeys(METHODS, "a conditional density is one of y as well: score_samples(X, y)")
    if not isinstance(estimator, NadarayaWatson):
        return dict.fromkeys(WEIGHTS, LEAVE_ONE_OUT) if estimator.bandwidth == "loo" else {}
    if estimator.degree == 1 and estimator.bandwidth != 1.0:
        return dict.fromkeys(WEIGHTS, "15 points in 30 dimensions do not determine a line")
    return {}


@parametrize_with_checks(
    [
        NadarayaWatson(kernel="epanechnikov", bandwidth="silverman"),
        NadarayaWatson(bandwidth=1.0, degree=1),
        NadarayaWatson(bandwidth=1.0, adaptive=5),
        NadarayaWatsonClassifier(),
        NadarayaWatsonDensity(),
        KernelQuantileRegressor(bandwidth="silverman"),
        KernelQuantileRegressor(bandwidth=1.0, degree=1),
        NadarayaWatsonConditionalDensity("scott"),
    ],
    expected_failed_checks=expected_failures,
)
def test_scikit_learn(estimator, check):
    check(estimator)


@pytest.mark.slow
@parametrize_with_checks(
    [
        NadarayaWatson(),
        NadarayaWatson(bandwidth=1.0),
        NadarayaWatson(bandwidth="loo", n_starts=1),
        NadarayaWatson(degree=1, n_starts=1),
        NadarayaWatsonClassifier(kernel="tricube", bandwidth="loo", n_starts=1),
    ],
    expected_failed_checks=expected_failures,
)
def test_scikit_learn_with_selection(estimator, check):
    check(estimator)


def data(n=60, seed=0):
    random = np.random.default_rng(seed)
    X = random.normal(size=(n, 2)) * [1.0, 30.0]
    return X, np.sin(2 * X[:, 0]) + 0.1 * random.normal(size=n)


MODELS = {
    "quantile": KernelQuantileRegressor(0.3, bandwidth=[1.0, 30.0], degree=1),
    "selected": NadarayaWatson("matern32", "loo", n_starts=1),
    "kernel": NadarayaWatson(Gaussian(0.5) + 0.1 * Matern(1.0), [1.0, 30.0], degree=1),
    "adaptive": NadarayaWatson(bandwidth=[0.5, 20.0], adaptive=4),
    "classifier": NadarayaWatsonClassifier("tricube", 9.0),
    "density": NadarayaWatsonDensity(0.5 * Matern(1.0), 3.0),
}


def outcome(model, X):
    return model.score_samples(X) if isinstance(model, NadarayaWatsonDensity) else model.predict(X)


@pytest.mark.parametrize("name", MODELS)
def test_clone_and_pickle(name, tmp_path):
    X, y = data()
    y = y > 0 if name == "classifier" else y
    model = MODELS[name]
    fitted = clone(model).fit(X, y)
    expected = outcome(fitted, X + 0.1)
    copy = clone(fitted)
    assert repr(copy) == repr(model)
    assert not hasattr(copy, "X_")
    np.testing.assert_array_equal(outcome(copy.fit(X, y), X + 0.1), expected)
    np.testing.assert_array_equal(outcome(pickle.loads(pickle.dumps(fitted)), X + 0.1), expected)
    joblib.dump(fitted, tmp_path / "model.joblib")
    np.testing.assert_array_equal(outcome(joblib.load(tmp_path / "model.joblib"), X + 0.1), expected)
    mapped = joblib.load(tmp_path / "model.joblib", mmap_mode="r")  # its arrays are read-only
    np.testing.assert_array_equal(outcome(mapped, X + 0.1), expected)


def test_bands_after_pickle():
    X, y = data()
    fitted = NadarayaWatson(bandwidth=[0.5, 20.0], random_state=0).fit(X, y)
    loaded = pickle.loads(pickle.dumps(fitted))
    np.testing.assert_array_equal(loaded.band(X), fitted.band(X))
    assert loaded.loo_score() == fitted.loo_score()


@pytest.mark.parametrize("estimator", [NadarayaWatson, NadarayaWatsonClassifier, NadarayaWatsonDensity])
def test_read_only_data(estimator):
    X, y = data()
    y = (y > 0).astype(float)
    weight = np.ones(len(X))
    for array in (X, y, weight):
        array.flags.writeable = False
    for bandwidth in ("loo", 3.0):
        model = estimator(bandwidth=bandwidth, n_starts=1).fit(X, y, sample_weight=weight)
        assert np.isfinite(outcome(model, X)).all()


def test_grid_search():
    X, y = data()
    grid = {
        "kernel": ["gaussian", "tricube", Matern(1.0, 2.5)],
        "bandwidth": [[0.3, 900.0], [3.0, 900.0], "scott"],
    }
    search = GridSearchCV(NadarayaWatson(), grid, cv=3).fit(X, y)
    assert search.best_params_["bandwidth"] == [0.3, 900.0]
    assert search.best_score_ > 0.8
    assert len(cross_val_score(NadarayaWatson(bandwidth="scott"), X, y, cv=4)) == 4


def test_pandas_and_pipelines():
    X, y = data()
    frame = pd.DataFrame(X, columns=["wide", "tall"])
    model = NadarayaWatson(bandwidth=1.0).fit(frame, pd.Series(y))
    assert model.feature_names_in_.tolist() == ["wide", "tall"]
    np.testing.assert_array_equal(model.predict(frame), NadarayaWatson(bandwidth=1.0).fit(X, y).predict(X))
    with pytest.raises(ValueError, match="feature names"):
        model.predict(frame.rename(columns={"wide": "broad"}))
    pipeline = make_pipeline(StandardScaler(), NadarayaWatson(bandwidth=0.3)).set_output(transform="pandas")
    scaled = NadarayaWatson(bandwidth=0.3 * X.std(axis=0)).fit(X, y)
    np.testing.assert_allclose(pipeline.fit(frame, y).predict(frame), scaled.predict(X), rtol=1e-9)
    assert pipeline.score(frame, y) == pytest.approx(scaled.score(X, y))


def test_metadata_of_weights():
    X, y = data()
    weight = np.random.default_rng(0).random(len(X))
    pipeline = make_pipeline(StandardScaler(), NadarayaWatson(bandwidth=0.3))
    weighted = pipeline.fit(X, y, nadarayawatson__sample_weight=weight).predict(X)
    expected = NadarayaWatson(bandwidth=0.3 * X.std(axis=0)).fit(X, y, weight).predict(X)
    np.testing.assert_allclose(weighted, expected, rtol=1e-9)
