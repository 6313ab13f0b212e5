"""`nadaraya generate`: the prompt and what the model makes of it."""

import json
import math
from pathlib import Path
from typing import Any

import pytest
import torch


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
    nadaraya("generate", finished_run, "--greedy", "--top-k", 3).refuses(
        "--top-k must be left out with --greedy, got 3"
    )
    nadaraya("generate", finished_run, "--beams", 2, "--temperature", 0.5).refuses(
        "--temperature must be left out with --beams, got 0.5"
    )
    nadaraya("generate", tmp_path).refuses("is not a run folder")
    nadaraya("generate", finished_run, "--tokens", 0).refuses("tokens must be a positive integer")
    for value in ("nan", "inf", "1e-320"):
        nadaraya("generate", finished_run, "--temperature", value).refuses("temperature must be a finite")
    nadaraya("generate", finished_run, "--seed", 2**64).refuses("seed must be from 0 to 2^64 − 1")
    nadaraya("generate", finished_run, "--beams", 10**12).refuses("reduce beams")
    nadaraya("generate", finished_run, "--precision", "int8").refuses("--precision must be one of")


def test_json_is_one_document_with_the_settings(nadaraya: Any, finished_run: Path) -> None:
    options = ("--prompt", "the ", "--tokens", 9, "--seed", 2**63, "--device", "cpu")
    document = json.loads(nadaraya("generate", finished_run, *options, "--json").out)
    assert document == {
        "run": str(finished_run), "prompt": "the ", "text": document["text"], "tokens": 9,
        "temperature": 1.0, "top_k": None, "beams": 1, "greedy": False, "seed": 2**63,
    }  # fmt: skip
    assert nadaraya("generate", finished_run, *options).out == f"{document['text']}\n"
    assert json.loads(nadaraya("generate", finished_run, "--tokens", 9, "--json").out)["prompt"] == "\n"


def test_the_precision_is_that_of_the_computation(
    nadaraya: Any, finished_run: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen = []

    def spy(*given: Any, **options: Any) -> str:
        seen.append(torch.is_autocast_enabled("cpu"))
        return ""

    monkeypatch.setattr("nadaraya.evaluation.generate_text", spy)
    for precision in ("float32", "bfloat16"):
        nadaraya("generate", finished_run, "--device", "cpu", "--precision", precision)
    assert seen == [False, True]


def test_progress_is_shown_on_a_terminal_alone(
    nadaraya: Any, finished_run: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert nadaraya("generate", finished_run, "--tokens", 40).err == ""
    monkeypatch.setenv("FORCE_COLOR", "1")  # rich takes the stream for a terminal
    shown = nadaraya("generate", finished_run, "--tokens", 40)
    assert "40/40" in shown.err
    assert "40/40" not in shown.out


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
