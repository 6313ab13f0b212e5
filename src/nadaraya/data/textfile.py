"""Files as they are found: every file below a folder, and text, strictly UTF-8, line ends as newlines."""

import os
from pathlib import Path

from nadaraya.errors import InputError

BYTE_ORDER_MARK = b"\xef\xbb\xbf"
PART_SEPARATOR = "\n\n\n"  # two blank lines between the texts that make one corpus


def files_below(folder: Path) -> list[str]:
    """Every file below a folder, however deep; links are followed.

    Args:
        folder: where to look.

    Returns:
        Paths that begin with `folder`, in no particular order.

    Raises:
        InputError: a folder cannot be read, or links lead to one folder twice (its files would count twice).
    """

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
    """Decode the bytes of a text file: UTF-8, an optional byte order mark, CRLF made LF.

    Args:
        data: the bytes.
        name: what they are, for the message.

    Returns:
        The text.

    Raises:
        InputError: when the bytes hold a NUL or are not UTF-8; it names the byte offset.
    """
    nul = data.find(b"\0")
    if nul >= 0:
        raise InputError(f"{name} must be plain text in UTF-8, got a NUL byte at offset {nul}: it is binary")
    body = data.removeprefix(BYTE_ORDER_MARK)
    try:
        return body.decode("utf-8").replace("\r\n", "\n")
    except UnicodeDecodeError as error:
        offset = error.start + len(data) - len(body)
        raise InputError(
            f"{name} must be plain text in UTF-8, got byte 0x{body[error.start]:02x} at offset {offset}"
        ) from error


def read_text(path: Path) -> str:
    """Read one text file.

    Args:
        path: the file.

    Returns:
        Its text, see `decode_text`.

    Raises:
        InputError: when it cannot be read, is binary or is not UTF-8.
    """
    try:
        data = path.read_bytes()
    except OSError as error:
        raise InputError(f"cannot read {path}: {error.strerror}") from error
    return decode_text(data, str(path))
