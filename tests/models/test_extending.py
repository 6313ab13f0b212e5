"""Longer texts than in training: scaled rotary positions and windows are those that transformers has."""

from typing import Any

import pytest
import torch
from torch import Tensor
from transformers import (
    GPT2Config,
    GPT2LMHeadModel,
    GPTNeoXConfig,
    GPTNeoXForCausalLM,
    LlamaConfig,
    LlamaForCausalLM,
    MistralConfig,
    MistralForCausalLM,
)  # fmt: skip

from nadaraya.attention.rotary import RotaryEmbedding
from nadaraya.errors import InputError
from nadaraya.models import KernelGPTConfig, KernelGPTForCausalLM, extend_context

TRAINED, FACTOR, BASE = 32, 4.0, 500.0
SIZES: dict[str, Any] = {
    "vocab_size": 23,
    "hidden_size": 48,
    "intermediate_size": 32,
    "num_hidden_layers": 2,
    "num_attention_heads": 3,
    "num_key_value_heads": 3,
    "max_position_embeddings": TRAINED,
    "initializer_range": 0.3,
}
IDS = torch.randint(23, (2, 100), generator=torch.Generator().manual_seed(0))
LIKE = {
    "interpolate": {"rope_type": "linear", "factor": FACTOR, "rope_theta": BASE},
    "ntk": {"rope_type": "default", "rope_theta": BASE * FACTOR ** (16 / 14)},
    "yarn": {
        "rope_type": "yarn",
        "factor": FACTOR,
        "rope_theta": BASE,
        "original_max_position_embeddings": TRAINED,
    },
}


def llama(**changes: Any) -> LlamaForCausalLM:
    torch.manual_seed(1)
    given = {**SIZES, "rope_parameters": {"rope_type": "default", "rope_theta": BASE}, **changes}
    return LlamaForCausalLM(LlamaConfig(**given)).eval()


def kernel_gpt(variant: str = "rope", **changes: Any) -> KernelGPTForCausalLM:
    torch.manual_seed(1)
    sizes = {name: SIZES[name] for name in SIZES if name not in ("intermediate_size", "num_key_value_heads")}
    return KernelGPTForCausalLM(KernelGPTConfig(**{**sizes, **changes}, variant=variant)).eval()


@torch.no_grad()
def logits(model: Any, ids: Tensor = IDS, **options: Any) -> Tensor:
    return model(ids, **options).logits


@pytest.mark.parametrize("method", LIKE)
def test_angles_are_those_that_transformers_has_for_them(method: Any) -> None:
    model, like = llama(), llama(rope_parameters=LIKE[method])
    before = logits(model)
    with extend_context(model, method, factor=FACTOR):
        found = logits(model)
    torch.testing.assert_close(found, logits(like), rtol=1e-4, atol=1e-4)
    assert (found - before).abs().max() > 0.1
    assert torch.equal(logits(model), before)


@pytest.mark.parametrize("method", LIKE)
def test_our_angles_are_transformers_own(method: Any) -> None:
    """A layer's rotation against cosines and sines of the other library, whose pairs are halves of a head."""
    part = RotaryEmbedding(16, BASE)
    like = llama(rope_parameters=LIKE[method]).model.rotary_emb
    model = kernel_gpt()
    model.model.blocks[0].attention.rotary = part
    x = torch.randn(1, 3, 40, 16)
    with extend_context(model, method, factor=FACTOR):
        found = part(x, first_position=5)
    cos, sin = (t[0, :, :8] for t in like(x, torch.arange(5, 45)[None]))
    a, b = x[..., ::2], x[..., 1::2]
    expected = torch.stack([a * cos - b * sin, a * sin + b * cos], -1).flatten(-2)
    torch.testing.assert_close(found, expected, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("make", [kernel_gpt, llama])
def test_without_rotation_one_layer_sees_a_set(make: Any) -> None:
    model = make(num_hidden_layers=1)
    swapped = torch.cat([IDS[:, :-1].flip(1), IDS[:, -1:]], 1)
    with extend_context(model, "drop"):
        torch.testing.assert_close(logits(model, swapped)[:, -1], logits(model)[:, -1], rtol=1e-4, atol=1e-4)
    assert (logits(model, swapped)[:, -1] - logits(model)[:, -1]).abs().max() > 0.01


def as_mistral(model: LlamaForCausalLM, window: int) -> MistralForCausalLM:
    config = MistralConfig(
        **SIZES, sliding_window=window, rope_parameters={"rope_type": "default", "rope_theta": BASE}
    )
    like = MistralForCausalLM(config).eval()
    like.load_state_dict(model.state_dict())
    return like


@pytest.mark.parametrize(("outer", "inner"), [(3, 9), (9, 3)])
def test_of_two_windows_the_smaller_counts(outer: int, inner: int) -> None:
    model = llama()
    with extend_context(model, "window", window=3):
        expected = logits(model)
    with extend_context(model, "window", window=outer), extend_context(model, "window", window=inner):
        assert torch.equal(logits(model), expected)


@pytest.mark.parametrize("window", [2, 7, 32, 1000])
def test_a_window_is_mistrals(window: int) -> None:
    model = llama()
    like = as_mistral(model, window)
    mask = torch.ones(2, 100, dtype=torch.long)
    mask[1, :20] = 0
    with extend_context(model, "window", window=window):
        torch.testing.assert_close(logits(model), logits(like), rtol=1e-4, atol=1e-4)
        found, expected = (logits(each, attention_mask=mask) for each in (model, like))
        torch.testing.assert_close(found[0], expected[0], rtol=1e-4, atol=1e-4)
        torch.testing.assert_close(found[1, 20:], expected[1, 20:], rtol=1e-4, atol=1e-4)
        written = [each.generate(IDS[:, :40], max_new_tokens=9, do_sample=False) for each in (model, like)]
    assert torch.equal(*written)
    assert model.config._attn_implementation == "sdpa"


@pytest.mark.parametrize("variant", ["rope", "gpa-mul"])
def test_a_window_of_ours_reaches_as_far_as_its_layers(variant: str) -> None:
    model = kernel_gpt(variant)
    before = logits(model)
    other = IDS.clone()
    other[:, :80] = other[:, :80].flip(1)
    with extend_context(model, "window", window=8):
        torch.testing.assert_close(logits(model)[:, -1], logits(model, other)[:, -1])
        tokens = model.generate(IDS, max_new_tokens=5, do_sample=False)
        uncached = model.generate(IDS, max_new_tokens=5, do_sample=False, use_cache=False)
    assert torch.equal(tokens, uncached)
    assert (logits(model, other)[:, -1] - before[:, -1]).abs().max() > 0.01
    assert torch.equal(logits(model), before)


def test_rotations_of_a_part_of_the_features_and_learned_positions() -> None:
    sizes = {name: SIZES[name] for name in SIZES if name not in ("num_key_value_heads",)}
    model = GPTNeoXForCausalLM(GPTNeoXConfig(**sizes, rotary_pct=0.5)).eval()
    with extend_context(model, "ntk", factor=FACTOR):
        assert logits(model).isfinite().all()
    plain = GPT2LMHeadModel(GPT2Config(vocab_size=23, n_embd=24, n_layer=1, n_head=2, n_positions=128))
    with pytest.raises(InputError, match="model must be one with rotary positions, got 'GPT2LMHeadModel'"):
        extend_context(plain, "yarn", factor=2.0)


def test_what_is_no_extension_is_refused_in_one_line() -> None:
    model = llama()
    for arguments, words in (
        ({"method": "alibi"}, "method"),
        ({"method": "yarn"}, "factor must be a finite number above 1"),
        ({"method": "yarn", "factor": 1.0}, "factor must be a finite number above 1"),
        ({"method": "yarn", "factor": 0.0}, "factor must be a finite number above 1"),
        ({"method": "interpolate", "factor": float("nan")}, "factor must be a finite number above 1"),
        ({"method": "drop", "factor": 2.0}, "left out for others"),
        ({"method": "window", "window": 0}, "window must be at least 1"),
        ({"method": "ntk", "factor": 2.0, "window": 4}, "window must be"),
    ):
        with pytest.raises(InputError, match=words):
            extend_context(model, **arguments)  # type: ignore[arg-type]
    with pytest.raises(InputError, match="model must be a language model"):
        extend_context(torch.nn.Linear(2, 2), "drop")
    narrow = KernelGPTForCausalLM(KernelGPTConfig(variant="rope", hidden_size=8, num_attention_heads=4))
    with pytest.raises(InputError, match="heads wider than 2"):
        extend_context(narrow, "yarn", factor=2.0)
    scaled = llama(rope_parameters=LIKE["yarn"])
    with pytest.raises(InputError, match="of the type 'default'"):
        extend_context(scaled, "ntk", factor=2.0)
