"""Summaries agree with the smoother's matrix, with scikit-learn and with statsmodels."""

from html.parser import HTMLParser

import numpy as np
import pandas as pd
import pytest
from sklearn.exceptions import NotFittedError

from nadaraya.regression import NadarayaWatson, NadarayaWatsonClassifier, NadarayaWatsonDensity


def data(n=50, d=2, seed=0):
    random = np.random.default_rng(seed)
    X = random.normal(size=(n, d))
    return X, 3 + np.sin(2 * X[:, 0]) + 0.3 * random.normal(size=n), random.uniform(0.2, 3.0, size=n)


@pytest.mark.parametrize("degree", [0, 1])
@pytest.mark.parametrize("weighted", [False, True])
def test_against_the_matrix_of_the_smoother(degree, weighted):
    X, y, weight = data()
    weight = weight / weight.mean() if weighted else np.ones(len(y))
    model = NadarayaWatson(bandwidth=[0.4, 0.8], degree=degree)
    L = model.fit(X, np.eye(len(y)), weight).predict(X)
    model.fit(X, y, 7 * weight)
    fit = model.summary().fit
    assert fit.trace == pytest.approx(L.trace(), rel=1e-9)
    errors = weight @ (y - L @ y) ** 2
    # E of the weighted squares is σ² Σ w_i (δ_ij − L_ij)² / w_j if the curve is right.
    freedom = (weight[:, None] * (np.eye(len(y)) - L) ** 2 / weight).sum()
    assert fit.residual_std == pytest.approx([np.sqrt(errors / freedom)], rel=1e-9)
    assert fit.r_squared == pytest.approx([model.score(X, y, weight)], rel=1e-9)
    variance = np.cov(y, aweights=weight, ddof=0)
    assert fit.r_squared_loo == pytest.approx([1 - model.loo_score() / variance], rel=1e-9)


def test_the_residual_standard_deviation_is_that_of_the_noise():
    random = np.random.default_rng(0)
    X = random.uniform(0, 10, size=(4000, 1))
    y = np.column_stack([np.sin(X[:, 0]), X[:, 0]]) + random.normal(size=(4000, 2)) * [0.2, 0.7]
    model = NadarayaWatson("epanechnikov", 0.5, degree=1).fit(X, y)
    np.testing.assert_allclose(model.summary().fit.residual_std, [0.2, 0.7], rtol=0.03)


def test_statsmodels():
    """Its R² centres targets and fit at the mean of the fit, ours at that of the targets, as R's np does."""
    kernel_regression = pytest.importorskip("statsmodels.nonparametric.kernel_regression")

    def both(X, y):
        theirs = kernel_regression.KernelReg(y, X, "c", "lc", bw=[0.5], rng=0).r_squared()
        return theirs, NadarayaWatson(bandwidth=0.5).fit(X, y).summary().fit.squared_correlation[0]

    X, y, _ = data(d=1)
    X, y = np.concatenate([X, -X]), np.concatenate([y, -y])  # both means are 0
    theirs, ours = both(X, y)
    assert ours == pytest.approx(theirs, rel=1e-9)
    X, y, _ = data(d=1)
    theirs, ours = both(X, y)
    assert ours == pytest.approx(theirs, rel=0.01)
    assert ours != pytest.approx(theirs, rel=1e-6)
    fit = NadarayaWatson(bandwidth=0.5).fit(X, y).predict(X)
    centred, about = y - y.mean(), fit - y.mean()
    assert ours == pytest.approx((centred @ about) ** 2 / (centred @ centred * (about @ about)), rel=1e-9)


def test_what_is_printed():
    X, y, _ = data()
    frame = pd.DataFrame(X, columns=["age", "<height>"])
    model = NadarayaWatson("tricube", "loo", degree=1, n_starts=1).fit(frame, y)
    summary = model.summary()
    assert summary.bandwidths == dict(zip(frame.columns, model.bandwidth_, strict=True))
    assert summary.relative["age"] == pytest.approx(model.bandwidth_[0] / X[:, 0].std())
    assert (summary.chosen_by, summary.score) == ("loo", model.selection_.score)
    lines = str(summary).splitlines()
    assert lines[0] == "NadarayaWatson, local linear"
    assert ["observations", "50"] in [line.split() for line in lines]
    assert any(line.startswith("<height>") for line in lines)
    cells = []

    class Reader(HTMLParser):
        def handle_data(self, text):
            cells.append(text)

    Reader().feed(summary._repr_html_())
    assert {"<height>", "tricube", f"{summary.fit.trace:.4g}"} <= {*cells}
    assert model.summary() is summary
    assert model.fit(frame, 2 * y).summary() is not summary


def test_several_targets_have_a_number_each():
    X, y, _ = data()
    both = NadarayaWatson(bandwidth=0.5).fit(X, np.column_stack([y, X[:, 1]])).summary()
    alone = NadarayaWatson(bandwidth=0.5).fit(X, y).summary()
    assert both.fit.r_squared.shape == (2,)
    assert both.fit.r_squared[0] == pytest.approx(alone.fit.r_squared[0])


@pytest.mark.filterwarnings("error")
def test_nothing_left_to_judge_by():
    X, y, _ = data()
    through = NadarayaWatson(bandwidth=1e-6).fit(X, y).summary()
    assert np.isnan(through.fit.residual_std).all()
    assert "nothing is left to judge it by" in str(through)
    constant = NadarayaWatson(bandwidth=1.0).fit(X, np.full(len(X), 3.0)).summary()
    assert "none: the targets are constant" in str(constant)
    assert "observations" in str(NadarayaWatson(bandwidth=1.0).fit([[0.0]], [1.0]).summary())
    far = NadarayaWatson("boxcar", 0.1, empty="raise").fit([[0.0], [1.0], [1.05]], [0.0, 1.0, 2.0])
    assert np.isfinite(far.summary().fit.r_squared_loo).all()


def test_other_models():
    X, y, weight = data()
    for model in (NadarayaWatsonDensity("matern32"), NadarayaWatsonClassifier("matern32")):
        summary = model.fit(X, y > 3, sample_weight=weight * (weight > 1)).summary()
        assert (summary.n, summary.chosen_by, summary.fit) == ((weight > 1).sum(), "scott", None)
        assert "matern32" in str(summary)
    with pytest.raises(NotFittedError):
        NadarayaWatson().summary()


def test_too_few_points_for_a_criterion_have_the_bandwidth_of_a_rule():
    X, y = [[0.0], [1.0], [3.0]], [0.0, 1.0, 2.0]
    model = NadarayaWatson().fit(X, y)
    assert model.summary().chosen_by == "scott"
    assert model.bandwidth_ == NadarayaWatson(bandwidth="scott").fit(X, y).bandwidth_
