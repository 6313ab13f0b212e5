"""The `nadaraya` command: one module per verb, one place where bad input becomes one line and status 2."""

import os
import sys
from typing import Any, TextIO

from nadaraya.errors import InputError, shown


def main() -> None:
    """Run the command line.

    Bad input, and a file that the system refuses, prints one line to standard error and exits with status 2;
    Ctrl-C exits with 130. A reader that closes its end of a pipe ends nothing: what it will not read is lost.
    """
    streams = sys.stdout, sys.stderr
    sys.stdout, sys.stderr = _Patient(sys.stdout), _Patient(sys.stderr)
    try:
        _run()
    except InputError as error:
        _end(f"error: {error}", 2)
    except OSError as error:
        if error.filename is None:
            raise
        _end(f"error: {shown(str(error.filename))}: {error.strerror}", 2)
    except KeyboardInterrupt:
        _end("stopped", 130)
    finally:
        for stream in (sys.stdout, sys.stderr):
            stream.flush()
        sys.stdout, sys.stderr = streams


def _run() -> None:
    try:
        from nadaraya.cli.app import app
    except ModuleNotFoundError as missing:
        if missing.name is None or missing.name.split(".")[0] == "nadaraya":
            raise
        _end(f'error: the command line needs {missing.name}: pip install "nadaraya[cli]"', 2)
    app()


def _end(line: str, status: int) -> None:
    print(line, file=sys.stderr)
    sys.exit(status)


class _Patient:
    """An output stream that outlives its reader, and that shows what its encoding has no letters for."""

    def __init__(self, stream: TextIO) -> None:
        self._stream = stream
        if hasattr(stream, "reconfigure"):
            stream.reconfigure(errors="backslashreplace")

    def __getattr__(self, name: str) -> Any:
        return getattr(self._stream, name)

    def write(self, text: str) -> int:
        try:
            return self._stream.write(text)
        except BrokenPipeError:
            self._leave()
        return len(text)

    def flush(self) -> None:
        try:
            self._stream.flush()
        except BrokenPipeError:
            self._leave()

    def _leave(self) -> None:
        """Let all that follows go nowhere."""
        nowhere = os.open(os.devnull, os.O_WRONLY)
        os.dup2(nowhere, self._stream.fileno())
        os.close(nowhere)
