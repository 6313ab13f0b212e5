"""Documents of a source, in order: plain text, JSON lines and Parquet in files, or a data set of the hub.

A place in a source is a pair (file, offset): the number of the file in sorted order, and of what is left to
read of it the first byte (text, JSON lines), the first row (Parquet) or the first example (hub).
"""

import json
import os
import re
from bisect import bisect_right
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import lru_cache, partial
from itertools import accumulate, chain, count, islice
from pathlib import Path
from typing import Any

from nadaraya.data.textfile import check_regular, decode_text, files_below, one_line, text_encoding
from nadaraya.errors import InputError, check_name, must_be
from nadaraya.files import check_utf8, first_line, is_file, is_folder, reading, sha256

SEPARATOR = "<|endoftext|>"
HUB = "hub:"
Place = tuple[int, int]
END: Place = (2**31, 0)  # after the last document

_CHUNK = 2**22  # bytes read at a time
_LONGEST = 2**28  # bytes of one document: it is held in memory, some times over while it is encoded
_ROWS = 256  # of Parquet, decoded at a time


@dataclass(frozen=True)
class Documents:
    """The documents of a source; a data set of the hub is one file."""

    name: str
    files: Sequence[Callable[[int], Iterator[tuple[int, str]]]]  # give offsets and documents from one on
    describe: Callable[[], dict[str, Any]]  # gives plain values that are the same exactly where these are
    part_read: Callable[[Place], float | None] = lambda place: None  # before it; None where nobody knows

    def read(self, place: Place = (0, 0)) -> Iterator[tuple[Place, str]]:
        """Documents from a place on, each with its own; blank ones are left out."""
        first, offset = place
        for number in range(first, len(self.files)):
            for at, text in self.files[number](offset):
                if text.strip():
                    yield (number, at), text
            offset = 0

    def spread(self, size: int, wanted: Callable[[Place, str], bool]) -> Iterator[str]:
        """At most `size` characters: the first wanted documents of every file, the last of each cut."""
        each, more = divmod(size, len(self.files))
        for number, file in enumerate(self.files):
            left = each + (number < more)
            for at, text in file(0) if left else ():
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
        return _of_hub(str(source).removeprefix(HUB), column, described or {})
    if not separator:
        raise must_be("separator", "one or more characters", separator)
    path = Path(source)
    if is_folder(path):
        files = [Path(file) for file in files_below(path) if Path(file).suffix.lower() in _READERS]
        if not files:
            raise InputError(f"the folder {path} holds no {' or '.join(_READERS)} file")
        return _of_files(path.resolve().name, path, sorted(files), column, separator)
    if not is_file(path):
        raise InputError(
            f"no such file or folder: {path}; a data set of the hub is {HUB}NAME[:CONFIGURATION[:SPLIT]]"
        )
    return _of_files(path.name, path.parent, [path], column, separator)


def _of_files(name: str, root: Path, files: list[Path], column: str, separator: str) -> Documents:
    sizes = []
    for file in files:
        check_utf8("the path of a source", str(file))
        with reading(file):
            state = file.stat()
        check_regular(file, state.st_mode)
        sizes.append(state.st_size)
    readers = [_READERS.get(file.suffix.lower(), _read_plain) for file in files]

    def described(file: Path, size: int) -> dict[str, Any]:
        with reading(file):
            return {"name": file.relative_to(root).as_posix(), "bytes": size, "sha256": sha256(file)}

    def describe() -> dict[str, Any]:
        with ThreadPoolExecutor() as threads:
            return {"name": name, "files": list(threads.map(described, files, sizes))}

    def part_read(place: Place) -> float:
        number, offset = place
        if number >= len(files):
            return 1.0
        if readers[number] is _read_parquet:
            offset = offset * sizes[number] // max(_parquet_rows(files[number]), 1)
        return (sum(sizes[:number]) + offset) / max(sum(sizes), 1)

    options = [separator if reader is _read_plain else column for reader in readers]
    every = zip(readers, files, options, strict=True)
    parts = [partial(reader, file, option) for reader, file, option in every]
    return Documents(name, parts, describe, part_read)


def _of_hub(source: str, column: str, described: Mapping[str, Any]) -> Documents:
    """Documents of a data set of the hub, or of a folder that `datasets` reads, streamed."""
    name, *chosen = source.split(":")
    if len(chosen) > 2:
        raise must_be("source", f"{HUB}NAME[:CONFIGURATION[:SPLIT]]", HUB + source)
    configuration, split = (*chosen, "", "")[:2]
    wanted = {"name": name, "configuration": configuration or None, "split": split or "train"}
    try:
        from datasets import load_dataset
        from huggingface_hub import dataset_info
    except ModuleNotFoundError:
        raise InputError(f'{HUB}{source} needs the library datasets: pip install "nadaraya[data]"') from None
    with one_line(f"{HUB}{name}"):
        if wanted.items() <= described.items():
            revision = described.get("revision")
        else:
            revision = None if Path(name).is_dir() else dataset_info(name).sha
        options = {"split": wanted["split"], "streaming": True, "revision": revision}
        every: Any = load_dataset(name, wanted["configuration"], **options)

    def read(offset: int) -> Iterator[tuple[int, str]]:
        with one_line(f"{HUB}{name}"):
            examples = iter(every.skip(offset) if offset else every)
        for at in count(offset):
            with one_line(f"{HUB}{name}"):
                example = next(examples, None)
            if example is None:
                return
            yield at, _text_of(example, column, f"example {at} of {HUB}{name}")

    return Documents(name, [read], lambda: {**wanted, "revision": revision})


def _read_plain(file: Path, between: str, offset: int) -> Iterator[tuple[int, str]]:
    """Texts between separators, without the newlines around them."""
    with reading(file), file.open("rb") as stream:
        encoding = text_encoding(stream.read(2))
        unit = 1 if encoding == "utf-8" else 2  # bytes of a code unit
        line = b"(?:%b)?%b" % tuple(re.escape(mark.encode(encoding)) for mark in "\r\n")  # on any system
        separator = re.compile(line.join(re.escape(part.encode(encoding)) for part in between.split("\n")))
        longest = len(between.replace("\n", "\r\n").encode(encoding))
        stream.seek(offset)
        waiting, searched = bytearray(), 0
        while chunk := stream.read(_CHUNK):
            waiting += chunk
            while found := separator.search(waiting, searched):
                cut, end = found.span()
                if cut % unit:  # the end of one character with the beginning of the next
                    searched = cut + 1
                    continue
                yield offset, _plain(file, offset, bytes(waiting[:cut]), encoding)
                del waiting[:end]
                offset, searched = offset + end, 0
            searched = max(searched, len(waiting) - longest + 1)
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
        check_name(f"column of {file}", column, parquet.schema_arrow.names)
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


_READERS: dict[str, Callable[[Path, str, int], Iterator[tuple[int, str]]]] = {
    ".txt": _read_plain,
    ".jsonl": _read_json_lines,
    ".parquet": _read_parquet,
}
