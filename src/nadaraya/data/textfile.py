"""Files as they are found: every file below a folder, and text, strictly decoded, line ends as newlines."""

import codecs
import os
import stat
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from nadaraya.errors import InputError
from nadaraya.files import first_line

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


@contextmanager
def one_line(name: str, how: str = "") -> Iterator[None]:
    """Turn whatever another library raises at what it reads, its Rust code's panics too, into one line."""
    try:
        yield
    except (InputError, KeyboardInterrupt, SystemExit, GeneratorExit, MemoryError):
        raise
    except BaseException as error:  # tokenizers raises bare Exception, a panic is none at all
        raise InputError(f"{name} cannot be read{how and f' {how}'}: {first_line(error)}") from error


def text_encoding(begin: bytes) -> str:
    """The encoding of a file by its first bytes: UTF-16 where they are its byte-order mark, else UTF-8."""
    marks = {codecs.BOM_UTF16_LE: "utf-16-le", codecs.BOM_UTF16_BE: "utf-16-be"}
    return marks.get(begin[:2], "utf-8")


def decode_text(data: bytes, name: str, encoding: str | None = None) -> str:
    """Decode text without NUL, dropping a byte-order mark and making CRLF LF.

    The encoding is `text_encoding`'s; that of a part from the middle of a file must be given.
    """
    encoding = encoding or text_encoding(data)
    try:
        text = data.decode(encoding)
        nul = text.find("\0")
        if nul < 0:
            return text.removeprefix("\ufeff").replace("\r\n", "\n")
        got, offset = "a NUL, as binary files have", len(text[:nul].encode(encoding))
    except UnicodeDecodeError as error:
        got, offset = f"byte 0x{data[error.start]:02x}", error.start
    wanted = "UTF-8, or in UTF-16 with a byte-order mark" if encoding == "utf-8" else "UTF-16"
    raise InputError(f"{name} must be plain text in {wanted}, got {got} at offset {offset}")


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
