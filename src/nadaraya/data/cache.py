"""The manifest of a corpus in the cache folder: what it holds, with digests."""

import hashlib
from pathlib import Path
from typing import Any

from nadaraya.files import is_file, write_file
from nadaraya.stored import Stored, read_stored

MANIFEST = "manifest.json"


class Record(Stored):
    """Facts of a file of a corpus."""

    sha256: str
    bytes: int = 0
    title: str = ""
    ebook: int | None = None
    source: str | None = None
    books: tuple[int, ...] = ()


class _Manifest(Stored):
    files: dict[str, Record]


def read_manifest(folder: Path) -> dict[str, Record]:
    """The files of a corpus folder by their names; empty if nothing was stored."""
    path = folder / MANIFEST
    return read_stored(path, _Manifest, "the manifest of a corpus").files if is_file(path) else {}


def store(folder: Path, name: str, text: str, **record: Any) -> None:
    """Put a text into a corpus folder and its digest, with the facts of `record`, into the manifest."""
    data = text.encode()
    write_file(folder / name, data)
    made = Record(**record, bytes=len(data), sha256=hashlib.sha256(data).hexdigest())
    manifest = _Manifest(files=read_manifest(folder) | {name: made})
    write_file(folder / MANIFEST, manifest.model_dump_json(indent=1, exclude_unset=True))


def stored_text(folder: Path, name: str) -> str | None:
    """A text of a corpus folder; None where it is not there or has not the digest that was recorded."""
    record, path = read_manifest(folder).get(name), folder / name
    data = path.read_bytes() if record and is_file(path) else b""
    return data.decode() if record and hashlib.sha256(data).hexdigest() == record.sha256 else None
