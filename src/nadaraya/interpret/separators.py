"""What stands between the parts of a text: newlines, paragraphs, sentences, words, any regular expression."""

import re
import warnings
from collections.abc import Iterator

import numpy as np

from nadaraya.errors import InputError, must_be

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


def compile_separator(pattern: str) -> re.Pattern[str]:
    """A regular expression as a separator.

    Args:
        pattern: as Python's `re` reads it, such as "[aeiou]" for every vowel.

    Returns:
        The compiled expression.

    Raises:
        InputError: it is none, or matches the empty string, which separates nothing.

    >>> from nadaraya.interpret import compile_separator, separator_lags
    >>> separator_lags("banana", compile_separator("[ae]"))
    array([2, 2])
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
    """Where separators start in a text, increasing, int64; those that overlap an earlier one are left out.

    Raises:
        InputError: the separator is empty, or matches the empty string somewhere.
    """
    if not separator:
        raise must_be("separator", "one or more characters", separator)
    pattern = re.compile(re.escape(separator)) if isinstance(separator, str) else separator
    return np.fromiter(_starts(text, pattern), dtype=np.int64)


def separator_name(separator: Separator) -> str:
    """A separator in words: "newline", its characters in quotation marks, or its pattern between slashes."""
    names = [name for name, other in SEPARATORS.items() if other == separator]
    if names:
        return names[0]
    return repr(separator) if isinstance(separator, str) else f"/{separator.pattern}/"


def _starts(text: str, pattern: re.Pattern[str]) -> Iterator[int]:
    for match in pattern.finditer(text):
        start, end = match.span()
        if start == end:
            raise _empty(pattern.pattern)
        yield start


def _empty(pattern: str) -> InputError:
    return must_be("pattern", "one that matches at least one character", pattern)
