"""Causal models from folders: safetensors only, no code of theirs, and one line for all that is not one."""

import json
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import LlamaConfig, LlamaForCausalLM

from nadaraya.data import byte_tokenizer, train_byte_pair_tokenizer
from nadaraya.errors import InputError
from nadaraya.evaluation import evaluate_string
from nadaraya.models import KernelGPTConfig, KernelGPTForCausalLM, load_pruned, prune_heads, replace_attention
from nadaraya.training import load_recipe, open_causal_model, train

TINY = {"hidden_size": 16, "num_hidden_layers": 1, "num_attention_heads": 2}


@pytest.fixture
def llama(tmp_path: Path) -> Path:
    """A folder of transformers with a random Llama in bfloat16 that reads bytes."""
    config = LlamaConfig(**TINY, vocab_size=256, intermediate_size=32, max_position_embeddings=48)
    LlamaForCausalLM(config).to(torch.bfloat16).save_pretrained(tmp_path / "llama")
    byte_tokenizer().save_pretrained(tmp_path / "llama")
    return tmp_path / "llama"


def edit(folder: Path, **changes: Any) -> None:
    path = folder / "config.json"
    path.write_text(json.dumps({**json.loads(path.read_text()), **changes}))


def test_a_model_of_transformers_predicts_a_text_in_float32(llama: Path) -> None:
    causal = open_causal_model(llama)
    assert (causal.name, causal.context) == (str(llama), 48)
    assert causal.model.dtype == torch.float32
    assert not causal.model.training
    result = evaluate_string(causal.model, causal.tokenizer, "any text " * 9, context=causal.context)
    assert 4 < result.bits_per_byte < 12


def test_models_that_lost_heads_or_have_other_layers_are_opened(llama: Path) -> None:
    config = LlamaConfig(**TINY, vocab_size=256, intermediate_size=32, max_position_embeddings=48)
    model, ids = prune_heads(LlamaForCausalLM(config).eval(), {0: [1]}), torch.arange(9)[None]
    replace_attention(model, "gpa", layers=[0])
    model.save_pretrained(llama)
    loaded = open_causal_model(llama).model
    assert torch.equal(loaded(input_ids=ids).logits, model(input_ids=ids).logits)


def test_heads_that_share_keys_unevenly_are_opened(llama: Path) -> None:
    sizes = {**TINY, "num_attention_heads": 4, "num_key_value_heads": 2, "num_hidden_layers": 2}
    config = LlamaConfig(**sizes, vocab_size=256, intermediate_size=32, attn_implementation="nadaraya")
    model, ids = prune_heads(LlamaForCausalLM(config).eval(), {0: [1], 1: [2, 3]}), torch.arange(9)[None]
    model.save_pretrained(llama)
    for loaded in (open_causal_model(llama).model, load_pruned(llama)):
        assert torch.equal(loaded(input_ids=ids).logits, model(input_ids=ids).logits)
    with pytest.raises(InputError, match="must be 'nadaraya' where key heads"):
        load_pruned(llama, attn_implementation="sdpa")


def test_a_kernel_gpt_is_one_of_them(tmp_path: Path) -> None:
    config = KernelGPTConfig(**TINY, vocab_size=256, max_position_embeddings=40)
    model = KernelGPTForCausalLM(config).eval()
    model.save_pretrained(tmp_path)
    byte_tokenizer().save_pretrained(tmp_path)
    causal = open_causal_model(tmp_path)
    assert causal.context == 40
    ids = torch.arange(9)[None]
    torch.testing.assert_close(causal.model(input_ids=ids).logits, model(input_ids=ids).logits)


def test_a_run_is_opened_with_the_context_of_its_recipe(tmp_path: Path) -> None:
    (tmp_path / "text.txt").write_text("the cab of the bad\n" * 50)
    small = [f"model.{key}={value}" for key, value in TINY.items()]
    short = ["data.context=16", "training.steps=1", "training.batch_size=2", "training.warmup_steps=0"]
    recipe = load_recipe(
        "demo", [f"data.corpus={tmp_path / 'text.txt'}", *small, *short, "training.sample_characters=1"]
    )
    train(recipe, tmp_path / "run", progress=False)
    causal = open_causal_model(tmp_path / "run", weights="trained")
    assert (causal.context, causal.tokenizer.decode([32])) == (16, " ")
    with pytest.raises(InputError, match="must be 'trained', got 'best'"):
        open_causal_model(tmp_path / "run", weights="best")


def test_weights_that_would_be_unpickled_are_refused(llama: Path) -> None:
    (llama / "model.safetensors").unlink()
    torch.save({}, llama / "pytorch_model.bin")
    with pytest.raises(InputError, match="cannot be read as a causal language model"):
        open_causal_model(llama)


def test_code_of_a_folder_does_not_run(llama: Path, tmp_path: Path) -> None:
    edit(
        llama,
        model_type="strange",
        auto_map={"AutoConfig": "strange.Config", "AutoModelForCausalLM": "strange.M"},
    )
    (llama / "strange.py").write_text(
        f"open({str(tmp_path / 'ran')!r}, 'w')\nclass Config: pass\nclass M: pass\n"
    )
    with pytest.raises(InputError, match="cannot be read"):
        open_causal_model(llama)
    assert not (tmp_path / "ran").exists()


def test_weights_that_lack_a_tensor_are_refused(llama: Path) -> None:
    edit(llama, num_hidden_layers=2)
    with pytest.raises(InputError, match=r"is damaged: it lacks model\.layers\.1"):
        open_causal_model(llama)


@pytest.mark.parametrize("name", ["model.safetensors", "config.json", "tokenizer.json"])
def test_a_damaged_file_is_one_line(llama: Path, name: str) -> None:
    content = (llama / name).read_bytes()
    (llama / name).write_bytes(content[: len(content) // 2])
    with pytest.raises(InputError, match="cannot be read") as error:
        open_causal_model(llama)
    assert str(error.value).isprintable()


def test_what_is_no_model_is_refused_without_a_look_at_the_network(llama: Path, tmp_path: Path) -> None:
    for source in (tmp_path / "absent", "runs/misspelt", "gpt2", "hf:", llama / "config.json"):
        with pytest.raises(InputError, match="is not a run folder or a model's, and no hf:NAME"):
            open_causal_model(source)
    with pytest.raises(InputError, match="is not a run folder or a model's: it has no"):
        open_causal_model(tmp_path)
    with pytest.raises(InputError, match="--weights chooses among those of a run folder"):
        open_causal_model(llama, weights="best")


def test_a_model_of_the_hub_that_cannot_be_had_is_one_line(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", True)
    with pytest.raises(InputError, match="no-such/model cannot be read as a causal language model"):
        open_causal_model("hf:no-such/model")


def test_a_tokenizer_with_more_tokens_than_the_model_is_refused_at_the_door(llama: Path) -> None:
    train_byte_pair_tokenizer("the cat " * 50, 260).save_pretrained(llama)
    with pytest.raises(InputError, match=r"that of the model, which has 256 tokens, got 'a token 25\d'"):
        open_causal_model(llama)


def test_what_spells_a_special_token_is_scored_as_text(llama: Path) -> None:
    tokenizer = train_byte_pair_tokenizer("a", 257, document_token="<|endoftext|>")
    tokenizer.save_pretrained(llama)
    settings = llama / "tokenizer_config.json"
    settings.write_text(json.dumps({**json.loads(settings.read_text()), "split_special_tokens": False}))
    LlamaForCausalLM(LlamaConfig(**TINY, vocab_size=257, intermediate_size=32)).save_pretrained(llama)
    causal = open_causal_model(llama)
    text = "a<|endoftext|>" * 9
    assert tokenizer.eos_token_id not in causal.tokenizer(text)["input_ids"]
    result = evaluate_string(causal.model, causal.tokenizer, text, context=16)
    assert result.tokens == result.bytes == len(text)


@pytest.mark.parametrize("name", ["../w.safetensors", "/w.safetensors", "w.bin", "a/w.safetensors", 3])
def test_weights_are_those_of_the_folder(llama: Path, name: object) -> None:
    (llama / "model.safetensors").unlink()
    index = {"metadata": {}, "weight_map": {"lm_head.weight": name}}
    (llama / "model.safetensors.index.json").write_text(json.dumps(index))
    with pytest.raises(InputError, match=r"weight_map\.lm_head\.weight must"):
        open_causal_model(llama)


def test_attention_that_the_file_names_is_not_loaded(llama: Path) -> None:
    wanted = open_causal_model(llama).model.config._attn_implementation
    edit(llama, attn_implementation="someone/attention", _attn_implementation="someone/attention")
    assert open_causal_model(llama).model.config._attn_implementation == wanted


@pytest.mark.parametrize("name", ["config.json", "tokenizer.json", "tokenizer_config.json"])
@pytest.mark.parametrize("content", ["[]", "3", '"text"', "null", '{"model": 3}', "{" * 9999, ""])
def test_a_damaged_file_of_a_model_is_one_line(llama: Path, name: str, content: str) -> None:
    (llama / name).write_text(content)
    with suppress(InputError):  # some say nothing that a model needs
        open_causal_model(llama)
