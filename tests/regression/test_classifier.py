"""`NadarayaWatsonClassifier`: kernel regression of indicators."""

import numpy as np
import pytest
from sklearn.datasets import load_digits, load_iris
from sklearn.model_selection import cross_val_score

from nadaraya.kernels import Gaussian, Matern
from nadaraya.regression import NadarayaWatson, NadarayaWatsonClassifier


def data(n=90, seed=0):
    random = np.random.default_rng(seed)
    X = random.normal(size=(n, 2))
    return X, np.array(["left", "middle", "right"])[
        np.clip(X[:, 0] + 0.4 * random.normal(size=n) + 1.5, 0, 2).astype(int)
    ]


@pytest.mark.parametrize(
    "kernel", ["gaussian", "exponential", "tricube", "boxcar", Gaussian(0.5) + Matern(1.0)]
)
@pytest.mark.parametrize("weighted", [False, True])
def test_probabilities_are_regressions_of_indicators(kernel, weighted):
    X, y = data()
    weight = np.random.default_rng(1).integers(0, 3, len(X)) if weighted else None
    queries = np.concatenate([1.5 * X, [[30.0, -30.0]]])
    model = NadarayaWatsonClassifier(kernel, [0.5, 0.8]).fit(X, y, weight)
    indicators = (y[:, None] == model.classes_).astype(float)
    expected = NadarayaWatson(kernel, [0.5, 0.8]).fit(X, indicators, weight).predict(queries)
    probability = model.predict_proba(queries)
    np.testing.assert_allclose(probability, expected, rtol=1e-9, atol=1e-12)
    np.testing.assert_allclose(probability.sum(axis=1), 1.0, rtol=1e-12)
    assert (probability >= 0).all()
    np.testing.assert_array_equal(model.predict(queries), model.classes_[expected.argmax(axis=1)])


@pytest.mark.parametrize("labels", [["a", "b", "c"], [7, -2, 3], [1.0, 0.0, 2.0], [True, False, True]])
def test_classes_of_every_kind(labels):
    X, names = data()
    y = np.array(labels)[np.unique(names, return_inverse=True)[1]]
    model = NadarayaWatsonClassifier().fit(X, y)
    np.testing.assert_array_equal(model.classes_, np.unique(y))
    assert model.predict(X).dtype == y.dtype
    assert model.score(X, y) > 0.6


def test_one_class():
    X, _ = data()
    for bandwidth in ("scott", "loo", 0.5):
        model = NadarayaWatsonClassifier(bandwidth=bandwidth).fit(X, ["only"] * len(X))
        np.testing.assert_allclose(model.predict_proba(X), np.ones((len(X), 1)))
        assert (model.predict(X) == "only").all()


def test_one_point():
    for bandwidth in ("scott", "loo", 0.5):
        model = NadarayaWatsonClassifier(bandwidth=bandwidth).fit([[1.0, 2.0]], ["only"])
        assert model.predict([[5.0, 5.0]]).tolist() == ["only"]


def test_float32():
    X, y = data()
    probability = NadarayaWatsonClassifier().fit(X.astype(np.float32), y).predict_proba(X)
    assert probability.dtype == np.float32
    np.testing.assert_allclose(probability, NadarayaWatsonClassifier().fit(X, y).predict_proba(X), atol=1e-5)


def test_leave_one_out_is_the_brier_score():
    X, y = data()
    y[:3] = "few"  # which count no more than their share
    model = NadarayaWatsonClassifier(bandwidth="loo").fit(X, y)

    def brier(bandwidth):
        indicators = (y[:, None] == np.unique(y)).astype(float)
        errors = NadarayaWatson(bandwidth=bandwidth).fit(X, indicators).loo_predictions() - indicators
        return np.log((errors**2).mean() / indicators.var(axis=0).mean())

    assert model.selection_.criterion == "loo"
    assert model.selection_.score == pytest.approx(brier(model.bandwidth_), abs=1e-8)
    for factor in (0.3, 0.9, 1.1, 3.0):
        assert brier(model.bandwidth_) <= brier(factor * model.bandwidth_)


@pytest.mark.parametrize("name", ["iris", "digits"])
def test_real_data(name):
    X, y = {"iris": load_iris, "digits": load_digits}[name](return_X_y=True)
    if name == "digits":
        X, y = X[::6, 20:44:3], y[::6]
    scores = [
        cross_val_score(NadarayaWatsonClassifier(bandwidth=bandwidth, n_starts=1), X, y, cv=3).mean()
        for bandwidth in ("loo", 30.0)
    ]
    assert scores[0] > scores[1] + 0.05
    assert scores[0] > {"iris": 0.93, "digits": 0.5}[name]


def test_progress(capsys):
    X, y = data()
    NadarayaWatsonClassifier(bandwidth="loo", n_starts=2, verbose=1).fit(X, y)
    (line,) = capsys.readouterr().out.splitlines()
    assert line.startswith(f"[NadarayaWatsonClassifier] {len(X)} points: ")
    assert " evaluations, best loo " in line
