"""windows.jsonl: which windows each update of a run was made of, one line per update."""

import json
from collections.abc import Iterable
from pathlib import Path

from nadaraya.files import reading, write_file, writing


class WindowsFile:
    """Appends the windows of updates; lines of updates after `done`, which are made again, are dropped."""

    def __init__(self, path: Path, done: int) -> None:
        self.path = path
        kept = [line for update, line in _lines(path) if update <= done]
        write_file(path, "".join(kept))

    def add(self, update: int, windows: Iterable[int]) -> None:
        """Note what an update is made of, before it is made."""
        with writing(self.path), self.path.open("a", encoding="utf-8") as stream:
            stream.write(json.dumps({"update": update, "windows": list(windows)}) + "\n")


def _lines(path: Path) -> Iterable[tuple[int, str]]:
    """Update and text of every complete line; one that was cut off while being written is left out."""
    if path.is_file():
        with reading(path, "the windows of a run"):
            for line in path.read_text(encoding="utf-8").splitlines(keepends=True):
                if line.endswith("\n"):
                    yield int(json.loads(line)["update"]), line
