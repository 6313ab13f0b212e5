"""The cache folder for fetched corpora, and the manifest that records checksums."""

import hashlib
import json
import os
from pathlib import Path
from typing import Any

from nadaraya.errors import InputError
from nadaraya.files import write_file

MANIFEST = "manifest.json"


def cache_folder() -> Path:
    """The folder fetched corpora live in.

    Returns:
        `$NADARAYA_CACHE`, else `$XDG_CACHE_HOME/nadaraya`, else `~/.cache/nadaraya`; it need not exist yet.
    """
    if own := os.environ.get("NADARAYA_CACHE"):
        return Path(own).expanduser()
    base = os.environ.get("XDG_CACHE_HOME")
    return (Path(base).expanduser() if base else Path.home() / ".cache") / "nadaraya"


def make_folder(folder: Path) -> Path:
    """Create a folder and its parents.

    Args:
        folder: where; existing folders are left as they are.

    Returns:
        The folder.

    Raises:
        InputError: when it cannot be created.
    """
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise InputError(f"cannot create the folder {folder}: {error.strerror}") from error
    return folder


def sha256(data: bytes) -> str:
    """The SHA-256 digest of some bytes, as 64 hexadecimal digits."""
    return hashlib.sha256(data).hexdigest()


def read_manifest(folder: Path) -> dict[str, dict[str, Any]]:
    """What a cache folder says it holds.

    Args:
        folder: a corpus folder inside the cache.

    Returns:
        File name to record, each with at least `sha256`; empty when nothing was ever stored.

    Raises:
        InputError: when the manifest is there but unreadable.
    """
    path = folder / MANIFEST
    try:
        files = json.loads(path.read_bytes())["files"]
        if not all("sha256" in record for record in files.values()):
            raise ValueError("a record has no checksum")
    except FileNotFoundError:
        return {}
    except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
        raise InputError(f"{path} is damaged ({error}): delete it and fetch the corpus again") from error
    return files


def store(folder: Path, name: str, data: bytes, **record: Any) -> None:
    """Put a file into a corpus folder and its checksum into the manifest.

    Args:
        folder: a corpus folder inside the cache.
        name: file name inside it.
        data: the whole content.
        **record: facts to keep beside the checksum.
    """
    write_file(folder / name, data)
    files = read_manifest(folder)
    files[name] = {**record, "bytes": len(data), "sha256": sha256(data)}
    write_file(folder / MANIFEST, json.dumps({"files": files}, indent=1).encode())


def is_intact(folder: Path, name: str) -> bool:
    """Whether a file of a corpus folder is there and matches its checksum.

    Args:
        folder: a corpus folder inside the cache.
        name: file name inside it.
    """
    record, path = read_manifest(folder).get(name), folder / name
    return record is not None and path.is_file() and sha256(path.read_bytes()) == record["sha256"]
