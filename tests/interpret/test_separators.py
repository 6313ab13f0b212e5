"""A pattern measures what its plain text measures, names find what they say, no pattern is empty."""

import re

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from nadaraya.errors import InputError
from nadaraya.interpret import lag_histogram
from nadaraya.interpret.lags import (
    SEPARATORS,
    autocorrelation,
    compile_separator,
    find_separators,
    separator_lags,
    separator_name,
)

texts = st.text("ab.\n ", max_size=60)


@given(texts, st.text("ab.\n", min_size=1, max_size=2))
def test_a_pattern_of_plain_text_measures_what_the_text_does(text: str, separator: str) -> None:
    pattern = compile_separator(re.escape(separator))
    assert separator_lags(text, pattern).tolist() == separator_lags(text, separator).tolist()
    np.testing.assert_array_equal(
        lag_histogram(text, 9, pattern).counts, lag_histogram(text, 9, separator).counts
    )
    np.testing.assert_array_equal(autocorrelation(text, 9, pattern), autocorrelation(text, 9, separator))


@given(texts)
def test_a_character_class_counts_each_of_its_characters(text: str) -> None:
    expected = [place for place, character in enumerate(text) if character in "a."]
    assert find_separators(text, compile_separator("[a.]")).tolist() == expected


@given(texts)
def test_words_and_paragraphs_are_what_stands_between(text: str) -> None:
    def parts(name: str) -> list[str]:
        pattern = SEPARATORS[name]
        assert isinstance(pattern, re.Pattern)
        return [part for part in pattern.split(text) if part.strip()]

    assert parts("word") == text.split()
    lines = [line if line.strip() else "" for line in text.split("\n")]
    assert [" ".join(part.split()) for part in parts("paragraph")] == [
        " ".join(part.split()) for part in "\n".join(lines).split("\n\n") if part.strip()
    ]


def test_sentences_end_at_their_last_stop() -> None:
    text = 'He said: "Go!" Then 1.5 of us (all of us.) left... And?\nNo. '
    ends = find_separators(text, SEPARATORS["sentence"])
    assert [text[place:][:2] for place in ends] == ['!"', ".)", "..", "?\n", ". "]


def test_a_text_with_known_wraps_gives_its_lag_under_every_spelling() -> None:
    text = ("word " * 13 + "end.\n") * 80  # 70 characters
    for name, lags in {"newline": [70], "sentence": [70], "word": [5]}.items():
        assert [peak.lag for peak in lag_histogram(text, separator=SEPARATORS[name]).peaks()] == lags
    paragraphs = ("word " * 13 + "end.\n\n \n") * 80
    (peak,) = lag_histogram(paragraphs, separator=SEPARATORS["paragraph"]).peaks()
    assert (peak.lag, peak.name) == (73, "73")


def test_separators_have_names() -> None:
    assert [separator_name(separator) for separator in SEPARATORS.values()] == list(SEPARATORS)
    assert separator_name("; ") == "'; '"
    assert separator_name(re.compile("[aeiou]")) == "/[aeiou]/"


@pytest.mark.parametrize("pattern", ["(", "a{2,1}", "a" * 3 + "{99999999999999}", "(?P<1>a)", "\\"])
def test_what_is_no_pattern_is_refused(pattern: str) -> None:
    with pytest.raises(InputError, match="pattern must be a regular expression, got ") as refused:
        compile_separator(pattern)
    assert "\n" not in str(refused.value)


def test_patterns_of_nothing_are_refused() -> None:
    for pattern in ("", "a*", "a?|b", "()"):
        with pytest.raises(InputError, match="pattern must be one that matches at least one character"):
            compile_separator(pattern)
    for pattern in (r"\b", "(?=a)"):  # which the empty string does not show
        with pytest.raises(InputError, match="matches at least one character"):
            find_separators("an apple", compile_separator(pattern))
