"""Scales of any sign and size, numbers that are not finite and hidden, options of other libraries' kinds."""

import sys
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from nadaraya import InputError, KernelSelfAttention, kernel_attention, variants
from nadaraya.attention import GridLogits, MixedKernels, MixedLogits, choose_backend
from nadaraya.attention.content import DotProduct
from nadaraya.kernels import Epanechnikov, ExponentialDecay, Gaussian, RationalQuadratic

N = 6
BACKENDS = ["auto", "reference"]
PADDED = torch.tensor([[True] * 5 + [False]])
EXTRAS: dict[str, dict[str, Any]] = {
    "plain": {},
    "lse": {"return_lse": True},
    "eps": {"eps": 1.0},
    "loo": {"exclude_self": True},
    "documents": {"document_ids": torch.tensor([[0, 0, 0, 1, 1, 1]])},
    "key logits": {"key_bias": torch.linspace(-2.0, 1.0, N, dtype=torch.float64).expand(1, 2, -1)},
    "padding": {"key_mask": PADDED},
    "window": {"window": 3},
    "position": {"position": ExponentialDecay(2.0)},
    "mask": {"attn_mask": torch.ones(N, N, dtype=torch.bool).tril(1)},
}
SCALES = [0.0, -0.0, -0.5, 1e-30, 1e-45, 5e-324, -5e-324, -1e5, 1e5]


def three(dtype: torch.dtype = torch.float64) -> list[Tensor]:
    generator = torch.Generator().manual_seed(0)
    tensors = torch.randn(3, 1, 2, N, 4, generator=generator, dtype=torch.float64)
    return [t.to(dtype).requires_grad_() for t in tensors]


def outcome(tensors: list[Tensor], backend: str, **options: Any) -> list[Tensor]:
    found = kernel_attention(*tensors, backend=backend, **options)
    out, *lse = found if isinstance(found, tuple) else (found,)
    weights = torch.linspace(-1.0, 1.0, out.numel(), dtype=out.dtype).view(out.shape)
    loss = (out * weights).sum() + sum(x[x.isfinite()].sum() for x in lse)
    return [out, *lse, *torch.autograd.grad(loss, tensors)]


@pytest.mark.parametrize("causal", [True, False])
@pytest.mark.parametrize("extra", EXTRAS)
def test_scales_of_any_sign_and_size_are_as_defined(extra: str, causal: bool) -> None:
    tensors, options = three(), {"causal": causal, **EXTRAS[extra]}
    for scale in SCALES:
        found, expected = (outcome(tensors, b, content=scale, **options) for b in BACKENDS)
        torch.testing.assert_close(found, expected, rtol=1e-7, atol=1e-9 * max(1.0, abs(scale)))
        assert all(t.isfinite().all() for t in (found[0], *found[-3:]))
        by_head = outcome(tensors, "auto", content=torch.full((2,), scale, dtype=torch.float64), **options)
        torch.testing.assert_close(by_head, expected, rtol=1e-7, atol=1e-9 * max(1.0, abs(scale)))
    # Where rounding of a logit is more than a logit, values alone are defined.
    values = [kernel_attention(*tensors, content=1e30, backend=b, **options) for b in BACKENDS]
    torch.testing.assert_close(*(x[0] if isinstance(x, tuple) else x for x in values))


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
@pytest.mark.parametrize("scale", [0.0, -0.5, 1e-45, 4.0])
def test_scales_in_every_precision(dtype: torch.dtype, scale: float) -> None:
    tensors, exact = three(dtype), [t.detach().to(dtype).double() for t in three()]
    found = kernel_attention(*tensors, content=scale, causal=True)
    expected = kernel_attention(*exact, content=scale, causal=True, backend="reference")
    torch.testing.assert_close(found.double(), expected, rtol=0.05, atol=0.05)


def test_a_layer_takes_any_scale() -> None:
    x = torch.randn(1, N, 16)
    for scale in (0.0, -1.0, 1e-40):
        layer = KernelSelfAttention(
            16, 2, causal=True, content=lambda shape, scale=scale: DotProduct(shape, scale)
        )
        found = layer(x)
        layer.backend = "reference"
        torch.testing.assert_close(found, layer(x))


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("which", ["key", "value"])
@pytest.mark.parametrize("content", [None, Gaussian(1.0)], ids=["dot", "gaussian"])
@pytest.mark.parametrize("extra", ["causal", "padding", "window", "mask", "documents", "added mask", "table"])
def test_what_a_row_may_not_see_may_be_anything(extra: str, content: Any, which: str, backend: str) -> None:
    """The last key is hidden from rows 0 … 2: values and gradients of queries are as without it."""
    mask, table = torch.zeros(N, N, dtype=torch.float64), torch.zeros(1, N, dtype=torch.float64)
    mask[:3, 5] = table[:, 3:] = -torch.inf
    more = {"causal": {"causal": True}, "added mask": {"attn_mask": mask}, "table": {"position": table}}
    options = {**EXTRAS, **more}[extra]
    results = []
    for bad in (None, torch.nan, torch.inf, -torch.inf):
        tensors = [t.detach().clone() for t in three()]
        if bad is not None:
            tensors[1 if which == "key" else 2][:, :, 5, 1] = bad
        query, key, value = (t.requires_grad_() for t in tensors)
        out = kernel_attention(query, key, value, content=content, backend=backend, **options)[:, :, :3]
        (gradient,) = torch.autograd.grad(out.square().sum(), query)
        results.append((out.detach(), gradient[:, :, :3]))
    for found in results[1:]:
        torch.testing.assert_close(found, results[0])


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("content", [None, "gaussian"])
def test_what_no_row_may_see_has_no_gradient(content: str | None, backend: str) -> None:
    query, key, value = (t.detach() for t in three())
    sigma = torch.tensor([0.7, 1.3], dtype=torch.float64)

    def gradients(*given: Tensor) -> tuple[Tensor, ...]:
        leaves = [t.detach().clone().requires_grad_() for t in (*given, sigma)]
        kind = None if content is None else Gaussian(leaves[3])
        out = kernel_attention(*leaves[:3], content=kind, key_mask=PADDED, backend=backend)
        return torch.autograd.grad(out.square().sum(), leaves if content else leaves[:3])

    expected = gradients(query, key, value)
    hidden = ~PADDED[:, None, :, None]
    found = gradients(query, key.masked_fill(hidden, torch.nan), value.masked_fill(hidden, torch.inf))
    torch.testing.assert_close(found, expected)
    assert found[1][:, :, 5].count_nonzero() == 0


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("content", [None, -1.0, Gaussian(1.0)], ids=["dot", "scale", "gaussian"])
def test_without_keys_values_are_zero_and_gradients_too(content: Any, backend: str) -> None:
    query = torch.randn(1, 2, N, 4, requires_grad=True)
    key, value = (torch.zeros(1, 2, 0, 4, requires_grad=True) for _ in range(2))
    out = kernel_attention(query, key, value, content=content, backend=backend)
    (gradient,) = torch.autograd.grad(out.sum(), query)
    assert out.count_nonzero() == 0
    assert gradient.count_nonzero() == 0


@pytest.mark.parametrize(
    "options",
    [
        {}, {"causal": True}, {"content": Gaussian(1.0)}, {"position": ExponentialDecay(5.0)}, {"eps": 1.0},
        {"key_mask": PADDED}, {"window": 2}, {"exclude_self": True}, {"content": -1.0, "causal": True},
        {"position": MixedLogits(torch.randn(1, 2, N, 3), torch.randn(3, 4))},
    ],
)  # fmt: skip
def test_second_derivatives_are_the_references(options: dict[str, Any]) -> None:
    x = torch.randn(1, 2, N, 8, dtype=torch.float64, requires_grad=True)

    def twice(backend: str) -> Tensor:
        out = kernel_attention(x, x, x, backend=backend, **options)
        (first,) = torch.autograd.grad(out.square().sum(), x, create_graph=True)  # on its own it is served
        return torch.autograd.grad(first.square().sum(), x)[0]

    expected = twice("reference")
    assert expected.isfinite().all()
    with pytest.raises(InputError, match='second derivatives must be taken with backend="reference"'):
        twice("sdpa")
    if choose_backend(x, x, x, **options).name == "dense":  # as PyTorch differentiates it
        torch.testing.assert_close(twice("auto"), expected, rtol=1e-4, atol=1e-6)


def test_second_derivatives_of_a_kernel_alone_are_the_references() -> None:
    kernel, x = ExponentialDecay(5.0), torch.randn(1, 2, N, 8)
    out = kernel_attention(x, x, x, position=kernel, backend="sdpa")
    (first,) = torch.autograd.grad(out.square().sum(), kernel.log_length, create_graph=True)
    with pytest.raises(InputError, match='backend="reference"'):
        torch.autograd.grad(first, kernel.log_length)


def test_numbers_of_numpy_are_numbers() -> None:
    x = torch.randn(1, 2, N, 8)
    found = kernel_attention(
        x, x, x, window=np.int64(3), content=np.float32(0.25), eps=np.float64(0.5), prune_tol=np.float32(0),
        causal=np.True_,
    )  # fmt: skip
    torch.testing.assert_close(found, kernel_attention(x, x, x, window=3, content=0.25, eps=0.5, causal=True))
    layer = KernelSelfAttention(16, 2, window=np.int64(3), eps=np.float32(0.5))
    assert layer(torch.randn(1, N, 16)).isfinite().all()


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("key_mask", [[True] * N]), ("key_mask", np.ones((1, N), bool)), ("attn_mask", [[0.0]]),
        ("key_bias", [0.0] * N), ("document_ids", [[0] * N]), ("content", [0.5, 0.5]),
        ("content", np.ones(2)), ("content", True), ("content", "0.5"), ("position", [[0.0] * N]),
        ("window", 3.0), ("window", torch.tensor(3)), ("window", True), ("eps", [0.1]), ("eps", "0"),
        ("eps", torch.tensor(0.1)), ("dropout_p", np.ones(1)), ("prune_tol", None),
        ("position", MixedLogits(torch.zeros(1, 2, N, 1), [[0.0]])), ("position", GridLogits([[[0.0]]])),
    ],
)  # fmt: skip
def test_lists_and_arrays_are_named_in_one_line(name: str, value: Any) -> None:
    x = torch.randn(1, 2, N, 8)
    with pytest.raises(InputError, match=r"must be .*, got ") as caught:
        kernel_attention(x, x, x, **{name: value})
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("given", "meant"),
    [
        ("is_causal", "causal"), ("scale", "content"), ("softmax_scale", "content"), ("mask", "attn_mask"),
        ("dropout", "dropout_p"), ("key_padding_mask", "key_mask"), ("windw", "window"),
        ("bias", "position"), ("need_weights", "return_weights"), ("contnt", "content"),
    ],
)  # fmt: skip
def test_names_of_other_libraries_name_ours(given: str, meant: str) -> None:
    x = torch.randn(1, 2, N, 8)
    for call in (kernel_attention, choose_backend):
        with pytest.raises(InputError, match=f"got '{given}': did you mean '{meant}'") as caught:
            call(x, x, x, **{given: 1})
        assert "\n" not in str(caught.value)


LEAST = torch.finfo(torch.float32).min
EMPTIED: dict[str, dict[str, Any]] = {
    "compact kernel": {"position": Epanechnikov(1.0), "exclude_self": True},
    "compact kernel, causal": {"position": Epanechnikov(0.5), "exclude_self": True, "causal": True},
    "own lag": {"position": torch.tensor([[-torch.inf, 0.0, 0.0]]), "causal": True},
    "all lags": {"position": torch.full((1, 3), -torch.inf), "causal": True, "exclude_self": True},
    "past": {"position": torch.tensor([[-torch.inf] * 3 + [0.0] * 2]), "exclude_self": True},
    "grid": {"position": GridLogits(torch.full((1, 5, 1), -torch.inf))},
    "mixed": {"position": MixedLogits(torch.ones(1, 2, 3, 1), torch.tensor([[-torch.inf, 0.0, 0.0]])),
              "causal": True},
    "sum": {"position": torch.full((1, 3), LEAST), "key_bias": torch.full((1, 1, 3), LEAST)},
}  # fmt: skip


@pytest.mark.parametrize("form", EMPTIED)
@pytest.mark.parametrize("queries", [3, 1])
def test_rows_that_the_position_empties_are_as_defined(form: str, queries: int) -> None:
    options, (query, key, value) = dict(EMPTIED[form]), torch.randn(3, 1, 2, 3, 4).unbind()
    if queries == 1 and form in ("grid", "mixed"):
        return
    query = query[:, :, -queries:].requires_grad_()
    expected = kernel_attention(query, key, value, backend="reference", **options)
    for backend in ("auto", "dense", "sdpa"):
        found = kernel_attention(query, key, value, backend=backend, **options)
        torch.testing.assert_close(found, expected)
        (gradient,) = torch.autograd.grad(found.sum(), query)
        assert gradient.isfinite().all()
        with torch.no_grad():
            found = kernel_attention(query, key, value, backend=backend, **options)
        torch.testing.assert_close(found, expected)


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("extra", ["probe", "degree"])
def test_a_line_is_not_spoilt_by_keys_that_no_query_sees(extra: str, backend: str) -> None:
    query, key, value = three()
    spoilt = key.detach().clone()
    spoilt[:, :, -1, 1] = torch.nan
    line: Any = {"degree": 1} if extra == "degree" else {"probe": value.detach()}
    want, found = (
        outcome([query, keys.detach().requires_grad_(), value], backend, key_mask=PADDED, **line)
        for keys in (key, spoilt)
    )
    torch.testing.assert_close(found, want)
    seen = [
        kernel_attention(query, keys, value, causal=True, backend=backend, **line) for keys in (key, spoilt)
    ]
    torch.testing.assert_close(seen[0][:, :, :-1], seen[1][:, :, :-1])


@pytest.mark.parametrize(
    ("batch", "heads", "queries", "keys", "dtype", "options"),
    [
        (4, 4, 600, 10, torch.float32, {}),
        (2, 8, 520, 2050, torch.float64, {}),
        (1, 16, 520, 2060, torch.float32, {"attn_mask": torch.ones(2060, dtype=torch.bool)}),
    ],
)
def test_few_keys_of_many_rows_at_the_end_have_gradients(
    batch: int, heads: int, queries: int, keys: int, dtype: torch.dtype, options: dict[str, Any]
) -> None:
    torch.manual_seed(0)
    query = torch.randn(batch, heads, queries, 4, dtype=dtype, requires_grad=True)
    key = torch.randn(batch, heads, keys, 4, dtype=dtype, requires_grad=True)
    table = torch.randn(heads, 2 * max(queries, keys) - 1, dtype=dtype, requires_grad=True)
    given = (query, key, table)
    weights = torch.randn(batch, heads, queries, 4, dtype=dtype)
    found, want = (
        torch.autograd.grad(
            (kernel_attention(query, key, key, position=table, backend=b, **options) * weights).sum(), given
        )
        for b in BACKENDS
    )
    torch.testing.assert_close(found, want, rtol=2e-3, atol=2e-3)


@pytest.mark.parametrize(("queries", "options"), [(1500, {"causal": True}), (1500, {"window": 16})])
def test_pruning_leaves_rows_that_see_nothing_zero(queries: int, options: dict[str, Any]) -> None:
    query, key = torch.randn(1, 2, queries, 4), torch.randn(1, 2, 200, 4)
    call: dict[str, Any] = {"position": ExponentialDecay(3.0), **options}
    found = kernel_attention(query, key, key, prune_tol=1e-6, **call)
    torch.testing.assert_close(found, kernel_attention(query, key, key, **call), rtol=1e-3, atol=1e-4)


def test_threads_share_a_kernel_of_several_heads() -> None:
    query, key, value = torch.randn(3, 1, 4, N, 4, generator=torch.Generator().manual_seed(0))
    kernel = RationalQuadratic((4.0, 3.0, 2.0, 1.0), (1.0, 2.0, 3.0, 4.0))
    before = [(name, id(each)) for name, each in kernel.named_parameters()]

    @torch.no_grad()
    def once(_: int) -> Tensor:
        return kernel_attention(query, key, value, content=kernel)

    want, interval = once(0), sys.getswitchinterval()
    sys.setswitchinterval(1e-5)
    try:
        with ThreadPoolExecutor(4) as pool:
            found = list(pool.map(once, range(200)))
    finally:
        sys.setswitchinterval(interval)
    assert all(torch.equal(each, want) for each in found)
    assert [(name, id(each)) for name, each in kernel.named_parameters()] == before


@pytest.mark.parametrize("variant", ["linear", "linear-bank", "performer", "gka-features"])
def test_a_gradient_taken_within_autocast_is_that_outside(variant: str) -> None:
    torch.manual_seed(0)
    layer = KernelSelfAttention(16, 2, causal=True, **variants.get(variant))
    x = torch.randn(1, 300, 16)
    grads = []
    for within in (True, False):
        layer.zero_grad()
        with torch.autocast("cpu", torch.bfloat16):
            loss = layer(x).float().square().mean()
            if within:
                loss.backward()
        if not within:
            loss.backward()
        grads.append(torch.cat([p.grad.flatten() for p in layer.parameters() if p.grad is not None]))
    assert (grads[0] - grads[1]).norm() <= 0.02 * grads[1].norm()


def test_numbers_of_kernels_are_mapped_over() -> None:
    query, key, value = (t.detach() for t in three())
    scales = torch.tensor([1.0, 2.0], dtype=torch.float64)
    found = torch.vmap(lambda s: kernel_attention(query, key, value, content=Gaussian(s)))(scales)
    want = [kernel_attention(query, key, value, content=Gaussian(s)) for s in scales]
    torch.testing.assert_close(found, torch.stack(want))
    profiles, weights = torch.rand(3, N, dtype=torch.float64) + 0.1, torch.rand(2, 1, 2, N, 3).double() + 0.1

    def mixed(weights: Tensor) -> Tensor:
        return kernel_attention(query, key, value, causal=True, position=MixedKernels(weights, profiles))

    torch.testing.assert_close(torch.vmap(mixed)(weights), torch.stack([*map(mixed, weights)]))


def test_a_backend_is_chosen_for_all_options_of_a_call() -> None:
    query, key, value = three()
    choice = choose_backend(query, key, value, return_lse=True, causal=True)
    assert choice == choose_backend(query, key, value, causal=True)
