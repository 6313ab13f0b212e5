"""Separator lags: how far apart newlines, or other separators, stand in a text.

As in Gaussian Process Attention (anonymous), figure 5.
"""

import re
import warnings
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import ArrayLike

from nadaraya.errors import InputError, check_at_least, must_be

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerFast

#: Characters as they are, or a compiled regular expression.
Separator = str | re.Pattern[str]

SEPARATORS: dict[str, Separator] = {
    "newline": "\n",
    "paragraph": re.compile(r"\n(?:[^\S\n]*\n)+"),
    "sentence": re.compile(r"[.!?]+[\"'”’)\]_]*(?=\s)"),
    "word": re.compile(r"\s+"),
}
"""Separators by name. A paragraph ends at blank lines, however many; a sentence at . ! or ? and closing marks
before white space, so that "Mr." ends one too; a word at white space."""

LEAST_SEPARATIONS = 30  # fewer say nothing about a histogram
_LEAST_COUNT = 10  # of a peak


@dataclass(frozen=True)
class Peak:
    """One local maximum of a curve."""

    index: int  # from 0; the middle of a flat top
    height: float
    prominence: float  # height above the higher of the two valleys that separate it from higher ground
    width: float  # at half its prominence, in steps of the curve


def prominent_peaks(values: ArrayLike, k: int | None = None, minimum: float = 0.0) -> list[Peak]:
    """The k (None: all) most prominent local maxima of (L,) finite values; the ends of a curve are none.

    They are in descending prominence, at least `minimum`; equal ones in ascending index.
    """
    from scipy.signal import find_peaks  # here: importing it takes as long as the rest of this package

    curve = np.asarray(values, dtype=np.float64)
    if curve.ndim != 1 or not np.isfinite(curve).all():
        raise must_be("values", "a one-dimensional curve of finite numbers", values)
    if k is not None and k < 0:
        raise must_be("k", "a number of peaks, 0 or more", k)
    indices, found = find_peaks(curve, prominence=minimum, width=0)
    order = np.lexsort((indices, -found["prominences"]))[:k]
    rows = np.column_stack([indices, curve[indices], found["prominences"], found["widths"]])[order]
    return [Peak(int(index), *measures) for index, *measures in rows.tolist()]


@dataclass(frozen=True)
class LagPeak:
    """A lag that stands out of a histogram.

    Args:
        lag: distance between two separators, in the unit of the histogram.
        count: how often it occurs.
        share: the same as a share of all separations.
        prominence: height above the higher of the two valleys that separate it from higher counts.
        name: the lag in words, such as "1 (blank line: paragraph break)".

    >>> from nadaraya.interpret import lag_histogram
    >>> [peak.lag for peak in lag_histogram("x" * 9 + "\\n" + ("x" * 69 + "\\n") * 50).peaks()]
    [70]
    """

    lag: int
    count: int
    share: float
    prominence: int
    name: str


@dataclass(frozen=True)
class LagHistogram:
    """Counts of the distances between successive separators.

    Args:
        counts: (max_lag,), int64; `counts[r - 1]` separations of r characters or tokens.
        overflow: separations longer than max_lag.
        separator: what was looked for, characters or a regular expression.
        unit: of the lags, "characters" or "tokens", default characters.

    >>> import numpy as np
    >>> from nadaraya.interpret.lags import LagHistogram
    >>> LagHistogram(np.array([0, 8, 2]), overflow=0).total
    10
    """

    counts: np.ndarray = field(repr=False)
    overflow: int
    separator: Separator = "\n"
    unit: str = "characters"

    @property
    def max_lag(self) -> int:
        """The longest lag counted."""
        return len(self.counts)

    @property
    def lags(self) -> np.ndarray:
        """The lags 1 to max_lag, beside `counts`."""
        return np.arange(1, self.max_lag + 1)

    @property
    def total(self) -> int:
        """All separations, those longer than max_lag included."""
        return int(self.counts.sum()) + self.overflow

    def peaks(self, k: int = 3, min_share: float = 0.05) -> list[LagPeak]:
        """The lags that stand out, most prominent first.

        A peak must rise above the counts around it by more than counting noise (3 √count) and by a share of
        the largest count.

        Args:
            k: at most this many, default 3.
            min_share: share of the largest count that a peak must rise by, default 0.05.

        Returns:
            The peaks; none for a text without separations.
        """
        # No two separators share a position, so the count at lag 0 is truly zero and lag 1 can be a peak.
        found = prominent_peaks([0, *self.counts], minimum=min_share * self.counts.max())
        clear = [peak for peak in found if peak.prominence >= 3 * peak.height**0.5]
        return [
            LagPeak(p.index, int(p.height), p.height / self.total, int(p.prominence), self._name(p.index))
            for p in clear[:k]
        ]

    def clear_peaks(self) -> list[LagPeak]:
        """The two most prominent peaks that are seen often; none of a small histogram."""
        if self.total < LEAST_SEPARATIONS:
            return []
        return [peak for peak in self.peaks(2) if peak.count >= _LEAST_COUNT]

    def line_lengths(self) -> list[int]:
        """Lags of clear peaks between newlines, ascending, without lag 1, that of blank lines."""
        return sorted(peak.lag for peak in self.clear_peaks() if peak.lag > 1)

    def _name(self, lag: int) -> str:
        if self.unit != "characters":
            return f"{lag} {self.unit}"
        if self.separator == "\n":
            in_words = f"lines of {lag - 1} characters and the newline"
            return f"{lag} ({in_words if lag > 1 else 'blank line: paragraph break'})"
        adjacent = isinstance(self.separator, str) and lag == len(self.separator)
        return f"{lag} (adjacent separators)" if adjacent else str(lag)


def compile_separator(pattern: str) -> re.Pattern[str]:
    """A regular expression, such as "[aeiou]" for every vowel, as a separator.

    An InputError where it is none, or matches the empty string, which separates nothing.
    """
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # of what later versions of Python may read otherwise
            compiled = re.compile(pattern)
    except (re.error, OverflowError, RecursionError) as error:
        reason = " ".join(str(error).split())
        raise InputError(f"{must_be('pattern', 'a regular expression', pattern)}: {reason}") from error
    if compiled.match("") is not None:
        raise _empty(pattern)
    return compiled


def find_separators(text: str, separator: Separator = "\n") -> np.ndarray:
    """Return where separators start, increasing, int64; those that overlap an earlier one are left out.

    Raises:
        InputError: the separator is empty, or matches the empty string somewhere.
    """
    if not separator:
        raise must_be("separator", "one or more characters", separator)
    pattern = re.compile(re.escape(separator)) if isinstance(separator, str) else separator

    def starts() -> Iterator[int]:
        for match in pattern.finditer(text):
            if not match[0]:
                raise _empty(pattern.pattern)
            yield match.start()

    return np.fromiter(starts(), dtype=np.int64)


def separator_name(separator: Separator) -> str:
    """A separator in words: "newline", its characters in quotation marks, or its pattern between slashes."""
    in_words = repr(separator) if isinstance(separator, str) else f"/{separator.pattern}/"
    return next((name for name, other in SEPARATORS.items() if other == separator), in_words)


def _empty(pattern: str) -> InputError:
    return must_be("pattern", "one that matches at least one character", pattern)


def separator_lags(text: str, separator: Separator = "\n") -> np.ndarray:
    """Distances between successive separators, in characters: (separators − 1,) int64."""
    return np.diff(find_separators(text, separator))


def lag_histogram(text: str, max_lag: int = 256, separator: Separator = "\n") -> LagHistogram:
    """Count the separator lags of a text (Gaussian Process Attention, fig. 5).

    Args:
        text: any text.
        max_lag: the longest lag counted by itself, characters, default 256 (the context in that paper).
        separator: one or more characters, or a compiled regular expression; default newline.

    Returns:
        The histogram.

    Raises:
        InputError: when the separator is empty or matches the empty string, or max_lag is below 1.

    >>> from nadaraya.interpret import lag_histogram
    >>> lag_histogram("a\\nab\\nabc\\n", max_lag=4).counts
    array([0, 0, 1, 1])
    """
    return LagHistogram(*_counts(separator_lags(text, separator), max_lag), separator)


def token_lag_histogram(tokenizer: "PreTrainedTokenizerFast", text: str, max_lag: int = 256) -> LagHistogram:
    """Count how far apart newlines stand in the tokens of a text, as a model with that tokenizer sees them.

    A token that holds several newlines, such as a blank line, is one position.
    """
    from nadaraya.data.tokenizer import encode_text

    holds = np.array(["\n" in str(tokenizer.decode([token])) for token in range(len(tokenizer))])
    positions = np.flatnonzero(holds[encode_text(tokenizer, text).numpy()])
    return LagHistogram(*_counts(np.diff(positions), max_lag), unit="tokens")


def _counts(lags: np.ndarray, max_lag: int) -> tuple[np.ndarray, int]:
    """(max_lag,) how often each lag occurs, and how many are longer."""
    check_at_least(1, max_lag=max_lag)
    counts = np.bincount(np.minimum(lags, max_lag + 1), minlength=max_lag + 2)
    return counts[1 : max_lag + 1], int(counts[max_lag + 1])


def autocorrelation(text: str, max_lag: int = 256, separator: Separator = "\n") -> np.ndarray:
    """Autocorrelation of the separators: what one separator says about another r characters later.

    With a character class, such as `re.compile("[aeiou]")`, it is that of the characters of the class.

    ρ(r) = Σ_i (s_i − s̄)(s_{i+r} − s̄) / Σ_i (s_i − s̄)², s_i = 1 where a separator starts, else 0.
    Unlike the histogram it sees past the next separator, so a line wrap shows its harmonics too.

    Args:
        text: any text.
        max_lag: the longest lag, characters, default 256.
        separator: one or more characters, or a compiled regular expression; default newline.

    Returns:
        ρ at lags 0 to max_lag, (max_lag + 1,), float64, 1 at lag 0; all zero when the separators never vary.

    Raises:
        InputError: when the separator is empty or matches the empty string, or max_lag is below 1.
    """
    check_at_least(1, max_lag=max_lag)
    positions, length = find_separators(text, separator), len(text)
    present = np.zeros(length, dtype=bool)
    present[positions] = True
    mean = len(positions) / length if length else 0.0
    variance = length * mean * (1.0 - mean)
    result = np.zeros(max_lag + 1)
    if variance == 0.0:
        return result
    for lag in range(min(max_lag + 1, length)):
        # Separators are rare: pairs are counted from their positions, not over the whole text.
        earlier = positions[: np.searchsorted(positions, length - lag)]
        num_later = len(positions) - np.searchsorted(positions, lag)
        pairs = np.count_nonzero(present[earlier + lag])
        result[lag] = (pairs - mean * (len(earlier) + num_later) + (length - lag) * mean**2) / variance
    return result
