"""`nadaraya implied`: curves, fits and figures that are those of the library, for runs and other models."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from other_models import make

from nadaraya.data import byte_tokenizer
from nadaraya.interpret import implied_kernels
from nadaraya.interpret.implied import implied_summary
from nadaraya.training import Run


def test_json_has_what_the_library_finds_on_the_validation_text(nadaraya: Any, finished_run: Path) -> None:
    outcome = nadaraya("implied", finished_run, "--windows", 3, "--terms", 1, "--json")
    printed = json.loads(outcome.out)
    expected = implied_summary(implied_kernels(Run(finished_run), windows=3))
    assert (printed["windows"], printed["context"], len(printed["layers"])) == (3, 16, 2)
    for layer, wanted in zip(printed["layers"], expected["layers"], strict=True):
        assert layer["pairs"] == wanted["pairs"] == [3 * (16 - lag) for lag in range(16)]
        for head, known in zip(layer["heads"], wanted["heads"], strict=True):
            assert head["curve"] == pytest.approx(known["curve"])
            assert set(head["fits"]) == {"periodic", "decay"}
            assert len(head["fits"]["decay"]["length"]) == 2


def test_a_row_per_head_and_a_figure(nadaraya: Any, finished_run: Path, tmp_path: Path) -> None:
    plot = tmp_path / "implied[/b].svg"  # nothing of it is markup
    plot.parent.mkdir()
    shown = nadaraya("implied", finished_run, "--windows", 2, "--terms", 0, "--plot", plot).out
    assert shown.endswith(f"plot: {plot}\n")
    assert [line.split()[0] for line in shown.splitlines() if line[:3].strip()[:2] in ("0.", "1.")] == [
        "0.0", "0.1", "1.0", "1.1",
    ]  # fmt: skip
    assert plot.read_text().startswith("<?xml")
    nadaraya("implied", finished_run, "--plot", plot).refuses("exists already")


def test_a_model_of_transformers_on_a_text(nadaraya: Any, tmp_path: Path) -> None:
    model = make("llama")
    model.resize_token_embeddings(256)
    model.save_pretrained(tmp_path / "llama")
    byte_tokenizer().save_pretrained(tmp_path / "llama")
    (tmp_path / "text.txt").write_text("Tyger Tyger, burning bright\n" * 4)
    arguments = ("implied", tmp_path / "llama", "--context", 20, "--windows", 2, "--terms", 0, "--json")
    nadaraya(*arguments).refuses("is not a run, which has a validation text: give --text")
    printed = json.loads(nadaraya(*arguments, "--text", tmp_path / "text.txt").out)
    assert [len(layer["heads"]) for layer in printed["layers"]] == [4, 4]
    assert np.isfinite(printed["layers"][1]["heads"][3]["curve"]).all()


def test_bad_input_is_one_line(nadaraya: Any, finished_run: Path, tmp_path: Path) -> None:
    for options, words in (
        (("--windows", 0), "windows must be 1 or more"),
        (("--context", 1), "context must be 2 tokens or more"),
        (("--context", 100_000), "the text must have 100,000 tokens or more for this context"),
        (("--terms", 65), "--terms must be from 0 to 64"),
        (("--plot", tmp_path / "a.txt"), "--plot must be a file that ends in"),
    ):
        nadaraya("implied", finished_run, *options).refuses(words)
    nadaraya("implied", tmp_path / "none").refuses("is not a run folder")
