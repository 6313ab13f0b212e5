"""Separator lags: counts against their definition, peaks where lines wrap, noise unnamed."""

import itertools
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from nadaraya.data import byte_tokenizer, load_corpus, train_byte_pair_tokenizer, train_character_tokenizer
from nadaraya.data.corpus import embedded_corpus
from nadaraya.data.tokenizer import encode_text
from nadaraya.errors import InputError
from nadaraya.interpret import lag_histogram
from nadaraya.interpret.lags import autocorrelation, prominent_peaks, separator_lags, token_lag_histogram

DICKENS = Path(__file__).parents[3] / "shared" / "data" / "dickens" / "dickens.txt"
few_characters = st.text("ab\n", max_size=60)


@given(few_characters)
def test_lags_are_line_lengths_and_their_newline(text: str) -> None:
    assert separator_lags(text).tolist() == [len(line) + 1 for line in text.split("\n")[1:-1]]


@given(few_characters, st.integers(1, 8))
def test_histogram_counts_every_separation_once(text: str, max_lag: int) -> None:
    histogram, lags = lag_histogram(text, max_lag), separator_lags(text)
    assert histogram.counts.tolist() == [int((lags == lag).sum()) for lag in range(1, max_lag + 1)]
    assert histogram.total == len(lags)
    assert histogram.overflow == (lags > max_lag).sum()


@given(few_characters, st.integers(1, 70))
def test_autocorrelation_is_its_definition(text: str, max_lag: int) -> None:
    signal = np.array([character == "\n" for character in text], dtype=float)
    signal -= signal.mean() if signal.size else 0.0
    full = np.correlate(signal, signal, "full")[len(signal) - 1 :] if signal.size else np.zeros(0)
    expected = np.zeros(max_lag + 1)
    if full.size and full[0] > 1e-9:
        kept = min(len(full), max_lag + 1)
        expected[:kept] = full[:kept] / full[0]
    np.testing.assert_allclose(autocorrelation(text, max_lag), expected, atol=1e-9)


def test_wrapped_text_correlates_at_the_wrap_and_its_harmonics() -> None:
    values = autocorrelation(("x" * 69 + "\n") * 500, 256)
    assert [peak.index for peak in sorted(prominent_peaks(values, 3), key=lambda peak: peak.index)] == [
        70,
        140,
        210,
    ]


def test_embedded_corpus_peaks_at_blank_lines_and_the_wrap() -> None:
    blank, wrap = lag_histogram(embedded_corpus().text).peaks(2)
    assert (blank.lag, blank.name) == (1, "1 (blank line: paragraph break)")
    assert 69 <= wrap.lag <= 71
    assert wrap.name == f"{wrap.lag} (lines of {wrap.lag - 1} characters and the newline)"


def test_peak_shares_refer_to_all_separations() -> None:
    text = "\n" + ("x" * 9 + "\n") * 60 + ("x" * 999 + "\n") * 40
    (peak,) = lag_histogram(text).peaks()
    assert (peak.lag, peak.count, peak.prominence, peak.share) == (10, 60, 60, 0.6)


@pytest.mark.parametrize("seed", range(10))
def test_counting_noise_on_one_hump_is_not_taken_for_peaks(seed: int) -> None:
    lengths = np.random.default_rng(seed).binomial(140, 0.5, 3000)
    peaks = lag_histogram("\n".join("x" * length for length in lengths)).peaks()
    assert len(peaks) == 1
    assert abs(peaks[0].lag - 71) < 6


@pytest.mark.parametrize("text", ["", "no separator", "one\nonly"])
def test_text_without_separations_has_an_empty_histogram(text: str) -> None:
    histogram = lag_histogram(text)
    assert histogram.total == 0
    assert histogram.peaks() == []


def test_other_separators_are_measured_and_named() -> None:
    text = "ab. " * 50 + ". " * 30
    histogram = lag_histogram(text, 20, ". ")
    assert separator_lags(text, ". ").tolist() == [4] * 49 + [2] * 30
    assert [peak.name for peak in histogram.peaks()] == ["4", "2 (adjacent separators)"]


def test_unusable_arguments_are_bad_input() -> None:
    with pytest.raises(InputError, match="separator must be one or more"):
        separator_lags("text", "")
    for function in (lag_histogram, autocorrelation):
        with pytest.raises(InputError, match="max_lag must be 1 or more, got 0"):
            function("text", 0)


@pytest.mark.skipif(not DICKENS.is_file(), reason="the Dickens texts are not here")
def test_dickens_peaks_where_the_paper_says() -> None:
    text = load_corpus(DICKENS, limit=12_933_747).text
    blank, wrap = lag_histogram(text).peaks()
    assert blank.lag == 1
    assert 69 <= wrap.lag <= 72
    first, second = sorted(peak.index for peak in prominent_peaks(autocorrelation(text), 2))
    assert 71 <= first <= 72
    assert 141 <= second <= 144


def test_lags_in_tokens_are_those_between_tokens_that_hold_a_newline() -> None:
    text = "the café and the\n\n" * 200 + "the end\n" * 40
    pairs = train_byte_pair_tokenizer(text, 300)
    for tokenizer in (train_character_tokenizer(text), byte_tokenizer(), pairs):
        counted = token_lag_histogram(tokenizer, text, max_lag=24)
        spelt = [tokenizer.decode([token]) for token in encode_text(tokenizer, text).tolist()]
        places = [place for place, token in enumerate(spelt) if "\n" in token]
        expected = [b - a for a, b in itertools.pairwise(places)]
        assert counted.unit == "tokens"
        assert counted.total == len(expected)
        assert counted.counts.tolist() == [expected.count(lag) for lag in range(1, 25)]
    characters = lag_histogram(text, max_lag=24)
    same = token_lag_histogram(train_character_tokenizer(text), text, max_lag=24)
    assert same.counts.tolist() == characters.counts.tolist()
    assert token_lag_histogram(pairs, "the cat" * 9).total == 0
    with pytest.raises(InputError, match="max_lag must be 1 or more"):
        token_lag_histogram(pairs, text, max_lag=0)
