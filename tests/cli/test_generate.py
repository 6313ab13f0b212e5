"""`nadaraya generate`: the prompt and what the model makes of it."""

from pathlib import Path
from typing import Any


def test_it_continues_the_prompt_and_the_seed_decides(nadaraya: Any, finished_run: Path) -> None:
    first = nadaraya("generate", finished_run, "--prompt", "the ", "--characters", 60, "--seed", 1).out
    assert first.startswith("the ")
    assert len(first) == 4 + 60 + 1
    assert (
        nadaraya("generate", finished_run, "--prompt", "the ", "--characters", 60, "--seed", 1).out == first
    )
    assert (
        nadaraya("generate", finished_run, "--prompt", "the ", "--characters", 60, "--seed", 2).out != first
    )


def test_greedy_needs_no_seed(nadaraya: Any, finished_run: Path) -> None:
    one, two = (
        nadaraya("generate", finished_run, "--greedy", "--characters", 20, "--seed", seed).out
        for seed in (1, 2)
    )
    assert one == two
    assert nadaraya("generate", finished_run, "--beams", 3, "--characters", 20).status == 0
    assert nadaraya("generate", finished_run, "--top-k", 1, "--characters", 20).out == one


def test_bad_input_is_one_line(nadaraya: Any, finished_run: Path, tmp_path: Path) -> None:
    nadaraya("generate", finished_run, "--prompt", "the Zoo").refuses("'Z'", "position 4")
    nadaraya("generate", finished_run, "--prompt", "").refuses("prompt")
    nadaraya("generate", finished_run, "--temperature", 0).refuses("temperature")
    nadaraya("generate", finished_run, "--greedy", "--beams", 2).refuses(
        "--beams must be 1 with --greedy, got 2"
    )
    nadaraya("generate", tmp_path).refuses("is not a run folder")
    assert nadaraya("generate", finished_run, "--characters", 0).status == 2


def test_a_damaged_model_is_named(nadaraya: Any, finished_run: Path) -> None:
    path = finished_run / "model.safetensors"
    path.write_bytes(path.read_bytes()[:-50])
    nadaraya("generate", finished_run).refuses("model.safetensors")


def test_a_damaged_tokenizer_is_named(nadaraya: Any, finished_run: Path) -> None:
    (finished_run / "tokenizer.json").write_text("{")
    nadaraya("generate", finished_run).refuses("tokenizer.json")
