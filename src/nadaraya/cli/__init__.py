"""The `nadaraya` command: one module per verb, one place where bad input becomes one line and status 2."""

import os
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any, TextIO

from nadaraya.errors import InputError, shown
from nadaraya.names import IMPORTED, import_modules


def main() -> None:
    """Run the command line.

    Bad input, what the system refuses, and memory that is exhausted print one line to standard error and exit
    with status 2; Ctrl-C exits with 130. A reader that closes its end of a pipe, or a stream that was closed
    before (`>&-`), ends nothing: what nobody can read is lost.
    """
    for number, name in enumerate(("stdin", "stdout", "stderr")):
        if getattr(sys, name) is None:  # opened in this order, each gets the number that it stands for
            setattr(sys, name, Path(os.devnull).open("w" if number else "r"))  # noqa: SIM115
    streams = sys.stdout, sys.stderr
    sys.stdout, sys.stderr = out, _ = _Patient(sys.stdout), _Patient(sys.stderr)
    try:
        _run()
    except InputError as error:
        _end(f"error: {error}", 2)
    except OSError as error:
        where = "" if error.filename is None else f"{shown(str(error.filename))}: "
        _end(f"error: {where}{error.strerror or error}", 2)
    except MemoryError:
        _end("error: this machine has not enough memory", 2)
    except KeyboardInterrupt:
        _end("stopped", 130)
    finally:
        for stream in (sys.stdout, sys.stderr):
            stream.flush()
        if out.refused:
            print(f"error: standard output cannot be written: {out.refused}", file=sys.stderr)
        sys.stdout, sys.stderr = streams
        if out.refused:
            sys.exit(2)


def _run() -> None:
    try:
        from nadaraya.cli.app import app
    except ModuleNotFoundError as missing:
        if missing.name is None or missing.name.split(".")[0] == "nadaraya":
            raise
        _end(f'error: the command line needs {missing.name}: pip install "nadaraya[cli]"', 2)
    words, modules = _without_imports(sys.argv[1:])
    import_modules(",".join([os.environ.get(IMPORTED, ""), *modules]).strip(","))
    try:
        status = app(words, standalone_mode=False)
    except Exception as raised:
        error: Any = raised
        # A usage error is of click, or of the copy of it that typer brings.
        if not hasattr(error, "format_message"):
            raise
        if type(error).__name__ == "NoArgsIsHelpError":
            error.show()
            sys.exit(2)
        cause: Any = error.__cause__  # of a number, pydantic's
        given = f", got {cause.errors()[0]['input']!r}" if hasattr(cause, "errors") else ""
        _end(f"error: {' '.join(error.format_message().split())}{given}", 2)
    sys.exit(status)


def _without_imports(words: list[str]) -> tuple[list[str], list[str]]:
    """The words of a command without --import MODULE, which may stand anywhere in it, and the modules."""
    rest, modules, given = list[str](), list[str](), iter(words)
    for word in given:
        if word.startswith("--import="):
            modules.append(word.partition("=")[2])
        elif word == "--import" and (module := next(given, None)) is not None:
            modules.append(module)
        else:
            rest.append(word)
            if word == "--":
                break
    return [*rest, *given], modules


def _end(line: str, status: int) -> None:
    print(line, file=sys.stderr)
    sys.exit(status)


class _Patient:
    """An output stream that outlives its reader, and that shows what its encoding has no letters for."""

    def __init__(self, stream: TextIO) -> None:
        self._stream = stream
        self.refused = ""  # why it could not be written, where that is no reader's will
        if hasattr(stream, "reconfigure"):
            stream.reconfigure(errors="backslashreplace")

    def __getattr__(self, name: str) -> Any:
        return getattr(self._stream, name)

    def write(self, text: str) -> int:
        self._patiently(lambda: self._stream.write(text))
        return len(text)

    def flush(self) -> None:
        self._patiently(self._stream.flush)

    def _patiently(self, act: Callable[[], object]) -> None:
        """Let all that follows go nowhere once something cannot be written."""
        try:
            act()
        except OSError as error:
            nowhere = os.open(os.devnull, os.O_WRONLY)
            os.dup2(nowhere, self._stream.fileno())
            os.close(nowhere)
            if not isinstance(error, BrokenPipeError):
                self.refused = error.strerror or type(error).__name__
