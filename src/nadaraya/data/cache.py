"""The cache folder for fetched data, and the manifest of a corpus in it: what it holds, with digests."""

import hashlib
import json
import os
from pathlib import Path
from typing import Any

from nadaraya.errors import InputError
from nadaraya.files import write_file

MANIFEST = "manifest.json"


def cache_folder() -> Path:
    """`$NADARAYA_CACHE`, else `$XDG_CACHE_HOME/nadaraya`, else `~/.cache/nadaraya`; it need not exist yet.

    >>> import os
    >>> from nadaraya.data import cache_folder
    >>> os.environ["NADARAYA_CACHE"] = "corpora"
    >>> cache_folder().name
    'corpora'
    >>> del os.environ["NADARAYA_CACHE"]
    """
    if own := os.environ.get("NADARAYA_CACHE"):
        return Path(own).expanduser()
    base = os.environ.get("XDG_CACHE_HOME")
    return (Path(base).expanduser() if base else Path.home() / ".cache") / "nadaraya"


def read_manifest(folder: Path) -> dict[str, dict[str, Any]]:
    """What a corpus folder holds: file name to record, each with `sha256`; empty if nothing was stored."""
    path = folder / MANIFEST
    try:
        files = json.loads(path.read_bytes())["files"]
        if not all("sha256" in record for record in files.values()):
            raise ValueError("a record has no digest")
    except (FileNotFoundError, NotADirectoryError):
        return {}
    except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
        raise InputError(f"{path} is damaged ({error}): delete it and fetch the corpus again") from error
    return files


def store(folder: Path, name: str, text: str, **record: Any) -> None:
    """Put a text into a corpus folder and its digest, with the facts of `record`, into the manifest."""
    data = text.encode()
    write_file(folder / name, data)
    files = read_manifest(folder)
    files[name] = {**record, "bytes": len(data), "sha256": hashlib.sha256(data).hexdigest()}
    write_file(folder / MANIFEST, json.dumps({"files": files}, indent=1))


def is_intact(folder: Path, name: str) -> bool:
    """Whether a file of a corpus folder is there and has the digest that was recorded."""
    record, path = read_manifest(folder).get(name), folder / name
    if record is None or not path.is_file():
        return False
    return hashlib.sha256(path.read_bytes()).hexdigest() == record["sha256"]
