"""`nadaraya generate`: the prompt and what the model makes of it."""

import json
import math
from pathlib import Path
from typing import Any

import pytest


def test_it_continues_the_prompt_and_the_seed_decides(nadaraya: Any, finished_run: Path) -> None:
    first = nadaraya("generate", finished_run, "--prompt", "the ", "--tokens", 60, "--seed", 1).out
    assert first.startswith("the ")
    assert len(first) == 4 + 60 + 1
    assert nadaraya("generate", finished_run, "--prompt", "the ", "--tokens", 60, "--seed", 1).out == first
    assert nadaraya("generate", finished_run, "--prompt", "the ", "--tokens", 60, "--seed", 2).out != first


def test_greedy_needs_no_seed(nadaraya: Any, finished_run: Path) -> None:
    one, two = (
        nadaraya("generate", finished_run, "--greedy", "--tokens", 20, "--seed", seed).out for seed in (1, 2)
    )
    assert one == two
    assert nadaraya("generate", finished_run, "--beams", 3, "--tokens", 20).status == 0
    assert nadaraya("generate", finished_run, "--top-k", 1, "--tokens", 20).out == one


def test_bad_input_is_one_line(nadaraya: Any, finished_run: Path, tmp_path: Path) -> None:
    nadaraya("generate", finished_run, "--prompt", "the Zoo").refuses("'Z'", "position 4")
    nadaraya("generate", finished_run, "--prompt", "").refuses("prompt")
    nadaraya("generate", finished_run, "--temperature", 0).refuses("temperature")
    nadaraya("generate", finished_run, "--greedy", "--beams", 2).refuses(
        "--beams must be 1 with --greedy, got 2"
    )
    nadaraya("generate", tmp_path).refuses("is not a run folder")
    assert nadaraya("generate", finished_run, "--tokens", 0).status == 2


def test_a_damaged_model_is_named(nadaraya: Any, finished_run: Path) -> None:
    path = finished_run / "model.safetensors"
    path.write_bytes(path.read_bytes()[:-50])
    nadaraya("generate", finished_run).refuses("model.safetensors")


def test_a_damaged_tokenizer_is_named(nadaraya: Any, finished_run: Path) -> None:
    (finished_run / "tokenizer.json").write_text("{")
    nadaraya("generate", finished_run).refuses("tokenizer.json")


def test_the_default_prompt_is_of_the_models_alphabet(
    nadaraya: Any, tiny: tuple[str, ...], tmp_path: Path
) -> None:
    text = tmp_path / "one-line.txt"
    text.write_text("abc" * 200)
    run = tmp_path / "run"
    source, _, *rest = tiny
    assert nadaraya("train", source, f"data.corpus={text}", *rest, "--run", run).status == 0
    assert nadaraya("generate", run, "--tokens", 10).out.startswith("a")


def test_tokens_of_bytes_and_byte_pairs_continue_any_prompt_and_predict_any_text(
    nadaraya: Any, tiny: tuple[str, ...], tmp_path: Path
) -> None:
    unseen = tmp_path / "unseen.txt"
    unseen.write_text("Zürich 🎉", encoding="utf-8")
    for tokenizer in (["data.tokenizer=bytes"], ["data.tokenizer=bpe", "data.vocabulary=280"]):
        run = tmp_path / tokenizer[0]
        assert nadaraya("train", *tiny, *tokenizer, "--run", run).status == 0
        assert nadaraya("generate", run, "--prompt", "Zürich 🎉", "--tokens", 5).out.startswith("Zürich 🎉")
        assert nadaraya("generate", run, "--tokens", 5).out.startswith("\n")
        figures = json.loads(nadaraya("evaluate", run, "--text", unseen, "--json").out)
        nats = figures["cross_entropy"] * figures["tokens"]
        assert figures["bytes"] == len("Zürich 🎉".encode()) - 1
        assert figures["bits_per_byte"] == pytest.approx(nats / math.log(2) / figures["bytes"])
