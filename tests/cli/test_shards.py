"""Token shards on the command line: made, checked, trained on, and every verb that meets such a run."""

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from nadaraya.data import tokenize_corpus
from nadaraya.training import load_recipe, train

Command = Callable[..., Any]


@pytest.fixture(scope="module")
def source(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("source") / "texts.txt"
    path.write_text("<|endoftext|>".join(f"The {i} of {i % 7} cats.\n" * (i % 4 + 1) for i in range(60)))
    return path


@pytest.fixture(scope="module")
def shards(source: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("shards") / "shards"
    return tokenize_corpus(source, folder, vocabulary=280, shard_tokens=200, validation_documents=6).folder


@pytest.fixture(scope="module")
def run(shards: Path, tiny: tuple[str, ...], tmp_path_factory: pytest.TempPathFactory) -> Path:
    source, *overrides = tiny
    recipe = load_recipe(source, [*overrides, f"data.corpus={shards}"])
    return train(recipe, tmp_path_factory.mktemp("run") / "on-shards", progress=False).path


def test_tokenize_says_what_it_made_and_made_the_same_in_python(
    nadaraya: Command, source: Path, shards: Path, tmp_path: Path
) -> None:
    options = ["--vocabulary", 280, "--shard-tokens", 200, "--validation-documents", 6, "--workers", 1]
    made = nadaraya("data", "tokenize", source, tmp_path / "shards", *options, "--quiet")
    assert made.status == 0
    assert made.err == ""
    assert "train: " in made.out
    assert "validation: " in made.out
    for path in shards.glob("*.*"):
        assert (tmp_path / "shards" / path.name).read_bytes() == path.read_bytes()
    again = nadaraya("data", "tokenize", source, tmp_path / "shards", *options, "--json")
    printed = json.loads(again.out)
    assert printed["validation"]["documents"] == 6
    assert printed["train"]["documents"] == 54


def test_bad_input_of_tokenize_is_one_line(
    nadaraya: Command, source: Path, shards: Path, tmp_path: Path
) -> None:
    out = tmp_path / "out"
    nadaraya("data", "tokenize", tmp_path / "absent", out).refuses("no such file or folder")
    nadaraya("data", "tokenize", source, out, "--vocabulary", 100, "--quiet").refuses("vocabulary must be")
    nadaraya("data", "tokenize", source, out, "--tokenizer", tmp_path).refuses("no tokenizer in")
    nadaraya("data", "tokenize", source, shards, "--quiet").refuses("was begun with")
    twice = ("--validation-documents", 3, "--validation-fraction", 0.5)
    nadaraya("data", "tokenize", source, out, *twice).refuses(
        "--validation-fraction must be left out where --validation-documents is given, got 0.5"
    )
    nadaraya("data", "tokenize", source, out, "--tokenizer", shards, "--vocabulary", 300).refuses(
        "--vocabulary must be left out where --tokenizer is given, got 300"
    )
    (tmp_path / "broken.parquet").write_bytes(b"PAR1 broken PAR1")
    nadaraya("data", "tokenize", tmp_path / "broken.parquet", out, "--quiet").refuses(
        "broken.parquet", "Parquet"
    )


def test_check_names_every_damaged_file(nadaraya: Command, shards: Path, tmp_path: Path) -> None:
    assert nadaraya("data", "check", shards).out == f"{shards}: every file is intact\n"
    copy = Path(shutil.copytree(shards, tmp_path / "copy"))
    (copy / "train-00000.bin").write_bytes(b"cut")
    (copy / "validation-00000.bin").unlink()
    nadaraya("data", "check", copy).refuses("train-00000.bin (3 bytes", "validation-00000.bin (missing)")
    found = nadaraya("data", "check", copy, "--json")
    assert found.status == 2
    assert set(json.loads(found.out)["damaged"]) == {"train-00000.bin", "validation-00000.bin"}
    nadaraya("data", "check", tmp_path).refuses("is not a folder of token shards")


def test_verbs_work_on_a_run_on_shards(nadaraya: Command, run: Path, source: Path, tmp_path: Path) -> None:
    final = json.loads((run / "metrics.jsonl").read_text().splitlines()[-1])
    evaluated = json.loads(nadaraya("evaluate", run, "--json").out)
    assert evaluated["cross_entropy"] == pytest.approx(final["loss"], rel=1e-5)
    assert evaluated["bits_per_byte"] == pytest.approx(final["bits_per_byte"], rel=1e-5)
    whole = json.loads(nadaraya("evaluate", run, "--text", source, "--json").out)
    assert whole["bytes"] == len(source.read_bytes())
    assert nadaraya("generate", run, "--tokens", 5).status == 0
    prompted = nadaraya("generate", run, "--tokens", 5, "--prompt", "The cat")
    assert prompted.out.startswith("The cat")
    assert nadaraya("compare", run).status == 0
    assert nadaraya("report", run, "--out", tmp_path / "report.html").status == 0
    page = (tmp_path / "report.html").read_text()
    assert "What attention reads, by lag" in page
    assert "could not be read" not in page
    heads = json.loads(nadaraya("heads", run, "--windows", 10_000, "--json").out)
    assert heads["loss"] == pytest.approx(final["loss"], rel=1e-5)
    assert heads["tokens"] == evaluated["tokens"]
    pruned = nadaraya("prune", run, "--budget", "900%", "--windows", 2, "--out", tmp_path / "small", "--json")
    assert len(json.loads(pruned.out)["removed"]) == 2


def test_shards_are_no_text_for_other_verbs(nadaraya: Command, run: Path, shards: Path) -> None:
    nadaraya("evaluate", run, "--text", shards).refuses("holds no .txt file, but token shards")
    nadaraya("lags", shards).refuses("holds no .txt file, but token shards")


@pytest.mark.parametrize("documents", ["packed", "joined"])
def test_implied_and_lengths_keep_documents_apart_where_the_run_does(
    nadaraya: Command, shards: Path, tiny: tuple[str, ...], tmp_path: Path, documents: str
) -> None:
    from nadaraya.data import TokenShards
    from nadaraya.evaluation import length_losses
    from nadaraya.evaluation.language import token_bytes
    from nadaraya.interpret import implied_kernels
    from nadaraya.interpret.implied import implied_summary

    source, *overrides = tiny
    changes = [f"data.corpus={shards}", f"data.documents={documents}", "training.steps=2"]
    run = train(load_recipe(source, [*overrides, *changes]), tmp_path / "run", progress=False)
    printed = json.loads(nadaraya("implied", run.path, "--windows", 2, "--terms", 0, "--json").out)
    assert printed["layers"] == implied_summary(implied_kernels(run, windows=2))["layers"]
    pairs = printed["layers"][0]["pairs"]
    assert (pairs == [2 * (16 - lag) for lag in range(16)]) == (documents == "joined")
    part = TokenShards(shards, "validation")
    border = part.document_token if documents == "packed" else None
    expected = length_losses(
        run.load_model(), part, [8, 24], bytes_of_token=token_bytes(part.tokenizer), document_token=border
    )
    printed = json.loads(nadaraya("evaluate", run.path, "--lengths", "8,24", "--json").out)
    assert printed["lengths"][1]["bits_per_byte"] == pytest.approx(expected.lengths[1].bits_per_byte)
