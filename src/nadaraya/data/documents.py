"""Documents of a source, in order: plain text, JSON lines and Parquet in files, or a data set of the hub.

A place in a source is a pair (file, offset): the number of the file in sorted order, and of what is left to
read of it the first byte (text, JSON lines), the first row (Parquet) or the first example (hub).
"""

import json
import os
from abc import ABC, abstractmethod
from bisect import bisect_right
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager
from functools import lru_cache
from itertools import accumulate, chain, count, islice
from pathlib import Path
from typing import Any

from nadaraya.data.textfile import check_regular, decode_text, files_below, one_line, text_encoding
from nadaraya.errors import InputError, must_be, unknown_name
from nadaraya.files import check_utf8, first_line, is_file, is_folder, reading, sha256

SEPARATOR = "<|endoftext|>"
HUB = "hub:"
Place = tuple[int, int]
END: Place = (2**31, 0)  # after the last document

_CHUNK = 2**22  # bytes read at a time
_LONGEST = 2**28  # bytes of one document: it is held in memory, some times over while it is encoded
_ROWS = 256  # of Parquet, decoded at a time


class Documents(ABC):
    """A source of documents."""

    name: str
    num_files = 1  # a data set of the hub is one

    @abstractmethod
    def describe(self) -> dict[str, Any]:
        """Plain values that are the same exactly where the documents are."""

    @abstractmethod
    def _read_file(self, number: int, offset: int) -> Iterator[tuple[int, str]]:
        """The documents of one file from an offset on, each with its own."""

    def read(self, place: Place = (0, 0)) -> Iterator[tuple[Place, str]]:
        """Documents from a place on, each with its own; blank ones are left out."""
        first, offset = place
        for number in range(first, self.num_files):
            for at, text in self._read_file(number, offset):
                if text.strip():
                    yield (number, at), text
            offset = 0

    @abstractmethod
    def part_read(self, place: Place) -> float | None:
        """The fraction of the source before a place; None where nobody knows."""

    def spread(self, size: int, wanted: Callable[[Place, str], bool]) -> Iterator[str]:
        """At most `size` characters: the first wanted documents of every file, the last of each cut."""
        for number in range(self.num_files):
            left = size // self.num_files + (number < size % self.num_files)
            for at, text in self._read_file(number, 0) if left else ():
                if text.strip() and wanted((number, at), text):
                    yield text[:left]
                    left -= len(text)
                if left <= 0:
                    break


def open_documents(
    source: str | Path,
    *,
    column: str = "text",
    separator: str = SEPARATOR,
    described: Mapping[str, Any] | None = None,
) -> Documents:
    """The documents of a source as `tokenize_corpus` takes it, of which nothing was read yet.

    A data set of the hub is streamed at the commit that `Documents.describe` gave before, else at the newest.
    """
    if str(source).startswith(HUB):
        return _HubDocuments(str(source).removeprefix(HUB), column, described or {})
    if not separator:
        raise must_be("separator", "one or more characters", separator)
    path = Path(source)
    if is_folder(path):
        files = [Path(file) for file in files_below(path) if Path(file).suffix.lower() in _READERS]
        if not files:
            raise InputError(f"the folder {path} holds no {' or '.join(_READERS)} file")
        return _Files(path, sorted(files), column, separator)
    if not is_file(path):
        raise InputError(
            f"no such file or folder: {path}; a data set of the hub is {HUB}NAME[:CONFIGURATION[:SPLIT]]"
        )
    return _Files(path.parent, [path], column, separator, name=path.name)


class _Files(Documents):
    """Documents of files, one after another."""

    def __init__(self, root: Path, files: list[Path], column: str, separator: str, name: str = "") -> None:
        self.name = name or root.resolve().name
        self._root, self._files, self.num_files = root, files, len(files)
        self._column, self._separator = column, separator
        self._sizes = []
        for file in files:
            check_utf8("the path of a source", str(file))
            with reading(file):
                state = file.stat()
            check_regular(file, state.st_mode)
            self._sizes.append(state.st_size)

    def describe(self) -> dict[str, Any]:
        def described(file: Path, size: int) -> dict[str, Any]:
            with reading(file):
                digest = sha256(file)
            return {"name": file.relative_to(self._root).as_posix(), "bytes": size, "sha256": digest}

        with ThreadPoolExecutor() as threads:
            return {"name": self.name, "files": list(threads.map(described, self._files, self._sizes))}

    def part_read(self, place: Place) -> float | None:
        number, offset = place
        if number < self.num_files and _reader(self._files[number]) is _read_parquet:
            offset = offset * self._sizes[number] // max(_parquet_rows(self._files[number]), 1)
        elif number >= self.num_files:
            offset = 0
        return (sum(self._sizes[:number]) + offset) / max(sum(self._sizes), 1)

    def _read_file(self, number: int, offset: int) -> Iterator[tuple[int, str]]:
        reader = _reader(file := self._files[number])
        return reader(file, self._separator if reader is _read_plain else self._column, offset)


class _HubDocuments(Documents):
    """Documents of a data set of the hub, or of a folder that `datasets` reads, streamed."""

    def __init__(self, source: str, column: str, described: Mapping[str, Any]) -> None:
        self.name, *chosen = source.split(":")
        if len(chosen) > 2:
            raise must_be("source", f"{HUB}NAME[:CONFIGURATION[:SPLIT]]", HUB + source)
        configuration, split = (*chosen, "", "")[:2]
        self._column = column
        self._source = {"name": self.name, "configuration": configuration or None, "split": split or "train"}
        try:
            from datasets import load_dataset
            from huggingface_hub import dataset_info
        except ModuleNotFoundError:
            raise InputError(
                f'{HUB}{source} needs the library datasets: pip install "nadaraya[data]"'
            ) from None
        with self._reading():
            if self._source.items() <= described.items():
                revision = described.get("revision")
            else:
                revision = None if Path(self.name).is_dir() else dataset_info(self.name).sha
            self._source["revision"] = revision
            self._examples: Any = load_dataset(
                self.name, configuration or None, split=split or "train", streaming=True, revision=revision
            )

    def describe(self) -> dict[str, Any]:
        return self._source

    def _read_file(self, number: int, offset: int) -> Iterator[tuple[int, str]]:
        with self._reading():
            examples = iter(self._examples.skip(offset) if offset else self._examples)
        for at in count(offset):
            with self._reading():
                example = next(examples, None)
            if example is None:
                return
            yield at, _text_of(example, self._column, f"example {at} of {HUB}{self.name}")

    def part_read(self, place: Place) -> float | None:
        return None

    def _reading(self) -> AbstractContextManager[None]:
        return one_line(f"{HUB}{self.name}")


def _read_plain(file: Path, between: str, offset: int) -> Iterator[tuple[int, str]]:
    """Texts between separators, without the newlines around them."""
    with reading(file), file.open("rb") as stream:
        encoding = text_encoding(stream.read(2))
        separator, unit = between.encode(encoding), 1 if encoding == "utf-8" else 2  # bytes of a code unit
        stream.seek(offset)
        waiting, searched = bytearray(), 0
        while chunk := stream.read(_CHUNK):
            waiting += chunk
            while (cut := waiting.find(separator, searched)) >= 0:
                if cut % unit:  # the end of one character with the beginning of the next
                    searched = cut + 1
                    continue
                yield offset, _plain(file, offset, bytes(waiting[:cut]), encoding)
                del waiting[: cut + len(separator)]
                offset, searched = offset + cut + len(separator), 0
            searched = max(searched, len(waiting) - len(separator) + 1)
            _check_length(file, offset, len(waiting))
        yield offset, _plain(file, offset, bytes(waiting), encoding)


def _plain(file: Path, offset: int, data: bytes, encoding: str) -> str:
    where = f"{file}, in the document from byte {offset:,} on," if offset else str(file)
    return decode_text(data, where, encoding).strip("\n")


def _read_json_lines(file: Path, column: str, offset: int) -> Iterator[tuple[int, str]]:
    with reading(file), file.open("rb") as stream:
        stream.seek(offset)
        while line := stream.readline(_LONGEST + 1):
            _check_length(file, offset, len(line))
            where = f"the line at byte {offset:,} of {file}"
            if line.strip():
                try:
                    record = json.loads(line)
                except ValueError as error:
                    raise InputError(f"{where} is not JSON: {first_line(error)}") from error
                yield offset, _text_of(record, column, where)
            offset += len(line)


def _read_parquet(file: Path, column: str, row: int) -> Iterator[tuple[int, str]]:
    import pyarrow as pa

    with one_line(str(file), "as Parquet"):
        parquet = _open_parquet(file)
        if column not in parquet.schema_arrow.names:
            raise unknown_name(f"column of {file}", column, parquet.schema_arrow.names)
        kind = parquet.schema_arrow.field(column).type
        content = kind.value_type if pa.types.is_dictionary(kind) else kind
        if not any(is_text(content) for is_text in (pa.types.is_string, pa.types.is_large_string)):
            raise must_be(f"column {column!r} of {file}", "text", str(kind))
        groups = range(parquet.num_row_groups)
        ends = list(accumulate(parquet.metadata.row_group(group).num_rows for group in groups))
        first = bisect_right(ends, row)  # the row group that has it
        begin = ends[first - 1] if first else 0
        batches = parquet.iter_batches(_ROWS, row_groups=list(groups[first:]), columns=[column])
        texts = chain.from_iterable(batch.column(0).to_pylist() for batch in batches)
        for at, text in islice(enumerate(texts, begin), row - begin, None):
            yield at, text or ""  # null: no text


def _open_parquet(file: Path) -> Any:
    try:
        from pyarrow.parquet import ParquetFile
    except ModuleNotFoundError:
        raise InputError(f'{file} needs the library pyarrow: pip install "nadaraya[data]"') from None
    return ParquetFile(os.fspath(file))


@lru_cache
def _parquet_rows(file: Path) -> int:
    with one_line(str(file), "as Parquet"):
        return int(_open_parquet(file).metadata.num_rows)


def _text_of(record: Any, column: str, where: str) -> str:
    """The text of an example; "" of null."""
    if not isinstance(record, dict) or column not in record:
        names = list(record) if isinstance(record, dict) else []
        raise InputError(f"{where} must have the key {column!r}, got {names[:10]}")
    text = record[column]
    if not isinstance(text, str | None):
        raise must_be(f"{column!r} in {where}", "text", text)
    if text and not text.isascii():
        check_utf8(f"{column!r} in {where}", text)
    return text or ""


def _check_length(file: Path, offset: int, length: int) -> None:
    if length > _LONGEST:
        raise InputError(
            f"{file} has a document of more than {_LONGEST:,} bytes, from byte {offset:,} on: say by "
            "--separator what stands between its documents"
        )


Reader = Callable[[Path, str, int], Iterator[tuple[int, str]]]
_READERS: dict[str, Reader] = {".txt": _read_plain, ".jsonl": _read_json_lines, ".parquet": _read_parquet}


def _reader(file: Path) -> Reader:
    return _READERS.get(file.suffix.lower(), _read_plain)
