"""Weights of transformers' nanochat here and ours there: the same function of the tokens."""

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor
from transformers import (
    AutoModelForCausalLM,
    DynamicCache,
    NanoChatConfig,
    NanoChatForCausalLM,
    StaticCache,
)

from nadaraya import InputError
from nadaraya.models import KernelGPTConfig, KernelGPTForCausalLM, from_nanochat, to_nanochat

CLOSE = {"rtol": 0.0, "atol": 1e-5}


def moved(model: Any) -> Any:
    """The model with weights at which queries, values and logits are of the size of trained ones."""
    torch.manual_seed(1)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.copy_(0.3 * torch.randn_like(parameter))
    return model.eval()


def theirs(**changes: Any) -> NanoChatForCausalLM:
    sizes = {
        "vocab_size": 41, "hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 3,
        "num_attention_heads": 4, "num_key_value_heads": 2, "max_position_embeddings": 64,
    }  # fmt: skip
    return moved(NanoChatForCausalLM(NanoChatConfig(**{**sizes, **changes})))


def ours(**changes: Any) -> KernelGPTForCausalLM:
    """A small member of the family that transformers' nanochat can be."""
    sizes = {
        "vocab_size": 41, "hidden_size": 32, "num_attention_heads": 4, "max_position_embeddings": 64,
        "window_pattern": None, "value_embeddings": None,
    }  # fmt: skip
    return moved(KernelGPTForCausalLM(KernelGPTConfig.preset("nano-d3", **{**sizes, **changes})))


@pytest.fixture
def tokens() -> Tensor:
    torch.manual_seed(2)
    return torch.randint(41, (2, 20))


@pytest.mark.parametrize(
    "changes",
    [
        {},
        {"num_key_value_heads": None, "tie_word_embeddings": True},
        {"final_logit_softcapping": None, "hidden_act": "silu", "rms_norm_eps": 0.5},
        {"rope_parameters": {"rope_type": "default", "rope_theta": 50.0}},
    ],
    ids=["grouped", "tied", "uncapped", "base"],
)
@torch.no_grad()
def test_their_weights_give_their_logits_here_and_come_back_bit_for_bit(
    changes: dict[str, Any], tokens: Tensor
) -> None:
    there = theirs(**changes)
    here = from_nanochat(there)
    torch.testing.assert_close(here(tokens).logits, there(tokens).logits, **CLOSE)
    back = to_nanochat(here)
    assert back.state_dict().keys() == there.state_dict().keys()
    assert all(torch.equal(back.state_dict()[name], weight) for name, weight in there.state_dict().items())
    assert back.config.to_dict() == {**there.config.to_dict(), "architectures": back.config.architectures}


@pytest.mark.parametrize("changes", [{}, {"logit_cap": None, "tie_word_embeddings": True}])
@torch.no_grad()
def test_our_weights_give_our_logits_there(changes: dict[str, Any], tokens: Tensor) -> None:
    here = ours(**changes)
    torch.testing.assert_close(to_nanochat(here)(tokens).logits, here(tokens).logits, **CLOSE)


def test_gradients_and_loss_are_those_of_the_other(tokens: Tensor) -> None:
    there = theirs()
    here = from_nanochat(there)
    losses = [model(tokens, labels=tokens).loss for model in (there, here)]
    torch.testing.assert_close(*losses)
    for loss in losses:
        loss.backward()
    torch.testing.assert_close(
        here.model.blocks[0].mlp.up_proj.weight.grad, there.model.layers[0].mlp.fc1.weight.grad, **CLOSE
    )


@torch.no_grad()
def test_prompts_padded_on_the_left_have_the_same_logits_in_both(tokens: Tensor) -> None:
    there = theirs()
    here = from_nanochat(there)
    mask = torch.ones_like(tokens)
    mask[1, :7] = 0
    logits = [model(tokens, attention_mask=mask).logits for model in (there, here)]
    present = mask.bool()
    torch.testing.assert_close(logits[1][present], logits[0][present], **CLOSE)
    alone = here(tokens[1:, 7:]).logits[0]
    torch.testing.assert_close(logits[1][1, 7:], alone, **CLOSE)


@pytest.mark.parametrize("make", ["dynamic", "static"])
@torch.no_grad()
def test_both_go_on_from_a_cache_alike(make: str, tokens: Tensor) -> None:
    there = theirs()
    logits = []
    for model in (there, from_nanochat(there)):
        cache: Any = (
            DynamicCache(config=model.config)
            if make == "dynamic"
            else StaticCache(config=model.config, max_cache_len=24)
        )
        model(tokens[:, :11], past_key_values=cache)
        logits.append(model(tokens[:, 11:], past_key_values=cache).logits)
    torch.testing.assert_close(*logits, **CLOSE)


@pytest.mark.parametrize("implementation", [None, "static"])
@torch.no_grad()
def test_both_generate_the_same_text_of_a_padded_batch(implementation: str | None, tokens: Tensor) -> None:
    there = theirs()
    mask = torch.ones_like(tokens)
    mask[1, :7] = 0
    options = {"attention_mask": mask, "max_new_tokens": 15, "do_sample": True, "eos_token_id": None}
    if implementation:
        options |= {"cache_implementation": implementation, "disable_compile": True}
    texts = []
    for model in (there, from_nanochat(there)):
        torch.manual_seed(3)
        texts.append(model.generate(tokens, **options))
    assert torch.equal(*texts)
    assert len(set(texts[0][0, 20:].tolist())) > 3


@torch.no_grad()
def test_either_loads_the_others_checkpoint(tokens: Tensor, tmp_path: Path) -> None:
    there = theirs()
    there.save_pretrained(tmp_path / "theirs")
    here = from_nanochat(tmp_path / "theirs")
    torch.testing.assert_close(here(tokens).logits, there(tokens).logits, **CLOSE)
    here.save_pretrained(tmp_path / "ours")
    to_nanochat(str(tmp_path / "ours")).save_pretrained(tmp_path / "back")
    again = AutoModelForCausalLM.from_pretrained(tmp_path / "back")
    assert type(again) is NanoChatForCausalLM
    torch.testing.assert_close(again(tokens).logits, there(tokens).logits)


def test_a_copy_has_weights_dtype_and_mode_of_its_own() -> None:
    there = theirs().to(torch.bfloat16).train()
    here = from_nanochat(there)
    assert here.training
    assert {parameter.dtype for parameter in here.parameters()} == {torch.bfloat16}
    assert all(parameter.requires_grad for parameter in here.parameters())
    with torch.no_grad():
        here.lm_head.weight.zero_()
    assert there.lm_head.weight.any()


def test_settings_of_generation_go_along_but_for_padding_outside_the_vocabulary() -> None:
    here = ours(eos_token_id=5, pad_token_id=41)
    here.generation_config.pad_token_id = 41
    here.generation_config.top_k = 7
    there = to_nanochat(here)
    assert (there.config.eos_token_id, there.config.pad_token_id) == (5, None)
    assert (there.generation_config.top_k, there.generation_config.pad_token_id) == (7, None)
    assert here.generation_config.pad_token_id == 41


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"variant": "gka"}, "variant of the converted model must be 'rope', got 'gka'"),
        ({"variant": ["rope", "alibi"]}, "variant of the converted model must be 'rope', got 'alibi'"),
        ({"window_pattern": "SSSL"}, "window_pattern of the converted model must be None, got 'SSSL'"),
        ({"value_embeddings": "all"}, "value_embeddings of the converted model must be None, got 'all'"),
        ({"embedding_norm": False}, "embedding_norm of the converted model must be True, got False"),
        ({"head_norm": None}, "head_norm of the converted model must be True, got None"),
        ({"head_norm_eps": 1e-3}, "head_norm_eps of the converted model must be 1e-06, got 0.001"),
        ({"norm": "layernorm"}, "norm of the converted model must be 'rmsnorm', got 'layernorm'"),
        ({"short_convolution": 4}, "short_convolution of the converted model must be None, got 4"),
        ({"output_gate": True}, "output_gate of the converted model must be False, got True"),
    ],
)
def test_what_nanochat_has_not_is_refused_by_name(changes: dict[str, Any], message: str) -> None:
    with pytest.raises(InputError) as caught:
        to_nanochat(ours(**changes))
    assert str(caught.value) == message


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"attention_bias": True}, "attention_bias of the converted model must be False, got True"),
        (
            {"rope_parameters": {"rope_type": "linear", "rope_theta": 1e4, "factor": 2.0}},
            "rope_type of the converted model must be 'default', got 'linear'",
        ),
        ({"head_dim": 16}, "head_dim of the converted model must be its width per head, 8, got 16"),
        ({"hidden_act": "tanh"}, "hidden_act must be one of 'gelu', 'relu', 'relu2', 'silu', got 'tanh'"),
    ],
)
def test_what_we_have_not_is_refused_by_name(changes: dict[str, Any], message: str) -> None:
    with pytest.raises(InputError) as caught:
        from_nanochat(theirs(**changes))
    assert str(caught.value) == message


def test_a_folder_must_hold_the_model_that_is_converted(tmp_path: Path) -> None:
    ours().save_pretrained(tmp_path / "ours")
    with pytest.raises(InputError, match="must be 'nanochat', got 'kernel_gpt'"):
        from_nanochat(tmp_path / "ours")
    for broken in ("absent", "ours"):
        (tmp_path / "ours" / "model.safetensors").unlink(missing_ok=True)
        with pytest.raises(InputError, match=f"{broken} cannot be read as a ") as caught:
            to_nanochat(tmp_path / broken)
        assert "\n" not in str(caught.value)


def test_pickled_weights_are_not_read(tmp_path: Path) -> None:
    there = theirs()
    torch.save(there.state_dict(), tmp_path / "pytorch_model.bin")
    (tmp_path / "config.json").write_text(json.dumps(there.config.to_dict()))
    with pytest.raises(InputError, match="cannot be read as a nanochat model"):
        from_nanochat(tmp_path)
