"""Token shards: documents as token numbers in memory-mapped files, with a manifest that has their digests.

A folder of shards holds

    shards.json                  the manifest: source, options, and of every shard its counts and digests
    tokenizer.json …             the tokenizer
    train-00000.bin …            token numbers, little-endian uint16 or uint32, document after document
    validation-00000.bin …       those of the documents that validate

Every document begins with the tokenizer's document token, which no text is read as: where it stands, a
document begins.
"""

import hashlib
import json
from bisect import bisect_right
from collections.abc import Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict
from functools import cached_property
from itertools import accumulate
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal, Self

import numpy as np
import torch
from pydantic import ConfigDict, Field
from pydantic.dataclasses import dataclass
from torch import Tensor
from typing_extensions import TypedDict  # pydantic asks for it before Python 3.12

from nadaraya.data.tokenizer import tokenizer_from_file
from nadaraya.errors import InputError, must_be
from nadaraya.files import file_in, reading, sha256
from nadaraya.stored import read_stored

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerFast

MANIFEST = "shards.json"
TOKENIZER = "tokenizer.json"
PARTS = ("train", "validation")
Count = Annotated[int, Field(ge=0, lt=2**63)]


class _SourceFile(TypedDict):
    name: str
    bytes: int
    sha256: str


class _Plan(TypedDict):
    """The options of `tokenize_corpus`; others by their names."""

    __pydantic_config__ = ConfigDict(extra="allow")  # type: ignore[misc]
    source: dict[str, str | list[_SourceFile] | None]
    shard_tokens: Count


_STRICT = ConfigDict(strict=True)


@dataclass(frozen=True, config=_STRICT)
class ShardFile:
    """The content of one file of token numbers."""

    tokens: Count
    documents: Count
    sha256: str


@dataclass(frozen=True, config=_STRICT)
class Shard:
    """Consecutive documents of the source: their files by part, and the place that follows them."""

    files: dict[str, ShardFile]
    next: tuple[Count, Count]


@dataclass(frozen=True, config=_STRICT)
class Manifest:
    """The source of a folder of shards, its options and the shards made so far, as shards.json has them."""

    plan: _Plan
    tokenizer_sha256: str
    vocabulary: Count
    document_token: Count
    shards: tuple[Shard, ...] = ()
    complete: bool = False
    format: Literal["nadaraya token shards 1"] = "nadaraya token shards 1"

    @classmethod
    def read(cls, folder: Path) -> Self:
        """Read that of a folder; an InputError where there is none, or it is damaged."""
        path = file_in(folder, MANIFEST, "is not a folder of token shards")
        return read_stored(path, cls, "the manifest of token shards")

    def to_json(self) -> str:
        """The same for the same source, options and shards."""
        return json.dumps({"format": self.format, **asdict(self)}, indent=1, ensure_ascii=False)

    @property
    def dtype(self) -> np.dtype[Any]:
        """Type of the token numbers in the files."""
        return np.dtype("<u2" if self.vocabulary <= 2**16 else "<u4")

    def files(self, *parts: str) -> Iterator[tuple[str, ShardFile]]:
        """Names and content of the files of some parts, in order."""
        for number, shard in enumerate(self.shards):
            for part in parts:
                if part in shard.files:
                    yield shard_name(part, number), shard.files[part]


def shard_name(part: str, number: int) -> str:
    """The name of one file."""
    return f"{part}-{number:05d}.bin"


def is_shards(source: str | Path) -> bool:
    """Test whether a source of text, a path or the name of a corpus, is a folder of token shards."""
    try:
        return (Path(source) / MANIFEST).is_file()
    except (OSError, ValueError):
        return False


def check_shards(folder: str | Path) -> dict[str, str]:
    """Compare every file of a folder of shards, complete or not, with its size and digest in the manifest.

    Args:
        folder: that `tokenize_corpus` made.

    Returns:
        What is wrong ("missing", "100 bytes, not 200", "edited") by the name of the file, or of the part that
        has no document; empty where nothing is.

    Raises:
        InputError: the folder is none of shards, or its manifest is damaged.

    >>> from pathlib import Path
    >>> from nadaraya.data import check_shards, tokenize_corpus
    >>> _ = Path("poem.txt").write_text("Tyger Tyger<|endoftext|>burning bright<|endoftext|>In the forests")
    >>> _ = tokenize_corpus("poem.txt", "shards", vocabulary=257, validation_documents=1)
    >>> _ = Path("shards/train-00000.bin").write_bytes(b"cut")
    >>> check_shards("shards")
    {'train-00000.bin': '3 bytes, not 60'}
    """
    folder = Path(folder)
    manifest = Manifest.read(folder)
    empty = [part for part in PARTS if manifest.complete and not any(manifest.files(part))]
    found = dict.fromkeys(empty, "no document: tokenise into another folder")
    found |= damaged(folder, manifest, PARTS, digests=True)
    if not has_tokenizer(folder, manifest):
        found = {TOKENIZER: "edited" if (folder / TOKENIZER).is_file() else "missing", **found}
    return found


def damaged(folder: Path, manifest: Manifest, parts: Iterable[str], digests: bool) -> dict[str, str]:
    """Damage to the files of some parts, by name; without `digests`, as far as sizes tell."""

    def problem(item: tuple[str, ShardFile]) -> str:
        name, content = item
        path, expected = folder / name, content.tokens * manifest.dtype.itemsize
        if not path.is_file():
            return "missing"
        with reading(path):
            size = path.stat().st_size
            if size != expected:
                return f"{size:,} bytes, not {expected:,}"
            return "edited" if digests and sha256(path) != content.sha256 else ""

    files = list(manifest.files(*parts))
    with ThreadPoolExecutor() as threads:
        problems = threads.map(problem, files)
        return {name: found for (name, _), found in zip(files, problems, strict=True) if found}


class TokenShards:
    """The tokens of one part of a folder of shards as one sequence, document after document, read on demand.

    Args:
        folder: that `tokenize_corpus` made.
        part: "train" or "validation", default "train".
        verify: read every file once, and compare it with its digest; without, sizes alone. Default True.

    Attributes:
        num_tokens: length of the sequence.
        num_documents: documents in it.
        document_token: the number that begins a document.
        sha256: of the manifest, which has the digests of all files: two folders are the same where it agrees.

    Raises:
        InputError: the folder is none of shards, is not complete, or a file of it is missing, truncated or
            edited: the message names it.

    >>> from pathlib import Path
    >>> from nadaraya.data import TokenShards, tokenize_corpus
    >>> _ = Path("poem.txt").write_text("Tyger Tyger<|endoftext|>burning bright<|endoftext|>In the forests")
    >>> _ = tokenize_corpus("poem.txt", "shards", vocabulary=257, validation_documents=1)
    >>> shards = TokenShards("shards")
    >>> shards.num_documents, shards.tokens([15], 4)
    (2, tensor([[  0,  41,  78, 221]]))
    >>> shards.tokenizer.decode(shards.tokens([15], 4)[0])
    '<|endoftext|>In '
    """

    def __init__(self, folder: str | Path, part: str = "train", *, verify: bool = True) -> None:
        self.folder, self.part = Path(folder), part
        if part not in PARTS:
            raise must_be("part", " or ".join(map(repr, PARTS)), part)
        self._manifest = manifest = Manifest.read(self.folder)
        if not manifest.complete:
            raise InputError(
                f"{folder} is not complete ({len(manifest.shards)} shards so far): run the same `nadaraya "
                "data tokenize` command again to finish it"
            )
        if found := damaged(self.folder, manifest, [part], digests=verify):
            name, problem = next(iter(found.items()))
            others = len(found) - 1
            more = f", and {others} other file{'s' * (others > 1)}" if others else ""
            raise InputError(
                f"{self.folder / name} is damaged ({problem}){more}: run the same `nadaraya data tokenize` "
                "command again to make it anew"
            )
        files = dict(manifest.files(part))
        self._maps = []
        for file in files:
            with reading(self.folder / file, "a token shard"):
                self._maps.append(np.memmap(self.folder / file, manifest.dtype, mode="r"))
        self._ends = list(accumulate(content.tokens for content in files.values()))
        self.num_tokens = self._ends[-1] if self._ends else 0
        self.num_documents = sum(content.documents for content in files.values())
        self.document_token = manifest.document_token
        self.sha256 = hashlib.sha256(manifest.to_json().encode()).hexdigest()

    def __repr__(self) -> str:
        return (
            f"TokenShards({str(self.folder)!r}, {self.part!r}: {self.num_tokens:,} tokens of "
            f"{self.num_documents:,} documents)"
        )

    def __len__(self) -> int:
        return self.num_tokens

    @property
    def name(self) -> str:
        """Name of the folder."""
        return self.folder.resolve().name

    @cached_property
    def tokenizer(self) -> "PreTrainedTokenizerFast":
        """The tokenizer of the shards; an InputError where its file is not the one that made them."""
        if not has_tokenizer(self.folder, self._manifest):
            raise InputError(
                f"{self.folder / TOKENIZER} is not the tokenizer that made the shards: run the same "
                "`nadaraya data tokenize` command again to restore it"
            )
        return tokenizer_from_file(self.folder)

    def tokens(self, starts: Sequence[int], length: int) -> Tensor:
        """Tokens from each of some indices on.

        Args:
            starts: n indices of the sequence, each at most `num_tokens` − `length`.
            length: how many tokens from each.

        Returns:
            (n, length) int64.

        Raises:
            InputError: another index.
        """
        last = self.num_tokens - length
        if len(starts) and not 0 <= min(starts) <= max(starts) <= last:
            raise must_be("starts", f"from 0 to {last:,}", [min(starts), max(starts)])
        rows = np.empty((len(starts), length), dtype=np.int64)
        for row, start in zip(rows, map(int, starts), strict=True):
            filled = 0
            while filled < length:  # a row may go on in the next file
                file = bisect_right(self._ends, start + filled)
                content = self._maps[file]
                begin = start + filled - (self._ends[file] - len(content))
                piece = content[begin : begin + length - filled]
                row[filled : filled + len(piece)] = piece
                filled += len(piece)
        if rows.size and rows.max() >= (known := len(self.tokenizer)):
            raise InputError(f"{self.folder} has the token {rows.max()}: its tokenizer has {known}")
        return torch.from_numpy(rows)


def has_tokenizer(folder: Path, manifest: Manifest) -> bool:
    """Test whether the tokenizer of a folder of shards is the one that made them."""
    path = folder / TOKENIZER
    return path.is_file() and sha256(path) == manifest.tokenizer_sha256
