"""Positions that every query mixes for itself: values and all gradients are those of the definition."""

import gc
import os
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from nadaraya import kernel_attention
from nadaraya.attention import MixedKernels, MixedLogits, mixed_blocks
from nadaraya.attention.dense import LONGEST
from nadaraya.kernels import Gaussian

Call = tuple[dict[str, torch.Tensor], dict[str, Any]]


@st.composite
def calls(draw: st.DrawFn) -> Call:
    """Differentiable tensors by name, in float64, and the other options of a call."""
    generator = torch.Generator(torch.get_default_device()).manual_seed(draw(st.integers(0, 2**31)))

    def normal(*shape: int) -> torch.Tensor:
        return torch.randn(shape, generator=generator, dtype=torch.float64)

    batch, kv_heads, groups = (draw(st.integers(1, 2)) for _ in range(3))
    heads = kv_heads * groups
    num_queries = draw(st.sampled_from([1, 2, 7, 131, 300]))
    num_keys = draw(st.sampled_from([num_queries, 1, 5, 140, 600]))
    width = draw(st.sampled_from([1, 4, 9]))
    length = max(num_queries, num_keys)
    extent = draw(st.sampled_from([1, 3, 40, length, length + 2]))
    signed, terms = draw(st.booleans()), draw(st.sampled_from([1, 3]))
    of_heads = draw(st.sampled_from([(), (1,), (heads,)]))
    tensors = {
        "query": normal(batch, heads, num_queries, width),
        "key": normal(batch, kv_heads, num_keys, width),
        "value": normal(batch, kv_heads, num_keys, draw(st.sampled_from([width, 2, 11]))),
        "weights": normal(batch, heads, num_queries, terms),
        "profiles": normal(*of_heads, terms, 2 * extent - 1 if signed else extent),
    }
    options: dict[str, Any] = {
        "kernels": draw(st.booleans()),
        "signed": signed,
        "causal": draw(st.booleans()),
        "window": draw(st.sampled_from([None, None, 1, 3, 60])),
        "exclude_self": draw(st.booleans()),
        "eps": draw(st.sampled_from([0.0, 0.0, 0.3])),
    }
    if draw(st.booleans()):
        tensors["bandwidth"] = normal(heads).abs() + 0.5
    if draw(st.booleans()):
        options["key_mask"] = torch.rand(batch, num_keys, generator=generator) < 0.6
    match draw(st.sampled_from(["none", "none", "bool", "float"])):
        case "bool":
            shape = (draw(st.sampled_from([1, batch])), 1, num_queries, num_keys)
            options["attn_mask"] = torch.rand(shape, generator=generator) < 0.7
        case "float":
            shape = draw(st.sampled_from([(1, 1), (1, heads), (batch, 1), (batch, heads)]))
            tensors["attn_mask"] = normal(*shape, draw(st.sampled_from([1, num_queries])), num_keys)
    if draw(st.booleans()):
        key_bias_heads = draw(st.sampled_from([1, heads]))
        tensors["key_bias"] = normal(draw(st.sampled_from([1, batch])), key_bias_heads, num_keys)
    if num_queries <= num_keys and draw(st.booleans()):
        ends = torch.rand(batch, num_keys, generator=generator) < draw(st.sampled_from([0.02, 0.2]))
        options["document_ids"] = ends.cumsum(1)
    return tensors, options


def attend(
    tensors: dict[str, torch.Tensor], options: dict[str, Any], backend: str
) -> tuple[torch.Tensor, torch.Tensor]:
    tensors, options = dict(tensors), dict(options)
    weights, profiles = tensors.pop("weights"), tensors.pop("profiles")
    signed = options.pop("signed", False)
    position = MixedLogits(weights, profiles, signed)
    if options.pop("kernels", False):
        position = MixedKernels(weights.exp(), profiles, signed)
    if "bandwidth" in tensors:
        options["content"] = Gaussian(tensors.pop("bandwidth"))
    return kernel_attention(**tensors, **options, position=position, return_lse=True, backend=backend)


def values_and_gradients(call: Call, backend: str) -> tuple[torch.Tensor, list[torch.Tensor]]:
    leaves = {name: tensor.clone().requires_grad_() for name, tensor in call[0].items()}
    out, lse = attend(leaves, call[1], backend)
    grad_out = torch.sin(torch.arange(out.numel(), dtype=out.dtype)).view_as(out)
    grad_lse = torch.cos(torch.arange(lse.numel(), dtype=lse.dtype)).view_as(lse)
    seen = lse != -torch.inf
    inputs = list(leaves.values())
    grads = torch.autograd.grad(
        [out, lse[seen]], inputs, [grad_out, grad_lse[seen]], allow_unused=True, materialize_grads=True
    )
    # A row that sees nothing has log-sum-exp −inf, which differences cannot have.
    return torch.cat([out, torch.where(seen, lse, -1e9)[..., None]], dim=-1), list(grads)


def assert_agreement(call: Call, tolerance: float = 1e-9) -> None:
    expected, expected_grads = values_and_gradients(call, "reference")
    assert expected.isfinite().all()
    for backend in ("sdpa", "dense") if call[0]["key"].shape[2] <= LONGEST else ("sdpa",):
        actual, actual_grads = values_and_gradients(call, backend)
        torch.testing.assert_close(actual, expected, rtol=tolerance, atol=tolerance)
        for name, got, want in zip(call[0], actual_grads, expected_grads, strict=True):
            assert want.isfinite().all(), name
            tolerated = tolerance * max(1.0, want.abs().max().item()) if want.numel() else tolerance
            torch.testing.assert_close(
                got, want, rtol=tolerance, atol=tolerated, msg=partial("{}, {}: {}".format, backend, name)
            )


@settings(max_examples=60, deadline=None, derandomize=True)
@given(call=calls())
def test_values_and_all_gradients_equal_the_reference(call: Call) -> None:
    assert_agreement(call)


@pytest.mark.slow
@settings(max_examples=150, deadline=None, derandomize=True)
@given(call=calls())
def test_many_values_and_gradients_equal_the_reference(call: Call) -> None:
    assert_agreement(call)


def call_of(
    heads: int = 2, queries: int = 300, keys: int = 300, extent: int = 300, dtype: torch.dtype = torch.float64
) -> dict[str, torch.Tensor]:
    torch.manual_seed(0)
    return {
        "query": torch.randn(1, heads, queries, 8, dtype=dtype),
        "key": torch.randn(1, heads, keys, 8, dtype=dtype),
        "value": torch.randn(1, heads, keys, 8, dtype=dtype),
        "weights": torch.randn(1, heads, queries, 4, dtype=dtype),
        "profiles": torch.randn(4, extent, dtype=dtype),
    }


@pytest.mark.parametrize("kernels", [False, True])
@pytest.mark.parametrize("causal", [False, True])
def test_blocks_without_the_fused_kernel_agree_too(
    monkeypatch: pytest.MonkeyPatch, kernels: bool, causal: bool
) -> None:
    """What devices other than the CPU compute."""
    monkeypatch.setattr(mixed_blocks, "_is_fused", lambda query: False)
    options = {"kernels": kernels, "causal": causal, "exclude_self": True}
    options["attn_mask"] = torch.rand(1, 1, 300, 300) < 0.9
    assert_agreement((call_of(extent=20), options))


@pytest.mark.parametrize("causal", [False, True])
def test_keys_beyond_all_profiles_are_merged_exactly(causal: bool) -> None:
    tensors = call_of(queries=700, keys=1300, extent=9)
    tensors["key_bias"] = torch.randn(1, 2, 1300, dtype=torch.float64)
    # Of some rows, only keys far away or only keys near take part.
    lags = torch.arange(700)[:, None] + 600 - torch.arange(1300)
    mask = torch.where((torch.arange(700) % 3 == 0)[:, None], lags.abs() > 50, lags.abs() < 50)
    assert_agreement((tensors, {"causal": causal, "attn_mask": mask}))


@pytest.mark.parametrize("kernels", [False, True])
def test_float32_keeps_its_digits(kernels: bool) -> None:
    tensors = call_of()
    options = {"kernels": kernels, "causal": True}
    expected = values_and_gradients((tensors, options), "reference")
    actual = values_and_gradients(({n: t.float() for n, t in tensors.items()}, options), "sdpa")
    for got, want in zip([actual[0], *actual[1]], [expected[0], *expected[1]], strict=True):
        assert (got - want).abs().max() < 2e-5 * want.abs().max()


@pytest.mark.parametrize("keys", [1, 40, 900])
@pytest.mark.parametrize("kernels", [False, True])
def test_a_new_token_attends_to_a_cache(keys: int, kernels: bool) -> None:
    assert_agreement((call_of(queries=1, keys=keys, extent=30), {"kernels": kernels, "causal": True}))


def test_weights_of_one_profile_are_its_kernel() -> None:
    tensors = call_of(dtype=torch.float64)
    q, k, v = tensors["query"], tensors["key"], tensors["value"]
    table = tensors["profiles"][:1]
    ones = torch.ones(1, 2, 300, 1, dtype=torch.float64)
    expected = kernel_attention(q, k, v, position=table, causal=True)
    for position in (MixedLogits(ones, table), MixedKernels(ones, table)):
        actual = kernel_attention(q, k, v, position=position, causal=True)
        torch.testing.assert_close(actual, expected, rtol=0, atol=1e-12)


def test_kernels_of_all_lags_that_underflow_are_still_mixed() -> None:
    tensors = call_of()
    tensors["profiles"] = tensors["profiles"] - 2000 * torch.arange(300.0, dtype=torch.float64)
    assert_agreement((tensors, {"kernels": True}))


@pytest.mark.parametrize("backend", ["reference", "sdpa"])
def test_where_all_kernels_are_zero_gradients_are_finite(backend: str) -> None:
    tensors = call_of()
    tensors["profiles"][:, 5:] = -torch.inf
    values, grads = values_and_gradients((tensors, {"kernels": True, "causal": True}), backend)
    near = {**tensors, "profiles": tensors["profiles"][:, :5]}
    expected, _ = values_and_gradients((near, {"kernels": True, "causal": True}), backend)
    torch.testing.assert_close(values, expected, rtol=0, atol=1e-12)
    assert all(grad.isfinite().all() for grad in grads)


def test_runs_are_bit_identical() -> None:
    call = call_of(dtype=torch.float32), {"causal": True, "kernels": True}
    first, second = (values_and_gradients(call, "sdpa") for _ in range(2))
    assert torch.equal(first[0], second[0])
    assert all(torch.equal(a, b) for a, b in zip(first[1], second[1], strict=True))


@pytest.mark.parametrize("kernels", [False, True])
def test_compiled_calls_are_those_of_eager_execution(kernels: bool) -> None:
    tensors, options = call_of(dtype=torch.float32), {"kernels": kernels, "causal": True}

    def loss(tensors: dict[str, torch.Tensor]) -> torch.Tensor:
        return attend(tensors, options, "sdpa")[0].square().sum()

    results = []
    for function in (loss, torch.compile(loss, fullgraph=True, backend="aot_eager")):
        leaves = {name: tensor.clone().requires_grad_() for name, tensor in tensors.items()}
        value = function(leaves)
        results.append([value, *torch.autograd.grad(value, list(leaves.values()))])
    for got, want in zip(*results, strict=True):
        torch.testing.assert_close(got, want)


def peak_growth(call: Call) -> int:
    """Bytes that forward + backward add to the resident memory of this process at most."""

    def kibibytes(name: str) -> int:
        return int(Path("/proc/self/status").read_text(encoding="utf-8").split(f"{name}:")[1].split()[0])

    gc.collect()
    Path("/proc/self/clear_refs").write_text("5", encoding="utf-8")  # the peak is forgotten
    before = kibibytes("VmRSS")
    values_and_gradients(call, "sdpa")
    return 1024 * (kibibytes("VmHWM") - before)


@pytest.mark.slow
@pytest.mark.skipif(not os.access("/proc/self/clear_refs", os.W_OK), reason="reads Linux's accounts")
@pytest.mark.parametrize("kernels", [False, True])
@pytest.mark.parametrize("extent", [64, 8192])
def test_no_matrix_of_all_pairs_is_ever_in_memory(kernels: bool, extent: int) -> None:
    tensors = call_of(1, 8192, 8192, extent, torch.float32)
    values_and_gradients((call_of(1, 64, 64, 64, torch.float32), {"causal": True}), "sdpa")
    assert peak_growth((tensors, {"kernels": kernels, "causal": True})) < 4 * 8192**2 / 4
