"""A model without some heads computes what the whole model does with their part of W_O set to zero."""

import copy
from pathlib import Path
from typing import Any

import pytest
import torch
from causal_variants import CAUSAL
from small_models import moved, small_model
from transformers.cache_utils import StaticCache

from nadaraya import InputError, KernelSelfAttention
from nadaraya.evaluation.efficiency import model_cost
from nadaraya.models import KernelGPTConfig, KernelGPTForCausalLM, prune_heads

VOCABULARY = 19
# Layer 0 keeps a single head; of layer 1 goes what leaves groups of unequal size where keys are shared.
REMOVED = {0: [0, 2, 3], 1: [1]}
CASES: list[tuple[str, dict[str, Any]]] = [
    *((name, {}) for name in CAUSAL),
    ("rope", {"num_key_value_heads": 2}),
    ("fox", {"num_key_value_heads": 2}),
    ("kv-shared", {"num_key_value_heads": 2}),
    ("rope-norm", {"num_key_value_heads": 1, "value_embeddings": "all"}),
    ("rope", {"num_key_value_heads": 2, "value_embeddings": "all", "head_norm": True, "bias": True}),
    ("gpa-rope", {"output_gate": True, "window_pattern": "S", "sliding_window": 5}),
    ("gka", {"short_convolution": 3, "value_embeddings": "all", "output_gate": True}),
    ("gka-bank-xsa", {}),
    ("gpa-mul-loo-sink-gate", {}),
]


def full(variant: str, **changes: Any) -> KernelGPTForCausalLM:
    """A model with every parameter off its start."""
    sizes = {"vocab_size": VOCABULARY, "max_position_embeddings": 16, "num_attention_heads": 4}
    return moved(small_model(**{**sizes, "variant": variant, **changes}))


def silenced(model: KernelGPTForCausalLM, removed: dict[int, list[int]]) -> KernelGPTForCausalLM:
    """A copy in which W_O ignores the removed heads."""
    model = copy.deepcopy(model)
    for layer, heads in removed.items():
        weight = model.model.blocks[layer].attention.projections.o_proj.weight
        weight.data.unflatten(1, (4, -1))[:, heads] = 0.0
    return model


def tokens() -> torch.Tensor:
    return torch.randint(1, VOCABULARY, (2, 12), generator=torch.Generator().manual_seed(1))


@pytest.mark.parametrize(("variant", "changes"), CASES)
@torch.no_grad()
def test_a_pruned_model_has_the_logits_of_one_whose_output_matrix_ignores_the_heads(
    variant: str, changes: dict[str, Any]
) -> None:
    model, x = full(variant, **changes), tokens()
    smaller, expected = prune_heads(model, REMOVED), silenced(model, REMOVED)(x).logits
    assert (expected - model(x).logits).abs().max() > 1e-3
    torch.testing.assert_close(smaller(x).logits, expected, rtol=1e-4, atol=1e-5)
    assert [block.attention.num_heads for block in smaller.model.blocks] == [1, 3]

    out = smaller(x[:, :5], use_cache=True)
    for n in range(5, 12):
        out = smaller(x[:, [n]], past_key_values=out.past_key_values, use_cache=True)
        torch.testing.assert_close(out.logits[:, 0], expected[:, n], rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize(("variant", "changes"), [("fox", {}), ("rope", {"num_key_value_heads": 2})])
def test_a_pruned_model_generates_and_learns_as_the_silenced_one(
    variant: str, changes: dict[str, Any]
) -> None:
    model = full(variant, **changes)
    smaller, silent = prune_heads(model, REMOVED), silenced(model, REMOVED)
    settings: dict[str, Any] = {"max_new_tokens": 4, "do_sample": False, "pad_token_id": 0}
    assert torch.equal(smaller.generate(tokens(), **settings), silent.generate(tokens(), **settings))
    for each in (smaller, silent):
        each(tokens(), labels=tokens()).loss.backward()
    still = [name for name, p in smaller.named_parameters() if p.grad is None or not p.grad.any()]
    assert still == []
    ours, theirs = (m.model.blocks[1].attention.projections.q_proj.weight.grad for m in (smaller, silent))
    torch.testing.assert_close(ours, theirs.view(4, 4, 16)[[0, 2, 3]].flatten(0, 1), rtol=1e-4, atol=1e-6)


@pytest.mark.parametrize(("variant", "changes"), [CASES[0], ("alibi", {}), *CASES[-5:]])
@torch.no_grad()
def test_a_pruned_model_is_saved_and_loaded(variant: str, changes: dict[str, Any], tmp_path: Path) -> None:
    smaller = prune_heads(full(variant, **changes), REMOVED)
    smaller.save_pretrained(tmp_path)
    loaded: Any = KernelGPTForCausalLM.from_pretrained(tmp_path)
    assert loaded.config.pruned_heads == {"0": [0, 2, 3], "1": [1]}
    assert loaded.num_parameters() == smaller.num_parameters()
    assert torch.equal(loaded(tokens()).logits, smaller(tokens()).logits)


def test_heads_keep_their_numbers_when_more_are_removed() -> None:
    model = full("gpa-mul")
    twice = prune_heads(prune_heads(model, {1: [0]}), {1: [2], 0: [3]})
    once = prune_heads(model, {1: [2, 0], 0: [3]})
    assert twice.config.pruned_heads == once.config.pruned_heads == {"1": [0, 2], "0": [3]}
    assert torch.equal(twice(tokens()).logits, once(tokens()).logits)


@torch.no_grad()
def test_caches_of_fixed_size_serve_uneven_groups() -> None:
    smaller = prune_heads(full("fox", num_key_value_heads=2), REMOVED)
    cache, x = StaticCache(config=smaller.config, max_cache_len=12), tokens()
    logits = [smaller(piece, past_key_values=cache).logits for piece in x.split((5, 1, 6), 1)]
    torch.testing.assert_close(torch.cat(logits, 1), smaller(x).logits, rtol=1e-4, atol=1e-5)


def test_fewer_heads_cost_fewer_operations() -> None:
    model = full("gpa-rope")
    whole, smaller = model_cost(model), model_cost(prune_heads(model, {0: [0, 2, 3], 1: [0, 1, 3]}))
    # Of each token: 2 multiply-adds for each weight that is gone, and those of 6 of 8 heads with 16 keys.
    weights, pairs = 6 * 4 * 4 * 16, 6 * 2 * 4 * 16
    assert whole.flops_per_token - smaller.flops_per_token == 2 * (weights + pairs)


def test_the_model_itself_stays_as_it_was() -> None:
    model = full("gpa-rope")
    before = model(tokens()).logits
    prune_heads(model, REMOVED)
    assert model.config.pruned_heads is None
    assert torch.equal(model(tokens()).logits, before)


def test_keys_go_with_the_last_of_the_heads_that_see_them() -> None:
    model = full("rope", num_key_value_heads=2)
    for removed, groups in (([0], 2), ([0, 1], 1), ([0, 2, 3], 1), ([0, 2], 2)):
        smaller = prune_heads(model, {1: removed})
        layer = smaller(tokens(), use_cache=True).past_key_values.layers[1]
        assert layer.keys.shape[1] == groups
        assert smaller.model.blocks[1].attention.projections.k_proj.weight.shape == (4 * groups, 16)


@pytest.mark.parametrize("variant", ["gpa-mul", "alibi", "rope-norm", "mixed-bank", "fire"])
def test_heads_of_a_new_model_start_as_they_would_among_all(variant: str) -> None:
    config = KernelGPTConfig(hidden_size=16, num_hidden_layers=1, variant=variant, pruned_heads={0: [1]})
    whole = KernelGPTForCausalLM(KernelGPTConfig(hidden_size=16, num_hidden_layers=1, variant=variant))
    expected, found = prune_heads(whole, {0: [1]}), KernelGPTForCausalLM(config)
    assert {k: v.shape for k, v in found.state_dict().items()} == {
        k: v.shape for k, v in expected.state_dict().items()
    }
    if variant in ("gpa-mul", "alibi"):
        ours, theirs = (model.model.blocks[0].attention.position for model in (found, expected))
        assert torch.equal(ours.lag_logits(9), theirs.lag_logits(9))


@pytest.mark.parametrize(
    ("heads", "message"),
    [
        ({0: [0, 1, 2, 3]}, "layer 0, and not all of them"),
        ({0: [4]}, r"pruned_heads must be of 0 … 3 in layer 0"),
        ({2: [0]}, r"pruned_heads must be by layer, from 0 to 1, got {'2': \[0\]}"),
        ({1: [1, 2]}, r"heads must be there in layer 1, got \[2\]"),
    ],
)
def test_heads_that_cannot_go_are_refused(heads: dict[int, list[int]], message: str) -> None:
    with pytest.raises(InputError, match=message):
        prune_heads(prune_heads(full("rope"), {1: [2]}), heads)


def test_a_part_that_cannot_lose_heads_is_refused_before_anything_is_removed() -> None:
    class Own(torch.nn.Module):
        def forward(self, x: torch.Tensor, num_lags: int) -> torch.Tensor:
            return torch.zeros(4, num_lags, num_lags)

    layer = KernelSelfAttention(16, 4, causal=True, position=Own())
    with pytest.raises(InputError, match="position must be a part with keep_heads"):
        layer.keep_heads([0])
    assert layer.num_heads == 4
    with pytest.raises(InputError, match="heads must be at least one of 0, 1, 2, 3, got "):
        KernelSelfAttention(16, 4, kept_heads=[])


@torch.no_grad()
def test_a_vision_layer_loses_its_part_of_the_kernel_of_the_grid_too() -> None:
    pytest.importorskip("timm")
    from nadaraya.models.vit.attention import VisionAttention

    torch.manual_seed(0)
    layer = VisionAttention(16, 4, grid_kernel="bank").eval()
    layer.grid_size, x = (2, 3), torch.randn(1, 6, 16)
    for parameter in layer.parameters():
        parameter.add_(0.3 * torch.randn_like(parameter))
    smaller = copy.deepcopy(layer)
    smaller.keep_heads([1, 3])
    layer.proj.weight.unflatten(1, (4, -1))[:, [0, 2]] = 0.0
    torch.testing.assert_close(smaller(x), layer(x), rtol=1e-4, atol=1e-5)
