"""`NadarayaWatson`: the definition, weights, invariances, precision and empty neighbourhoods."""

import numpy as np
import pytest
import torch
from sklearn.gaussian_process import kernels as gp
from sklearn.metrics.pairwise import rbf_kernel

from nadaraya.errors import InputError
from nadaraya.kernels import (
    ExponentialDecay,
    Gaussian,
    GaussianWithoutHalf,
    Matern,
    Periodic,
    RationalQuadratic,
)
from nadaraya.regression import NadarayaWatson, sums

NAMES = ("gaussian", "exponential", "matern32", "matern52", "epanechnikov", "tricube", "boxcar")
COMPACT = ("epanechnikov", "tricube", "boxcar")


def data(n=120, d=2, seed=0):
    random = np.random.default_rng(seed)
    X = random.normal(size=(n, d)) * np.linspace(1.0, 2.0, d)
    return X, np.sin(2 * X[:, 0]) + 0.3 * X[:, -1] ** 2 + 0.2 * random.normal(size=n) + 5.0


def exact(value):
    return torch.tensor(value, dtype=torch.float64)


def from_gram(gram, y):
    return gram @ y / gram.sum(axis=1)


GRAMS = {
    "RBF": (Gaussian(exact(0.7)), gp.RBF(0.7)),
    "Matern 1/2": (Matern(exact(0.7), 0.5), gp.Matern(0.7, nu=0.5)),
    "exponential": (ExponentialDecay(exact(0.7)), gp.Matern(0.7, nu=0.5)),
    "Matern 3/2": (Matern(exact(0.7), 1.5), gp.Matern(0.7, nu=1.5)),
    "Matern 5/2": (Matern(exact(0.7), 2.5), gp.Matern(0.7, nu=2.5)),
    "rational quadratic": (RationalQuadratic(exact(0.7), exact(1.3)), gp.RationalQuadratic(0.7, 1.3)),
    "periodic": (Periodic(exact(1 / 0.8), exact(2.1 / np.pi)), gp.ExpSineSquared(0.8, 2.1)),
    "periodic, decaying": (
        Periodic(exact(1 / 0.8), exact(2.1 / np.pi)) * ExponentialDecay(exact(3.0)),
        gp.ExpSineSquared(0.8, 2.1) * gp.Matern(3.0, nu=0.5),
    ),
    "sum": (
        exact(0.25) * Gaussian(exact(0.3)) + Matern(exact(2.0), 1.5),
        0.25 * gp.RBF(0.3) + gp.Matern(2.0, nu=1.5),
    ),
}


@pytest.mark.parametrize("d", [1, 3])
@pytest.mark.parametrize("name", GRAMS)
def test_kernels_of_scikit_learn(name, d):
    X, y = data(d=d)
    queries = data(30, d, seed=1)[0]
    ours, theirs = GRAMS[name]
    for bandwidth in (1.0, np.linspace(0.6, 1.4, d)):
        expected = from_gram(theirs(queries / bandwidth, X / bandwidth), y)
        prediction = NadarayaWatson(ours, bandwidth).fit(X, y).predict(queries)
        np.testing.assert_allclose(prediction, expected, rtol=1e-11)


def test_gaussian_without_half():
    X, y = data()
    expected = from_gram(rbf_kernel(X + 0.1, X, gamma=1 / 0.7**2), y)
    model = NadarayaWatson(GaussianWithoutHalf(1.0), 0.7).fit(X, y)
    np.testing.assert_allclose(model.predict(X + 0.1), expected, rtol=1e-11)


def formula(name, r):
    root = {"matern32": np.sqrt(3), "matern52": np.sqrt(5)}.get(name, 1.0) * r
    return {
        "gaussian": np.exp(-(r**2) / 2),
        "exponential": np.exp(-r),
        "matern32": (1 + root) * np.exp(-root),
        "matern52": (1 + root + root**2 / 3) * np.exp(-root),
        "epanechnikov": np.maximum(1 - r**2, 0),
        "tricube": np.maximum(1 - r**3, 0) ** 3,
        "boxcar": (r <= 1) * 1.0,
    }[name]


def gram(name, queries, X, bandwidth):
    return formula(name, np.linalg.norm((queries[:, None] - X) / bandwidth, axis=2))


@pytest.mark.parametrize("name", NAMES)
def test_names_of_kernels(name):
    X, y = data()
    bandwidth = np.array([3.0, 2.5])
    weight = np.random.default_rng(2).random(len(X))
    model = NadarayaWatson(name, bandwidth).fit(X, y, weight)
    expected = from_gram(gram(name, X / 2, X, bandwidth) * weight, y)
    np.testing.assert_allclose(model.predict(X / 2), expected, rtol=1e-11)
    np.testing.assert_array_equal(model.bandwidth_, bandwidth)


@pytest.mark.parametrize("degree", [0, 1])
@pytest.mark.parametrize("bandwidth", [0.5, "loo", "aic", "scott"])
def test_several_targets(bandwidth, degree):
    """Each target as if alone; selected bandwidths are common to them, so equal targets give equal ones."""
    X, y = data(60)
    targets = np.stack([y, 3 - 2 * y, 10 * y], axis=1)
    together = NadarayaWatson(bandwidth=bandwidth, degree=degree).fit(X, targets)
    alone = NadarayaWatson(bandwidth=bandwidth, degree=degree).fit(X, y)
    np.testing.assert_allclose(together.bandwidth_, alone.bandwidth_, rtol=1e-3)
    fixed = NadarayaWatson(bandwidth=together.bandwidth_, degree=degree)
    prediction, effects = together.predict(X + 0.1), together.marginal_effects(X + 0.1)
    assert effects.shape == (60, 2, 3)
    for column in range(3):
        one = fixed.fit(X, targets[:, column])
        np.testing.assert_allclose(prediction[:, column], one.predict(X + 0.1), rtol=1e-9, atol=1e-9)
        np.testing.assert_allclose(effects[..., column], one.marginal_effects(X + 0.1), rtol=1e-8, atol=1e-8)
    assert NadarayaWatson(bandwidth=1.0).fit(X, y[:, None]).predict(X).shape == (60, 1)


@pytest.mark.parametrize("degree", [0, 1])
@pytest.mark.parametrize("kernel", ["gaussian", "tricube", GRAMS["sum"][0]])
def test_weights_are_repetitions(kernel, degree):
    X, y = data()
    counts = np.random.default_rng(3).integers(0, 4, len(X))
    weighted = NadarayaWatson(kernel, 0.8, degree=degree).fit(X, y, counts)
    repeated = NadarayaWatson(kernel, 0.8, degree=degree).fit(
        np.repeat(X, counts, axis=0), np.repeat(y, counts)
    )
    removed = NadarayaWatson(kernel, 0.8, degree=degree).fit(X[counts > 0], y[counts > 0], counts[counts > 0])
    scaled = NadarayaWatson(kernel, 0.8, degree=degree).fit(X, y, 1e-8 * counts)
    for other in (repeated, removed, scaled):
        np.testing.assert_allclose(other.predict(X + 0.2), weighted.predict(X + 0.2), rtol=1e-9)
        np.testing.assert_allclose(
            other.marginal_effects(X + 0.2), weighted.marginal_effects(X + 0.2), rtol=1e-7, atol=1e-7
        )


@pytest.mark.parametrize("rule", ["silverman", "scott", "aic"])
def test_weights_are_repetitions_for_choices(rule):
    X, y = data(50)
    counts = np.random.default_rng(3).integers(0, 3, len(X))
    weighted = NadarayaWatson(bandwidth=rule).fit(X, y, counts)
    repeated = NadarayaWatson(bandwidth=rule).fit(np.repeat(X, counts, axis=0), np.repeat(y, counts))
    np.testing.assert_allclose(weighted.bandwidth_, repeated.bandwidth_, rtol=1e-3)


@pytest.mark.parametrize("bandwidth", [0.7, "loo"])
@pytest.mark.parametrize("degree", [0, 1])
def test_order_of_points(bandwidth, degree):
    X, y = data(700 if bandwidth == 0.7 else 70)
    order = np.random.default_rng(0).permutation(len(X))
    model = NadarayaWatson(bandwidth=bandwidth, degree=degree).fit(X, y)
    other = NadarayaWatson(bandwidth=bandwidth, degree=degree).fit(X[order], y[order])
    np.testing.assert_allclose(other.bandwidth_, model.bandwidth_, rtol=1e-3)
    same = NadarayaWatson(bandwidth=model.bandwidth_, degree=degree).fit(X[order], y[order])
    np.testing.assert_allclose(same.predict(X), model.predict(X), rtol=1e-10)
    np.testing.assert_allclose(same.loo_predictions(), model.loo_predictions()[order], rtol=1e-10)


@pytest.mark.parametrize("name", NAMES)
def test_position_of_the_data(name):
    """A million away with unit spread no digit is lost: 2⁻²⁰ is the coordinates' last place there."""
    X, y = data(300)
    X = np.round(X * 2**20) / 2**20
    queries = np.round((X[:50] + 0.01) * 2**20) / 2**20
    for degree in (0, 1):
        model = NadarayaWatson(name, 0.4, degree=degree).fit(X, y)
        away = NadarayaWatson(name, 0.4, degree=degree).fit(X + 1e6, y)
        np.testing.assert_allclose(away.predict(queries + 1e6), model.predict(queries), rtol=1e-9)
        np.testing.assert_allclose(
            away.marginal_effects(queries + 1e6), model.marginal_effects(queries), rtol=1e-7, atol=1e-7
        )


@pytest.mark.parametrize("degree", [0, 1])
def test_targets_far_from_zero(degree):
    X, y = data()
    y = np.round(y * 2**20) / 2**20
    model, away = (NadarayaWatson(bandwidth=0.5, degree=degree).fit(X, y + shift) for shift in (0.0, 1e9))
    np.testing.assert_allclose(away.predict(X) - 1e9, model.predict(X), atol=1e-6)
    np.testing.assert_allclose(away.marginal_effects(X), model.marginal_effects(X), rtol=1e-4, atol=1e-6)


@pytest.mark.parametrize("degree", [0, 1])
@pytest.mark.parametrize("bandwidth", ["loo", "aic", "scott", 0.5])
def test_constant_targets(bandwidth, degree):
    X, _ = data(40)
    model = NadarayaWatson(bandwidth=bandwidth, degree=degree).fit(X, np.full(40, 0.1))
    mean, deviation = model.predict(3 * X, return_std=True)
    np.testing.assert_allclose(mean, 0.1, rtol=1e-12)
    np.testing.assert_allclose(deviation, 0.0, atol=1e-12)


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("dtype", [np.float64, np.float32])
def test_far_from_all_points(name, dtype):
    """Weights that underflow give their limit, which for bandwidths this small is the nearest point."""
    random = np.random.default_rng(0)
    X = np.stack(np.meshgrid(np.arange(16.0), np.arange(16.0)), axis=-1).reshape(-1, 2).astype(dtype)
    y, nearest = random.normal(size=256), random.integers(0, 256, 40)
    queries = (X[nearest] + [0.25, 0.125]).astype(dtype)
    for bandwidth in (1e-3, 1e-5):
        model = NadarayaWatson(name, bandwidth).fit(X, y)
        np.testing.assert_allclose(model.predict(queries), y[nearest], rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("name", COMPACT)
def test_treatments_of_empty_neighbourhoods(name):
    X, y = np.array([[0.0], [1.0], [2.0], [2.0]]), np.array([1.0, 2.0, 5.0, 7.0])
    queries = np.array([[0.1], [-3.0], [9.0], [1.5]])
    weight = np.array([1.0, 1.0, 1.0, 3.0])
    expected = {"nearest": [1.0, 6.5, (2 + 26) / 5], "mean": [29 / 6] * 3, "nan": [np.nan] * 3}
    for empty, values in expected.items():
        model = NadarayaWatson(name, 0.25, empty=empty).fit(X, y, weight)
        np.testing.assert_allclose(model.predict(queries), [1.0, *values], rtol=1e-12)
    with pytest.raises(InputError, match="3 of 4 queries have no point within the kernel's support"):
        NadarayaWatson(name, 0.25, empty="raise").fit(X, y, weight).predict(queries)
    within = NadarayaWatson(name, 0.25, empty="raise").fit(X, y, weight).predict(queries[:1])
    np.testing.assert_allclose(within, [1.0])


@pytest.mark.parametrize("name", NAMES)
def test_marginal_effects_are_derivatives(name):
    X, y = data(150)
    queries, step = X[:20] * 0.7 + 0.013, 1e-6
    model = NadarayaWatson(name, [2.0, 3.0]).fit(X, y)
    for feature, shift in enumerate(step * np.eye(2)):
        numerical = (model.predict(queries + shift) - model.predict(queries - shift)) / (2 * step)
        np.testing.assert_allclose(
            model.marginal_effects(queries)[:, feature], numerical, rtol=1e-5, atol=1e-7
        )


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("degree", [0, 1])
def test_float32(name, degree):
    X, y = data()
    single = NadarayaWatson(name, 2.0, degree=degree).fit(X.astype(np.float32), y.astype(np.float32))
    double = NadarayaWatson(name, 2.0, degree=degree).fit(
        X.astype(np.float32).astype(float), y.astype(np.float32)
    )
    queries = (X / 2).astype(np.float32)
    mean, deviation = single.predict(queries, return_std=True)
    lower, upper = single.band(queries)
    for array in (mean, deviation, lower, upper, single.marginal_effects(queries), single.loo_predictions()):
        assert array.dtype == np.float32
    assert single.X_.dtype == np.float32
    assert double.predict(queries).dtype == np.float64
    np.testing.assert_allclose(mean, double.predict(queries), rtol=2e-4)
    np.testing.assert_allclose(deviation, double.predict(queries, return_std=True)[1], rtol=2e-3)


@pytest.mark.parametrize("bandwidth", [0.5, "loo"])
@pytest.mark.parametrize("degree", [0, 1])
def test_device(bandwidth, degree):
    X, y = data(50)
    default = NadarayaWatson(bandwidth=bandwidth, degree=degree).fit(X, y)
    named = NadarayaWatson(bandwidth=bandwidth, degree=degree, device="cpu").fit(X, y)
    np.testing.assert_array_equal(named.bandwidth_, default.bandwidth_)
    np.testing.assert_array_equal(named.predict(X), default.predict(X))


def test_progress(capsys, monkeypatch):
    X, y = data(40)
    quiet = NadarayaWatson(bandwidth="loo", n_starts=2).fit(X, y)
    expected = quiet.predict(X)
    assert capsys.readouterr().out == ""
    monkeypatch.setattr(sums, "_PAIRS_PER_REPORT", 600)  # 15 queries a part
    model = NadarayaWatson(bandwidth="loo", n_starts=2, adaptive=None, verbose=1).fit(X, y)
    lines = capsys.readouterr().out.splitlines()
    assert len(lines) == 1
    assert lines[0].startswith("[NadarayaWatson] 40 points: ")
    assert " evaluations, best loo " in lines[0]
    np.testing.assert_allclose(model.predict(X), expected, rtol=1e-12)
    assert capsys.readouterr().out.splitlines() == [
        f"[NadarayaWatson] {done} of 40 queries" for done in (15, 30, 40)
    ]


def test_data_are_copied():
    X, y = data(30)
    weight = np.ones(30)
    model = NadarayaWatson(bandwidth=0.5).fit(X, y, weight)
    expected, queries = model.predict(X + 0.1, return_std=True), X + 0.1
    X[:], y[:], weight[:] = 0.0, 0.0, 5.0
    for got, wanted in zip(model.predict(queries, return_std=True), expected, strict=True):
        np.testing.assert_array_equal(got, wanted)
    assert (model.sample_weight_ == 1).all()
