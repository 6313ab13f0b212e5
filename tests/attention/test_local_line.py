"""Local lines as attention: kernel regression's, least squares, Parallax, and what has no line."""

from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from nadaraya import InputError, kernel_attention
from nadaraya.attention import Factored, choose_backend
from nadaraya.kernels import Epanechnikov, ExponentialDecay, Gaussian, KernelBank, Matern
from nadaraya.regression import NadarayaWatson

POINTS = 60


def normal(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def line(query: Tensor, key: Tensor, value: Tensor, **options: Any) -> Tensor:
    """The local line without a ridge, unless one is given."""
    out = kernel_attention(query, key, value, **{"degree": 1, "ridge": 0.0, **options})
    assert isinstance(out, Tensor)
    return out


def exact(number: float) -> Tensor:
    return torch.tensor(number, dtype=torch.float64)


@pytest.mark.parametrize("dim", [1, 2, 4])
@pytest.mark.parametrize("sigma", [0.9, 2.0])
@pytest.mark.parametrize("backend", ["reference", "sdpa"])
def test_the_local_line_of_kernel_regression(dim, sigma, backend):
    X, queries, y = normal(POINTS, dim), normal(20, dim, seed=1), normal(POINTS, 3, seed=2)
    model = NadarayaWatson(bandwidth=sigma, degree=1).fit(X.numpy(), y.numpy())
    out = line(
        queries[None, None], X[None, None], y[None, None], content=Gaussian(exact(sigma)), backend=backend
    )
    np.testing.assert_allclose(out[0, 0].detach(), model.predict(queries.numpy()), rtol=1e-10, atol=1e-10)
    left_out = line(
        X[None, None],
        X[None, None],
        y[None, None],
        content=Gaussian(exact(sigma)),
        exclude_self=True,
        backend=backend,
    )
    np.testing.assert_allclose(left_out[0, 0].detach(), model.loo_predictions(), rtol=1e-10, atol=1e-10)


@pytest.mark.parametrize(
    ("content", "kernel"),
    [(Matern(exact(1.5), nu=2.5), "matern52"), (Epanechnikov(exact(4.0)), "epanechnikov")],
    ids=["matern", "compact"],
)
def test_with_any_kernel_of_the_distance(content, kernel):
    X, y = normal(POINTS, 2), normal(POINTS, 1, seed=2)
    bandwidth = 1.5 if kernel == "matern52" else 4.0
    model = NadarayaWatson(kernel, bandwidth, degree=1).fit(X.numpy(), y.numpy())
    out = line(X[None, None], X[None, None], y[None, None], content=content)
    np.testing.assert_allclose(out[0, 0].detach(), model.predict(X.numpy()), rtol=1e-10, atol=1e-10)


@pytest.mark.parametrize("backend", ["reference", "sdpa"])
def test_weighted_least_squares(backend):
    """Against NumPy's solution for each row: a dot product, a bank by lag, a gate, the past alone."""
    tokens, dim = 40, 3
    query, key, value = (
        normal(1, 2, tokens, dim),
        normal(1, 1, tokens, dim, seed=1),
        normal(1, 1, tokens, 2, seed=2),
    )
    bias, bank = normal(1, 2, tokens, seed=3), KernelBank(2, 3).double()
    out = line(
        query, key, value, content=0.4, position=bank, key_bias=bias, causal=True, ridge=1e-13,
        backend=backend,
    )  # fmt: skip
    G = bank(torch.arange(tokens)).detach()
    for head in range(2):
        for i in range(2 * dim, tokens):
            seen = slice(0, i + 1)
            logits = 0.4 * key[0, 0, seen] @ query[0, head, i] + bias[0, head, seen]
            weight = logits.exp() * G[head, : i + 1].flip(0)
            root = weight.sqrt()[:, None]
            design = torch.cat([torch.ones(i + 1, 1, dtype=torch.float64), key[0, 0, seen]], 1)
            solution = np.linalg.lstsq(
                (root * design).numpy(), (root * value[0, 0, seen]).numpy(), rcond=None
            )[0]
            expected = solution[0] + query[0, head, i].numpy() @ solution[1:]
            np.testing.assert_allclose(out[0, head, i].detach(), expected, rtol=1e-6, atol=1e-6)


def test_ridge_is_a_share_of_the_variance_of_the_keys():
    """Least squares with λ times the mean variance on the slopes; the scale of the keys does not matter."""
    key, query, value = normal(1, 1, 30, 4), normal(1, 1, 5, 4, seed=1), normal(1, 1, 30, 2, seed=2)
    out = line(query, key, value, content=0.3, ridge=0.2)
    weight = torch.softmax(0.3 * query[0, 0] @ key[0, 0].mT, -1)
    for i in range(5):
        mean, centre = weight[i] @ value[0, 0], weight[i] @ key[0, 0]
        apart = key[0, 0] - centre
        spread = apart.mT * weight[i] @ apart
        damped = spread + 0.2 * spread.trace() / 4 * torch.eye(4, dtype=torch.float64)
        slope = torch.linalg.solve(damped, apart.mT * weight[i] @ (value[0, 0] - mean))
        torch.testing.assert_close(out[0, 0, i], mean + (query[0, 0, i] - centre) @ slope)
    scaled = line(10 * query, 10 * key, value, content=0.003, ridge=0.2)
    torch.testing.assert_close(scaled, out)


@pytest.mark.parametrize("content", [None, Gaussian(1.5), Matern(2.0), Factored()], ids=repr)
@pytest.mark.parametrize("exclude_self", [False, True])
@pytest.mark.parametrize("backend", ["reference", "sdpa"])
def test_a_linear_function_of_the_keys_is_reproduced(content, exclude_self, backend):
    """Far from the origin too, and where the query lies outside of the keys."""
    far = 0.0 if isinstance(content, Factored) else 50.0
    query, key = normal(1, 2, 140, 3).abs() + far, normal(1, 2, 140, 3, seed=1).abs() + far
    slope = normal(2, 3, 4, seed=2)
    content = content if content is not None else 0.01
    out = line(query, key, key @ slope - 7.0, content=content, exclude_self=exclude_self, backend=backend)
    torch.testing.assert_close(out, query @ slope - 7.0, rtol=1e-8, atol=1e-7)


@pytest.mark.parametrize("content", [torch.tensor([0.4, 2.0]), -0.3, 0.0], ids=["heads", "negative", "zero"])
@pytest.mark.parametrize("backend", ["reference", "sdpa"])
def test_a_line_is_read_at_the_query_whatever_scales_its_weights(content, backend):
    """A line at the query reproduces a linear function of the keys there, by any weights."""
    query, key, slope = normal(1, 2, 140, 3), normal(1, 2, 140, 3, seed=1), normal(2, 3, 4, seed=2)
    out = line(query, key, key @ slope, content=content, backend=backend)
    torch.testing.assert_close(out, query @ slope, rtol=1e-8, atol=1e-8)


def test_one_key_has_no_slope_and_none_gives_zero():
    query, key, value = (normal(1, 1, 5, 3, seed=seed) for seed in range(3))
    mask = torch.tensor([[False, True, True, True, True]])
    out = kernel_attention(query, key, value, degree=1, causal=True, key_mask=mask)
    assert not out[0, 0, 0].any()
    torch.testing.assert_close(out[0, 0, 1], value[0, 0, 1])
    assert out.isfinite().all()


def inputs(dim: int = 2) -> list[Tensor]:
    shapes = [(1, 2, 9, dim), (1, 1, 9, dim), (1, 1, 9, 2), (1, 2, 9)]
    return [normal(*shape, seed=seed).requires_grad_() for seed, shape in enumerate(shapes)]


@pytest.mark.parametrize("way", ["line", "probe"])
@pytest.mark.parametrize("backend", ["reference", "sdpa"])
def test_gradients(way, backend):
    bank, probe = KernelBank(2, 2).double(), normal(1, 2, 9, 2, seed=9).requires_grad_()

    def call(query: Tensor, key: Tensor, value: Tensor, bias: Tensor, *more: Tensor) -> Tensor:
        ways = {"probe": more[0]} if way == "probe" else {"degree": 1, "ridge": 0.0}
        out = kernel_attention(
            query, key, value, content=0.7, position=bank, key_bias=bias, exclude_self=True, backend=backend,
            **ways,
        )  # fmt: skip
        assert isinstance(out, Tensor)
        return out

    more = [probe] if way == "probe" else []
    assert torch.autograd.gradcheck(call, (*inputs(), *more))


@pytest.mark.parametrize("rows", [2, 9])
def test_second_derivatives_and_function_transforms(rows):
    """By few rows and by many, whose factors are made in two ways."""
    query, key, value = normal(1, 2, rows, 2), normal(1, 2, 9, 2, seed=1), normal(1, 2, 9, 2, seed=2)

    def call(query: Tensor, key: Tensor, value: Tensor, ridge: float = 0.0) -> Tensor:
        return line(query, key, value, content=0.4, ridge=ridge, backend="reference")

    leaves = tuple(x.clone().requires_grad_() for x in (query, key, value))
    assert torch.autograd.gradcheck(call, leaves, check_forward_ad=True)
    assert torch.autograd.gradgradcheck(call, leaves)
    many = torch.func.vmap(lambda query: call(query, key, value, 0.1))(torch.stack([query, 2 * query]))
    torch.testing.assert_close(many[1], call(2 * query, key, value, 0.1))


def test_gradients_of_bandwidth_and_bank_are_those_of_differences():
    """The ridge is a share of the variance, which the gradient takes for a constant: there is none here."""
    query, key, value = (normal(1, 1, 12, 2, seed=seed) for seed in range(3))
    sigma, length = (torch.tensor([x], dtype=torch.float64, requires_grad=True) for x in (1.3, 5.0))

    def call(sigma: Tensor, length: Tensor) -> Tensor:
        position = torch.exp(-torch.arange(12) / length)[None].log()
        return line(query, key, value, content=Gaussian(sigma), position=position)

    assert torch.autograd.gradcheck(call, (sigma, length))


@pytest.mark.parametrize("shared", [1, 2])
def test_a_probe_is_the_formula_of_parallax(shared):
    """ȳ − r·Cov(k, v) of softmax weights, with key-value heads that serve several."""
    query, probe = normal(2, 4, 50, 3), normal(2, 4, 50, 3, seed=1)
    key, value = normal(2, 4 // shared, 50, 3, seed=2), normal(2, 4 // shared, 50, 5, seed=3)
    out = kernel_attention(query, key, value, content=0.6, probe=probe, causal=True)
    wide_key, wide_value = (t.repeat_interleave(shared, 1) for t in (key, value))
    logits = 0.6 * query @ wide_key.mT
    weight = logits.masked_fill(torch.ones(50, 50).triu(1).bool(), -torch.inf).softmax(-1)
    mean, centre = weight @ wide_value, weight @ wide_key
    products = wide_key[..., :, None] * wide_value[..., None, :]
    covariance = torch.einsum("bhij,bhjde->bhide", weight, products) - centre[..., None] * mean[..., None, :]
    expected = mean - torch.einsum("bhid,bhide->bhie", probe, covariance)
    torch.testing.assert_close(out, expected, rtol=1e-13, atol=1e-13)


def test_a_probe_of_zero_is_the_weighted_mean():
    query, key, value = (normal(1, 2, 30, 3, seed=seed) for seed in range(3))
    options = {"content": Gaussian(1.2), "position": ExponentialDecay(9.0), "causal": True}
    mean = kernel_attention(query, key, value, **options)
    torch.testing.assert_close(kernel_attention(query, key, value, probe=0 * query, **options), mean)


@pytest.mark.parametrize("way", ["line", "probe"])
@pytest.mark.parametrize("window", [None, 40])
@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize("num_queries", [310, 150])
def test_row_blocks_equal_the_definition(way, window, causal, num_queries):
    query = normal(2, 2, num_queries, 3).requires_grad_()
    key, value, bias = normal(2, 1, 310, 3, seed=1), normal(2, 1, 310, 4, seed=2), normal(1, 2, 310, seed=3)
    probe, mask = normal(2, 2, num_queries, 3, seed=4), normal(2, 310, seed=5) > -1
    ways = {"probe": probe.requires_grad_()} if way == "probe" else {"degree": 1}
    leaves = [query, key.requires_grad_(), value.requires_grad_(), bias.requires_grad_()]
    leaves += [probe] if way == "probe" else []
    options = {
        "content": Gaussian(1.4), "position": KernelBank(2, 2).double(), "causal": causal, "window": window,
        "key_mask": mask, "key_bias": bias, "exclude_self": True, **ways,
    }  # fmt: skip
    assert choose_backend(query, key, value, **options).name == "sdpa"
    results = {}
    for backend in ("reference", "sdpa"):
        out = kernel_attention(query, key, value, backend=backend, **options)
        weights = torch.linspace(-1, 2, out.numel(), dtype=out.dtype).view_as(out)
        results[backend] = [out, *torch.autograd.grad((out * weights).sum(), leaves)]
    for found, expected in zip(results["sdpa"], results["reference"], strict=True):
        torch.testing.assert_close(
            found, expected, rtol=1e-8, atol=1e-9 * float(expected.detach().abs().max())
        )


@pytest.mark.parametrize("way", ["line", "probe"])
def test_with_features_in_place_of_an_exponential(way):
    """Factorised content gives the weights; the line is one through the features of the keys."""
    query, key, value = (normal(1, 2, 30, 3, seed=seed).abs() for seed in range(3))
    ways = {"probe": value} if way == "probe" else {"degree": 1}
    options = {"content": Factored(), "position": ExponentialDecay(9.0), **ways}
    choice = choose_backend(query, key, value, **options)
    assert choice.name == "sdpa"
    assert set(choice.refused.values()) == {"local lines are computed row by row"}
    out = kernel_attention(query, key, value, **options)
    table = (query @ key.mT).log()  # as logits of all pairs, added to a dot product of scale 0
    lags = (torch.arange(30)[:, None] - torch.arange(30)).abs().double()
    for head in range(2):
        expected = kernel_attention(
            *(t[:, head : head + 1] for t in (query, key, value)), content=0.0,
            position=(table[0, head : head + 1] - lags / 9.0),
            **{name: t[:, head : head + 1] if name == "probe" else t for name, t in ways.items()},
        )  # fmt: skip
        torch.testing.assert_close(out[:, head : head + 1], expected)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"degree": 2}, r"degree must be 0 .* or 1 .*, got 2"),
        ({"degree": True}, "degree must be 0"),
        ({"degree": -1}, "degree must be 0"),
        ({"ridge": -1e-3}, "ridge must be a finite number of at least 0, got -0.001"),
        ({"ridge": float("nan")}, "ridge must be a finite number"),
        ({"probe": torch.zeros(1, 2, 9, 4)}, r"probe must be floating point of shape \(1, 2, 9, 3\)"),
        ({"probe": torch.zeros(1, 2, 9, 3, dtype=torch.long)}, "probe must be floating point"),
        ({"probe": 3.0}, "probe must be a torch tensor"),
        ({"degree": 1, "probe": torch.zeros(1, 2, 9, 3)}, "probe must not be given with degree=1"),
        ({"degree": 1, "eps": 0.1}, "eps must be 0 with degree=1"),
        ({"probe": torch.zeros(1, 2, 9, 3), "eps": 0.1}, "eps must be 0 with probe"),
        ({"degree": 1, "content": Factored(False)}, "degree=1 must have weights of sum 1"),
        (
            {"degree": 1, "ridge": 0.0, "causal": True},
            "ridge must be above 0 where a query sees no more keys",
        ),
    ],
)
def test_what_has_no_line_is_refused(options, message):
    query, key, value = (torch.randn(1, 2, 9, 3) for _ in range(3))
    key[..., 2] = 0.0  # no slope in this direction
    with pytest.raises(InputError, match=message):
        kernel_attention(query, key, value, **options)
