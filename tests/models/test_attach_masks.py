"""The rule that is read off a mask function of transformers is the mask that it writes out."""

from collections.abc import Callable
from typing import Any

import pytest
import torch
from transformers import masking_utils

from nadaraya import InputError
from nadaraya.attention.functional import kernel_attention
from nadaraya.models.attach import interface
from nadaraya.models.attach.masks import UnwrittenMask, attention_mask

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
    want = masking_utils.eager_mask(**call).softmax(-1)
    mask = attention_mask(**call, local_size=4)
    assert queries == 1 or (isinstance(mask, UnwrittenMask) and mask.options is not None)
    torch.testing.assert_close(weights(mask, queries, N), want)


@pytest.mark.parametrize("name", ["causal", "window", "chunks"])
def test_a_static_cache_is_used_as_far_as_it_is_full(name: str) -> None:
    call: dict[str, Any] = {
        "batch_size": BATCH, "q_length": 4, "kv_length": N, "q_offset": torch.tensor(3),
        "mask_function": FUNCTIONS[name], "attention_mask": PADDING[:, :7], "device": torch.device("cpu"),
    }  # fmt: skip
    mask = attention_mask(**call)
    assert isinstance(mask, UnwrittenMask)
    assert mask.options is not None
    torch.testing.assert_close(weights(mask, 4, N), masking_utils.eager_mask(**call).softmax(-1))


@pytest.mark.parametrize("name", FUNCTIONS)
def test_nothing_is_written_out_where_the_rule_is_known(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    def refused(*args: Any, **options: Any) -> None:
        raise AssertionError("written out")

    monkeypatch.setattr(masking_utils, "eager_mask", refused)
    mask = attention_mask(BATCH, N, N, mask_function=FUNCTIONS[name], attention_mask=PADDING)
    assert isinstance(mask, UnwrittenMask)
    assert mask.options is not None
    weights(mask, N, N)
    with pytest.raises(AssertionError, match="written out"):
        mask + 0


def test_a_mask_says_no_more_than_what_it_hides() -> None:
    causal, everything = FUNCTIONS["causal"], FUNCTIONS["all"]
    present = torch.ones_like(PADDING)
    assert attention_mask(BATCH, N, N, mask_function=everything, allow_is_bidirectional_skip=True) is None
    wide = masking_utils.sliding_window_causal_mask_function(N)
    for function, padding in ((causal, None), (causal, present), (wide, None)):
        mask = attention_mask(BATCH, N, N, mask_function=function, attention_mask=padding)
        assert isinstance(mask, UnwrittenMask)  # never None: a model may cut queries or add keys
        assert mask.options == {"causal": True}


def test_masks_of_unknown_parts_have_their_numbers() -> None:
    def every_third(batch: Any, head: Any, query: Any, key: Any) -> Any:
        return key % 3 == 0

    both = masking_utils.and_masks(FUNCTIONS["causal"], every_third)
    either = masking_utils.or_masks(FUNCTIONS["causal"], FUNCTIONS["all"])
    one_sided = masking_utils.sliding_window_overlay(4)
    packed_twice = masking_utils.and_masks(FUNCTIONS["chunks"], FUNCTIONS["documents"])
    for function in (every_third, both, either, one_sided, packed_twice):
        mask = attention_mask(BATCH, N, N, mask_function=function, attention_mask=PADDING)
        assert isinstance(mask, UnwrittenMask)
        assert mask.options is None
        want = masking_utils.eager_mask(BATCH, N, N, mask_function=function, attention_mask=PADDING)
        torch.testing.assert_close(weights(mask, N, N), want.expand(BATCH, 1, N, N).softmax(-1))


def test_a_mask_is_the_numbers_of_eager_attention_to_all_who_look_at_it() -> None:
    call: dict[str, Any] = {"mask_function": FUNCTIONS["window"], "attention_mask": PADDING}
    for dtype in (torch.float32, torch.bfloat16):
        mask = attention_mask(BATCH, N, N, **call, dtype=dtype)
        want = masking_utils.eager_mask(BATCH, N, N, **call, dtype=dtype)
        assert mask is not None
        assert mask.shape == want.shape
        assert mask.dtype == dtype
        assert isinstance(mask.contiguous(), UnwrittenMask)
        assert isinstance(mask.to("cpu"), UnwrittenMask)
        assert isinstance(mask.detach(), UnwrittenMask)
        assert torch.equal(mask[:, :, -3:], want[:, :, -3:])
        assert torch.equal(torch.cat([mask, want], -1), torch.cat([want, want], -1))
        assert torch.equal(mask == 0, want == 0)


def test_causal_queries_without_a_mask_are_as_many_as_the_keys() -> None:
    weights(None, N, N)
    with pytest.raises(InputError, match="attention_mask must be given for 3 causal queries of 12 keys"):
        weights(None, 3, N)


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
    numbers = masking_utils.eager_mask(BATCH, N, N, mask_function=FUNCTIONS[name], attention_mask=PADDING)
    module = torch.nn.Module().eval()
    want = kernel_attention(query, key, value, content=1.0, attn_mask=numbers + bias, backend="reference")
    for each in (mask, numbers):
        out, _ = interface.attention(module, query, key, value, each, scaling=1.0, position_bias=bias)
        torch.testing.assert_close(out.transpose(1, 2), want)
