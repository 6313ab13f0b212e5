"""Laws of the operator: what it reduces to, and what independent code says."""

import math
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from sklearn.metrics.pairwise import rbf_kernel

from nadaraya import kernel_attention
from nadaraya.attention import MixedKernels, MixedLogits
from nadaraya.kernels import (
    ALiBi,
    Exp,
    ExponentialDecay,
    Gaussian,
    GaussianWithoutHalf,
    KernelBank,
    RationalQuadratic,
)

BACKENDS = ["reference", "sdpa"]


def normal(*shape: int) -> torch.Tensor:
    return torch.randn(shape, dtype=torch.float64)


@pytest.fixture(autouse=True)
def _seed() -> None:
    torch.manual_seed(0)


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("causal", [False, True])
def test_dot_content_alone_is_pytorch_attention(backend: str, causal: bool) -> None:
    q, k, v = normal(2, 3, 17, 8), normal(2, 3, 17, 8), normal(2, 3, 17, 8)
    expected = F.scaled_dot_product_attention(q, k, v, is_causal=causal)
    torch.testing.assert_close(kernel_attention(q, k, v, causal=causal, backend=backend), expected)


@pytest.mark.parametrize("backend", BACKENDS)
def test_gaussian_content_is_nadaraya_watson_regression(backend: str) -> None:
    points, queries, targets = normal(30, 2), normal(11, 2), normal(30, 1)
    bandwidth = 0.7
    gram = torch.as_tensor(
        rbf_kernel(queries.cpu().numpy(), points.cpu().numpy(), gamma=1 / (2 * bandwidth**2)),
        device=queries.device,
    )
    expected = gram @ targets / gram.sum(1, keepdim=True)
    out = kernel_attention(
        queries[None, None],
        points[None, None],
        targets[None, None],
        content=Gaussian(bandwidth),
        backend=backend,
    )
    torch.testing.assert_close(out[0, 0], expected)


@pytest.mark.parametrize("backend", BACKENDS)
def test_attention_is_multi_head_kernel_regression(backend: str) -> None:
    """Czyż (2024): Σ_h U_h Σ_i W_v^h x_i K_h(x, x_i) / Σ_j K_h(x, x_j) with K_h = exp⟨W_q x, W_k x'⟩/√d."""
    tokens, heads, width = normal(9, 6), 2, 4
    w_q, w_k, w_v = normal(heads, 6, width), normal(heads, 6, width), normal(heads, 6, width)
    u = normal(heads, width, 6)
    regression = torch.zeros(9, 6, dtype=torch.float64)
    for h in range(heads):
        for n in range(9):
            kernel = torch.stack(
                [torch.exp((tokens[n] @ w_q[h]) @ (tokens[i] @ w_k[h]) / math.sqrt(width)) for i in range(9)]
            )
            smoothed = sum(kernel[i] * (tokens[i] @ w_v[h]) for i in range(9)) / kernel.sum()
            regression[n] += smoothed @ u[h]
    q, k, v = (torch.einsum("nd,hde->hne", tokens, w)[None] for w in (w_q, w_k, w_v))
    attention = torch.einsum("hne,hed->nd", kernel_attention(q, k, v, backend=backend)[0], u)
    torch.testing.assert_close(attention, regression)


@pytest.mark.parametrize("backend", BACKENDS)
def test_gaussian_of_constant_norm_features_is_dot_product_attention(backend: str) -> None:
    x = F.normalize(normal(2, 2, 20, 8), dim=-1) * 3.0
    sigma = torch.tensor([0.8, 2.0], dtype=torch.float64)
    gaussian = kernel_attention(x, x, x, content=Gaussian(sigma), causal=True, backend=backend)
    for head in range(2):
        dot = kernel_attention(
            x[:, [head]], x[:, [head]], x[:, [head]], content=1 / sigma[head].item() ** 2, causal=True,
            backend=backend,
        )  # fmt: skip
        torch.testing.assert_close(gaussian[:, [head]], dot)


@pytest.mark.parametrize("backend", BACKENDS)
def test_alibi_is_a_multiplied_decay_bank_of_one_term(backend: str) -> None:
    q, k, v = normal(1, 4, 25, 8), normal(1, 4, 25, 8), normal(1, 4, 25, 8)
    alibi = ALiBi(4)
    bank = KernelBank(4, 1, periodic=False).double()
    with torch.no_grad():
        bank.log_length.copy_(-alibi.slopes.double().log()[:, None])
    by_alibi = kernel_attention(q, k, v, position=alibi, causal=True, backend=backend)
    by_bank = kernel_attention(q, k, v, position=bank, causal=True, backend=backend)
    torch.testing.assert_close(by_alibi, by_bank, rtol=1e-6, atol=1e-7)


@pytest.mark.parametrize("backend", BACKENDS)
def test_log_kernel_multiplies_the_weights(backend: str) -> None:
    q, k, v = normal(1, 1, 12, 4), normal(1, 1, 12, 4), normal(1, 1, 12, 3)
    decay = ExponentialDecay(torch.tensor(3.0, dtype=torch.float64))
    lags = (torch.arange(12)[:, None] - torch.arange(12)).abs()
    kappa = torch.exp(q[0, 0] @ k[0, 0].T / 2) * decay(lags)
    out = kernel_attention(q, k, v, position=decay, backend=backend)
    torch.testing.assert_close(out[0, 0], (kappa / kappa.sum(1, keepdim=True)) @ v[0, 0])


def test_the_kernel_of_czyz_is_the_gaussian_with_bandwidth_over_root_two() -> None:
    x, y = normal(8, 1), normal(8, 1)
    gram = GaussianWithoutHalf(torch.tensor(0.6, dtype=torch.float64)).matrix(x)
    out = kernel_attention(x[None, None], x[None, None], y[None, None], content=Gaussian(0.6 / math.sqrt(2)))
    torch.testing.assert_close(out[0, 0], gram @ y / gram.sum(1, keepdim=True), rtol=1e-6, atol=1e-8)


@pytest.mark.parametrize("backend", BACKENDS)
def test_leave_one_out_is_regression_on_the_others(backend: str) -> None:
    x, y = normal(10, 2), normal(10, 1)
    out = kernel_attention(
        x[None, None], x[None, None], y[None, None], content=Gaussian(1.0), exclude_self=True,
        backend=backend,
    )  # fmt: skip
    for i in range(10):
        others = [j for j in range(10) if j != i]
        weights = torch.exp(-((x[others] - x[i]) ** 2).sum(1) / 2)
        torch.testing.assert_close(out[0, 0, i], (weights[:, None] * y[others]).sum(0) / weights.sum())


@pytest.mark.parametrize("backend", BACKENDS)
def test_a_leave_one_out_row_with_nothing_left_keeps_itself(backend: str) -> None:
    q, k, v = normal(2, 1, 6, 4), normal(2, 1, 6, 4), normal(2, 1, 6, 3)
    out = kernel_attention(q, k, v, causal=True, exclude_self=True, backend=backend)
    torch.testing.assert_close(out[:, :, 0], v[:, :, 0])
    present = torch.ones(2, 6, dtype=torch.bool)
    present[1, :3] = False  # left padding: token 3 is the first that sees anything, and sees only itself
    out = kernel_attention(q, k, v, causal=True, exclude_self=True, key_mask=present, backend=backend)
    torch.testing.assert_close(out[1, :, 3], v[1, :, 3])
    assert (out[1, :, :3] == 0).all()


@pytest.mark.parametrize("backend", BACKENDS)
def test_rows_that_see_nothing_give_zeros_and_finite_gradients(backend: str) -> None:
    q, k, v = (normal(2, 2, 5, 4).requires_grad_() for _ in range(3))
    mask = torch.ones(5, 5, dtype=torch.bool)
    mask[2] = False
    out = kernel_attention(q, k, v, attn_mask=mask, backend=backend)
    assert (out[:, :, 2] == 0).all()
    out.sum().backward()
    for tensor in (q, k, v):
        assert tensor.grad.isfinite().all()
        assert tensor.grad.abs().sum() > 0
    assert (q.grad[:, :, 2] == 0).all()


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize(("num_queries", "num_keys"), [(0, 5), (3, 0), (0, 0)])
def test_empty_sequences(backend: str, num_queries: int, num_keys: int) -> None:
    q, k, v = normal(2, 2, num_queries, 4), normal(2, 2, num_keys, 4), normal(2, 2, num_keys, 3)
    out = kernel_attention(q, k, v, causal=True, backend=backend)
    assert out.shape == (2, 2, num_queries, 3)
    assert (out == 0).all()


@pytest.mark.parametrize(
    "options",
    [{"key_bias": torch.zeros(1, 1, 6)}, {"document_ids": torch.zeros(0, 6).long()},
     {"content": RationalQuadratic(torch.ones(4), 1.0)}],
)  # fmt: skip
def test_a_batch_of_nothing_gives_nothing(options: dict[str, Any]) -> None:
    q, k, v = (torch.randn(0, heads, 6, 8, requires_grad=True) for heads in (4, 2, 2))
    out = kernel_attention(q, k, v, causal=True, **options)
    assert out.shape == (0, 4, 6, 8)
    out.sum().backward()


@pytest.mark.parametrize("backend", BACKENDS)
def test_unequal_lengths_are_aligned_at_the_end(backend: str) -> None:
    q, k, v = normal(1, 2, 20, 4), normal(1, 2, 20, 4), normal(1, 2, 20, 4)
    table = normal(2, 20)
    options = {"position": table, "causal": True, "window": 9, "backend": backend}
    full = kernel_attention(q, k, v, **options)
    last = kernel_attention(q[:, :, -3:], k, v, **options)
    torch.testing.assert_close(last, full[:, :, -3:])


@pytest.mark.parametrize("backend", BACKENDS)
def test_eps_shrinks_towards_zero_by_the_kernel_mass(backend: str) -> None:
    x, y = normal(7, 2), normal(7, 2)
    gram = torch.exp(-torch.cdist(x, x).square() / 2)
    out = kernel_attention(
        x[None, None],
        x[None, None],
        y[None, None],
        content=Gaussian(1.0),
        eps=0.5,
        backend=backend,
    )
    torch.testing.assert_close(out[0, 0], gram @ y / (gram.sum(1, keepdim=True) + 0.5))


def test_weights_are_a_row_stochastic_matrix_that_gives_the_output() -> None:
    q, k, v = normal(1, 2, 6, 4), normal(1, 2, 9, 4), normal(1, 2, 9, 4)
    out, weights = kernel_attention(q, k, v, return_weights=True)
    torch.testing.assert_close(weights.sum(-1), torch.ones(1, 2, 6, dtype=torch.float64))
    torch.testing.assert_close(weights @ v, out)


@pytest.mark.parametrize("backend", BACKENDS)
def test_permuting_the_data_permutes_nothing_in_the_prediction(backend: str) -> None:
    q, k, v = normal(1, 1, 5, 3), normal(1, 1, 30, 3), normal(1, 1, 30, 2)
    order = torch.randperm(30)
    options = {"content": Gaussian(1.3), "backend": backend}
    torch.testing.assert_close(
        kernel_attention(q, k, v, **options), kernel_attention(q, k[:, :, order], v[:, :, order], **options)
    )


@pytest.mark.parametrize("backend", BACKENDS)
def test_bandwidth_limits(backend: str) -> None:
    x, y = normal(1, 1, 12, 2), normal(1, 1, 12, 1)
    narrow = kernel_attention(x, x, y, content=Gaussian(1e-4), backend=backend)
    torch.testing.assert_close(narrow, y)  # interpolation
    wide = kernel_attention(x, x, y, content=Gaussian(1e6), backend=backend)
    torch.testing.assert_close(wide, y.mean(2, keepdim=True).expand_as(y))  # the mean


@pytest.mark.parametrize("backend", BACKENDS)
def test_mixtures_with_equal_weights_are_the_papers_banks(backend: str) -> None:
    """Bunks et al. (2025), eq. 6, is the mixture of kernels with weights 1; document C, of logits."""
    q, k, v = normal(2, 3, 9, 4), normal(2, 3, 9, 4), normal(2, 3, 9, 5)
    bank = KernelBank(3, 4).double()
    ones, lags = torch.ones(2, 3, 9, 4, dtype=torch.float64), torch.arange(9)
    options = {"causal": True, "backend": backend}
    multiplied = MixedKernels(ones, bank.log_terms(lags))
    torch.testing.assert_close(
        kernel_attention(q, k, v, position=multiplied, **options),
        kernel_attention(q, k, v, position=bank, **options),
    )
    added = MixedLogits(ones, bank.terms(lags))
    torch.testing.assert_close(
        kernel_attention(q, k, v, position=added, **options),
        kernel_attention(q, k, v, position=Exp(bank), **options),
    )
