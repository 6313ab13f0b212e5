"""Controls keep the words of a text and change its layout, or keep its characters and change their order."""

import itertools
from collections import Counter

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from nadaraya.data import load_corpus
from nadaraya.data.corpus import embedded_corpus, shuffle_text, wrap_text
from nadaraya.errors import InputError
from nadaraya.interpret import lag_histogram
from nadaraya.interpret.lags import autocorrelation

UNITS = ("characters", "words", "lines")
texts = st.text("ab. \t\n🙂é", max_size=80)


@pytest.fixture(scope="module")
def prose() -> str:
    """1,000 paragraphs of words of 1 to 9 letters, in lines of up to 70 characters."""
    random = np.random.default_rng(0)
    words = ["x" * length for length in random.integers(1, 10, 50_000)]
    return wrap_text("\n\n".join(" ".join(words[i : i + 50]) for i in range(0, len(words), 50)), 70)


@given(texts, st.integers(1, 12))
def test_wrapping_keeps_words_and_blank_lines_and_breaks_no_word(text: str, columns: int) -> None:
    wrapped = wrap_text(text, columns)
    assert wrapped.split() == text.split()
    assert all(len(line) <= columns or len(line.split()) == 1 for line in wrapped.split("\n") if line.strip())
    blank = [line for line in text.split("\n") if not line.strip()]
    assert [line for line in wrapped.split("\n") if not line.strip()] == blank


def test_no_line_has_room_for_the_word_that_begins_the_next(prose: str) -> None:
    lines = wrap_text(prose, 50).split("\n")
    for line, after in itertools.pairwise(lines):
        assert not line or not after or len(line) + 1 + len(after.split()[0]) > 50


@pytest.mark.parametrize("columns", [30, 50, 65])
def test_wrapping_moves_the_newline_peak(prose: str, columns: int) -> None:
    def wrap_peak(text: str) -> int:
        return max(lag_histogram(text).peaks(), key=lambda peak: peak.count if peak.lag > 2 else 0).lag

    assert 68 <= wrap_peak(prose) <= 71
    assert columns - 2 <= wrap_peak(wrap_text(prose, columns)) <= columns + 1


def test_verse_and_tables_become_prose() -> None:
    verse = "He said:\n\n    Tyger Tyger,\n      burning bright,\n  In the forests\n"
    assert wrap_text(verse, 40) == "He said:\n\nTyger Tyger, burning bright, In the\nforests\n"


@given(texts, st.integers(0, 3))
def test_shuffling_keeps_every_part(text: str, seed: int) -> None:
    for unit in UNITS:
        shuffled = shuffle_text(text, unit, seed)
        assert Counter(shuffled) == Counter(text)
        assert shuffled == shuffle_text(text, unit, seed)
    assert Counter(shuffle_text(text, "words", seed).split()) == Counter(text.split())
    assert Counter(shuffle_text(text, "lines", seed).split("\n")) == Counter(text.split("\n"))


def test_shuffled_words_and_characters_lose_the_line_length_and_lines_keep_it(prose: str) -> None:
    def stands_out(text: str) -> float:
        counts = lag_histogram(text).counts[60:80]
        return float(counts.max() / max(counts.min(), 1))

    assert stands_out(prose) > 100
    assert stands_out(shuffle_text(prose, "lines")) > 100
    assert stands_out(shuffle_text(prose, "words")) < 5
    assert stands_out(shuffle_text(prose, "characters")) < 5
    far = autocorrelation(shuffle_text(prose, "characters"), 100)[2:]
    assert np.abs(far).max() < 6 / len(prose) ** 0.5


def test_the_seed_decides_about_the_order() -> None:
    text = "one two three four five\n" * 20
    for unit in UNITS[:2]:
        assert shuffle_text(text, unit, 1) != shuffle_text(text, unit, 2) != text


def test_a_corpus_is_cut_then_wrapped_then_shuffled_and_says_so() -> None:
    whole = embedded_corpus().text[:2000]
    corpus = load_corpus("embedded", limit=2000, wrap=30, shuffle="words")
    assert corpus.text == shuffle_text(wrap_text(whole, 30), "words")
    assert corpus.name == "embedded, wrapped at 30, words shuffled"
    assert corpus.sha256 != load_corpus("embedded", limit=2000).sha256
    assert load_corpus("embedded", limit=2000).text == whole


def test_unusable_controls_are_refused() -> None:
    with pytest.raises(InputError, match="columns must be 1 or more, got 0"):
        wrap_text("text", 0)
    with pytest.raises(InputError, match="did you mean 'words'"):
        shuffle_text("text", "word")  # type: ignore[arg-type]
