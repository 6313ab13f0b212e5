"""Attention over the nearest keys alone: k-nearest-neighbour regression, and limits that are known."""

import re
from typing import Any

import numpy as np
import pytest
import torch
from sklearn.neighbors import KNeighborsRegressor
from torch import Tensor

from nadaraya import InputError, kernel_attention
from nadaraya.attention import Factored, choose_backend
from nadaraya.attention.layer import KernelSelfAttention
from nadaraya.kernels import ExponentialDecay, Gaussian, Matern

BACKENDS = ["reference", "sdpa"]


def normal(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def made(num_queries: int = 150, num_keys: int = 150, heads: int = 2) -> list[Tensor]:
    return [
        normal(2, heads, num_queries, 3),
        normal(2, 1, num_keys, 3, seed=1),
        normal(2, 1, num_keys, 2, seed=2),
    ]


@pytest.mark.parametrize("k", [1, 5, 149, 150])
@pytest.mark.parametrize("backend", BACKENDS)
def test_nearest_neighbours_regression(k, backend):
    """scikit-learn's, weighing neighbours by the Gaussian of their distance."""
    X, queries, y = normal(150, 3), normal(40, 3, seed=1), normal(150, 2, seed=2)
    weights = lambda distance: np.exp(-0.5 * (distance / 0.8) ** 2)  # noqa: E731
    theirs = KNeighborsRegressor(k, weights=weights, algorithm="brute").fit(X.numpy(), y.numpy())
    out = kernel_attention(
        queries[None, None],
        X[None, None],
        y[None, None],
        content=Gaussian(torch.tensor(0.8, dtype=torch.float64)),
        nearest=k,
        backend=backend,
    )
    np.testing.assert_allclose(out[0, 0].detach(), theirs.predict(queries.numpy()), rtol=1e-9, atol=1e-12)


CONTENTS = {"dot": 0.7, "gaussian": Gaussian(1.1), "sum": Matern(2.0) + Gaussian(0.7)}
OPTIONS: dict[str, dict[str, Any]] = {
    "plain": {},
    "causal": {"causal": True},
    "position": {"causal": True, "position": ExponentialDecay(12.0)},
    "itself": {"exclude_self": True},
    "padding": {"key_mask": torch.arange(150).expand(2, -1) % 3 > 0, "causal": True},
    "documents": {"document_ids": (torch.arange(150) // 40).expand(2, -1)},
    "pairs": {"attn_mask": normal(2, 1, 150, 150, seed=7) > -0.5, "eps": 0.2},
}


@pytest.mark.parametrize("content", CONTENTS)
@pytest.mark.parametrize("option", OPTIONS)
@pytest.mark.parametrize("window", [None, 20])
def test_with_as_many_as_there_are_nothing_is_left_out(content, option, window):
    options = {"content": CONTENTS[content], "window": window, **OPTIONS[option]}
    plain = kernel_attention(*made(), **options, backend="reference")
    most = 150 if window is None else window if options.get("causal") else 2 * window - 1
    for k in (most, most + 1, 10_000):
        for backend in BACKENDS:
            torch.testing.assert_close(
                kernel_attention(*made(), nearest=k, backend=backend, **options), plain
            )


@pytest.mark.parametrize("content", CONTENTS)
@pytest.mark.parametrize("option", OPTIONS)
@pytest.mark.parametrize("k", [1, 4])
def test_the_largest_weights_are_kept_and_only_they_have_gradients(content, option, k):
    """The weights of the plain call, all but the k largest of each row struck out."""
    options = {"content": CONTENTS[content], **OPTIONS[option]}
    tensors = made()
    _, all_weights = kernel_attention(*tensors, return_weights=True, **options)
    least = all_weights.topk(k, -1).values[..., -1:]
    kept = (all_weights >= least) & (all_weights > 0)
    masked = dict(options)
    mask = kept & options["attn_mask"] if "attn_mask" in options else kept
    masked["attn_mask"], masked["exclude_self"] = mask, False
    results = []
    for extra, given in (
        (masked, {"backend": "reference"}),
        (options, {"nearest": k}),
        (options, {"nearest": k, "backend": "reference"}),
    ):
        leaves = [tensor.clone().requires_grad_() for tensor in tensors]
        out = kernel_attention(*leaves, **extra, **given)
        weights = torch.linspace(-1, 2, out.numel(), dtype=out.dtype).view_as(out)
        results.append([out, *torch.autograd.grad((out * weights).sum(), leaves)])
    for expected, *found in zip(*results, strict=True):
        for each in found:
            torch.testing.assert_close(each, expected)


def test_a_key_that_no_query_keeps_has_no_gradient():
    key = torch.tensor([0.0, 1.0, 2.0, 9.0, 10.0], dtype=torch.float64).view(1, 1, 5, 1).requires_grad_()
    value, query = normal(1, 1, 5, 2).requires_grad_(), torch.tensor([[[[0.1], [9.6]]]], dtype=torch.float64)
    out = kernel_attention(query, key, value, content=Gaussian(5.0), nearest=2)
    for gradient in torch.autograd.grad(out.square().sum(), [key, value]):
        assert gradient[0, 0, 2].eq(0).all()
        assert gradient[0, 0, [0, 1, 3, 4]].ne(0).all()


@pytest.mark.parametrize("backend", BACKENDS)
def test_rows_with_fewer_keys_keep_all(backend):
    options = {"content": Gaussian(1.0), "causal": True, "backend": backend}
    mask = torch.arange(150).expand(2, -1) >= 2
    plain, few = (kernel_attention(*made(), key_mask=mask, nearest=k, **options) for k in (None, 10))
    torch.testing.assert_close(few[:, :, :12], plain[:, :, :12])
    assert not few[:, :, :2].any()
    assert (few[:, :, 12:] != plain[:, :, 12:]).any(-1).all()


@pytest.mark.parametrize("backend", BACKENDS)
def test_a_token_that_leaves_itself_out_does_not_count_itself(backend):
    """The nearest of points is the point itself: with exclude_self the nearest is another."""
    x, value = normal(1, 1, 150, 3), normal(1, 1, 150, 2, seed=1)
    options = {"content": Gaussian(0.5), "nearest": 1, "backend": backend}
    torch.testing.assert_close(kernel_attention(x, x, value, **options), value)
    out = kernel_attention(x, x, value, exclude_self=True, **options)
    apart = torch.cdist(x, x).masked_fill(torch.eye(150, dtype=torch.bool), torch.inf)
    torch.testing.assert_close(out, value[:, :, apart[0, 0].argmin(-1)])


def test_log_sum_exp_is_of_the_pairs_kept():
    out, lse = kernel_attention(*made(), content=0.7, nearest=3, return_lse=True)
    logits = 0.7 * made()[0] @ made()[1].mT
    torch.testing.assert_close(lse, logits.topk(3, -1).values.logsumexp(-1))
    weights = kernel_attention(*made(), content=0.7, nearest=3, return_weights=True)[1]
    assert (weights > 0).sum(-1).eq(3).all()
    torch.testing.assert_close(weights @ made()[2], out)


def test_lines_through_the_nearest_keys():
    """A local line of the k nearest is that of the call without the others."""
    query, key, value = normal(1, 1, 30, 2), normal(1, 1, 30, 2, seed=1), normal(1, 1, 30, 1, seed=2)
    out = kernel_attention(query, key, value, content=Gaussian(1.0), degree=1, ridge=0.0, nearest=8)
    kept = torch.cdist(query, key).topk(8, largest=False).indices
    mask = torch.zeros(1, 1, 30, 30, dtype=torch.bool).scatter(-1, kept, True)
    expected = kernel_attention(query, key, value, content=Gaussian(1.0), degree=1, ridge=0.0, attn_mask=mask)
    torch.testing.assert_close(out, expected)


@pytest.mark.parametrize("k", [0, -3, True, 2.0, "few"])
def test_a_number_of_keys_is_positive(k):
    with pytest.raises(
        InputError, match=re.escape("nearest must be a positive number of keys or None, got ")
    ):
        kernel_attention(*made(9, 9), nearest=k)


def test_numbers_of_numpy_are_numbers():
    torch.testing.assert_close(
        kernel_attention(*made(9, 9), nearest=np.int64(2)), kernel_attention(*made(9, 9), nearest=2)
    )


def test_what_has_no_nearest_keys_is_refused():
    features = torch.rand(1, 2, 5, 3)
    with pytest.raises(InputError, match="nearest must not be given with Factored content"):
        kernel_attention(features, features, features, content=Factored(), nearest=2)
    for ways in ({"nearest": 3}, {"degree": 1}):
        with pytest.raises(
            InputError, match="own_value='drop' must not be given with degree, probe or nearest"
        ):
            KernelSelfAttention(8, 2, own_value="drop", **ways)


def test_rows_are_taken_block_by_block():
    assert choose_backend(*made(), content=Gaussian(1.0), nearest=4).name == "sdpa"
    tensors = made(300, 310)
    for causal in (False, True):
        options = {"content": Gaussian(1.0), "nearest": 4, "window": 50, "causal": causal}
        found, expected = (
            kernel_attention(*tensors, backend=name, **options) for name in ("sdpa", "reference")
        )
        torch.testing.assert_close(found, expected)
