"""Every backend equals the reference, in values and in every gradient, over a generated grid of calls."""

import os
from importlib.util import find_spec
from typing import Any

import pytest
import torch
from grids import covering
from hypothesis import HealthCheck, given, seed, settings
from hypothesis import strategies as st

from nadaraya import InputError, kernel_attention
from nadaraya.attention import GridLogits, MixedKernels, MixedLogits
from nadaraya.kernels import Gaussian, Matern

ON_GPU = os.environ.get("NADARAYA_TEST_DEVICE") == "cuda"
# What "triton" computes, in its three dtypes, is tested in triton/.
FAST_BACKENDS = ["dense", "sdpa", *(["triton"] if ON_GPU and find_spec("triton") else [])]
FLOAT64_BACKENDS = ["dense", "sdpa"]
DROPOUT_BACKENDS = ["dense", "sdpa"]


@st.composite
def calls(
    draw: st.DrawFn, lengths: tuple[int, ...] = (1, 2, 7, 131, 300), others: tuple[int, ...] = (1, 5, 140)
) -> tuple[list[torch.Tensor], dict[str, Any], list[str]]:
    """Tensors, options and the names of the options that are differentiated, in float64."""
    generator = torch.Generator(torch.get_default_device()).manual_seed(draw(st.integers(0, 2**31)))

    def normal(*shape: int) -> torch.Tensor:
        return torch.randn(shape, generator=generator, dtype=torch.float64)

    batch, kv_heads, groups = (draw(st.integers(1, 2)) for _ in range(3))
    heads = kv_heads * groups
    num_queries = draw(st.sampled_from(lengths))
    num_keys = draw(st.sampled_from([num_queries, *others]))
    width = draw(st.sampled_from([1, 4, 9]))
    value_width = draw(st.sampled_from([width, 2, 11]))
    tensors = [
        normal(batch, heads, num_queries, width),
        normal(batch, kv_heads, num_keys, width),
        normal(batch, kv_heads, num_keys, value_width),
    ]
    options: dict[str, Any] = {
        "causal": draw(st.booleans()),
        "window": draw(st.sampled_from([None, None, 1, 3, 60])),
        "exclude_self": draw(st.booleans()),
        "eps": draw(st.sampled_from([0.0, 0.0, 0.3])),
    }
    differentiated = []
    match draw(st.sampled_from(["dot", "scaled", "gaussian", "kernel"])):
        case "scaled":
            options["content"] = normal(draw(st.sampled_from([1, heads])))
            differentiated.append("content")
        case "gaussian":
            options["sigma"] = normal(heads).abs() + 0.5
            differentiated.append("sigma")
        case "kernel":
            options["matern"] = normal(draw(st.sampled_from([1, heads]))).abs() + 0.5
            differentiated.append("matern")
    length = max(num_queries, num_keys)
    table_heads, entries = draw(st.sampled_from([1, heads])), draw(st.sampled_from([1, 4, length]))
    match draw(st.sampled_from(["none", "by lag", "signed", "by pair", "logits", "kernels", "grid"])):
        case "by lag":
            options["position"] = normal(table_heads, length)
        case "signed":
            options["position"] = normal(table_heads, 2 * length - 1)
        case "by pair":
            options["position"] = normal(table_heads, num_queries, num_keys)
        case "logits":
            options["mix"] = normal(batch, heads, num_queries, 3)
            options["profiles"] = normal(table_heads, 3, 2 * entries - 1)
        case "kernels":
            options["shares"] = normal(batch, heads, num_queries, 2).exp()
            options["log_kernels"] = normal(table_heads, 2, entries)
        case "grid" if num_queries == num_keys and num_queries > 1:
            options["grid"] = normal(table_heads, 2 * max(1, (num_queries - 1) // 2) - 1, 3)
    if "grid" in options:
        height = (options["grid"].shape[1] + 1) // 2
        options["num_prefix"] = num_queries - 2 * height
    tables = {"position", "mix", "profiles", "shares", "log_kernels", "grid"}
    differentiated += [name for name in options if name in tables]
    if draw(st.booleans()):
        options["key_mask"] = torch.rand(batch, num_keys, generator=generator) > 0.4
    match draw(st.sampled_from(["none", "none", "bool", "float"])):
        case "bool":
            shape = (draw(st.sampled_from([1, batch])), 1, num_queries, num_keys)
            options["attn_mask"] = torch.rand(shape, generator=generator) < 0.7
        case "float":
            shape = draw(st.sampled_from([(1, 1), (1, heads), (batch, 1), (batch, heads)]))
            options["attn_mask"] = normal(*shape, draw(st.sampled_from([1, num_queries])), num_keys)
            differentiated.append("attn_mask")
    if draw(st.booleans()):
        key_bias_heads = draw(st.sampled_from([1, heads]))
        options["key_bias"] = normal(draw(st.sampled_from([1, batch])), key_bias_heads, num_keys)
        differentiated.append("key_bias")
    if num_queries <= num_keys and "grid" not in options and draw(st.booleans()):
        ends = torch.rand(batch, num_keys, generator=generator) < draw(st.sampled_from([0.02, 0.2]))
        options["document_ids"] = ends.cumsum(1)
    return tensors, options, differentiated


def arguments(options: dict[str, Any]) -> dict[str, Any]:
    """The operator's arguments, made of the tensors that are differentiated."""
    given = dict(options)
    if "sigma" in given:
        given["content"] = Gaussian(given.pop("sigma"))
    if "matern" in given:
        length = given.pop("matern")
        given["content"] = Matern(length[0] if len(length) == 1 else length) + Gaussian(0.7)
    if "mix" in given:
        given["position"] = MixedLogits(given.pop("mix"), given.pop("profiles"), signed=True)
    if "shares" in given:
        given["position"] = MixedKernels(given.pop("shares"), given.pop("log_kernels"))
    if "grid" in given:
        given["position"] = GridLogits(given.pop("grid"), given.pop("num_prefix"))
    return given


def run(
    tensors: list[torch.Tensor], options: dict[str, Any], differentiated: list[str], backend: str
) -> tuple[torch.Tensor, list[torch.Tensor]]:
    if backend == "dense" and {"matern", "mix", "shares"} & options.keys():
        backend = "auto"
    leaves = [t.detach().clone().requires_grad_() for t in tensors]
    named = {name: options[name].detach().clone().requires_grad_() for name in differentiated}
    out, lse = kernel_attention(*leaves, **arguments({**options, **named}), backend=backend, return_lse=True)
    inputs = [*leaves, *named.values()]
    grad_out = torch.sin(torch.arange(out.numel(), dtype=out.dtype)).view_as(out)
    grad_lse = torch.cos(torch.arange(lse.numel(), dtype=lse.dtype)).view_as(lse)
    seen = lse != -torch.inf
    grads = torch.autograd.grad([out, lse[seen]], inputs, [grad_out, grad_lse[seen]], allow_unused=True)
    # A row that sees nothing has log-sum-exp −inf, which differences cannot have.
    return torch.cat([out, torch.where(seen, lse, -1e9)[..., None]], dim=-1), [
        torch.zeros_like(i) if g is None else g for i, g in zip(inputs, grads, strict=True)
    ]


@settings(max_examples=60, deadline=None, derandomize=True)
@given(call=calls())
def test_values_and_all_gradients_equal_the_reference(call: tuple) -> None:
    assert_agreement(FLOAT64_BACKENDS, call)


@pytest.mark.slow
@pytest.mark.parametrize("shard", range(3))
def test_many_calls_equal_the_reference(shard: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Short ones, in blocks so small that each has several, half of them shared out over threads."""
    for rows in ("_FORWARD_ROWS_SHORT", "_BACKWARD_ROWS_SHORT"):
        monkeypatch.setattr(f"nadaraya.attention.blocked.{rows}", 8)
    if shard % 2:
        monkeypatch.setattr("nadaraya.attention.partition._LEAST_SCORES", 0)

    @seed(shard)
    @settings(max_examples=300, deadline=None, database=None, suppress_health_check=list(HealthCheck))
    @given(call=calls(lengths=(1, 2, 7, 19), others=(1, 5, 26)))
    def check(call: tuple) -> None:
        assert_agreement(FLOAT64_BACKENDS, call)

    check()


@pytest.mark.parametrize("content", ["dot", "gaussian"])
@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize("others", ["nothing", "padding", "window", "others only"])
def test_without_a_table_too(content: str, causal: bool, others: str) -> None:
    """Calls that PyTorch's fused attention does at once; ε makes use of the log-sum-exp's gradient."""
    torch.manual_seed(12)
    tensors = [torch.randn(2, 2, 20, 4, dtype=torch.float64) for _ in range(3)]
    present = torch.arange(20) < torch.tensor([[0], [13]])
    options: dict[str, Any] = {
        "nothing": {},
        "padding": {"key_mask": present},  # of the first item, none
        "window": {"window": 3},
        "others only": {"exclude_self": True},
    }[others]
    if content == "gaussian":
        options["sigma"] = torch.tensor([0.8, 2.0], dtype=torch.float64)
    options |= {"causal": causal, "eps": 0.3}
    assert_agreement(FLOAT64_BACKENDS, (tensors, options, ["sigma"] * (content == "gaussian")))


def assert_agreement(backends: list[str], call: tuple) -> None:
    expected, expected_grads = run(*call, backend="reference")
    assert expected.isfinite().all()
    for backend in backends:
        actual, actual_grads = run(*call, backend=backend)
        torch.testing.assert_close(actual, expected, rtol=1e-9, atol=1e-9)
        for name, got, want in zip(
            ["query", "key", "value", *call[2]], actual_grads, expected_grads, strict=True
        ):
            said = f"{backend}, {name}"
            assert want.isfinite().all(), said
            torch.testing.assert_close(got, want, rtol=1e-8, atol=1e-8, msg=lambda m, s=said: f"{s}: {m}")


@pytest.mark.parametrize(
    ("backend", "dtype", "content", "with_table"),
    covering(
        FAST_BACKENDS, [torch.float16, torch.bfloat16, torch.float32], ["dot", "gaussian"], [False, True]
    ),
)
def test_half_precision_loses_only_what_its_inputs_lost(
    backend: str, dtype: torch.dtype, content: str, with_table: bool
) -> None:
    torch.manual_seed(0)
    exact = [torch.randn(2, 3, 150, 16).to(dtype).double() for _ in range(3)]
    options: dict[str, Any] = {"causal": True}
    if content == "gaussian":
        options["content"] = Gaussian(torch.tensor([0.5, 2.0, 5.0]))
    if with_table:
        options["position"] = torch.randn(3, 150)
    expected = kernel_attention(*exact, **options, backend="reference")
    actual = kernel_attention(*(t.to(dtype) for t in exact), **options, backend=backend)
    assert actual.dtype == dtype
    rounding = {torch.float32: 2e-6, torch.float16: 2e-3, torch.bfloat16: 1.6e-2}[dtype]
    assert (actual.double() - expected).abs().max() < rounding * expected.abs().max()


@pytest.mark.parametrize("backend", FAST_BACKENDS)
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32])
def test_gradients_come_in_the_dtype_of_their_inputs(backend: str, dtype: torch.dtype) -> None:
    tensors = [torch.randn(1, 2, 20, 8, dtype=dtype, requires_grad=True) for _ in range(3)]
    table = torch.randn(2, 20, requires_grad=True)
    kernel_attention(*tensors, position=table, causal=True, backend=backend).sum().backward()
    assert [t.grad.dtype for t in tensors] == [dtype] * 3
    assert table.grad.dtype == torch.float32
    assert table.grad.abs().sum() > 0


@pytest.mark.parametrize("backend", ["reference", *FLOAT64_BACKENDS])
def test_gradcheck_through_table_and_bandwidth(backend: str) -> None:
    torch.manual_seed(1)
    x = torch.randn(1, 2, 6, 3, dtype=torch.float64, requires_grad=True)
    log_bandwidth = torch.randn(2, dtype=torch.float64, requires_grad=True)
    table = torch.randn(2, 6, dtype=torch.float64, requires_grad=True)

    def call(x: torch.Tensor, log_bandwidth: torch.Tensor, table: torch.Tensor) -> torch.Tensor:
        return kernel_attention(
            x, x, x, content=Gaussian(log_bandwidth.exp()), position=table, causal=True, exclude_self=True,
            eps=0.1, backend=backend,
        )  # fmt: skip

    assert torch.autograd.gradcheck(call, (x, log_bandwidth, table))


@pytest.mark.parametrize("backend", FLOAT64_BACKENDS)
def test_far_from_the_origin_the_gaussian_keeps_its_digits(backend: str) -> None:
    torch.manual_seed(2)
    near = torch.randn(1, 1, 50, 3, dtype=torch.float64)
    far = near + 1e6
    value = torch.randn(1, 1, 50, 2, dtype=torch.float64)
    options = {"content": Gaussian(0.5)}
    expected = kernel_attention(far, far, value, **options, backend="reference")
    actual = kernel_attention(far, far, value, **options, backend=backend)
    torch.testing.assert_close(actual, expected, rtol=0, atol=1e-12)
    torch.testing.assert_close(
        actual, kernel_attention(near, near, value, **options, backend=backend), rtol=0, atol=1e-8
    )


@pytest.mark.parametrize("backend", FAST_BACKENDS)
@pytest.mark.parametrize("bandwidth", [1e-30, 1e-3, 1e30])
@pytest.mark.parametrize("eps", [0.0, 0.1])
def test_extreme_bandwidths_keep_to_the_definition(backend: str, bandwidth: float, eps: float) -> None:
    torch.manual_seed(8)
    x, value = torch.randn(1, 2, 30, 4, requires_grad=True), torch.randn(1, 2, 30, 3)
    options: dict[str, Any] = {"content": Gaussian(bandwidth), "eps": eps}
    expected = kernel_attention(x, x, value, **options, backend="reference")
    # Far below every distance each point keeps its own value; far above, all take the mean.
    mean = value.mean(2, keepdim=True).expand_as(value)
    limit = value / (1 + eps) if bandwidth < 1 else mean * 30 / (30 + eps)
    torch.testing.assert_close(expected, limit)
    actual = kernel_attention(x, x, value, **options, backend=backend)
    torch.testing.assert_close(actual, expected)
    (grad,) = torch.autograd.grad(actual.sum(), x)
    assert grad.isfinite().all()


@pytest.mark.parametrize("backend", ["reference", *FAST_BACKENDS])
def test_rows_whose_every_logit_is_far_below_zero_are_still_averages(backend: str) -> None:
    q = torch.zeros(1, 1, 3, 2)
    value = torch.arange(5.0).view(1, 1, 5, 1)
    table = torch.full((1, 5), -1000.0)
    out = kernel_attention(q, q.new_zeros(1, 1, 5, 2), value, position=table, backend=backend)
    torch.testing.assert_close(out, torch.full((1, 1, 3, 1), 2.0))


@pytest.mark.parametrize("backend", FAST_BACKENDS)
@pytest.mark.parametrize("content", ["dot", "gaussian"])
@pytest.mark.parametrize("layout", ["features first", "one row repeated", "one column repeated"])
def test_the_layout_in_memory_does_not_matter(backend: str, content: str, layout: str) -> None:
    torch.manual_seed(9)
    shape = {"features first": (8, 20), "one row repeated": (1, 8), "one column repeated": (20, 1)}[layout]
    q, k, v = torch.randn(3, 2, 2, *shape).unbind(0)
    if layout == "features first":
        q, k, v = (t.transpose(2, 3) for t in (q, k, v))
    else:
        k, v = (t.expand(2, 2, 20, 8) for t in (k, v))
        q = torch.randn(2, 2, 20, 8)
    options: dict[str, Any] = {"position": torch.randn(2, 20), "causal": True}
    if content == "gaussian":
        options["content"] = Gaussian(1.5)
    dense = [t.contiguous() for t in (q, k, v)]
    torch.testing.assert_close(
        kernel_attention(q, k, v, **options, backend=backend),
        kernel_attention(*dense, **options, backend="reference"),
    )


@pytest.mark.parametrize("backend", ["reference", *FAST_BACKENDS])
@pytest.mark.parametrize("options", [{}, {"exclude_self": True, "eps": 0.1}])
def test_autocast_takes_nothing_out_of_float32(backend: str, options: dict[str, Any]) -> None:
    torch.manual_seed(10)
    q, k, v = torch.randn(3, 1, 2, 40, 8).unbind(0)
    expected = kernel_attention(q, k, v, **options, backend=backend)
    with torch.autocast(q.device.type, dtype=torch.bfloat16):
        torch.testing.assert_close(kernel_attention(q, k, v, **options, backend=backend), expected)


def test_function_transforms_take_the_definition() -> None:
    torch.manual_seed(11)
    q, k, v = torch.randn(3, 1, 2, 7, 4).unbind(0)
    table, direction = torch.randn(2, 2, 7).unbind(0)

    def loss(table: torch.Tensor) -> torch.Tensor:
        return kernel_attention(q, k, v, position=table, causal=True).square().sum()

    leaf = table.clone().requires_grad_()
    (expected,) = torch.autograd.grad(loss(leaf), leaf)
    torch.testing.assert_close(torch.func.grad(loss)(table), expected)
    _, slope = torch.func.jvp(loss, (table,), (direction,))
    torch.testing.assert_close(slope, (expected * direction).sum())


@pytest.mark.parametrize("backend", FLOAT64_BACKENDS)
def test_a_table_that_forbids_lags_equals_a_window(backend: str) -> None:
    torch.manual_seed(3)
    q, k, v = torch.randn(3, 1, 2, 40, 8, dtype=torch.float64).unbind(0)
    table = torch.zeros(2, 40, dtype=torch.float64)
    table[:, 5:] = -torch.inf
    by_table = kernel_attention(q, k, v, position=table, backend=backend)
    by_window = kernel_attention(q, k, v, window=5, backend=backend)
    torch.testing.assert_close(by_table, by_window)


@pytest.mark.parametrize("backend", FAST_BACKENDS)
def test_runs_are_bit_identical(backend: str) -> None:
    torch.manual_seed(4)
    tensors = [torch.randn(4, 2, 200, 16) for _ in range(3)]
    options = {"position": torch.randn(2, 200), "causal": True}
    first = run(tensors, options, ["position"], backend)
    second = run(tensors, options, ["position"], backend)
    assert torch.equal(first[0], second[0])
    assert all(torch.equal(a, b) for a, b in zip(first[1], second[1], strict=True))


@pytest.mark.parametrize("backend", ["reference", *DROPOUT_BACKENDS])
def test_dropout_keeps_the_mean_and_repeats_with_the_seed(backend: str) -> None:
    torch.manual_seed(5)
    q, k, v = torch.randn(1, 1, 300, 8), torch.randn(1, 1, 300, 8), torch.ones(1, 1, 300, 4)
    torch.manual_seed(6)
    dropped = kernel_attention(q, k, v, dropout_p=0.3, backend=backend)
    torch.manual_seed(6)
    assert torch.equal(dropped, kernel_attention(q, k, v, dropout_p=0.3, backend=backend))
    assert dropped.std() > 0.01
    assert abs(dropped.mean() - 1.0) < 0.02


@pytest.mark.parametrize("backend", DROPOUT_BACKENDS)
def test_dropout_backward_uses_the_weights_of_the_forward_pass(backend: str) -> None:
    torch.manual_seed(7)
    q, k = torch.randn(1, 2, 200, 8), torch.randn(1, 2, 200, 8)
    v = torch.randn(1, 2, 200, 8, requires_grad=True)
    out = kernel_attention(q, k, v, dropout_p=0.5, backend=backend)
    # The output is linear in the values: <grad, v> must give back the output's sum.
    (grad,) = torch.autograd.grad(out.sum(), v)
    torch.testing.assert_close((grad * v).sum(), out.sum(), rtol=1e-4, atol=1e-3)


def test_a_fast_backend_asked_for_by_name_says_why_it_cannot() -> None:
    q = torch.randn(1, 1, 4, 8)
    with pytest.raises(InputError, match="only the reference returns weights"):
        kernel_attention(q, q, q, backend="sdpa", return_weights=True)


@pytest.mark.parametrize("position", ["table", "mixed"])
def test_the_gaussian_has_second_derivatives_and_function_transforms(position: str) -> None:
    torch.manual_seed(13)
    q, k, v, direction = torch.randn(4, 1, 2, 5, 3, dtype=torch.float64).unbind(0)
    options: dict[str, Any] = {"content": Gaussian(torch.tensor([0.7, 2.0], dtype=torch.float64))}
    table = torch.randn(2, 5, dtype=torch.float64)
    mixed = MixedLogits(torch.randn(1, 2, 5, 2, dtype=torch.float64), torch.randn(2, 4, dtype=torch.float64))
    options["position"] = table if position == "table" else mixed

    def call(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
        return kernel_attention(q, k, v, backend="reference", **options)

    leaves = [t.clone().requires_grad_() for t in (q, k, v)]
    assert torch.autograd.gradgradcheck(call, leaves)
    assert torch.autograd.gradcheck(call, leaves, check_forward_ad=True)
    hessian = torch.func.hessian(lambda q: call(q, k, v).square().sum())(q)
    _, by_forward = torch.func.jvp(
        torch.func.grad(lambda q: call(q, k, v).square().sum()), (q,), (direction,)
    )
    torch.testing.assert_close(torch.einsum("abcdefgh,efgh->abcd", hessian, direction), by_forward)


def test_calls_are_mapped_over_a_new_dimension() -> None:
    torch.manual_seed(14)
    q, k, v = torch.randn(3, 4, 1, 2, 6, 3).unbind(0)
    options: dict[str, Any] = {"content": Gaussian(0.8), "causal": True}
    mapped = torch.func.vmap(lambda q, k, v: kernel_attention(q, k, v, **options))(q, k, v)
    each = [kernel_attention(*one, **options) for one in zip(q, k, v, strict=True)]
    torch.testing.assert_close(mapped, torch.stack(each))
