"""Controls: the same text in other lines or in random order, to see what a model owes to the layout."""

import re
from collections.abc import Sequence
from itertools import groupby
from textwrap import TextWrapper
from typing import Literal, get_args

import numpy as np

from nadaraya.errors import must_be, unknown_name

Shuffled = Literal["characters", "words", "lines"]


def wrap_text(text: str, columns: int) -> str:
    """Join the lines of every paragraph and wrap them anew.

    A paragraph is a run of lines that are not blank; blank lines stay as they are. Every word stays, with its
    punctuation, and no word is cut: one longer than a line has a line of its own. The lines of a verse or a
    table are joined like those of prose, and the indentation of lines goes, which the end of a line would
    otherwise put between words.

    Args:
        text: any text.
        columns: the most characters in a line, the newline not counted.

    Returns:
        The text in its new lines.

    Raises:
        InputError: columns is below 1.

    >>> from nadaraya.data import wrap_text
    >>> wrap_text("one two\\nthree four\\n\\nfive\\n", 14)
    'one two three\\nfour\\n\\nfive\\n'
    """
    if columns < 1:
        raise must_be("columns", "1 or more", columns)
    wrapper = TextWrapper(columns, break_long_words=False, break_on_hyphens=False)
    lines: list[str] = []
    for blank, group in groupby(text.split("\n"), key=lambda line: not line.strip()):
        paragraph = list(group)
        lines += paragraph if blank else wrapper.wrap(" ".join(map(str.strip, paragraph)))
    return "\n".join(lines)


def shuffle_text(text: str, unit: Shuffled, seed: int = 0) -> str:
    """Put the parts of a text into random order; it keeps every character.

    Args:
        text: any text.
        unit: what stays whole. "characters": nothing but the frequency of each. "words": words are permuted
            among themselves, and so are the stretches of white space between them: the distances between
            newlines lose their structure. "lines": lines stay as they are, with the distances from each
            newline to the next; longer structure goes.
        seed: of the permutation, default 0.

    Returns:
        A text of the same characters.

    Raises:
        InputError: an unknown unit.

    >>> from nadaraya.data import shuffle_text
    >>> shuffle_text("to be or\\nnot to be\\n", "words")
    'not or\\nbe to\\nto be '
    """
    if unit not in get_args(Shuffled):
        raise unknown_name("unit", unit, get_args(Shuffled))
    random = np.random.default_rng(seed)
    if unit == "characters":
        points = np.frombuffer(text.encode("utf-32-le", "surrogatepass"), dtype="<u4")
        return points[random.permutation(len(points))].tobytes().decode("utf-32-le", "surrogatepass")
    if unit == "lines":
        end = "\n" if text.endswith("\n") else ""
        return "\n".join(_permuted(text.removesuffix("\n").split("\n"), random)) + end
    parts = re.findall(r"\s+|\S+", text)  # in turns
    for first in (0, 1):
        parts[first::2] = _permuted(parts[first::2], random)
    return "".join(parts)


def _permuted(parts: Sequence[str], random: np.random.Generator) -> list[str]:
    return [parts[place] for place in random.permutation(len(parts)).tolist()]
