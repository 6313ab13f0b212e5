"""Corpora: one text with a name, where it comes from, and its split into training and validation.

Controls are the same text in other lines or in random order, to see what a model owes to the layout.
"""

import hashlib
import os
import re
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import cached_property
from itertools import groupby
from pathlib import Path
from textwrap import TextWrapper
from typing import Literal, get_args

import numpy as np

from nadaraya.data.gutenberg import read_dickens
from nadaraya.data.shards import is_shards
from nadaraya.data.textfile import PART_SEPARATOR, files_below, read_text
from nadaraya.errors import InputError, check_at_least, check_name, must_be, unknown_name
from nadaraya.files import exists
from nadaraya.names import CORPORA

EMBEDDED, DICKENS = CORPORA
Shuffled = Literal["characters", "words", "lines"]


@dataclass(frozen=True)
class Corpus:
    """A text and its name.

    Args:
        name: what to call it in tables and plots.
        text: all of it.

    >>> from nadaraya.data import Corpus
    >>> Corpus("digits", "0123456789").split(validation_fraction=0.2)
    ('01234567', '89')
    """

    name: str
    text: str = field(repr=False)

    @cached_property
    def sha256(self) -> str:
        """SHA-256 of the text in UTF-8, 64 hexadecimal digits: two runs saw the same data when it agrees."""
        return hashlib.sha256(self.text.encode("utf-8")).hexdigest()

    @cached_property
    def num_bytes(self) -> int:
        """Size of the text in UTF-8, the unit of bits per byte."""
        return len(self.text.encode("utf-8"))

    def split(self, validation_fraction: float = 0.1) -> tuple[str, str]:
        """Cut the text once: the end validates, as in Bunks et al. (2025) and Gaussian Process Attention.

        Args:
            validation_fraction: share of the characters that validate, between 0 and 1, default 0.1.

        Returns:
            Training text and validation text; joined they are the text.

        Raises:
            InputError: when the share is not between 0 and 1 or leaves either part empty.
        """
        if not 0.0 < validation_fraction < 1.0:
            raise must_be("validation_fraction", "more than 0 and less than 1", validation_fraction)
        cut = len(self.text) - round(len(self.text) * validation_fraction)
        if not 0 < cut < len(self.text):
            raise InputError(
                f"corpus {self.name!r} has {len(self.text)} characters: too few to validate on"
                f" {validation_fraction:.0%} of them"
            )
        return self.text[:cut], self.text[cut:]


def embedded_corpus() -> Corpus:
    """The language reference that every CPython carries, the topics of `pydoc_data.topics` in sorted order.

    Its wording differs a little between Python versions; `Corpus.sha256` tells which one it is.
    """
    from pydoc_data.topics import topics

    return Corpus(EMBEDDED, PART_SEPARATOR.join(topics[name].strip("\n") for name in sorted(topics)) + "\n")


def load_corpus(
    source: str | os.PathLike[str],
    *,
    limit: int | None = None,
    skip: int = 0,
    wrap: int | None = None,
    shuffle: Shuffled | None = None,
) -> Corpus:
    """A corpus by name or from files.

    Args:
        source: "embedded"; "dickens", once `nadaraya data dickens` has fetched it; else the path of a text
            file or of a folder whose .txt files, however deep, are joined in sorted order. A file that
            shares one of the two names is reached as "./dickens".
        limit: characters to keep, default all.
        skip: characters to leave out before them, default 0.
        wrap: columns at which what is kept is wrapped anew, as `wrap_text` does it, default as it is.
        shuffle: what of the result is put into random order, as `shuffle_text` does it with seed 0, default
            nothing.

    Returns:
        The corpus; its name says that it was wrapped or shuffled.

    Raises:
        InputError: when the path does not exist, cannot be read, holds no text, or is not UTF-8; when limit
            or wrap is below 1 or shuffle is unknown.

    >>> from pathlib import Path
    >>> from nadaraya.data import load_corpus
    >>> _ = Path("story.txt").write_text("Once upon a time.")
    >>> load_corpus("story.txt", limit=4).text
    'Once'
    """
    if limit is not None and limit < 1:
        raise must_be("limit", "at least 1 character", limit)
    if skip < 0:
        raise must_be("skip", "0 or more characters", skip)
    if source == EMBEDDED:
        corpus = embedded_corpus()
    elif source == DICKENS:
        corpus = Corpus(DICKENS, read_dickens())
    else:
        corpus = _from_path(source)
    if not corpus.text.strip():
        raise InputError(f"{source} holds no text: it is empty or blank")
    name, text = corpus.name, corpus.text[skip:][:limit]
    if wrap is not None:
        name, text = f"{name}, wrapped at {wrap}", wrap_text(text, wrap)
    if shuffle is not None:
        name, text = f"{name}, {shuffle} shuffled", shuffle_text(text, shuffle)
    return Corpus(name, text)


def _from_path(source: str | os.PathLike[str]) -> Corpus:
    path = Path(source)
    there = exists(path)
    if path.is_dir():
        files = sorted(Path(file) for file in files_below(path) if file.endswith(".txt"))
        if not files:
            shards = ", but token shards, which a run is trained on as they are" if is_shards(path) else ""
            raise InputError(f"the folder {path} holds no .txt file{shards}")
        text = PART_SEPARATOR.join(read_text(file).strip("\n") for file in files)
        return Corpus(path.resolve().name, text + "\n")
    if there:
        return Corpus(path.stem, read_text(path))
    if path.name == str(source) and not path.suffix:
        names = [*CORPORA, "the path of a text file or of a folder of .txt files"]
        raise unknown_name("corpus", str(source), names)
    raise InputError(f"no such file or folder: {path}; the corpora with names are {EMBEDDED} and {DICKENS}")


def wrap_text(text: str, columns: int) -> str:
    """Join the lines of every paragraph and wrap them anew, with at most `columns` characters in a line.

    A paragraph is a run of lines that are not blank; blank lines stay as they are. Every word stays, with its
    punctuation, and no word is cut: one longer than a line has a line of its own. The lines of a verse or a
    table are joined like those of prose, and the indentation of lines goes, which the end of a line would
    otherwise put between words.
    """
    check_at_least(1, columns=columns)
    wrapper = TextWrapper(columns, break_long_words=False, break_on_hyphens=False)
    lines: list[str] = []
    for blank, group in groupby(text.split("\n"), key=lambda line: not line.strip()):
        paragraph = list(group)
        lines += paragraph if blank else wrapper.wrap(" ".join(map(str.strip, paragraph)))
    return "\n".join(lines)


def shuffle_text(text: str, unit: Shuffled, seed: int = 0) -> str:
    """Put the parts of a text into random order; it keeps every character.

    What stays whole is the unit. "characters": nothing but the frequency of each. "words": words are permuted
    among themselves, and so are the stretches of white space between them: the distances between newlines
    lose their structure. "lines": lines stay as they are, with the distances from each newline to the next;
    longer structure goes.
    """
    check_name("unit", unit, get_args(Shuffled))
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
    return [parts[index] for index in random.permutation(len(parts)).tolist()]
