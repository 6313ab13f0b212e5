"""A training process that counts what it does to its folder, and kills itself before one of these acts."""

import os
import signal
import sys
from pathlib import Path

import torch

from nadaraya.training import load_recipe, train

_ACTS = {"open", "os.rename", "os.remove", "os.rmdir", "os.mkdir", "os.chmod"}


def run(recipe: Path, folder: Path, last: int, events: Path) -> None:
    """Train, all acts but those from number `last` on; the number of acts goes into the file `events`."""
    torch.set_num_threads(1)
    acts = 0

    def count(event: str, arguments: tuple[object, ...]) -> None:
        nonlocal acts
        if event not in _ACTS:
            return
        if event == "open" and not int(arguments[2]) & (os.O_WRONLY | os.O_RDWR):  # type: ignore[call-overload]
            return
        # rmtree names what it removes below an open folder.
        below = event in ("os.remove", "os.rmdir") and arguments[-1] != -1
        if below or str(arguments[0]).startswith(f"{folder}/"):
            acts += 1
            if acts == last:
                os.kill(os.getpid(), signal.SIGKILL)

    sys.addaudithook(count)
    try:
        train(load_recipe(recipe), folder, progress=False)
    except KeyboardInterrupt:
        sys.exit(130)
    events.write_text(str(acts))
