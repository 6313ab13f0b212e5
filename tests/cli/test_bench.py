"""`nadaraya bench vit` through the command line, at tiny sizes."""

import json
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("timm")

TINY = (
    "--device", "cpu", "--batch-sizes", "1,2", "--train-batch-sizes", "2", "--rounds", "1", "--no-memory",
    "--image-size", "16", "--option", "depth=1", "--option", "patch_size=8",
)  # fmt: skip


def test_a_line_per_model_progress_apart_from_it_and_a_file(nadaraya: Any, tmp_path: Path) -> None:
    path = tmp_path / "vit.json"
    outcome = nadaraya("bench", "vit", *TINY, "--out", path)
    assert outcome.status == 0
    for title in ("training, batch 2", "inference, batch 1", "inference, batch 2", "inference, peak"):
        assert title in outcome.out
    assert outcome.out.count("gka_tiny_patch16_224") == outcome.out.count("deit_tiny_patch16_224") == 4
    assert sum("patch16_224" in line for line in outcome.err.splitlines()) == 3
    written = json.loads(path.read_text())
    assert [(row["mode"], row["batch"]) for row in written["rows"][:6:2]] == [
        ("training", 2),
        ("inference", 1),
        ("inference", 2),
    ]
    assert written["settings"]["options"] == {"depth": 1, "patch_size": 8}


def test_other_models_and_json_to_standard_output(nadaraya: Any) -> None:
    none = ("--train-batch-sizes", "", "--batch-sizes", "1", "--json")
    printed = json.loads(nadaraya("bench", "vit", "vlt_tiny_patch16_224", *TINY, *none).out)
    assert printed.keys() == {"environment", "settings", "rows"}
    rows = [(row["model"], row["mode"]) for row in printed["rows"]]
    assert rows == [("vlt_tiny_patch16_224", "inference"), ("vlt_tiny_patch16_224", "peak")]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--device", "tpu"], "--device must be one of 'cpu', 'cuda', 'mps', got 'tpu'"),
        (["--size", "smal"], "did you mean 'small'"),
        (
            ["--batch-sizes", "1;2"],
            "--batch-sizes must be whole numbers of at least 1, separated by commas, got '1;2'",
        ),
        (["--precision", "fp8"], "precision must be one of 'bfloat16', 'float32', got 'fp8'"),
        (["--option", "depth"], "KEY=VALUE"),
    ],
)
def test_bad_input_is_one_line_and_status_2(nadaraya: Any, arguments: list[str], message: str) -> None:
    nadaraya("bench", "vit", "--device", "cpu", *arguments).refuses(message)


def test_measurements_replace_no_file_unasked(nadaraya: Any, tmp_path: Path) -> None:
    mine = tmp_path / "mine.json"
    mine.write_text("precious")
    short = [
        "bench", "decode", "gka-bank", "--preset", "demo", "--batch", "1", "--prompt", "4", "--tokens", "2",
        "--rounds", "1", "--out",
    ]  # fmt: skip
    for words in (short, ["bench", "vit", "--out"], ["check", "--quick", "--out"]):
        nadaraya(*words, mine).refuses("mine.json exists already: choose another file, or --force")
    assert mine.read_text() == "precious"
    nadaraya(*short, tmp_path / "none" / "x.json").refuses("--out must be a file in a folder that exists")
    assert nadaraya(*short, mine, "--force", "--json").status == 0
    assert "rows" in mine.read_text()
