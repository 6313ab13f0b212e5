"""windows.jsonl: which windows each update of a run was made of, one line per update."""

import json
from collections.abc import Iterable
from pathlib import Path

from nadaraya.files import write_file, writing
from nadaraya.stored import Stored, read_lines


class _Update(Stored):
    update: int


class WindowsFile:
    """Appends the windows of updates; lines of updates after `done`, which are made again, are dropped."""

    def __init__(self, path: Path, done: int) -> None:
        self.path = path
        lines = read_lines(path, _Update, "the windows of a run")
        write_file(path, "".join(f"{line}\n" for line, made in lines if made.update <= done))

    def add(self, update: int, windows: Iterable[int]) -> None:
        """Note what an update is made of, before it is made."""
        with writing(self.path), self.path.open("a", encoding="utf-8") as stream:
            stream.write(json.dumps({"update": update, "windows": list(windows)}) + "\n")
