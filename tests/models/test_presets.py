"""Presets: one dial makes nanochat's family, and what its members have beside it are options of their own."""

from typing import Any

import pytest
import torch
from torch.nn import functional as F

from nadaraya import InputError
from nadaraya.models import KernelGPTConfig, KernelGPTForCausalLM
from nadaraya.training import load_recipe


def small(name: str = "nano-d2", **changes: Any) -> KernelGPTForCausalLM:
    torch.manual_seed(0)
    sizes = {"vocab_size": 23, "hidden_size": 32, "num_attention_heads": 2, "max_position_embeddings": 16}
    config = KernelGPTConfig.preset(name, **{**sizes, "intermediate_size": 64, **changes})
    model = KernelGPTForCausalLM(config).eval()
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.mul_(8.0)
    return model


@pytest.fixture
def tokens() -> torch.Tensor:
    torch.manual_seed(1)
    return torch.randint(23, (2, 14))


@pytest.mark.parametrize(
    ("depth", "width", "heads"), [(1, 128, 1), (2, 128, 1), (11, 768, 6), (12, 768, 6), (20, 1280, 10)]
)
def test_depth_decides_width_and_heads_in_whole_heads_of_128(depth: int, width: int, heads: int) -> None:
    config = KernelGPTConfig.preset(f"nano-d{depth}")
    assert (config.num_hidden_layers, config.hidden_size, config.num_attention_heads) == (depth, width, heads)


def test_what_the_family_has_in_common() -> None:
    config = KernelGPTConfig.preset("nano-d8")
    assert (config.vocab_size, config.max_position_embeddings, config.intermediate_size) == (
        32768,
        2048,
        2048,
    )
    full = [layer for layer, kind in enumerate(config.layer_types) if kind == "full_attention"]
    assert full == [3, 7]
    assert config.sliding_window == 1024
    assert not config.tie_word_embeddings
    assert KernelGPTConfig.preset("nano-d6").layer_types[-1] == "full_attention"


@pytest.mark.parametrize(
    ("variant", "tables"),
    [("rope", "alternate"), ("gpa-mul", "alternate"), ("gka", None), ("gka-loo-bank", None), ("vlt", None)],
)
def test_value_embeddings_are_for_variants_with_a_value_matrix(variant: str, tables: str | None) -> None:
    config = KernelGPTConfig.preset(f"nano-d4-{variant}")
    assert config.layer_variants == [variant] * 4
    assert config.value_embeddings == tables
    assert config.to_dict() == KernelGPTConfig.preset("nano-d4", variant=variant).to_dict()


def test_hybrids_are_lists_and_fields_may_differ() -> None:
    config = KernelGPTConfig.preset("nano-d4", variant=["gka", "rope"], logit_cap=None)
    assert config.layer_variants == ["gka", "rope", "gka", "rope"]
    assert [config.has_value_embedding(layer) for layer in range(4)] == [False, True, False, True]
    assert config.logit_cap is None
    assert KernelGPTConfig.preset("nano-d4", max_position_embeddings=64).sliding_window == 32


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("nano-d0", "the depth of preset nano-dN must be a whole number from 1 to 999, got '0'"),
        ("nano-d1000", "from 1 to 999, got '1000'"),
        ("nano-d", "from 1 to 999, got ''"),
        ("nano-d²", "from 1 to 999, got '²'"),
        ("nano-d4-gkaa", "did you mean 'gka'"),
        ("nano20", "did you mean 'nano-d20'"),
    ],
)
def test_a_bad_preset_is_one_line(name: str, message: str) -> None:
    with pytest.raises(InputError) as caught:
        KernelGPTConfig.preset(name)
    assert message in str(caught.value)


@torch.no_grad()
def test_the_cap_squashes_logits_and_keeps_their_order(tokens: torch.Tensor) -> None:
    free = small(logit_cap=None)
    capped = small(logit_cap=0.5)
    logits = free(tokens).logits
    assert logits.abs().max() > 0.5
    torch.testing.assert_close(capped(tokens).logits, 0.5 * torch.tanh(logits / 0.5))
    loss = F.cross_entropy(capped(tokens).logits[:, :-1].flatten(0, 1), tokens[:, 1:].flatten())
    torch.testing.assert_close(capped(tokens, labels=tokens).loss, loss)


@torch.no_grad()
def test_with_a_norm_of_the_embedding_its_scale_does_not_matter(tokens: torch.Tensor) -> None:
    for normed in (True, False):
        model = small(embedding_norm=normed, norm_eps=0.0, value_embeddings=None)
        before = model(tokens).logits
        model.model.embedding.weight.mul_(3.0)
        assert torch.allclose(before, model(tokens).logits, atol=1e-4) is normed


@torch.no_grad()
def test_the_norm_of_queries_and_keys_has_the_epsilon_that_is_given(tokens: torch.Tensor) -> None:
    """With ε far above their squares, logits of attention vanish: every token sees a mean of the values."""
    weights = small(head_norm_eps=1e9, window_pattern=None)(tokens, output_attentions=True).attentions[0]
    counts = torch.arange(1, 15)[:, None]
    torch.testing.assert_close(weights, (torch.ones(14, 14) / counts).tril().expand_as(weights))
    sharp = small(window_pattern=None)(tokens, output_attentions=True).attentions[0]
    assert (sharp - weights).abs().max() > 0.1


@pytest.mark.parametrize(
    ("field", "value"), [("logit_cap", 0.0), ("logit_cap", -1.0), ("head_norm_eps", -1.0)]
)
def test_caps_and_epsilons_out_of_range_are_refused(field: str, value: float) -> None:
    with pytest.raises(InputError, match=f"{field} must be"):
        KernelGPTConfig(**{field: value})


@pytest.mark.parametrize("name", ["nano-d2", "nano-d2-gka", "nano-d2-gka-loo-bank"])
@torch.no_grad()
def test_members_decode_from_a_cache_and_survive_saving(
    name: str, tokens: torch.Tensor, tmp_path: Any
) -> None:
    model = small(name)
    whole = model(tokens).logits
    first = model(tokens[:, :9], use_cache=True)
    rest = model(tokens[:, 9:], past_key_values=first.past_key_values).logits
    torch.testing.assert_close(torch.cat((first.logits, rest), 1), whole, rtol=1e-4, atol=1e-5)
    model.save_pretrained(tmp_path)
    again = KernelGPTForCausalLM.from_pretrained(tmp_path)
    torch.testing.assert_close(again(tokens).logits, whole)


def test_what_is_recommended_is_one_name_in_python_and_in_recipes() -> None:
    config = KernelGPTConfig.preset("recommended", hidden_size=32, num_hidden_layers=2)
    assert (config.variant, config.short_convolution, config.hidden_size) == ("gpa-spread", 4, 32)
    recipe = load_recipe("recommended", ["model.hidden_size=32"])
    built = recipe.build_model(11).config
    assert (built.variant, built.short_convolution, built.hidden_size) == ("gpa-spread", 4, 32)
