"""Files as they are found: every file below a folder, and text, strictly UTF-8, line ends as newlines."""

import codecs
import os
import stat
from pathlib import Path

from nadaraya.errors import InputError

PART_SEPARATOR = "\n\n\n"  # two blank lines between the texts that make one corpus


def files_below(folder: Path) -> list[str]:
    """Paths of all files below a folder, in no particular order; links are followed, but not twice to one."""

    def refuse(error: OSError) -> None:
        raise InputError(f"cannot read {error.filename}: {error.strerror}") from error

    found: list[str] = []
    first_path: dict[tuple[int, int], str] = {}
    for place, _, names in os.walk(folder, followlinks=True, onerror=refuse):
        state = os.stat(place)  # noqa: PTH116  (a million files: strings, not Paths)
        first = first_path.setdefault((state.st_dev, state.st_ino), place)
        if first != place:
            raise InputError(f"{place} links to {first}, whose files would count twice: remove the link")
        found += [os.path.join(place, name) for name in names]  # noqa: PTH118
    return found


def decode_text(data: bytes, name: str) -> str:
    """Decode UTF-8 without NUL, dropping a byte order mark and making CRLF LF; `name` is for the message."""
    nul = data.find(b"\0")
    if nul >= 0:
        raise InputError(f"{name} must be plain text in UTF-8, got a NUL byte at offset {nul}: it is binary")
    body = data.removeprefix(codecs.BOM_UTF8)
    try:
        return body.decode("utf-8").replace("\r\n", "\n")
    except UnicodeDecodeError as error:
        offset = error.start + len(data) - len(body)
        raise InputError(
            f"{name} must be plain text in UTF-8, got byte 0x{body[error.start]:02x} at offset {offset}"
        ) from error


def check_regular(path: str | Path, mode: int) -> None:
    """Refuse, by the mode that `os.stat` gives, what may never end or never begin to be read."""
    if not stat.S_ISREG(mode):
        raise InputError(f"{path} must be a regular file, got a folder, device, pipe or socket")


def read_text(path: Path) -> str:
    """Read a text file, see `decode_text`; a device or a pipe is not opened."""
    try:
        check_regular(path, path.stat().st_mode)
        data = path.read_bytes()
    except OSError as error:
        raise InputError(f"cannot read {path}: {error.strerror}") from error
    return decode_text(data, str(path))
