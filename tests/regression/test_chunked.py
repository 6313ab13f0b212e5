"""Regression from chunks of points: as from all points where cells are small, in memory of the cells."""

import copy
import pickle
import tracemalloc

import numpy as np
import pandas as pd
import pytest
from sklearn.base import clone
from sklearn.exceptions import NotFittedError
from sklearn.utils.estimator_checks import parametrize_with_checks

from nadaraya.errors import InputError
from nadaraya.regression import (
    ChunkedNadarayaWatson,
    GridMeans,
    NadarayaWatson,
    NadarayaWatsonClassifier,
    NadarayaWatsonDensity,
)


@parametrize_with_checks([ChunkedNadarayaWatson(bandwidth=1.0), ChunkedNadarayaWatson(1.0, degree=1)])
def test_scikit_learn(estimator, check):
    check(estimator)


def data(n=4000, d=1, seed=0, weight=1.0):
    random = np.random.default_rng(seed)
    X = random.uniform(0, 3, size=(n, d))
    noise = (0.1 + 0.1 * X[:, 0]) / np.sqrt(weight) * random.normal(size=n)
    return X, np.sin(3 * X[:, 0]) + 0.3 * X[:, -1] + noise


def in_chunks(model, X, y, weight=None, size=700):
    for start in range(0, len(X), size):
        rows = slice(start, start + size)
        model.partial_fit(X[rows], y[rows], None if weight is None else weight[rows])
    return model


@pytest.mark.parametrize("degree", [0, 1])
@pytest.mark.parametrize(("d", "weighted"), [(1, False), (1, True), (2, True)])
def test_near_the_fit_of_all_points(d, weighted, degree):
    """With unequal weights the variance within a cell is another estimate of the same noise."""
    weight = np.random.default_rng(2).uniform(0.5, 2.0, size=4000) if weighted else np.ones(4000)
    tolerance = 0.05 if weighted else 0.015
    X, y = data(d=d, weight=weight)
    queries = data(100, d, seed=1)[0]
    full = NadarayaWatson(bandwidth=0.3, degree=degree, random_state=0).fit(X, y, weight)
    mean, scatter = full.predict(queries, return_std=True)
    errors = []
    for side in (0.5, 0.125):
        model = in_chunks(
            ChunkedNadarayaWatson(0.3, degree=degree, cell_side=side, random_state=0), X, y, weight
        )
        assert model.n_samples_seen_ == len(X)
        assert model.sample_weight_.sum() == pytest.approx(weight.sum())
        errors.append(np.sqrt(np.mean((model.predict(queries) - mean) ** 2)) / y.std())
    assert errors[1] < 0.001
    assert errors[1] < errors[0] / 8  # of second order: a sixteenth, and the luck of the cells
    np.testing.assert_allclose(model.predict(queries, return_std=True)[1], scatter, rtol=tolerance)
    slopes = full.marginal_effects(queries)
    np.testing.assert_allclose(
        model.marginal_effects(queries), slopes, rtol=0, atol=0.01 * np.abs(slopes).max()
    )
    for method, luck in (("pointwise", 0.0), ("bootstrap", 0.2), ("simultaneous", 0.2)):
        lower, upper = model.band(queries, method=method, n_bootstrap=499)
        low, high = full.band(queries, method=method, n_bootstrap=499)
        np.testing.assert_allclose(upper - lower, high - low, rtol=tolerance + luck)


@pytest.mark.parametrize("side", [0.5, 0.125])
def test_the_error_is_that_of_a_slightly_larger_bandwidth(side):
    """Under a uniform design means of targets are smoothed by the cell, of variance side² / 12."""
    X = (np.arange(60_000) + 0.5)[:, None] / 10_000
    y, queries = np.sin(2 * X[:, 0]), np.linspace(1.5, 4.5, 50)[:, None]
    exact, wider = (
        NadarayaWatson(bandwidth=h).fit(X, y).predict(queries) for h in (0.3, 0.3 * np.sqrt(1 + side**2 / 12))
    )
    error = ChunkedNadarayaWatson(0.3, cell_side=side).fit(X, y).predict(queries) - exact
    np.testing.assert_allclose(error, wider - exact, atol=0.01 * np.abs(error).max())


def test_without_the_noise_within_cells_bands_would_be_wrong():
    """Many points in few cells, of which the means alone have nearly no residuals."""
    random = np.random.default_rng(0)
    X = np.repeat(np.arange(8.0), 500)[:, None] + 0.001 * random.random((4000, 1))
    y = X[:, 0] + 0.5 * random.normal(size=4000)
    model = ChunkedNadarayaWatson(0.3).fit(X, y)
    assert model.n_cells_ == 8
    _, scatter = model.predict(np.arange(8.0)[:, None], return_std=True)
    np.testing.assert_allclose(scatter, 0.5, rtol=0.1)
    lower, upper = model.band(np.arange(8.0)[:, None])
    np.testing.assert_allclose(upper - lower, 2 * 1.96 * 0.5 / np.sqrt(500), rtol=0.1)


def test_cells_of_one_point_change_nothing():
    X, y = data(60, d=2)
    queries = data(20, 2, seed=1)[0]
    full = NadarayaWatson(bandwidth=[0.3, 0.5], degree=1, random_state=0).fit(X, y)
    model = in_chunks(
        ChunkedNadarayaWatson([0.3, 0.5], degree=1, cell_side=1e-6, random_state=0), X, y, size=7
    )
    assert model.n_cells_ == 60
    np.testing.assert_allclose(model.predict(queries), full.predict(queries), rtol=1e-12)
    np.testing.assert_allclose(model.predict(queries, True)[1], full.predict(queries, True)[1], rtol=1e-9)
    np.testing.assert_allclose(model.band(queries), full.band(queries), rtol=1e-9)


def test_chunks_and_their_order_do_not_matter():
    X, y = data()
    y = np.column_stack([y, 2 * y, X[:, 0]])
    whole = ChunkedNadarayaWatson(0.3).fit(X, y)
    split = in_chunks(ChunkedNadarayaWatson(0.3), X[::-1], y[::-1], size=91)
    np.testing.assert_allclose(split.predict(X[:50]), whole.predict(X[:50]), rtol=1e-10)
    for ours, theirs in zip(split.predict(X[:50], True), whole.predict(X[:50], True), strict=True):
        np.testing.assert_allclose(ours, theirs, rtol=1e-9)
    again = split.fit(X, y)
    assert again.n_samples_seen_ == len(X)
    np.testing.assert_array_equal(again.predict(X[:50]), whole.predict(X[:50]))


def test_pictures():
    pyplot = pytest.importorskip("matplotlib.pyplot")
    pyplot.switch_backend("agg")
    X, y = data(d=2)
    model = ChunkedNadarayaWatson(0.5).fit(X, y)
    display = model.plot(1, level=0.9)
    full = NadarayaWatson(bandwidth=0.5).fit(X, y).plot(1, level=0.9)
    np.testing.assert_allclose(display.line_.get_ydata()[20:-20], full.line_.get_ydata()[20:-20], atol=0.02)
    pyplot.close("all")


def test_predictions_between_chunks_follow_the_points():
    X, y = data()
    model = ChunkedNadarayaWatson(0.3).partial_fit(X[:100], y[:100])
    early = model.predict(X[:5])
    kept = copy.deepcopy(model)
    model.partial_fit(X[100:], y[100:])
    np.testing.assert_array_equal(kept.predict(X[:5]), early)
    np.testing.assert_allclose(model.predict(X[:5]), ChunkedNadarayaWatson(0.3).fit(X, y).predict(X[:5]))
    loaded = pickle.loads(pickle.dumps(model))
    np.testing.assert_array_equal(loaded.predict(X[:5]), model.predict(X[:5]))
    assert clone(model).get_params() == model.get_params()


def test_memory_is_that_of_the_cells():
    random = np.random.default_rng(0)
    model = ChunkedNadarayaWatson(0.4)

    def grow(chunks):
        for _ in range(chunks):
            X = random.random((20_000, 2))
            model.partial_fit(X, X[:, 0])

    grow(2)
    tracemalloc.start()
    try:
        grow(2)
        first = tracemalloc.get_traced_memory()
        tracemalloc.reset_peak()
        grow(20)
        second = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert model.n_cells_ == 20**2
    assert second[0] < first[0] + 200_000
    assert second[1] < 1.2 * first[1]


def test_arrays_in_files(tmp_path):
    X, y = data()
    for name, array in (("X", X), ("y", y)):
        stored = np.memmap(tmp_path / name, float, "w+", shape=array.shape)
        stored[:] = array
        stored.flush()
    mapped = [np.memmap(tmp_path / name, float, "r", shape=a.shape) for name, a in (("X", X), ("y", y))]
    for model in (ChunkedNadarayaWatson(0.3), NadarayaWatson(bandwidth=0.3)):
        in_memory = clone(model).fit(X, y).predict(X)
        np.testing.assert_array_equal(model.fit(*mapped).predict(mapped[0]), in_memory)


def test_names_of_features():
    X, y = data(d=2)
    frame = pd.DataFrame(X, columns=["age", "height"])
    model = in_chunks(ChunkedNadarayaWatson(0.5), frame, pd.Series(y))
    assert model.feature_names_in_.tolist() == ["age", "height"]
    np.testing.assert_allclose(model.predict(frame[:9]), ChunkedNadarayaWatson(0.5).fit(X, y).predict(X[:9]))
    with pytest.raises(ValueError, match="feature names"):
        model.predict(frame.rename(columns={"age": "years"}))
    with pytest.raises(ValueError, match="feature names"):
        model.partial_fit(frame.rename(columns={"age": "years"}), y)


def test_density_and_probabilities_from_means():
    X, y = data(d=2)
    h, queries = 0.4, data(50, 2, seed=1)[0]
    means = GridMeans(h / 8).add(X[:1500]).add(X[1500:])
    assert (means.y.shape, means.n_samples_seen) == ((len(means.X), 0), len(X))
    few = NadarayaWatsonDensity(bandwidth=h).fit(means.X, sample_weight=means.weight)
    full = NadarayaWatsonDensity(bandwidth=h).fit(X)
    np.testing.assert_allclose(few.score_samples(queries), full.score_samples(queries), atol=0.01)
    labels = np.digitize(y, [0.0, 1.0])
    regression = ChunkedNadarayaWatson(h).fit(X, labels[:, None] == np.arange(3))
    probabilities = NadarayaWatsonClassifier(bandwidth=h).fit(X, labels).predict_proba(queries)
    np.testing.assert_allclose(regression.predict(queries), probabilities, atol=0.01)


def test_means_and_squares_of_a_cell():
    random = np.random.default_rng(0)
    X, y, w = 1e6 + random.random((300, 2)), 1e6 + random.normal(size=(300, 2)), random.random(300)
    means = GridMeans(10.0)
    for rows in (slice(0, 50), slice(50, 51), slice(51, 300)):
        means.add(X[rows], y[rows], w[rows])
    cells = means.cells()
    mean = np.average(y, axis=0, weights=w)
    np.testing.assert_allclose(cells.x, np.average(X, axis=0, weights=w)[None], rtol=1e-15)
    np.testing.assert_allclose(cells.y, mean[None], rtol=1e-15)
    np.testing.assert_allclose(cells.spread**2, [w @ (y - mean) ** 2 / w.sum()], rtol=1e-8)
    assert (cells.count.tolist(), cells.weight[0]) == ([300], pytest.approx(w.sum()))
    below = GridMeans(1.0).add([[-0.25], [0.25], [-0.75]])
    assert below.X.tolist() == [[-0.5], [0.25]]
    assert GridMeans(1.0).add([[0.1], [0.2]], sample_weight=[0.0, 1.0]).X.tolist() == [[0.2]]


def test_bad_input_is_one_line():
    X, y = data(20)
    with pytest.raises(InputError, match="bandwidth must be positive and finite"):
        ChunkedNadarayaWatson(0.0).fit(X, y)
    with pytest.raises(InputError, match="bandwidth must be numbers"):
        ChunkedNadarayaWatson("aic").fit(X, y)
    with pytest.raises(InputError, match="cell_side must be a number between 0 and 1, got 2"):
        ChunkedNadarayaWatson(1.0, cell_side=2).fit(X, y)
    with pytest.raises(InputError, match="side of the cells must be above"):
        ChunkedNadarayaWatson(1e-16).fit(X, y)
    model = ChunkedNadarayaWatson(1.0).partial_fit(X, y)
    with pytest.raises(InputError, match=r"shape of a row of X and y must be \(1,\) as in earlier chunks"):
        model.partial_fit(X, np.column_stack([y, y]))
    with pytest.raises(InputError, match="sample_weight must be finite numbers"):
        model.partial_fit(X, y, -np.ones(20))
    with pytest.raises(ValueError, match="features"):
        model.partial_fit(np.column_stack([X, X]), y)
    with pytest.raises(InputError, match=r"shape of y must be \(20,\)"):
        GridMeans(1.0).add(X, y[:3])
    with pytest.raises(InputError, match="degree must be a whole number"):
        ChunkedNadarayaWatson(1.0, degree=7).fit(X, y).predict(X)
    failed = ChunkedNadarayaWatson(1.0)
    with pytest.raises(InputError, match="sample_weight"):
        failed.partial_fit(X, y, np.ones(3))
    with pytest.raises(NotFittedError):
        failed.predict(X)
    assert failed.partial_fit(np.column_stack([X, X]), y).n_features_in_ == 2
    with pytest.raises(InputError, match="side of the cells must be above"):
        model.partial_fit([*X, [1e16]], [*y, 0.0])
    assert (model.n_samples_seen_, model.X_.max()) == (20, model.X_[-1])
    with pytest.raises(NotFittedError):
        _ = ChunkedNadarayaWatson(1.0).n_cells_


def test_a_fit_through_every_observation_has_no_band():
    model = ChunkedNadarayaWatson(1e-3).fit([[0.0], [1.0]], [0.0, 1.0])
    with pytest.warns(UserWarning, match="goes through every observation"):
        lower, _ = model.band([[0.0]])
    assert np.isnan(lower).all()
