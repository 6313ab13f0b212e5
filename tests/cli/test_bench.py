"""`nadaraya bench vit` through the command line, at tiny sizes."""

import json
from pathlib import Path
from typing import Any

import pytest
import torch

pytest.importorskip("timm")

TINY = (
    "--device", "cpu", "--batch-sizes", "1,2", "--train-batch-sizes", "2", "--rounds", "2", "--no-memory",
    "--image-size", "16", "--option", "depth=1", "--option", "patch_size=8",
)  # fmt: skip


def test_a_line_a_case_and_progress_apart_from_it(nadaraya: Any) -> None:
    outcome = nadaraya("bench", "vit", *TINY)
    assert outcome.status == 0
    for title in ("training, batch 2", "inference, batch 1", "inference, batch 2", "inference, peak"):
        assert title in outcome.out
    assert outcome.out.count("gka_tiny_patch16_224") == outcome.out.count("deit_tiny_patch16_224") == 4
    assert outcome.err.count("\n") == 3


def test_json_to_a_file_or_to_standard_output(nadaraya: Any, tmp_path: Path) -> None:
    printed = json.loads(nadaraya("bench", "vit", *TINY, "--train-batch-sizes", "", "--json", "-").out)
    assert printed["training"] == {}
    path = tmp_path / "vit.json"
    outcome = nadaraya("bench", "vit", "vlt_tiny_patch16_224", *TINY, "--json", path)
    assert "vlt_tiny_patch16_224" in outcome.out
    written = json.loads(path.read_text())
    assert written.keys() == printed.keys()
    assert list(written["training"]["2"]) == ["vlt_tiny_patch16_224"]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--size", "smal"], "did you mean 'small'"),
        (["--batch-sizes", "1;2"], "--batch-sizes '1;2'"),
        (["--precision", "fp8"], "unknown precision 'fp8'"),
        (["--option", "depth"], "expected KEY=VALUE"),
    ],
)
def test_bad_input_is_one_line_and_status_2(nadaraya: Any, arguments: list[str], message: str) -> None:
    nadaraya("bench", "vit", "--device", "cpu", *arguments).refuses(message)


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a GPU")
def test_without_a_gpu(nadaraya: Any) -> None:
    nadaraya("bench", "vit", "--device", "cuda").refuses("no CUDA device")
