"""Models of transformers without some heads compute what they do with W_O blind to these heads."""

import copy
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_model
from transformers import AutoConfig, AutoModelForCausalLM, OPTConfig, OPTForCausalLM

from nadaraya import InputError
from nadaraya.models import attach_kernel_bank, prune_heads, register_attention

SIZES: dict[str, Any] = {
    "vocab_size": 19, "hidden_size": 16, "intermediate_size": 16, "num_hidden_layers": 2,
    "num_attention_heads": 4, "attn_implementation": "nadaraya",
}  # fmt: skip
MODELS: list[tuple[str, dict[str, Any]]] = [
    ("llama", {}),
    ("llama", {"num_key_value_heads": 2, "attention_bias": True}),
    ("qwen2", {"num_key_value_heads": 2}),
    ("qwen3", {"num_key_value_heads": 2, "head_dim": 8}),
    ("mistral", {"num_key_value_heads": 1, "sliding_window": 5}),
    (
        "gpt_oss",
        {"num_key_value_heads": 2, "head_dim": 4, "num_local_experts": 2, "num_experts_per_tok": 1},
    ),
    ("gpt2", {"n_positions": 32}),
    ("gpt_neox", {"attn_implementation": "sdpa"}),
    ("stablelm", {"num_key_value_heads": 4, "attn_implementation": "eager"}),
    ("mixtral", {"num_key_value_heads": 4, "num_local_experts": 2, "num_experts_per_tok": 1}),
]
REMOVED = {0: [0, 2, 3], 1: [1]}


def make(kind: str, **changes: Any) -> Any:
    register_attention()
    torch.manual_seed(0)
    config = AutoConfig.for_model(kind, **{**SIZES, "bos_token_id": 0, "eos_token_id": None, **changes})
    model = AutoModelForCausalLM.from_config(config).eval()
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(0.2 * torch.randn_like(parameter))
    return model


def silenced(model: Any, removed: dict[int, list[int]]) -> Any:
    model = copy.deepcopy(model)
    for name, weight in model.named_parameters():
        for layer, heads in removed.items():
            if name.endswith((f"{layer}.self_attn.o_proj.weight", f"{layer}.attention.dense.weight")):
                weight.data.unflatten(1, (4, -1))[:, heads] = 0.0
            if name.endswith(f"h.{layer}.attn.c_proj.weight"):
                weight.data.unflatten(0, (4, -1))[heads] = 0.0
    return model


def tokens() -> torch.Tensor:
    return torch.randint(1, 19, (2, 10), generator=torch.Generator().manual_seed(1))


@pytest.mark.parametrize(("kind", "changes"), MODELS)
@torch.no_grad()
def test_a_pruned_model_has_the_logits_of_the_silenced_one(kind: str, changes: dict[str, Any]) -> None:
    model, x = make(kind, **changes), tokens()
    smaller, expected = prune_heads(model, REMOVED), silenced(model, REMOVED)
    assert (expected(x).logits - model(x).logits).abs().max() > 1e-4
    torch.testing.assert_close(smaller(x).logits, expected(x).logits, rtol=1e-4, atol=1e-5)
    twice = prune_heads(prune_heads(model, {1: [1], 0: [2]}), {0: [0, 3]})
    assert torch.equal(twice(x).logits, smaller(x).logits)
    assert twice.config.pruned_heads == smaller.config.pruned_heads == {"0": [0, 2, 3], "1": [1]}
    settings: dict[str, Any] = {"max_new_tokens": 4, "do_sample": False, "pad_token_id": 0}
    assert torch.equal(smaller.generate(x, **settings), expected.generate(x, **settings))


@torch.no_grad()
def test_a_pruned_model_is_saved_and_its_shape_made_again(tmp_path: Path) -> None:
    smaller = prune_heads(make("llama", num_key_value_heads=2), REMOVED)
    smaller.save_pretrained(tmp_path)
    config = AutoConfig.from_pretrained(tmp_path, attn_implementation="nadaraya")
    again = prune_heads(AutoModelForCausalLM.from_config(config), config.pruned_heads).eval()
    load_model(again, tmp_path / "model.safetensors")
    assert torch.equal(again(tokens()).logits, smaller(tokens()).logits)


@torch.no_grad()
def test_other_attention_serves_where_keys_are_shared_evenly() -> None:
    model, x = make("llama", num_key_value_heads=2), tokens()
    smaller, even = prune_heads(model, REMOVED), prune_heads(model, {1: [1, 3], 0: [0, 1]})
    expected = even(x).logits
    even.set_attn_implementation("sdpa")
    torch.testing.assert_close(even(x).logits, expected, rtol=1e-4, atol=1e-5)
    model.set_attn_implementation("sdpa")
    with pytest.raises(InputError, match="attn_implementation must be 'nadaraya' where key heads are left"):
        prune_heads(model, REMOVED)
    assert smaller.config.pruned_heads == {"0": [0, 2, 3], "1": [1]}


@pytest.mark.parametrize(
    ("heads", "message"),
    [
        ({0: [0, 1, 2, 3]}, "heads must be of 0, 1, 2, 3 in layer 0, and not all of them"),
        ({1: [4]}, r"heads must be of 0, 1, 2, 3 in layer 1, and not all of them, got \[4\]"),
        ({2: [0]}, "heads must be by layer, from 0 to 1"),
    ],
)
def test_heads_that_cannot_go_are_refused(heads: dict[int, list[int]], message: str) -> None:
    with pytest.raises(InputError, match=message):
        prune_heads(make("llama"), heads)


def test_attention_of_another_kind_is_refused() -> None:
    other = OPTForCausalLM(
        OPTConfig(vocab_size=9, hidden_size=8, ffn_dim=8, num_attention_heads=2, word_embed_proj_dim=8)
    )
    with pytest.raises(InputError, match="model must be with q_proj, k_proj, v_proj and o_proj"):
        prune_heads(other, {0: [1]})
    with pytest.raises(InputError, match="heads of Olmo2Attention cannot be removed: it has q_norm"):
        prune_heads(make("olmo2", num_key_value_heads=4), {0: [1]})
    with pytest.raises(InputError, match="model must be a model of transformers"):
        prune_heads(torch.nn.Linear(2, 2), {0: [1]})  # type: ignore[type-var]


@pytest.mark.parametrize("kind", ["llama", "gpt2", "gpt_neox"])
def test_a_model_with_a_bank_keeps_its_heads(kind: str) -> None:
    model = make(kind)
    attach_kernel_bank(model)
    with pytest.raises(InputError, match="without a kernel bank: detach it first"):
        prune_heads(model, {0: [1]})
