"""Processes forked from one that has imported what takes seconds: commands, programs, two ranks of a run."""

import multiprocessing
import os
import socket
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

import torch

from nadaraya.cli import main
from nadaraya.training import ImageRecipe, Recipe

context = multiprocessing.get_context("forkserver")
context.set_forkserver_preload(
    ["nadaraya.cli.app", "nadaraya.training.images", "nadaraya.training.text", "nadaraya.models",
     "transformers.modeling_utils", "transformers.optimization"]
)  # fmt: skip


class Ended(NamedTuple):
    """What a process left: its exit status, and what it wrote to both streams."""

    status: int | None
    out: str
    err: str


class Forked:
    """A process that runs Python as `python -c`, or the command line, by default in the current folder.

    Args:
        program: Python, or a function without arguments.
        arguments: of the command line, that `sys.argv` has.
        folder: its current folder.
        environment: variables to set.
    """

    def __init__(
        self,
        program: str | Callable[[], None],
        *arguments: object,
        folder: Path | None = None,
        **environment: object,
    ) -> None:
        streams = []
        for _ in range(2):
            number, name = tempfile.mkstemp()
            os.close(number)
            streams.append(Path(name))
        self._streams = streams
        words = ["nadaraya", *map(str, arguments)]
        given = {name: str(value) for name, value in environment.items()}
        where = folder or Path.cwd()
        self.process = context.Process(target=_run, args=(program, words, where, given, streams))
        self.process.start()

    def send(self, number: int) -> None:
        """Send a signal."""
        os.kill(self.process.pid or 0, number)

    def end(self) -> Ended:
        """Wait until it ends, five minutes at most."""
        self.process.join(300)
        self.process.kill()
        out, err = (stream.read_text() for stream in self._streams)
        for stream in self._streams:
            stream.unlink()
        return Ended(self.process.exitcode, out, err)


def _run(
    program: str | Callable[[], None],
    words: list[str],
    folder: Path,
    environment: dict[str, str],
    streams: list[Path],
) -> None:
    for number, stream in enumerate(streams, 1):
        os.dup2(os.open(stream, os.O_WRONLY | os.O_APPEND), number)
    os.chdir(folder)
    os.environ |= environment
    torch.set_num_threads(1)
    sys.argv = words
    if isinstance(program, str):
        exec(program, {"__name__": "__main__"})
    else:
        program()


def command(*arguments: object, folder: Path | None = None) -> Ended:
    """`nadaraya ARGUMENT …` in a process of its own."""
    return Forked(main, *arguments, folder=folder).end()


def side_by_side(
    recipe: Recipe | ImageRecipe, folder: Path, program: str | Callable[[], None] = main
) -> list[Ended]:
    """Two processes of one run, without a launcher; another program than the command line may call it."""
    path = folder.with_suffix(".yaml")
    path.write_text(recipe.to_yaml())
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        address = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": free.getsockname()[1]}
    processes = [
        Forked(
            program, "train", path, "--run", folder, "--json",
            RANK=rank, LOCAL_RANK=rank, WORLD_SIZE=2, LOCAL_WORLD_SIZE=2, **address,
        )
        for rank in (0, 1)
    ]  # fmt: skip
    return [process.end() for process in processes]


def killing(rank: int) -> str:
    """The command line, as a program whose process of a rank kills itself in its fifth update."""
    return f"""
import os, signal
from torch.optim import AdamW
from nadaraya.cli import main

updates, step = [], AdamW.step
def killing(self, *arguments, **options):
    updates.append(None)
    if len(updates) == 5 and os.environ["RANK"] == "{rank}":
        os.kill(os.getpid(), signal.SIGKILL)
    return step(self, *arguments, **options)
AdamW.step = killing
main()
"""
