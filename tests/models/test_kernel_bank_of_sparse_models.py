"""A kernel bank beside attention that is sparse or capped, sees blocks both ways, or has no place for one."""

import copy
import pickle
from typing import Any

import pytest
import torch
import transformers
from architectures import VOCABULARY, build
from other_models import open_gates, shaken
from torch import Tensor

from nadaraya import InputError
from nadaraya.models import attach_kernel_bank

OTHERS = (
    "AXK2ForCausalLM", "DeepseekV32ForCausalLM", "Dots3NoteForCausalLM", "GlmMoeDsaForCausalLM",
    "HYV4ForCausalLM", "Gemma2ForCausalLM", "MiniMaxM3VLForCausalLM", "MistralLarge4ForConditionalGeneration",
)  # fmt: skip


def logits_of(model: Any) -> Tensor:
    found: Tensor = model(torch.arange(3, 27).view(2, 12), use_cache=False).logits
    return found


@pytest.mark.parametrize("name", [name for name in OTHERS if hasattr(transformers, name)])
def test_a_bank_leaves_sparse_and_capped_attention_as_it_is(name: str) -> None:
    model, opened = build(name), []
    for implementation in ("eager", "sdpa"):
        try:
            model.set_attn_implementation(implementation)
        except ValueError:  # some have no sdpa
            continue
        want = logits_of(model)
        adapter = attach_kernel_bank(model)
        got = logits_of(model)
        assert torch.equal(got, want)
        got.square().sum().backward()
        grads = [parameter.grad for name, parameter in adapter.named_parameters() if name.endswith("gate")]
        assert any(grad is not None and grad.any() for grad in grads)  # not those of its vision
        open_gates(adapter)
        opened.append(logits_of(model))
        assert not torch.allclose(opened[-1], want, rtol=1e-3)
        adapter.detach()
        assert type(model.config._attn_implementation) is str
        assert model.config._attn_implementation == implementation
    torch.testing.assert_close(opened[0], opened[-1], rtol=1e-4, atol=1e-4)


def test_the_name_is_its_own_and_the_former() -> None:
    model = build("GPT2LMHeadModel")
    model.set_attn_implementation("sdpa")
    attach_kernel_bank(model)
    for name in (model.config._attn_implementation, copy.deepcopy(model).config._attn_implementation):
        for each in (name, pickle.loads(pickle.dumps(name))):
            assert each in ("eager", "sdpa")
            assert each == "nadaraya_over_sdpa"
            assert each != "eager"
            assert {each: 1} == {"nadaraya_over_sdpa": 1}


def test_attention_without_a_lag_or_around_the_interface_has_no_bank() -> None:
    with pytest.raises(InputError, match="AttentionInterface"):
        attach_kernel_bank(build("DeepseekV4ForCausalLM"))  # keys of many tokens each in all layers
    model = build("GPT2LMHeadModel")
    model.config.reorder_and_upcast_attn = True
    model = type(model)(model.config)
    model.set_attn_implementation("eager")
    with pytest.raises(InputError, match=r"^reorder_and_upcast_attn must be False, .* got True$"):
        attach_kernel_bank(model)


@pytest.mark.parametrize("implementation", ["eager", "sdpa"])
@pytest.mark.parametrize("tokens", [11, 8])  # with text behind the image, and without
def test_a_static_cache_changes_no_image_block(tokens: int, implementation: str) -> None:
    sizes: dict[str, Any] = {"hidden_size": 32, "intermediate_size": 32, "num_attention_heads": 2}
    images = transformers.SiglipVisionConfig(**sizes, num_hidden_layers=1, image_size=8, patch_size=4)
    text = transformers.Gemma3TextConfig(
        **sizes, vocab_size=VOCABULARY, num_hidden_layers=2, num_key_value_heads=1, head_dim=16,
        layer_types=["full_attention"] * 2,
    )  # fmt: skip
    config = transformers.Gemma3Config(
        text_config=text,
        vision_config=images,
        mm_tokens_per_image=4,
        image_token_index=9,
        boi_token_index=7,
        eoi_token_index=8,
    )
    torch.manual_seed(0)
    model = shaken(transformers.Gemma3ForConditionalGeneration(config).eval())
    model.set_attn_implementation(implementation)
    open_gates(attach_kernel_bank(model.model.language_model))
    ids = torch.tensor([[1, 5, 6, 7, 9, 9, 9, 9, 8, 3, 4]])[:, :tokens]
    call = {"input_ids": ids, "token_type_ids": (ids == 9).long(), "pixel_values": torch.randn(1, 3, 8, 8)}
    with torch.no_grad():
        want = model(**call).logits
        cache = transformers.StaticCache(config=text, max_cache_len=20)
        got = model(**call, past_key_values=cache).logits
    torch.testing.assert_close(got, want, rtol=1e-4, atol=1e-4)
