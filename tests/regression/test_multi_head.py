"""Multi-head kernel regression: the numbers of Czyż (2024), and its two identities with attention."""

import pickle

import numpy as np
import pytest
import torch
from scipy.optimize import minimize
from sklearn.base import clone
from sklearn.utils.estimator_checks import parametrize_with_checks

from nadaraya import kernel_attention
from nadaraya.errors import InputError
from nadaraya.kernels import Epanechnikov, GaussianWithoutHalf, Matern
from nadaraya.regression.multi_head import MultiHeadKernelRegression


@parametrize_with_checks(
    [
        MultiHeadKernelRegression(
            n_heads=1, hold_out=0.2, n_splits=3, n_steps=20, average=0, per_feature=True, random_state=0
        ),
    ]
)
def test_scikit_learn(estimator, check):
    check(estimator)


@pytest.mark.slow
@parametrize_with_checks([MultiHeadKernelRegression(n_heads=2, n_steps=50, random_state=0)])
def test_scikit_learn_with_several_heads(estimator, check):
    check(estimator)


def paper_data(seed, n=150):
    """The heteroskedastic data of Czyż (2024), with NumPy's noise."""
    x = np.linspace(-3, 3, n)
    noise = np.random.default_rng(seed).standard_normal(n)
    return x[:, None], truth(x) + (0.2 + 0.05 * np.abs(x)) * noise


def truth(x):
    return 0.5 * np.sin(x) - np.sin(3 * x) + 0.2 * x**2


def leave_one_out_score(bandwidth, factor, X, y):
    kernel = np.exp(-((X - X.T) ** 2) / bandwidth**2)
    np.fill_diagonal(kernel, 0)
    return np.mean((factor * kernel @ y / kernel.sum(axis=1) - y) ** 2)


def log_score(parameters, X, y):
    return leave_one_out_score(np.exp(parameters[0]), parameters[1], X, y)


@pytest.mark.slow
def test_one_head_is_the_papers_over_training_seeds():
    X, y = paper_data(0)
    models = [MultiHeadKernelRegression(1, random_state=seed).fit(X, y) for seed in range(5)]
    for model in models:
        assert model.bandwidths_[0] == pytest.approx(0.16, abs=0.03)
        assert model.combination_[0] == pytest.approx(1.09, abs=0.1)


@pytest.mark.slow
def test_one_head_is_the_papers_over_data_sets():
    models = []
    for seed in range(6):
        X, y = paper_data(seed)
        models.append(MultiHeadKernelRegression(1, random_state=seed).fit(X, y))
        best = minimize(log_score, [-1.8, 1.0], args=(X, y), method="Nelder-Mead")
        # The minimum itself moves with the noise, so each model is held to its own data.
        score = leave_one_out_score(models[-1].bandwidths_[0], models[-1].combination_[0], X, y)
        assert score < 1.01 * best.fun
    assert np.mean([model.bandwidths_[0] for model in models]) == pytest.approx(0.16, abs=0.03)
    assert [model.combination_[0] for model in models] == pytest.approx([1.09] * 6, abs=0.1)


@pytest.mark.slow
@pytest.mark.parametrize("n_heads", [2, 4, 8])
def test_more_heads_fit_the_mean_curve_no_worse_than_one(n_heads):
    X, y = paper_data(0)
    x = np.linspace(-3, 3, 201)
    one, several = (
        np.linalg.norm(MultiHeadKernelRegression(h, random_state=0).fit(X, y).predict(x[:, None]) - truth(x))
        for h in (1, n_heads)
    )
    assert several < 1.1 * one


def test_the_papers_start_on_the_papers_data():
    X, y = paper_data(0)
    model = MultiHeadKernelRegression(8, n_steps=1, learning_rate=1e-300, random_state=0).fit(X, y)
    np.testing.assert_allclose(model.bandwidths_, np.linspace(0.1, 3, 8), rtol=1e-12)
    np.testing.assert_allclose(model.combination_, 1 / 8, rtol=1e-12)


@pytest.mark.parametrize("per_feature", [False, True])
def test_unit_of_the_points_changes_nothing_but_the_unit_of_the_bandwidths(per_feature):
    X, y = fitted_data(d=2)
    options = {"n_heads": 3, "n_steps": 30, "per_feature": per_feature, "random_state": 0}
    one = MultiHeadKernelRegression(**options).fit(X, y)
    unit = np.array([1024.0, 1 / 64]) if per_feature else 1024.0
    other = MultiHeadKernelRegression(**options).fit(X * unit, y)
    np.testing.assert_allclose(other.bandwidths_, one.bandwidths_ * unit, rtol=1e-9)
    np.testing.assert_allclose(other.predict(X * unit), one.predict(X), rtol=1e-9)


def fitted_data(n=60, d=1, p=None, seed=0):
    rng = np.random.default_rng(seed)
    X = rng.uniform(-2, 2, size=(n, d))
    y = np.sin(X.sum(axis=1)) + 0.1 * rng.normal(size=n)
    return X, y if p is None else y[:, None] * np.arange(1, p + 1)


@pytest.mark.parametrize("p", [None, 2])
@pytest.mark.parametrize("per_feature", [False, True])
def test_prediction_is_the_formula(p, per_feature):
    X, y = fitted_data(d=2, p=p)
    model = MultiHeadKernelRegression(
        3, Matern(1.0, nu=0.5), n_steps=20, per_feature=per_feature, random_state=0
    )
    model.fit(X, y)
    new = np.random.default_rng(1).normal(size=(7, 2))
    heads = []
    for bandwidth in model.bandwidths_:
        kernel = np.exp(-np.linalg.norm((new[:, None] - X) / bandwidth, axis=-1))
        heads.append(kernel @ y / kernel.sum(axis=1).reshape(-1, *[1] * (y.ndim - 1)))
    np.testing.assert_allclose(model.head_predictions(new), heads, rtol=1e-10)
    np.testing.assert_allclose(
        model.predict(new), np.tensordot(model.combination_, heads, 1), rtol=1e-9, atol=1e-12
    )


@pytest.mark.parametrize("d", [1, 3])
def test_fitted_regression_is_multi_head_attention(d):
    X, y = fitted_data(d=d)
    model = MultiHeadKernelRegression(4, n_steps=50, random_state=0).fit(X, y)
    new = np.random.default_rng(1).uniform(-3, 3, size=(20, d))
    queries, keys, values = (torch.tensor(array).expand(1, 4, -1, -1) for array in (new, X, y[:, None]))
    heads = kernel_attention(
        queries,
        keys,
        values,
        content=GaussianWithoutHalf(torch.tensor(model.bandwidths_)),
        backend="reference",
    )[0, ..., 0].detach()
    np.testing.assert_allclose(model.head_predictions(new), heads, rtol=0, atol=1e-12)
    np.testing.assert_allclose(model.predict(new), model.combination_ @ heads.numpy(), rtol=0, atol=1e-12)


def test_multi_head_attention_is_multi_head_kernel_regression():
    """Czyż (2024), second identity: kernel exp(⟨W_q x, W_k x'⟩/√d), targets W_v x_i, combined by U_h."""
    torch.manual_seed(0)
    heads, width, n = 4, 24, 11
    d = width // heads
    attention = torch.nn.MultiheadAttention(width, heads, batch_first=True, dtype=torch.float64)
    torch.nn.init.normal_(attention.in_proj_bias)
    x = torch.randn(1, n, width, dtype=torch.float64)
    with torch.no_grad():
        expected = attention(x, x, x, need_weights=False)[0][0]
        projected = torch.nn.functional.linear(x[0], attention.in_proj_weight, attention.in_proj_bias)
        q, k, v = projected.view(n, 3, heads, d).permute(1, 2, 0, 3)
        U = attention.out_proj.weight.view(width, heads, d)
        by_formula = attention.out_proj.bias.expand(n, width).clone()
        for h in range(heads):
            kernel = torch.exp(q[h] @ k[h].T / d**0.5)
            by_formula += (kernel @ v[h] / kernel.sum(dim=1, keepdim=True)) @ U[:, h].T
        operator = kernel_attention(q[None], k[None], v[None])[0]
        by_operator = torch.einsum("hnd,whd->nw", operator, U) + attention.out_proj.bias
    torch.testing.assert_close(by_formula, expected, rtol=0, atol=1e-10)
    torch.testing.assert_close(by_operator, expected, rtol=0, atol=1e-10)


def test_attention_between_points_of_one_length_is_this_regression():
    """⟨x, x'⟩ = ‖x‖² − ‖x − x'‖²/2 on a sphere, so the softmax is a Gaussian kernel of ℓ² = 2√d."""
    rng = np.random.default_rng(0)
    d = 5
    X = rng.normal(size=(30, d))
    X /= np.linalg.norm(X, axis=1, keepdims=True)
    y = rng.normal(size=(30, d))
    model = MultiHeadKernelRegression(
        1, n_steps=1, learning_rate=1e-300, initial_bandwidths=[(2 * d**0.5) ** 0.5]
    ).fit(X, y)
    points, values = torch.tensor(X), torch.tensor(y)
    attention = torch.nn.functional.scaled_dot_product_attention(points, points, values)
    np.testing.assert_allclose(model.predict(X), attention, rtol=0, atol=1e-12)


def test_compact_kernel_gives_the_nearest_target_far_away():
    X, y = fitted_data()
    model = MultiHeadKernelRegression(2, Epanechnikov(1.0), n_steps=20, random_state=0).fit(X, y)
    np.testing.assert_array_equal(
        model.head_predictions([[1e6], [-1e6]]), [[y[X.argmax()], y[X.argmin()]]] * 2
    )


def test_each_target_of_several_is_predicted_by_the_same_weights():
    X, y = fitted_data(p=3)
    model = MultiHeadKernelRegression(2, n_steps=30, random_state=0).fit(X, y)
    prediction = model.predict(X[:5])
    np.testing.assert_allclose(prediction, prediction[:, :1] * [1, 2, 3], rtol=1e-12)
    assert model.head_predictions(X[:5]).shape == (2, 5, 3)


def test_fitted_model_owns_its_data_and_survives_pickling_and_cloning():
    X, y = fitted_data()
    kernel = Matern(1.0, nu=1.5)
    model = MultiHeadKernelRegression(2, kernel, n_steps=20, random_state=0).fit(X, y)
    new = np.linspace(-2, 2, 9)[:, None]
    before = model.predict(new)
    again = clone(model).fit(X, y).predict(new)
    np.testing.assert_array_equal(again, before)
    X += 1.0
    y += 1.0
    for parameter in kernel.parameters():
        parameter.data.add_(1.0)
    np.testing.assert_array_equal(model.predict(new), before)
    np.testing.assert_array_equal(pickle.loads(pickle.dumps(model)).predict(new), before)


def test_initial_bandwidths_replace_the_start():
    X, y = fitted_data(d=2)
    options = {"n_heads": 2, "n_steps": 1, "learning_rate": 1e-300}
    for given, per_feature, expected in [
        ([0.5, 2.0], False, [0.5, 2.0]),
        ([0.5, 2.0], True, [[0.5, 0.5], [2.0, 2.0]]),
        ([[0.5, 1.0], [2.0, 3.0]], False, [[0.5, 1.0], [2.0, 3.0]]),
        ([[0.5, 1.0], [2.0, 3.0]], True, [[0.5, 1.0], [2.0, 3.0]]),
    ]:
        model = MultiHeadKernelRegression(initial_bandwidths=given, per_feature=per_feature, **options).fit(
            X, y
        )
        assert model.bandwidths_.shape == np.shape(expected)
        np.testing.assert_allclose(model.bandwidths_, expected, rtol=1e-12)


def test_points_that_do_not_differ_give_the_mean():
    X, y = np.ones((20, 2)), np.arange(20.0)
    model = MultiHeadKernelRegression(1, n_steps=1, learning_rate=1e-300, per_feature=True).fit(X, y)
    np.testing.assert_allclose(model.predict(X), 9.5, rtol=1e-12)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"n_heads": 0}, "n_heads must be .*, got 0"),
        ({"n_heads": 2.0}, "n_heads must be .*, got 2.0"),
        ({"initial_bandwidths": [1.0]}, "shape of initial_bandwidths must be"),
        ({"initial_bandwidths": [[1.0, 1.0], [1.0, 1.0]]}, "shape of initial_bandwidths must be"),
        ({"initial_bandwidths": [1.0, 0.0]}, "initial_bandwidths must be positive and finite"),
        ({"initial_bandwidths": [1.0, -1.0]}, "initial_bandwidths must be positive and finite"),
        ({"hold_out": 0}, "hold_out must be .*, got 0"),
        ({"hold_out": 60}, "hold_out must be .*, got 60"),
        ({"learning_rate": 0}, "learning_rate must be .*, got 0"),
        ({"kernel": "nearest"}, "kernel must be one of"),
    ],
)
def test_bad_input_is_named(options, message):
    X, y = fitted_data()
    with pytest.raises(InputError, match=message) as error:
        MultiHeadKernelRegression(**{"n_heads": 2, "n_steps": 5, **options}).fit(X, y)
    assert "\n" not in str(error.value)
