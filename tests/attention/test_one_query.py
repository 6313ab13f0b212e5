"""Decoding: one query on the CPU is a row of the definition, and gives the last row of the whole call."""

from typing import Any

import pytest
import torch

from nadaraya import kernel_attention
from nadaraya.attention import sdpa
from nadaraya.kernels import ExponentialDecay, Gaussian, KernelBank

KEYS = 9
FORMS: dict[str, dict[str, Any]] = {
    "lag": {"position": ExponentialDecay(length=3.0)},
    "bank": {"position": KernelBank(4, num_terms=3), "content": Gaussian(torch.linspace(1.0, 2.0, 4))},
    "exclude": {"exclude_self": True, "content": Gaussian(1.5)},
    "mass": {"eps": 1e-3, "key_bias": torch.linspace(-1.0, 1.0, KEYS)[None, None]},
    "window": {"window": 5},
    "padding": {"key_mask": torch.arange(KEYS)[None].expand(2, -1) > torch.tensor([[-1], [3]])},
    "documents": {"document_ids": (torch.arange(KEYS)[None] > torch.tensor([[2], [8]])).long()},
    "narrow": {"window": 2, "position": torch.randn(4, KEYS)},
}


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("groups", [4, 2])
def test_a_token_decoded_is_the_last_row(form: str, groups: int) -> None:
    torch.manual_seed(0)
    tensors = [torch.randn(2, h, KEYS, 8, requires_grad=True) for h in (4, groups, groups)]
    query, key, value = tensors
    weight = torch.randn(2, 4, 1, 8)
    full = kernel_attention(query, key, value, causal=True, **FORMS[form])[:, :, -1:]
    expected = torch.autograd.grad((weight * full).sum(), tensors)
    one = kernel_attention(query[:, :, -1:], key, value, causal=True, backend="sdpa", **FORMS[form])
    torch.testing.assert_close(one, full)
    for found, wanted in zip(torch.autograd.grad((weight * one).sum(), tensors), expected, strict=True):
        torch.testing.assert_close(found, wanted, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("queries", [1, 3])
def test_heads_share_keys_that_are_far_from_the_origin(queries: int) -> None:
    """Which are centred, each with its σ, before anything is multiplied."""
    query, key, value = (torch.randn(2, h, KEYS, 8) + 100.0 for h in (4, 2, 2))
    call = {"content": Gaussian(torch.linspace(1.0, 2.0, 4)), "causal": True}
    expected = kernel_attention(*(t.double() for t in (query, key, value)), backend="reference", **call)
    with torch.no_grad():
        found = kernel_attention(query[:, :, -queries:], key, value, backend="dense", **call)
    torch.testing.assert_close(found, expected[:, :, -queries:].float(), rtol=1e-5, atol=1e-4)


def test_the_log_sum_exp_of_a_token_decoded_is_that_of_the_last_row() -> None:
    query, key, value = torch.randn(3, 2, 4, KEYS, 8).unbind()
    full = kernel_attention(query, key, value, causal=True, window=4, return_lse=True)[1]
    one = kernel_attention(query[:, :, -1:], key, value, causal=True, window=4, return_lse=True)[1]
    torch.testing.assert_close(one, full[:, :, -1:])


@pytest.mark.parametrize("form", ["lag", "bank", "exclude", "padding", "window"])
def test_no_blocks_are_made_for_one_row(form: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sdpa, "blocked_attention", lambda *_: pytest.fail("blocks"))
    key = torch.randn(2, 4, KEYS, 8)
    assert kernel_attention(key[:, :, -1:], key, key, causal=True, **FORMS[form]).shape == (2, 4, 1, 8)


def test_a_window_over_many_keys_looks_at_those_in_it_alone() -> None:
    key = torch.randn(1, 2, 400, 8)
    hidden = key.clone()
    hidden[:, :, :300] = torch.nan
    out = kernel_attention(key[:, :, -1:], hidden, hidden, causal=True, window=50)
    torch.testing.assert_close(out, kernel_attention(key[:, :, -1:], key, key, causal=True, window=50))
