"""Positions that every query mixes for itself: values and all gradients are those of the definition."""

from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from nadaraya import kernel_attention
from nadaraya.attention import MixedKernels, MixedLogits
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
        "own": draw(st.sampled_from(["keep", "keep", "exclude", "drop-value", "project-out"])),
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
        key_logits_heads = draw(st.sampled_from([1, heads]))
        tensors["key_logits"] = normal(draw(st.sampled_from([1, batch])), key_logits_heads, num_keys)
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
    actual, actual_grads = values_and_gradients(call, "sdpa")
    assert expected.isfinite().all()
    torch.testing.assert_close(actual, expected, rtol=tolerance, atol=tolerance)
    for name, got, want in zip(call[0], actual_grads, expected_grads, strict=True):
        assert want.isfinite().all(), name
        tolerated = tolerance * max(1.0, want.abs().max().item()) if want.numel() else tolerance
        torch.testing.assert_close(
            got, want, rtol=tolerance, atol=tolerated, msg=lambda m, name=name: f"{name}: {m}"
        )


@settings(max_examples=60, deadline=None, derandomize=True)
@given(call=calls())
def test_values_and_all_gradients_equal_the_reference(call: Call) -> None:
    assert_agreement(call)


@pytest.mark.slow
@settings(max_examples=600, deadline=None, derandomize=True)
@given(call=calls())
def test_many_values_and_gradients_equal_the_reference(call: Call) -> None:
    assert_agreement(call)
