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


def test_compounds_of_variants_are_counted(nadaraya: Any) -> None:
    outcome = nadaraya("count", "rope-xsa", "--json")
    assert json.loads(outcome.out)[0]["kernel_parameters"] == 0


def test_table_names_the_models(nadaraya: Any) -> None:
    outcome = nadaraya("count", "gka-loo-bank", "--preset", "demo")
    assert outcome.status == 0
    assert "gka-loo-bank" in outcome.out


def test_image_models_have_a_table_of_their_own(nadaraya: Any) -> None:
    pytest.importorskip("timm")
    outcome = nadaraya("count", "rope", "deit_tiny_patch16_224", "gka_tiny_patch16_224")
    assert outcome.status == 0
    text, images = outcome.out.rsplit("GFLOP/", 1)
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


def test_table_8_of_kundu_et_al(nadaraya: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """Parameters and FLOPs per token as printed, the latter in 10⁹."""
    monkeypatch.setenv("COLUMNS", "120")
    outcome = nadaraya("count", "nano-d20", "nano-d20-gka")
    lines = [line.split() for line in outcome.out.splitlines() if "nano-d20" in line]
    assert [line[0] for line in lines] == ["nano-d20", "nano-d20,", "nano-d20-gka"]
    baseline, gka = lines[0], lines[2]
    assert (baseline[1], baseline[-2]) == ("896,532,490", "3.0042")
    assert (gka[1], gka[-2]) == ("378,798,280", "2.4143")
    without = lines[1]
    assert without[1] == "no"
    assert "477,102,080" in without
    assert without[-2] == "3.0042"


def test_training_flops_in_all(nadaraya: Any) -> None:
    at = ("nano-d2-gka", "--tokens", "2.5e9")
    (row,) = json.loads(nadaraya("count", *at, "--json").out)
    assert row["training_flops"] == 2.5e9 * row["training_flops_per_token"]
    assert f"{row['training_flops']:.4e}" in nadaraya("count", *at).out


def test_presets_have_a_vocabulary_of_their_own_unless_one_is_given(nadaraya: Any) -> None:
    names = ("nano-d1", "nano-d1-gka", "demo")
    own, given = (
        json.loads(nadaraya("count", *names, *more, "--json").out) for more in ((), ("--vocabulary", 10))
    )
    widths, vocabularies = (128, 128, 128), (32768, 32768, 93)
    tables = [(before["parameters"] - after["parameters"]) for before, after in zip(own, given, strict=True)]
    of_values = [1, 0, 0]
    assert tables == [
        (2 + more) * width * (vocabulary - 10)
        for width, vocabulary, more in zip(widths, vocabularies, of_values, strict=True)
    ]


def test_a_variant_takes_the_shape_of_a_preset(nadaraya: Any) -> None:
    (named,) = json.loads(nadaraya("count", "nano-d2-gka", "--json").out)
    (shaped,) = json.loads(nadaraya("count", "gka", "--preset", "nano-d2", "--json").out)
    assert {**named, "model": "gka"} == shaped


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["rope", "--tokens", "nan"], "--tokens must be a finite number of at least 1, got nan"),
        (["nano-d0"], "the depth of preset nano-dN must be a whole number from 1 to 999, got '0'"),
        (["nano-d2-gkaa"], "did you mean 'gka'"),
        (["rope", "--preset", "nano-dx"], "got 'x'"),
        (["gpa-mull"], "did you mean 'gpa-mul'"),
        (["rope", "--preset", "dicken"], "did you mean 'dickens'"),
        (["no/such/run"], "no/such/run is not a run folder"),
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
