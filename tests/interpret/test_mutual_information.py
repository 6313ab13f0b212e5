"""Mutual information by distance against scikit-learn's, and the banks that start from it."""

import numpy as np
import pytest
from sklearn.metrics import mutual_info_score

from nadaraya import variants
from nadaraya.errors import InputError
from nadaraya.interpret import corpus_start, mutual_information
from nadaraya.kernels import KernelBank

RNG = np.random.default_rng(0)
RANDOM = RNG.integers(6, size=20_000)
# Lines of 39 characters and a newline.
LINES = np.where(np.arange(20_000) % 40 == 39, 6, RANDOM)


def test_is_the_score_of_scikit_learn_at_every_distance() -> None:
    tokens = np.repeat(RANDOM[:500], 3)
    found = mutual_information(tokens, 8)
    expected = [mutual_info_score(tokens[: len(tokens) - lag], tokens[lag:]) for lag in range(9)]
    np.testing.assert_allclose(found, expected, rtol=1e-10)


def test_characters_are_tokens() -> None:
    text = "Träume sind Schäume, \ud800" * 9  # a lone surrogate is one, too
    codes = np.array([ord(character) for character in text])
    np.testing.assert_array_equal(mutual_information(text, 30), mutual_information(codes, 30))


def test_independent_characters_tell_nothing_once_the_bias_is_taken_off() -> None:
    plain, corrected = (mutual_information(RANDOM, 50, corrected=c)[1:] for c in (False, True))
    bias = 5**2 / (2 * len(RANDOM))
    np.testing.assert_allclose(plain.mean(), bias, rtol=0.15)
    assert abs(corrected.mean()) < 0.15 * bias


def test_lines_of_one_length_tell_most_at_that_distance() -> None:
    found = mutual_information(LINES, 90)
    assert set(np.argsort(found[1:])[-2:] + 1) == {40, 80}
    assert found[40] > 5 * np.median(found[1:])


def test_a_bank_that_starts_from_lines_stands_out_at_their_length() -> None:
    steps = np.cumsum(RANDOM // 3) % 6  # which tell most about their neighbours
    start = corpus_start(np.where(LINES == 6, 6, steps), 4, max_lag=100)
    bank = KernelBank(2, 4, init=start)
    curve = bank.lag_logits(100)[0].detach().numpy()
    # The key at lag 39 is 40 before the token that is predicted.
    assert curve[38:41].max() > np.median(curve[20:60]) + 1.0
    assert variants.get("gpa-mul", num_terms=4, init=start)


def test_requests_that_cannot_be_met_are_refused() -> None:
    with pytest.raises(InputError, match="max_lag must be from 1 to 2, the text less one, got 3"):
        mutual_information("abc", 3)
    with pytest.raises(InputError, match="kinds of tokens in text must be at most 4,096, got 5000"):
        mutual_information(np.arange(5000), 3)
    with pytest.raises(InputError, match="tokens tell something about each other"):
        corpus_start("a" * 100, 2, max_lag=9)
