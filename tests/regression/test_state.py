"""What a fitted model keeps: the same by every way to store it, and whatever happens to its parameters."""

import copy
import pickle

import joblib
import numpy as np
import pytest
import torch
from sklearn.base import clone

from nadaraya.kernels import Epanechnikov, Gaussian, Matern, RationalQuadratic
from nadaraya.regression import (
    MultiHeadKernelRegression,
    NadarayaWatson,
    NadarayaWatsonClassifier,
    NadarayaWatsonDensity,
)

RANDOM = np.random.default_rng(0)
X = RANDOM.normal(size=(40, 2))
Y = np.sin(X[:, 0])
COMPOSITE = 2.0 * Gaussian(0.7) * Matern(1.3, 2.5) + RationalQuadratic(1.0, 2.0)
MODELS = {
    "regression": NadarayaWatson(),
    "adaptive line": NadarayaWatson("matern32", degree=1, adaptive=5, n_starts=1, verbose=1),
    "composite": NadarayaWatson(COMPOSITE, 0.8),
    "fitted kernel": NadarayaWatson(RationalQuadratic(1.0, 2.0), "loo", fit_kernel=True, n_starts=1),
    "device": NadarayaWatson(bandwidth=0.5, device=torch.device("cpu")),
    "classifier": NadarayaWatsonClassifier(),
    "density": NadarayaWatsonDensity(bandwidth="loo"),
    "heads": MultiHeadKernelRegression(2, Epanechnikov(2.0), n_steps=5, random_state=0),
}


def fitted(name):
    return clone(MODELS[name]).fit(X, Y > 0 if name == "classifier" else Y)


def results(model):
    if isinstance(model, NadarayaWatsonDensity):
        return [model.score_samples(X)]
    if isinstance(model, NadarayaWatson):
        return [model.predict(X), *model.predict(X, return_std=True), *model.band(X), model.loo_predictions()]
    return [model.predict_proba(X) if hasattr(model, "predict_proba") else model.predict(X)]


def assert_equal_results(model, other):
    for result, again in zip(results(model), results(other), strict=True):
        np.testing.assert_array_equal(result, again)
    assert repr(model.kernel_) == repr(other.kernel_)
    assert all(not parameter.requires_grad for parameter in other.kernel_.parameters())


def through_joblib(model, folder):
    joblib.dump(model, folder / "model")
    return joblib.load(folder / "model")


def through_skops(model, folder):
    io = pytest.importorskip("skops.io")
    stored = io.dumps(model)
    untrusted = io.get_untrusted_types(data=stored)
    assert untrusted == [f"{type(model).__module__}.{type(model).__name__}"]
    return io.loads(stored, trusted=untrusted)


@pytest.mark.parametrize("name", MODELS)
@pytest.mark.parametrize(
    "stored_by",
    [
        lambda model, folder: pickle.loads(pickle.dumps(model)),
        lambda model, folder: copy.deepcopy(model),
        through_joblib,
        through_skops,
    ],
)
def test_stored_models_are_the_same(name, stored_by, tmp_path):
    model = fitted(name)
    again = stored_by(model, tmp_path)
    assert_equal_results(model, again)
    assert type(again.get_params()["kernel"]) is type(model.kernel)
    if hasattr(model, "selection_"):
        assert repr(again.selection_) == repr(model.selection_)
    assert_equal_results(model, stored_by(again, tmp_path))


class Cauchy(Gaussian):
    """A kernel of the user's own."""

    def log(self, r):
        return -torch.log1p(self.lags(r).square())


def test_kernels_of_others_are_pickled():
    model = NadarayaWatson(Cauchy(1.0), 0.5).fit(X, Y)
    again = pickle.loads(pickle.dumps(model))
    assert type(again.kernel_) is Cauchy
    assert_equal_results(model, again)


def test_parameters_changed_after_the_fit_change_nothing():
    later = {
        "kernel": "boxcar", "bandwidth": 7.0, "degree": 0, "adaptive": None, "empty": "nan",
        "fit_kernel": True, "n_starts": 1, "device": "nosuch", "verbose": 0,
    }  # fmt: skip
    far = np.full((1, 2), 100.0)
    model = NadarayaWatson("tricube", 0.9, degree=1, adaptive=5).fit(X, Y)
    before = [*results(model), model.predict(far), model.marginal_effects(X)]
    model.set_params(**later)
    for result, again in zip(
        before, [*results(model), model.predict(far), model.marginal_effects(X)], strict=True
    ):
        np.testing.assert_array_equal(result, again)
    heads = fitted("heads")
    before = heads.predict(X)
    heads.set_params(n_heads=7, kernel="boxcar", device="nosuch", per_feature=True, initial_bandwidths=[1.0])
    np.testing.assert_array_equal(heads.predict(X), before)


def test_arrays_changed_after_the_fit_change_nothing():
    points, targets, weight, bandwidth = X.copy(), Y.copy(), np.ones(len(X)), np.array([0.5, 0.7])
    kernel = Gaussian(1.0)
    model = NadarayaWatson(kernel, bandwidth).fit(points, targets, weight)
    before = results(model)
    points[:], targets[:], weight[:], bandwidth[:] = 0.0, 0.0, 3.0, 9.0
    kernel.bandwidth = 5.0
    for result, again in zip(before, results(model), strict=True):
        np.testing.assert_array_equal(result, again)
