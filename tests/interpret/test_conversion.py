"""Conversion of rotary models: what is saved is what was converted, and controls change nothing else."""

import math
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor
from transformers import AutoModelForCausalLM, LlamaConfig, LlamaForCausalLM

from nadaraya.data import byte_tokenizer
from nadaraya.errors import InputError
from nadaraya.interpret.conversion import BANK_FOLDER, convert_model
from nadaraya.models import KernelBankAdapter, extend_context
from nadaraya.training import open_causal_model

LAG, SYMBOLS = 3, 12


def llama(**changes: Any) -> LlamaForCausalLM:
    torch.manual_seed(0)
    sizes = {
        "vocab_size": SYMBOLS,
        "hidden_size": 48,
        "intermediate_size": 64,
        "num_hidden_layers": 2,
        "num_attention_heads": 4,
        "max_position_embeddings": 64,
    }
    return LlamaForCausalLM(LlamaConfig(**{**sizes, **changes})).eval()


def echoes(length: int) -> Tensor:
    """Each token is the one three before it, or, once in ten, any."""
    generator = torch.Generator().manual_seed(1)
    tokens = torch.randint(SYMBOLS, (length,), generator=generator)
    copied = torch.rand(length, generator=generator) > 0.1
    for place in range(LAG, length):
        if copied[place]:
            tokens[place] = tokens[place - LAG]
    return tokens


@torch.no_grad()
def logits(model: Any) -> Tensor:
    return model.eval()(echoes(40)[None]).logits


@pytest.mark.parametrize("positions", ["bank", "none", "rotary"])
def test_a_saved_conversion_is_the_converted_model(positions: Any, tmp_path: Path) -> None:
    found = convert_model(
        llama(), echoes(2000), context=32, positions=positions, updates=3, num_terms=2, windows=4
    )
    steps = ["as it is", "rotations dropped", "bank in their place", "after 3 updates"]
    left_out = {"bank": [], "none": [steps[2]], "rotary": steps[1:3]}[positions]
    assert list(found.losses) == [step for step in steps if step not in left_out]
    expected = logits(found.model)
    found.save(tmp_path / "model")
    model = AutoModelForCausalLM.from_pretrained(tmp_path / "model")
    assert (tmp_path / "model" / BANK_FOLDER).is_dir() == (positions == "bank")
    if positions == "bank":
        assert (logits(model) - expected).abs().max() > 1e-3
        KernelBankAdapter.from_pretrained(model, tmp_path / "model" / BANK_FOLDER)
    torch.testing.assert_close(logits(model), expected, rtol=1e-5, atol=1e-5)


def test_angles_that_are_scaled_are_dropped_too(tmp_path: Path) -> None:
    scaled = {"rope_type": "llama3", "factor": 8.0, "rope_theta": 1e4, "low_freq_factor": 1.0}
    scaled |= {"high_freq_factor": 4.0, "original_max_position_embeddings": 64}
    model = llama(rope_parameters=scaled, vocab_size=256)
    found = convert_model(model, echoes(2000), context=32, updates=1, windows=4)
    expected = logits(found.model)
    found.save(tmp_path / "model", byte_tokenizer())
    causal = open_causal_model(tmp_path / "model")  # with its bank
    torch.testing.assert_close(logits(causal.model), expected, rtol=1e-5, atol=1e-5)


def test_a_model_that_diverges_is_none() -> None:
    with pytest.raises(InputError, match="after 9 updates: the loss is nan; a lower learning_rate"):
        convert_model(llama(), echoes(2000), context=32, updates=9, windows=4, learning_rate=1e30)


def test_without_updates_the_controls_change_no_parameter() -> None:
    for positions, method in (("rotary", None), ("none", "drop")):
        model, like = llama(), llama()
        found = convert_model(model, echoes(2000), context=32, positions=positions, updates=0, windows=4)  # type: ignore[arg-type]
        if method:
            extend_context(like, method)  # type: ignore[arg-type]
        assert torch.equal(logits(found.model), logits(like))


def test_the_same_seed_gives_the_same_model() -> None:
    first, again, other = (
        convert_model(llama(), echoes(2000), context=32, updates=2, num_terms=2, windows=4, seed=seed)
        for seed in (0, 0, 1)
    )
    assert first.losses == again.losses
    assert first.losses != other.losses


def test_what_cannot_be_converted_is_refused_in_one_line() -> None:
    model = llama()
    for options, words in (
        ({"positions": "alibi"}, "positions"),
        ({"updates": -1}, "updates must be 0 or more"),
        ({"batch_size": 0}, "batch_size must be 1 or more"),
        ({"learning_rate": 0.0}, "learning_rate must be finite and above 0"),
        ({"learning_rate": math.inf}, "learning_rate must be finite and above 0"),
        ({"context": 900}, "the text must have 901 tokens or more for this context, got 200"),
    ):
        with pytest.raises(InputError, match=words):
            convert_model(model, echoes(2000), **{"context": 32, **options})  # type: ignore[arg-type]
    scaled = llama(rope_parameters={"rope_type": "dynamic", "factor": 2.0, "rope_theta": 1e4})
    with pytest.raises(InputError, match=r"of the type 'default' or 'linear' or .* of 'dynamic'"):
        convert_model(scaled, echoes(2000), context=32, positions="none")
    with pytest.raises(InputError, match="parameters that learn"):
        convert_model(llama().requires_grad_(False), echoes(2000), context=32, positions="none")


def test_heads_that_do_not_look_at_positions_lose_nothing() -> None:
    model = llama()
    with torch.no_grad():
        for layer in model.model.layers:
            layer.self_attn.q_proj.weight.zero_()
    found = convert_model(model, echoes(2000), context=32, updates=0, windows=4)
    first, *others = found.losses.values()
    assert others == pytest.approx([first, first], abs=1e-4)
