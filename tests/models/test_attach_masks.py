"""The rule that is read off a mask function of transformers is the mask that it writes out."""

from collections.abc import Callable
from typing import Any

import pytest
import torch
from transformers import masking_utils

from nadaraya.attention import kernel_attention
from nadaraya.models.attach import interface
from nadaraya.models.attach.masks import Rule, UnwrittenMask, attention_mask

BATCH, N = 2, 12
IDS = torch.tensor([[0] * 5 + [1] * 7, [0] * 2 + [1] * 4 + [2] * 6])
PLACES = torch.tensor([[*range(5), *range(7)], [*range(2), *range(4), *range(6)]])
PADDING = torch.ones(BATCH, N, dtype=torch.bool)
PADDING[0, :3] = False
PADDING[1, -2:] = False
WINDOW = masking_utils.sliding_window_causal_mask_function(4)

FUNCTIONS: dict[str, Callable[..., Any]] = {
    "causal": masking_utils.causal_mask_function,
    "all": masking_utils.bidirectional_mask_function,
    "window": WINDOW,
    "window to both sides": masking_utils.sliding_window_bidirectional_mask_function(4),
    "documents": masking_utils.packed_sequence_compatibility_function(
        masking_utils.causal_mask_function, PLACES, IDS
    ),
    "documents in a window": masking_utils.packed_sequence_compatibility_function(WINDOW, PLACES, IDS),
    "chunks": masking_utils.chunked_causal_mask_function(5, torch.tensor([3, 0])),
}


def weights(mask: torch.Tensor | None, num_queries: int, num_keys: int) -> torch.Tensor:
    """Weights of the attention under a mask where all logits are equal."""
    query, key = torch.zeros(BATCH, 1, num_queries, 4), torch.zeros(BATCH, 1, num_keys, 4)
    values = torch.eye(num_keys).expand(BATCH, 1, -1, -1)
    module = torch.nn.Module().eval()
    return interface.attention(module, query, key, values, mask)[0].transpose(1, 2)


@pytest.mark.parametrize("padded", [False, True])
@pytest.mark.parametrize("queries", [N, 5, 1])
@pytest.mark.parametrize("name", FUNCTIONS)
def test_a_rule_is_the_mask_that_transformers_writes(name: str, queries: int, padded: bool) -> None:
    if "documents" in name and queries < N:
        pytest.skip("transformers packs documents only where there is no cache")
    call: dict[str, Any] = {
        "batch_size": BATCH, "q_length": queries, "kv_length": N, "q_offset": N - queries,
        "mask_function": FUNCTIONS[name], "attention_mask": PADDING if padded else None,
        "device": torch.device("cpu"),
    }  # fmt: skip
    dense = masking_utils.sdpa_mask(**call, allow_is_causal_skip=False)
    want = dense / dense.sum(-1, keepdim=True).clamp(min=1)
    mask = attention_mask(**call, local_size=4)
    assert queries == 1 or mask is None or isinstance(mask, UnwrittenMask)
    torch.testing.assert_close(weights(mask, queries, N), want.float())


@pytest.mark.parametrize("name", ["causal", "window", "chunks"])
def test_a_static_cache_is_used_as_far_as_it_is_full(name: str) -> None:
    call: dict[str, Any] = {
        "batch_size": BATCH, "q_length": 4, "kv_length": N, "q_offset": torch.tensor(3),
        "mask_function": FUNCTIONS[name], "attention_mask": PADDING[:, :7], "device": torch.device("cpu"),
    }  # fmt: skip
    dense = masking_utils.sdpa_mask(**call, allow_is_causal_skip=False)
    mask = attention_mask(**call)
    assert isinstance(mask, UnwrittenMask)
    want = dense / dense.sum(-1, keepdim=True).clamp(min=1)
    torch.testing.assert_close(weights(mask, 4, N), want.float())


@pytest.mark.parametrize("name", FUNCTIONS)
def test_nothing_is_written_out_where_the_rule_is_known(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    def refused(*args: Any, **options: Any) -> None:
        raise AssertionError("written out")

    monkeypatch.setattr(masking_utils, "sdpa_mask", refused)
    mask = attention_mask(BATCH, N, N, mask_function=FUNCTIONS[name], attention_mask=PADDING)
    assert isinstance(mask, UnwrittenMask)
    assert "Rule(" in repr(mask)
    weights(mask, N, N)
    with pytest.raises(AssertionError, match="written out"):
        mask.float()


def test_a_mask_that_hides_nothing_more_is_none() -> None:
    causal, everything = FUNCTIONS["causal"], FUNCTIONS["all"]
    present = torch.ones_like(PADDING)
    assert attention_mask(BATCH, N, N, mask_function=causal, attention_mask=present) is None
    assert attention_mask(BATCH, N, N, mask_function=everything, allow_is_bidirectional_skip=True) is None
    wide = masking_utils.sliding_window_causal_mask_function(N)
    assert attention_mask(BATCH, N, N, mask_function=wide) is None
    kept = attention_mask(BATCH, N, N, mask_function=causal, allow_is_causal_skip=False)
    assert isinstance(kept, UnwrittenMask)
    assert kept.rule == Rule(causal=True)


def test_masks_of_unknown_parts_are_written_out() -> None:
    def every_third(batch: Any, head: Any, query: Any, key: Any) -> Any:
        return key % 3 == 0

    both = masking_utils.and_masks(FUNCTIONS["causal"], every_third)
    either = masking_utils.or_masks(FUNCTIONS["causal"], FUNCTIONS["all"])
    one_sided = masking_utils.sliding_window_overlay(4)
    for function in (every_third, both, either, one_sided):
        mask = attention_mask(BATCH, N, N, mask_function=function, allow_is_causal_skip=False)
        assert mask is not None
        assert not isinstance(mask, UnwrittenMask)
        want = masking_utils.sdpa_mask(BATCH, N, N, mask_function=function, allow_is_causal_skip=False)
        assert torch.equal(mask, want)


def test_an_unwritten_mask_is_a_tensor_to_all_who_look_at_it() -> None:
    mask = attention_mask(BATCH, N, N, mask_function=FUNCTIONS["window"], attention_mask=PADDING)
    want = masking_utils.sdpa_mask(
        BATCH, N, N, mask_function=FUNCTIONS["window"], attention_mask=PADDING, allow_is_causal_skip=False
    )
    assert mask is not None
    assert mask.shape == (BATCH, 1, N, N)
    assert mask.dtype == torch.bool
    assert isinstance(mask.contiguous(), UnwrittenMask)
    assert isinstance(mask.to("cpu"), UnwrittenMask)
    assert isinstance(mask.detach(), UnwrittenMask)
    assert torch.equal(mask[:, :, :, :5], want[:, :, :, :5])
    assert torch.equal(torch.where(mask, 0.0, -1.0), torch.where(want, 0.0, -1.0))
    assert torch.equal(mask & want, want)


def test_a_mask_for_other_keys_is_written_out_and_refused_where_it_does_not_fit() -> None:
    mask = attention_mask(BATCH, N, N, mask_function=FUNCTIONS["window"])
    with pytest.raises(ValueError, match="attn_mask must be broadcastable"):
        weights(mask, N, N + 1)


@pytest.mark.parametrize("name", ["documents", "window"])
def test_a_position_bias_adds_to_a_rule(name: str) -> None:
    torch.manual_seed(0)
    query, key, value = torch.randn(3, BATCH, 2, N, 4)
    bias = torch.randn(1, 2, N, N)
    mask = attention_mask(BATCH, N, N, mask_function=FUNCTIONS[name], attention_mask=PADDING)
    dense = masking_utils.sdpa_mask(BATCH, N, N, mask_function=FUNCTIONS[name], attention_mask=PADDING)
    assert dense is not None
    module = torch.nn.Module().eval()
    want = kernel_attention(
        query, key, value, content=1.0, attn_mask=torch.where(dense, bias, -torch.inf), backend="reference"
    )
    for each in (mask, dense):
        out, _ = interface.attention(module, query, key, value, each, scaling=1.0, position_bias=bias)
        torch.testing.assert_close(out.transpose(1, 2), want)
