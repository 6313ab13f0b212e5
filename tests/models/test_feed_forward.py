"""A model without some hidden units computes what the whole model does blind to them."""

import copy
from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import AutoConfig, AutoModelForCausalLM

from nadaraya import InputError
from nadaraya.evaluation.efficiency import model_cost, training_flops
from nadaraya.models import KernelGPTConfig, KernelGPTForCausalLM, load_pruned, prune_heads, prune_units
from nadaraya.models.feed_forward import feed_forward_layers

SIZES: dict[str, Any] = {"vocab_size": 19, "hidden_size": 16, "intermediate_size": 24, "num_hidden_layers": 2}
REMOVED = {0: [0, 5, 23], 1: list(range(20))}
MODELS: list[tuple[str, dict[str, Any]]] = [
    ("kernel_gpt", {}),
    ("kernel_gpt", {"hidden_act": "relu2", "bias": True}),
    ("llama", {}),
    ("llama", {"mlp_bias": True}),
    ("qwen3", {"head_dim": 4, "num_key_value_heads": 4}),
    ("nanochat", {}),
    ("gpt2", {"n_positions": 32, "n_inner": 24}),
]


def make(kind: str, **changes: Any) -> Any:
    """A model with every parameter off its start."""
    torch.manual_seed(0)
    config = AutoConfig.for_model(
        kind, **{**SIZES, "num_attention_heads": 4, "bos_token_id": 0, "eos_token_id": None, **changes}
    )
    model = AutoModelForCausalLM.from_config(config).eval()
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(0.2 * torch.randn_like(parameter))
    return model


def unheard(model: Any, removed: dict[int, list[int]]) -> Any:
    """A copy in which no weight leads out of some units."""
    model = copy.deepcopy(model)
    for layer, units in removed.items():
        feed_forward_layers(model)[layer].outgoing.data[:, units] = 0.0
    return model


def tokens() -> torch.Tensor:
    return torch.randint(1, 19, (2, 10), generator=torch.Generator().manual_seed(1))


@pytest.mark.parametrize(("kind", "changes"), MODELS)
@torch.no_grad()
def test_a_smaller_model_has_the_logits_of_one_that_hears_nothing_of_the_units(
    kind: str, changes: dict[str, Any]
) -> None:
    model, x = make(kind, **changes), tokens()
    before, expected = model(x).logits, unheard(model, REMOVED)(x).logits
    smaller = prune_units(model, REMOVED)
    assert (expected - before).abs().max() > 1e-3
    torch.testing.assert_close(smaller(x).logits, expected, rtol=1e-4, atol=1e-5)
    assert torch.equal(model(x).logits, before)
    assert [part.size for part in feed_forward_layers(smaller).values()] == [21, 4]
    assert smaller.config.intermediate_sizes == {"0": 21, "1": 4}


@pytest.mark.parametrize(("kind", "changes"), MODELS)
@torch.no_grad()
def test_units_without_outgoing_weights_are_removed_for_nothing(kind: str, changes: dict[str, Any]) -> None:
    model = unheard(make(kind, **changes), REMOVED)
    torch.testing.assert_close(
        prune_units(model, REMOVED)(tokens()).logits, model(tokens()).logits, rtol=1e-5, atol=1e-6
    )


@pytest.mark.parametrize(("kind", "changes"), MODELS)
@torch.no_grad()
def test_a_smaller_model_is_saved_and_loaded(kind: str, changes: dict[str, Any], tmp_path: Path) -> None:
    smaller = prune_units(prune_heads(make(kind, **changes), {1: [0, 2]}), REMOVED)
    smaller.save_pretrained(tmp_path)
    loaded: Any
    if kind == "kernel_gpt":
        loaded = KernelGPTForCausalLM.from_pretrained(tmp_path)
        assert {type(size) for size in loaded.config.intermediate_sizes.values()} == {int}
    else:
        loaded = load_pruned(tmp_path)
    assert loaded.num_parameters() == smaller.num_parameters()
    assert torch.equal(loaded(tokens()).logits, smaller(tokens()).logits)


@torch.no_grad()
def test_weights_of_experts_and_in_several_files_are_loaded(tmp_path: Path) -> None:
    experts = {"num_key_value_heads": 4, "num_local_experts": 2, "num_experts_per_tok": 1}
    for kind, changes in (("llama", {}), ("mixtral", experts)):
        smaller = prune_heads(make(kind, **changes), {1: [0, 2]})
        smaller.save_pretrained(tmp_path / kind, max_shard_size="5KB")
        assert len(list((tmp_path / kind).glob("*.safetensors"))) > 1
        loaded = load_pruned(tmp_path / kind)
        assert type(loaded) is type(smaller)
        assert torch.equal(loaded(tokens()).logits, smaller(tokens()).logits)


@pytest.mark.parametrize(
    ("kind", "changes", "each"),
    [
        ("kernel_gpt", {}, 2 * 16),
        ("kernel_gpt", {"bias": True}, 2 * 16 + 1),
        ("llama", {}, 3 * 16),
        ("gpt2", {"n_positions": 32, "n_inner": 24}, 2 * 16 + 1),
    ],
)
def test_parameters_go_with_the_units(kind: str, changes: dict[str, Any], each: int) -> None:
    model = make(kind, **changes)
    assert model.num_parameters() - prune_units(model, REMOVED).num_parameters() == 23 * each


def test_operations_go_with_heads_and_units() -> None:
    model = make("kernel_gpt", variant="gpa-rope", max_position_embeddings=16)
    smaller = prune_units(prune_heads(model, {0: [1]}), REMOVED)
    whole, cost = model_cost(model), model_cost(smaller)
    # Of a head of width 4: its weights of four matrices, and scores and sums over 16 tokens.
    assert whole.flops_per_token - cost.flops_per_token == 2 * (23 * 2 * 16 + 4 * 4 * 16 + 2 * 4 * 16)
    assert whole.mlp_parameters - cost.mlp_parameters == 23 * 2 * 16
    flops = training_flops(model, 16) - training_flops(smaller, 16)
    assert flops == 6 * (23 * 2 * 16 + 4 * 4 * 16) + 12 * 4 * 16
    assert training_flops(KernelGPTForCausalLM(smaller.config), 16) == training_flops(smaller, 16)


def test_units_go_in_several_steps() -> None:
    model = make("kernel_gpt")
    twice = prune_units(prune_units(model, {1: [0]}), {1: [0, 22], 0: [7]})
    once = prune_units(model, {1: [0, 1, 23], 0: [7]})
    assert twice.config.intermediate_sizes == once.config.intermediate_sizes == {"1": 21, "0": 23}
    assert torch.equal(twice(tokens()).logits, once(tokens()).logits)


@pytest.mark.parametrize(
    ("units", "message"),
    [
        ({0: range(24)}, "units must be of 0 … 23 in layer 0, and not all of them"),
        ({1: [24]}, r"units must be of 0 … 23 in layer 1, and not all of them, got \[24\]"),
        ({2: [0]}, r"units must be by layer, from 0 to 1, got {2: \[0\]}"),
    ],
)
def test_units_that_cannot_go_are_refused(units: dict[int, Any], message: str) -> None:
    with pytest.raises(InputError, match=message):
        prune_units(make("kernel_gpt"), units)


def test_feed_forward_layers_of_another_kind_are_refused() -> None:
    mixture = make("gpt_oss", head_dim=4, num_local_experts=2, num_experts_per_tok=1)
    with pytest.raises(InputError, match="with feed-forward layers of linear maps"):
        prune_units(mixture, {0: [0]})
    with pytest.raises(InputError, match="model must be a model of transformers"):
        prune_units(torch.nn.Linear(2, 2), {0: [0]})  # type: ignore[type-var]


@pytest.mark.parametrize(
    ("sizes", "message"),
    [
        ({"0": 25}, "intermediate_sizes must be from 1 to intermediate_size = 24 in layer 0, got 25"),
        ({"1": 0}, "intermediate_sizes must be from 1 to intermediate_size = 24 in layer 1, got 0"),
        ({"2": 5}, "intermediate_sizes must be by layer, from 0 to 1"),
    ],
)
def test_widths_that_a_configuration_cannot_have_are_refused(sizes: dict[str, int], message: str) -> None:
    with pytest.raises(InputError, match=message):
        KernelGPTConfig(**SIZES, intermediate_sizes=sizes)


def test_a_width_that_all_layers_have_is_not_listed() -> None:
    config = KernelGPTConfig(**SIZES, intermediate_sizes={0: 24, 1: 8})
    assert config.intermediate_sizes == {"1": 8}
    assert [config.feed_forward_size(layer) for layer in range(2)] == [24, 8]


def test_a_folder_without_a_pruned_model_is_refused(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="cannot be read as a pruned model of transformers"):
        load_pruned(tmp_path)
