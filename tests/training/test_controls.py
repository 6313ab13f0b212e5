"""Runs on a wrapped or shuffled text: trained on it, read back as it, and never taken for another's."""

import json
from collections.abc import Callable
from pathlib import Path

import pytest
import torch

from nadaraya.data import load_corpus, tokenize_corpus
from nadaraya.data.corpus import wrap_text
from nadaraya.data.tokenizer import encode_text
from nadaraya.errors import InputError
from nadaraya.interpret.windows import validation_windows
from nadaraya.report import read_run
from nadaraya.training import Recipe, Run, train
from nadaraya.training.text import open_text

Make = Callable[..., Recipe]


def test_a_run_is_trained_on_the_changed_text_and_gives_it_back(
    tiny_recipe: Make, tiny_text: Path, tmp_path: Path
) -> None:
    recipe = tiny_recipe(data__wrap=13, data__shuffle="words", training__steps=1, training__warmup_steps=0)
    run = train(recipe, tmp_path / "run", progress=False)
    corpus = load_corpus(tiny_text, wrap=13, shuffle="words")
    assert run.corpus() == corpus
    described = json.loads((run.path / "text.json").read_text())
    assert (described["sha256"], described["name"]) == (corpus.sha256, "text, wrapped at 13, words shuffled")
    validation = corpus.split()[1]
    inputs = validation_windows(run, 1).inputs
    assert run.tokenizer().decode(inputs[0]) == validation[:16]
    assert "corpus: text.txt, wrapped at 13, words shuffled." in read_run(run).setup


def test_batches_come_from_the_changed_text(tiny_recipe: Make, tiny_text: Path) -> None:
    text = open_text(tiny_recipe(data__wrap=20), verify=True)
    changed = encode_text(text.tokenizer, wrap_text(tiny_text.read_text(), 20))
    windows = changed.unfold(0, 16, 1)
    assert all((windows == row).all(1).any() for row in text.batch(1)[0])
    assert not torch.equal(text.batch(1)[0], open_text(tiny_recipe(), verify=True).batch(1)[0])


def test_a_run_with_another_control_is_refused(
    tiny_recipe: Make, finished_text_run: Path, tmp_path: Path
) -> None:
    for changes, key in (({"data__wrap": 50}, "data.wrap"), ({"data__shuffle": "lines"}, "data.shuffle")):
        with pytest.raises(InputError, match=f"has a run with {key} = None, not "):
            train(tiny_recipe(**changes), finished_text_run, progress=False)


def test_figures_of_other_texts_do_not_compare(
    tiny_recipe: Make, finished_text_run: Path, tmp_path: Path
) -> None:
    short = {"training__steps": 1, "training__warmup_steps": 0}
    other = train(tiny_recipe(data__shuffle="lines", **short), tmp_path / "run", progress=False)
    plain = Run(finished_text_run)
    assert other.measured_on["text"] != plain.measured_on["text"]
    assert read_run(other).text != read_run(plain).text


def test_shards_and_values_out_of_range_are_refused(tiny_recipe: Make, tmp_path: Path) -> None:
    (tmp_path / "texts.txt").write_text("a text of some words\n" * 200)
    shards = tokenize_corpus(
        tmp_path / "texts.txt", tmp_path / "shards", separator="\n", vocabulary=257, validation_documents=20
    )
    for changes in ({"data__wrap": 50}, {"data__shuffle": "words"}):
        with pytest.raises(InputError, match="must be None, as it is where left out"):
            open_text(tiny_recipe(data__corpus=str(shards.folder), **changes), verify=False)
    with pytest.raises(InputError, match=r"data\.wrap must be greater than 0 or null, got 0"):
        tiny_recipe(data__wrap=0)
    with pytest.raises(InputError, match=r"data\.shuffle must be 'characters', 'words' or 'lines' or null"):
        tiny_recipe(data__shuffle="letters")
