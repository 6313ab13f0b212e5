"""`nadaraya evaluate`: cross-entropy and bits per byte of the validation text or another."""

import json
import math
import shutil
from dataclasses import asdict
from pathlib import Path
from typing import Any

import pytest
import torch

from nadaraya.cli.texts import is_run
from nadaraya.data.tokenizer import encode_text
from nadaraya.evaluation import evaluate_string, length_losses
from nadaraya.evaluation.language import token_bytes
from nadaraya.training import Run


def test_the_default_is_the_final_figure_of_the_run(nadaraya: Any, finished_run: Path) -> None:
    printed = json.loads(nadaraya("evaluate", finished_run, "--json").out)
    final = Run(finished_run).final
    assert final is not None
    assert printed["cross_entropy"] == pytest.approx(final["loss"], rel=1e-5)
    assert printed["bits_per_byte"] == pytest.approx(final["bits_per_byte"], rel=1e-5)


def test_another_text(nadaraya: Any, finished_run: Path, tmp_path: Path) -> None:
    text = tmp_path / "other.txt"
    text.write_text("the cab of the bad\n" * 5)
    printed = json.loads(nadaraya("evaluate", finished_run, "--text", text, "--json").out)
    assert (printed["tokens"], printed["bytes"]) == (94, 94)
    shown = nadaraya("evaluate", finished_run, "--text", text).out
    assert f"{printed['cross_entropy']:.4f} nats/token over 94 tokens" in shown
    shorter = json.loads(nadaraya("evaluate", finished_run, "--text", text, "--context", 4, "--json").out)
    assert shorter["tokens"] == 94
    assert shorter["cross_entropy"] != printed["cross_entropy"]


def test_a_folder_called_as_a_model_at_the_hub_is_no_run(
    finished_run: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    shutil.copytree(finished_run, tmp_path / "hf:name")
    monkeypatch.chdir(tmp_path)
    assert not is_run("hf:name")
    assert is_run("./hf:name")


def test_bad_input_is_one_line(nadaraya: Any, finished_run: Path, tmp_path: Path) -> None:
    text = tmp_path / "other.txt"
    text.write_text("the quiz")
    nadaraya("evaluate", finished_run, "--text", text).refuses("'q'", "position 4")
    text.write_bytes(b"\x00")
    nadaraya("evaluate", finished_run, "--text", text).refuses("other.txt")
    text.write_text("a")
    nadaraya("evaluate", finished_run, "--text", text).refuses("2 or more")
    nadaraya("evaluate", finished_run, "--text", "/dev/zero").refuses("/dev/zero must be a regular file")
    nadaraya("evaluate", finished_run, "--text", "a" * 300).refuses("File name too long")
    nadaraya("evaluate", tmp_path).refuses("is not a run folder")
    nadaraya("evaluate", finished_run, "--context", 10**6).refuses("--context must be at most the model's")
    nadaraya("evaluate", finished_run, "--context", 8, "--lengths", "8").refuses("--lengths is given")


def test_device_and_precision_are_chosen_and_checked(nadaraya: Any, finished_run: Path) -> None:
    exact, rounded = (
        json.loads(nadaraya("evaluate", finished_run, "--device", "cpu", *options, "--json").out)
        for options in ([], ["--precision", "bfloat16"])
    )
    assert rounded["cross_entropy"] == pytest.approx(exact["cross_entropy"], rel=1e-2)
    assert rounded["cross_entropy"] != exact["cross_entropy"]
    nadaraya("evaluate", finished_run, "--device", "gpu").refuses("--device must be one of")
    nadaraya("evaluate", finished_run, "--precision", "int8").refuses("--precision must be one of")
    if not torch.cuda.is_available():
        nadaraya("evaluate", finished_run, "--device", "cuda").refuses("which this machine has, got 'cuda'")


@pytest.mark.parametrize("value", [math.nan, math.inf])
def test_a_model_that_diverged_has_no_figures_and_no_text(
    nadaraya: Any, finished_run: Path, monkeypatch: pytest.MonkeyPatch, value: float
) -> None:
    load_model = Run.load_model

    def diverged(run: Run, **options: Any) -> Any:
        model = load_model(run, **options)
        torch.nn.init.constant_(model.lm_head.weight, value)
        return model

    monkeypatch.setattr(Run, "load_model", diverged)
    for options in ([], ["--json"]):
        nadaraya("evaluate", finished_run, *options).refuses("not a finite number", str(finished_run))
    for options in ([], ["--greedy"], ["--beams", 2]):
        nadaraya("generate", finished_run, *options).refuses("the logits of the model must be finite")


def test_lengths_are_those_of_the_library(nadaraya: Any, finished_run: Path) -> None:
    line = ("evaluate", finished_run, "--lengths", "32,8,16", "--windows", 3)
    printed = json.loads(nadaraya(*line, "--json").out)
    run = Run(finished_run)
    text = run.text()
    tokenizer = run.tokenizer()
    expected = length_losses(
        run.load_model(), encode_text(tokenizer, text), [8, 16, 32], windows=3,
        bytes_of_token=token_bytes(tokenizer),
    )  # fmt: skip
    assert (printed["context"], printed["windows"], printed["stride"]) == (16, 3, 4)
    assert [loss["length"] for loss in printed["lengths"]] == [8, 16, 32]
    for loss, wanted in zip(printed["lengths"], expected.lengths, strict=True):
        assert loss == pytest.approx(asdict(wanted))
        assert loss["bits_per_byte"] == pytest.approx(loss["cross_entropy"] / math.log(2))
    assert len(printed["by_position"]) == 32
    shown = nadaraya(*line).out
    assert f"{printed['lengths'][2]['cross_entropy']:.4f}" in shown
    both = json.loads(nadaraya(*line, "--sliding-window", 6, "--json").out)
    limited = both.pop("sliding_window")
    assert both == printed
    assert limited["window"] == 6
    assert all(math.isfinite(loss["cross_entropy"]) for loss in limited["lengths"])
    assert f"{limited['lengths'][2]['cross_entropy']:.4f}" in nadaraya(*line, "--sliding-window", 6).out


def test_lengths_that_cannot_be_are_one_line(nadaraya: Any, finished_run: Path) -> None:
    for options, words in (
        (("--lengths", "8,x"), "--lengths must be whole numbers of tokens"),
        (("--lengths", ""), "lengths must be whole numbers of at least 1"),
        (("--lengths", "8,99999999"), "lengths must be below the"),
        (("--lengths", "8", "--windows", 0), "windows must be 1 or more"),
        (("--windows", 3), "--windows must be given with --lengths"),
        (("--sliding-window", 3), "--sliding-window must be given with --lengths"),
        (("--extended", "yarn"), "--extended must be given with --lengths"),
        (("--lengths", "8", "--extended", "rope"), "extended must be one of"),
        (("--lengths", "8", "--core", "tasks"), "--lengths must be left out where --core is given"),
    ):
        nadaraya("evaluate", finished_run, *options).refuses(words)


def test_the_command_says_what_is_recalled_by_distance(nadaraya: Any, finished_run: Path) -> None:
    line = ("evaluate", finished_run, "--recall", "16,48")
    printed = json.loads(nadaraya(*line, "--json").out)
    assert [each["distance"] for each in printed["recall"]] == [16, 48]
    assert f"{printed['recall'][1]['cross_entropy']:.3f}" in nadaraya(*line).out
    nadaraya("evaluate", finished_run, "--recall", "8").refuses("distances must be whole numbers of at least")
    nadaraya("evaluate", finished_run, "--recall", "32", "--lengths", "16").refuses(
        "--recall must be left out"
    )
    far = ("evaluate", finished_run, "--lengths", "8,32", "--windows", 3, "--far-context", "shuffled")
    found = json.loads(nadaraya(*far, "--json").out)
    assert found["far_context"]["how"] == "shuffled"
    assert found["far_context"]["lengths"][0] == found["lengths"][0]
    assert "shuffled" in nadaraya(*far).out
    nadaraya("evaluate", finished_run, "--far-context", "cut").refuses(
        "--far-context must be given with --lengths"
    )


def test_the_command_measures_each_part_of_the_text(nadaraya: Any, finished_run: Path) -> None:
    run = Run(finished_run)
    for part in ("train", "validation"):
        printed = json.loads(nadaraya("evaluate", finished_run, "--part", part, "--json").out)
        expected = evaluate_string(run.load_model(), run.tokenizer(), run.text(part), context=16)
        assert printed["text"] == f"{part} text"
        assert printed["cross_entropy"] == pytest.approx(expected.cross_entropy)
    nadaraya("evaluate", finished_run, "--part", "test").refuses("has no test text")
    nadaraya("evaluate", finished_run, "--part", "train", "--text", "x.txt").refuses(
        "--part must be left out where --text is given"
    )
    nadaraya("evaluate", finished_run, "--part", "rest").refuses("--part must be one of", "'rest'")
