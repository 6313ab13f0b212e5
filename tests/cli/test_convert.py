"""`nadaraya convert`: a folder that transformers and the library read, and nothing overwritten."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import AutoModelForCausalLM, LlamaConfig, LlamaForCausalLM

from nadaraya.data import byte_tokenizer
from nadaraya.models import KernelBankAdapter

Command = Callable[..., Any]


@pytest.fixture
def source(tmp_path: Path) -> tuple[Path, Path]:
    """A folder with a tiny Llama, and a text."""
    torch.manual_seed(0)
    sizes = {
        "hidden_size": 16,
        "intermediate_size": 16,
        "num_hidden_layers": 1,
        "num_attention_heads": 2,
        "max_position_embeddings": 32,
    }
    LlamaForCausalLM(LlamaConfig(vocab_size=256, **sizes)).save_pretrained(tmp_path / "llama")
    byte_tokenizer().save_pretrained(tmp_path / "llama")
    (tmp_path / "text.txt").write_text("It was the best of times, it was the worst of times. " * 40)
    return tmp_path / "llama", tmp_path / "text.txt"


def test_a_converted_folder_has_the_model_and_its_banks(
    nadaraya: Command, source: tuple[Path, Path], tmp_path: Path
) -> None:
    model, text = source
    out = tmp_path / "converted"
    options = ("--updates", 2, "--terms", 2, "--out", out)
    found = json.loads(nadaraya("convert", model, "--text", text, *options, "--json").out)
    assert list(found["losses"]) == [
        "as it is",
        "rotations dropped",
        "bank in their place",
        "after 2 updates",
    ]
    assert len(found["r2"][0]) == 2
    loaded = AutoModelForCausalLM.from_pretrained(out)
    assert len(KernelBankAdapter.from_pretrained(loaded, out / "bank").banks) == 1
    assert json.loads(nadaraya("implied", out, "--text", text, "--json").out)["layers"]
    again = json.loads(nadaraya("evaluate", out, "--text", text, "--json").out)["cross_entropy"]
    bank = out / "bank"
    bank.rename(tmp_path / "bank")
    without = json.loads(nadaraya("evaluate", out, "--text", text, "--json").out)["cross_entropy"]
    (tmp_path / "bank").rename(bank)
    assert again != without
    assert again == json.loads(nadaraya("evaluate", out, "--text", text, "--json").out)["cross_entropy"]
    twice = nadaraya("convert", out, "--text", text, "--out", tmp_path / "twice")
    twice.refuses("with nothing of this library")
    nadaraya("convert", model, "--text", text, *options).refuses("converted")
    nadaraya("convert", model, "--text", text, "--out", tmp_path / "other", "--positions", "fire").refuses(
        "fire"
    )
    assert not (tmp_path / "other").exists()
