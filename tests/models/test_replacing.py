"""Layers of a variant in place of a trained decoder's own: "rope" is the model, others start near it."""

import copy
from pathlib import Path
from typing import Any

import pytest
import torch
import transformers
from architectures import architectures, build
from torch import Tensor

from nadaraya import InputError
from nadaraya.models import extend_context, load_pruned, replace_attention
from nadaraya.models.replacing import ReplacedAttention

SIZES: dict[str, Any] = {
    "vocab_size": 29, "hidden_size": 32, "intermediate_size": 32, "num_hidden_layers": 2,
    "num_attention_heads": 4, "num_key_value_heads": 2, "initializer_range": 0.3, "pad_token_id": 0,
    "bos_token_id": 1, "eos_token_id": None,
}  # fmt: skip
SCALED = {"rope_type": "yarn", "factor": 4.0, "rope_theta": 500.0, "original_max_position_embeddings": 16}
FAMILIES: dict[str, dict[str, Any]] = {
    "Llama": {"attention_bias": True, "rope_parameters": SCALED},
    "Qwen2": {},
    "Qwen3": {"head_dim": 10},  # norms of queries and keys, heads not D / H wide
    "Mistral": {"sliding_window": 5},
    "Cohere": {},  # pairs are neighbours
    "StableLm": {},  # a quarter of the channels turn
    "NanoChat": {},  # turns the other way round
    "GPTNeoX": {"rotary_pct": 0.5},  # one matrix for all three, head by head
    "GPT2": {"resid_pdrop": 0.0, "attn_pdrop": 0.0, "embd_pdrop": 0.0},  # one for all three; no rotations
}
IDS = torch.randint(3, 29, (2, 17), generator=torch.Generator().manual_seed(0))
MASK = torch.ones_like(IDS)
MASK[0, :4] = 0


def make(kind: str = "Llama", **changes: Any) -> Any:
    torch.manual_seed(0)
    config = getattr(transformers, f"{kind}Config")(**SIZES | FAMILIES.get(kind, {}) | changes)
    model = transformers.AutoModelForCausalLM.from_config(config).eval()
    with torch.no_grad():
        for parameter in model.parameters():
            parameter += 0.1 * torch.randn_like(parameter)
    return model


@torch.no_grad()
def logits(model: Any, ids: Tensor = IDS, **options: Any) -> Tensor:
    found: Tensor = model(ids, **options).logits
    return found


def written(model: Any, **options: Any) -> Tensor:
    found: Tensor = model.generate(IDS, attention_mask=MASK, max_new_tokens=6, do_sample=False, **options)
    return found


HALF = {"rope_type": "default", "rope_theta": 1e4, "partial_rotary_factor": 0.5}


@pytest.mark.parametrize(
    ("kind", "rotations"),
    [("SmolLM3", None), ("SmolLM3", SCALED), ("StableLm", HALF), ("StableLm", HALF | SCALED)],
)
def test_channels_and_layers_without_rotation_are_not_scaled(
    kind: str, rotations: dict[str, Any] | None
) -> None:
    model = make(kind, num_hidden_layers=4, rope_parameters=rotations)
    mine = copy.deepcopy(model)
    replace_attention(mine, "rope")
    torch.testing.assert_close(logits(mine), logits(model), rtol=1e-3, atol=1e-4)
    if rotations is not None and "factor" in rotations:
        return  # of these there is no extension
    ways: tuple[Any, ...] = (("interpolate", 4.0), ("ntk", 4.0), ("yarn", 4.0), ("drop", None))
    for method, factor in ways:
        with extend_context(model, method, factor=factor), extend_context(mine, method, factor=factor):
            torch.testing.assert_close(logits(mine), logits(model), rtol=1e-3, atol=1e-4)


@pytest.mark.parametrize("implementation", ["sdpa", "eager", "nadaraya"])
@pytest.mark.parametrize("kind", FAMILIES)
def test_rotary_layers_compute_what_the_model_did(kind: str, implementation: str) -> None:
    model = make(kind)
    model.set_attn_implementation(implementation)
    packed = {"position_ids": torch.cat([torch.arange(9), torch.arange(8)])[None].expand(2, -1)}
    calls = ({}, {"attention_mask": MASK}, {**packed, "use_cache": False})
    before, text = [logits(model, **call) for call in calls], written(model)
    with replace_attention(model, "nope" if kind == "GPT2" else "rope"):
        assert sum(isinstance(part, ReplacedAttention) for part in model.modules()) == 2
        after = [logits(model, **call) for call in calls]
        assert torch.equal(written(model), text)
    for call, found, expected in zip(calls, after, before, strict=True):
        seen = call.get("attention_mask", torch.ones_like(IDS)).bool()
        torch.testing.assert_close(found[seen], expected[seen], rtol=1e-5, atol=1e-5)
    assert torch.equal(logits(model), before[0])


# Of queries and keys, of the values alone, one for both, and none.
ONE_TOKEN: dict[str, dict[str, Any]] = {
    "gpa-mul": {}, "vlt": {}, "kv-shared": {}, "qkv-shared": {}, "gka": {"head_norm": False},
}  # fmt: skip


@pytest.mark.parametrize("kind", ["Llama", "Qwen2", "GPTNeoX", "GPT2"])
@pytest.mark.parametrize("variant", ONE_TOKEN)
def test_a_text_of_one_token_has_one_weight_and_with_any_projections_the_same_output(
    variant: str, kind: str
) -> None:
    model = make(kind)
    before = logits(model, IDS[:, :1])
    with replace_attention(model, variant, options=ONE_TOKEN[variant]):
        torch.testing.assert_close(logits(model, IDS[:, :1]), before, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("variant", ["gpa-rope", "gka", "fox", "linear-bank", "gka-loo-bank"])
def test_padding_changes_nothing_texts_are_those_without_a_cache_and_all_learn(variant: str) -> None:
    model = make()
    with replace_attention(model, variant):
        torch.testing.assert_close(
            logits(model, attention_mask=MASK)[:1, 4:], logits(model, IDS[:1, 4:]), rtol=1e-4, atol=1e-5
        )
        assert torch.equal(written(model), written(model, use_cache=False))
        model.train()(IDS, labels=IDS).loss.backward()
    assert model.config.use_cache
    assert model.generation_config.use_cache
    with replace_attention(model.zero_grad() or model, variant):
        model(IDS, labels=IDS).loss.backward()
        assert all(p.grad is not None and p.grad.abs().max() > 0 for p in model.parameters())


def test_named_layers_alone_change() -> None:
    model = make(num_hidden_layers=3)
    before = model(IDS, output_hidden_states=True).hidden_states
    others = {name: tensor.clone() for name, tensor in model.state_dict().items() if ".1.self" not in name}
    with replace_attention(model, ["gka", "gpa-rope"], layers=[1]):
        after = model(IDS, output_hidden_states=True).hidden_states
        found = model.state_dict()
        assert all(torch.equal(found[name], tensor) for name, tensor in others.items())
        assert {name.split(".")[4] for name in found if ".1.self_attn" in name} == {"attention"}
    assert [torch.equal(*pair) for pair in zip(before, after, strict=True)] == [True, True, False, False]


def test_a_window_bounds_replaced_layers_and_the_others() -> None:
    model, like = make(), make()
    replace_attention(model, "rope", layers=[0])
    with extend_context(model, "window", window=4), extend_context(like, "window", window=4):
        torch.testing.assert_close(logits(model), logits(like), rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("options", [{"prompt_lookup_num_tokens": 3}, {"prefill_chunk_size": 6}])
def test_several_tokens_go_into_the_cache_of_a_window(options: dict[str, int]) -> None:
    model, call = make("Mistral"), {"max_new_tokens": 6, "do_sample": False, **options}
    want = model.generate(IDS[:1], **call)
    replace_attention(model, "rope")
    assert {layer.self_attn.attention.window for layer in model.model.layers} == {5}
    assert torch.equal(model.generate(IDS[:1], **call), want)


@pytest.mark.parametrize(
    ("kind", "variant"),
    [("Llama", ["linear", "gpa-rope"]), ("Qwen3", "gpa-spread"), ("GPTNeoX", "gka"), ("GPT2", "gpa")],
)
def test_a_replaced_model_is_saved_and_loaded(kind: str, variant: str | list[str], tmp_path: Path) -> None:
    model = make(kind, num_hidden_layers=3)
    replace_attention(model, "rope", layers=[0])
    with replace_attention(model, "fox", layers=[1]):
        pass
    replace_attention(model, variant, layers=[1, 2], options={"init": "unit"} if kind == "GPT2" else None)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter += 0.1
    model.save_pretrained(tmp_path)
    loaded = load_pruned(tmp_path)
    assert type(loaded) is type(model)
    assert torch.equal(logits(loaded), logits(model))
    assert torch.equal(written(loaded), written(model))
    assert torch.equal(logits(copy.deepcopy(model)), logits(model))
    loaded.save_pretrained(tmp_path / "again")
    assert torch.equal(logits(load_pruned(tmp_path / "again")), logits(model))


def test_weights_are_loaded_by_name() -> None:
    model, other = make(), make()
    replace_attention(model, "gpa-rope", layers=[1])
    replace_attention(other, "gpa-rope", layers=[1])
    with torch.no_grad():
        for parameter in model.parameters():
            parameter += 0.1
    other.load_state_dict(model.state_dict())
    assert torch.equal(logits(other), logits(model))


def test_kernels_stay_in_float32_in_a_model_of_half_precision() -> None:
    model = make("Qwen3").bfloat16()
    replace_attention(model, "gpa-rope")
    attention = model.model.layers[0].self_attn.attention
    assert {p.dtype for p in attention.position.parameters()} == {torch.float32}
    assert {p.dtype for p in attention.projections.parameters()} == {torch.bfloat16}
    assert logits(model).isfinite().all()


@pytest.mark.parametrize(
    ("kind", "changes", "arguments", "words"),
    [
        ("Llama", {}, {"layers": [2]}, "layers must be one or more of 0, 1, got"),
        ("Llama", {}, {"layers": [0, 0]}, "layers must be"),
        ("Llama", {}, {"variant": "nystromformer"}, "num_key_value_heads"),
        ("Llama", {}, {"variant": "gpa", "options": {"share": "layers"}}, "share must be"),
        ("Llama", {"head_dim": 4}, {"variant": "gka"}, "heads not D / H wide"),
        ("Granite", {"attention_multiplier": 2.0}, {}, "GraniteAttention"),
        ("Olmo2", {}, {}, "Olmo2Attention cannot be replaced: it has q_norm.weight"),
        ("Bloom", {}, {}, "or that of GPT-2 or GPT-NeoX, got"),
        ("Cohere2", {"head_dim": 8}, {}, "one that rotates queries and keys in all layers"),
        ("Exaone4", {"sliding_window": 5}, {}, "one that rotates queries and keys in all layers"),
        ("Ministral3", {"head_dim": 8}, {}, "and changes them no more, got 'Ministral3Attention'"),
        ("Olmo", {"clip_qkv": 0.5}, {}, "and changes them no more, got 'OlmoAttention'"),
        ("Qwen3Next", {"layer_types": ["full_attention"] * 2}, {}, "without a gate in the matrix"),
    ],
)
def test_other_attention_is_refused_in_one_line(
    kind: str, changes: dict[str, Any], arguments: dict[str, Any], words: str
) -> None:
    model = make(kind, **changes)
    before = logits(model)
    with pytest.raises(InputError, match=words):
        replace_attention(model, **{"variant": "rope"} | arguments)
    assert torch.equal(logits(model), before)


def test_positions_that_do_not_count_tokens_are_refused() -> None:
    model = make()
    packed = torch.cat([torch.arange(9), torch.arange(8)]).expand(2, -1)
    want = logits(model, position_ids=packed, use_cache=False)
    with replace_attention(model, "rope", layers=1):  # type: ignore[arg-type]  # one layer is taken too
        torch.testing.assert_close(logits(model, position_ids=packed, use_cache=False), want)
        with pytest.raises(InputError, match="use_cache must be False where position_ids begin again"):
            logits(model, position_ids=packed)
        with pytest.raises(InputError, match="position_ids must be consecutive"):
            logits(model, position_ids=2 * torch.arange(17)[None])
    logits(model, position_ids=2 * torch.arange(17)[None])


def test_a_layer_that_is_put_back_is_as_the_model_is_by_then() -> None:
    model = make().train()
    replaced = replace_attention(model, "gka")
    model.eval().double()
    replaced.close()
    assert not any(part.training for part in model.modules())
    assert logits(model).dtype == torch.float64


def test_layers_that_are_put_back_and_their_dropout_stay_in_evaluation() -> None:
    model = make("GPT2", attn_pdrop=0.5)
    before = logits(model)
    with replace_attention(model, "nope"):
        torch.testing.assert_close(logits(model), before, rtol=1e-5, atol=1e-5)
    assert torch.equal(logits(model), before)
    assert not hasattr(model.config, "replaced_attention")


def test_positions_are_checked_however_they_are_given() -> None:
    model, places = make(), 2 * torch.arange(17)[None]
    with replace_attention(model, "rope"):
        for call in (model, model.model):
            for given in ({"position_ids": places}, None):
                with pytest.raises(InputError, match="position_ids must be consecutive"):
                    call(IDS, **given) if given else call(IDS, None, places)


def test_an_adapter_of_queries_whose_norm_follows_is_merged_unchanged() -> None:
    peft = pytest.importorskip("peft")
    model = make("Qwen3")
    replace_attention(model, "rope")
    config = peft.LoraConfig(target_modules=["q_proj", "k_proj"], r=2, init_lora_weights=False)
    adapted = peft.get_peft_model(model, config).eval()
    before = logits(adapted)
    assert (before - logits(make("Qwen3"))).abs().max() > 0.01
    torch.testing.assert_close(logits(adapted.merge_and_unload()), before, rtol=1e-4, atol=1e-4)


@pytest.mark.slow
@pytest.mark.parametrize("name", architectures())
def test_every_architecture_is_itself_with_rope_or_refused(name: str) -> None:
    try:
        model, ids = build(name), IDS + 3
        before = logits(model, ids)
    except Exception:
        pytest.skip("needs more than text")
    try:
        replaced = replace_attention(model, "nope" if "GPT2" in name else "rope")
    except InputError:
        return
    torch.testing.assert_close(logits(model, ids), before, rtol=1e-4, atol=1e-4)
    replaced.close()
    assert torch.equal(logits(model, ids), before)


def test_a_model_without_generation_gets_a_state_too() -> None:
    model = make().model
    before = model(IDS)[0]
    with replace_attention(model, "linear"):
        assert model(IDS)[0].shape == before.shape
    assert torch.equal(model(IDS)[0], before)
