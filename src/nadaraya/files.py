"""Files and folders that are complete or absent: written aside, forced to the disk, moved into place.

What goes wrong while one is written or read becomes one line that names it.
"""

import errno
import hashlib
import os
import shutil
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from nadaraya.errors import InputError, must_be, shown

try:
    from safetensors import SafetensorError
except ModuleNotFoundError:  # it comes with the extra `models`; without it nothing raises its error
    SafetensorError = OSError  # type: ignore[assignment, misc]

PARTIAL = ".partial-"  # how the name of everything that is not complete begins


class WriteFailed(InputError):
    """Something could not be written, mostly because the disk is full; what was saved before is intact."""


def cache_folder() -> Path:
    """`$NADARAYA_CACHE`, else `$XDG_CACHE_HOME/nadaraya`, else `~/.cache/nadaraya`; it need not exist yet."""
    if own := os.environ.get("NADARAYA_CACHE"):
        return Path(own).expanduser()
    base = os.environ.get("XDG_CACHE_HOME")
    return (Path(base).expanduser() if base else Path.home() / ".cache") / "nadaraya"


def check_new_folder(folder: Path) -> None:
    """Refuse a folder that has files: nothing is overwritten; and a name that is no UTF-8."""
    check_utf8("the output folder", str(folder))
    if folder.exists() and (not folder.is_dir() or any(folder.iterdir())):
        raise InputError(f"{folder} must be a folder that is new or empty")


def check_new_file(path: Path | None, force: bool, option: str) -> None:
    """Refuse a file in no folder or a closed one, or one that is there unless `force`; None is no file."""
    if path is None:
        return
    folder = Path(os.path.realpath(path)).parent  # unlike resolve, of links in a circle, too
    if is_folder(path) or not folder.is_dir() or not os.access(folder, os.W_OK):
        raise must_be(option, "a file in a folder that exists and can be written", str(path))
    if path.exists() and not force:
        raise InputError(f"{path} exists already: choose another file, or --force to overwrite it")


@contextmanager
def write_into(folder: Path, name: str = "") -> Iterator[Path]:
    """Give an empty scratch folder; what is in it at the end moves into `folder`, each item in one step.

    A reader, or a run that was killed, meets each file or folder as it was before or complete. Items replace
    those of the same name. WriteFailed, about `name` in the folder, when the disk is full or refuses.
    """
    with writing(folder / name):
        folder.mkdir(parents=True, exist_ok=True)
        scratch = Path(tempfile.mkdtemp(prefix=PARTIAL, dir=folder))
        try:
            yield scratch
            for item in sorted(scratch.iterdir()):
                for path in (*item.rglob("*"), item):
                    if path.is_file():
                        path.chmod(_ordinary_mode())
                    sync(path)
                if item.is_dir():
                    remove_folder(folder / item.name)
                item.replace(folder / item.name)
            sync(folder)
        finally:
            shutil.rmtree(scratch, ignore_errors=True)


def write_file(path: Path, content: str | bytes) -> None:
    """Write a file, in a folder made when absent, so that it has its old content or the new, never a part.

    Text is written as UTF-8, its line ends as they are; a link stays, and its target is written. WriteFailed
    leaves the file as it was.
    """
    path = Path(os.path.realpath(path)) if path.is_symlink() else path
    if exists(path) and not path.is_file():
        raise WriteFailed(f"cannot write {path}: it is no file")
    data = content.encode() if isinstance(content, str) else content
    with write_into(path.parent, path.name) as scratch:
        (scratch / path.name).write_bytes(data)


@contextmanager
def writing(target: Path) -> Iterator[None]:
    """Turn a failed write, OSError or safetensors' form of it, into a WriteFailed that names the target."""
    try:
        yield
    except (OSError, SafetensorError) as error:
        full = getattr(error, "errno", None) in (errno.ENOSPC, errno.EDQUOT) or "os error 28" in str(error)
        reason = "the disk is full" if full else getattr(error, "strerror", None) or first_line(error)
        advice = ": make room and run the same command again" if full else ""
        raise WriteFailed(
            f"cannot write {target}: {reason}; what was saved before is intact{advice}"
        ) from error


@contextmanager
def reading(path: Path, what: str = "") -> Iterator[None]:
    """Turn whatever a damaged or foreign file raises into one line: its path, and what it is read as."""
    try:
        yield
    except InputError:
        raise
    except (OSError, ValueError, LookupError, TypeError, RuntimeError, SafetensorError) as error:
        raise InputError(f"{path} cannot be read{what and f' as {what}'}: {first_line(error)}") from error


def check_utf8(what: str, name: str) -> None:
    """Refuse a name or a text that UTF-8 cannot hold: JSON, tokenizers and safetensors do not write it."""
    try:
        name.encode()
    except UnicodeEncodeError:
        raise must_be(what, "text that UTF-8 can hold", name) from None


def is_file(path: Path) -> bool:
    """Return whether a path is a regular file, with an InputError for what cannot be a path at all."""
    return _is(path.is_file, path)


def is_folder(path: Path) -> bool:
    """Return whether a path is a folder, with an InputError for what cannot be a path at all."""
    return _is(path.is_dir, path)


def exists(path: Path) -> bool:
    """Return whether there is something at a path, with an InputError for what cannot be a path at all."""
    return _is(path.exists, path)


def file_in(folder: Path, name: str, refusal: str) -> Path:
    """The path of a file in a folder; where it has none of that name, it is refused in these words."""
    if not is_file(folder / name):
        raise InputError(f"{folder} {refusal}: it has no {name}")
    return folder / name


def _is(kind: Callable[[], bool], path: Path) -> bool:
    try:
        return kind()
    except (OSError, ValueError) as error:  # a name that is too long, a NUL in it, a folder that is closed
        raise InputError(
            f"{shown(str(path))} is no path: {getattr(error, 'strerror', None) or error}"
        ) from error


def remove_folder(folder: Path) -> None:
    """Remove a folder, if it is there, so that a half-removed one cannot be taken for a complete one."""
    if folder.is_dir():
        scrap = Path(tempfile.mkdtemp(prefix=PARTIAL, dir=folder.parent))
        folder.rename(scrap / folder.name)
        shutil.rmtree(scrap, ignore_errors=True)


def remove_partial(folder: Path) -> None:
    """Remove what writers that were killed left in a folder; only for folders of a single writer."""
    for leftover in folder.glob(f"{PARTIAL}*"):
        shutil.rmtree(leftover, ignore_errors=True)


def first_line(error: BaseException) -> str:
    """The first line of an error's message, or its type where it has none."""
    return (str(error).splitlines() or [type(error).__name__])[0]


def sha256(path: Path) -> str:
    """SHA-256 of a file, 64 hexadecimal digits."""
    with path.open("rb") as stream:
        return hashlib.file_digest(stream, "sha256").hexdigest()


def _ordinary_mode() -> int:
    """File mode of what is simply opened for writing; safetensors keeps its files to their owner."""
    mask = os.umask(0)
    os.umask(mask)
    return 0o666 & ~mask


def sync(path: Path) -> None:
    """Wait until a file or a folder is on the disk."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
