"""`nadaraya count` through the command line."""

import json
from pathlib import Path
from typing import Any

import pytest

IMAGE_OPTIONS = ("--image-size", 32, "--option", "patch_size=8", "--option", "depth=2")


def test_json(nadaraya: Any) -> None:
    outcome = nadaraya("count", "rope", "gpa-rope", "--json")
    assert outcome.status == 0
    rope, gpa = json.loads(outcome.out)
    assert gpa["parameters"] - rope["parameters"] == gpa["kernel_parameters"] == 4096


def test_table_names_the_models(nadaraya: Any) -> None:
    outcome = nadaraya("count", "gka-loo-bank", "--preset", "demo")
    assert outcome.status == 0
    assert "gka-loo-bank" in outcome.out


def test_image_models_have_a_table_of_their_own(nadaraya: Any) -> None:
    pytest.importorskip("timm")
    outcome = nadaraya("count", "rope", "deit_tiny_patch16_224", "gka_tiny_patch16_224")
    assert outcome.status == 0
    text, images = outcome.out.split("GFLOP/")
    assert "rope" in text
    deit, gka = (line.split() for line in images.splitlines() if "patch16_224" in line)
    assert deit[1:] == ["5.72", "1.78", "3.55", "0", "2.51", "21.9"]
    assert gka[1:] == ["4.38", "0.44", "3.55", "36", "1.98", "16.8"]


def test_image_models_take_a_size_and_keywords(nadaraya: Any) -> None:
    pytest.importorskip("timm")
    outcome = nadaraya(
        "count", "gka", "gka_tiny_patch16_224", *IMAGE_OPTIONS, "--option", "pattern=GA", "--json"
    )
    text, image = json.loads(outcome.out)
    assert text["context"] == 256
    assert image["image_shape"] == [3, 32, 32]
    assert image["kernel_parameters"] == 3  # one block of two, three heads


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["gpa-mull"], "did you mean 'gpa-mul'"),
        (["rope", "--preset", "dicken"], "did you mean 'dickens'"),
        (["no/such/run"], "no/such/run is not a folder"),
    ],
)
def test_bad_input_is_one_line_and_status_2(nadaraya: Any, arguments: list[str], message: str) -> None:
    nadaraya("count", *arguments).refuses(message)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["gka_tiny_patch16_22"], "did you mean 'gka_tiny_patch16_224'"),
        (["gka_tiny_patch16_224", "--option", "pattern"], "must be KEY=VALUE"),
        (["gka_tiny_patch16_224", "--option", "patern=GA"], "patern"),
        (["gka_tiny_patch16_224", "--option", "depth=[1"], "--option depth, line 1: not plain YAML"),
    ],
)
def test_bad_image_models_are_one_line_too(nadaraya: Any, arguments: list[str], message: str) -> None:
    pytest.importorskip("timm")
    nadaraya("count", *arguments).refuses(message)


def test_a_folder_that_is_no_run(nadaraya: Any, tmp_path: Path) -> None:
    nadaraya("count", tmp_path).refuses("is not a run folder")
