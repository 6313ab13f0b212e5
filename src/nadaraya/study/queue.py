"""A queue of commands, several at a time in processes of their own, cheapest first; and of trainings.

What is left to do is asked for again after every end, so that a result may bring further work.
"""

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch

from nadaraya.errors import must_be
from nadaraya.files import write_file
from nadaraya.study.results import RESULTS_FILE
from nadaraya.training import Recipe
from nadaraya.training.progress import StopRequest

_LOOK_EVERY = 0.05  # seconds


@dataclass(frozen=True)
class Job:
    """A command of a queue.

    Args:
        name: tells it from the others.
        command: program and arguments. It ends with status 0, saves what it has at a SIGTERM, and goes on
            from there when it is started again.
        log: file that its output is appended to; its folder is made when absent.
        cost: of what is waiting, the cheapest starts first; default 0.
    """

    name: str
    command: Sequence[str]
    log: Path
    cost: float = 0.0


@dataclass
class Ended:
    """The end of a queue.

    Attributes:
        finished: names of the jobs that ended well, in that order.
        failed: what the others ended with, by name.
        stopped: None where all was done, "limit" at the time limit, or the number of the signal that came.
    """

    finished: list[str] = field(default_factory=list)
    failed: dict[str, str] = field(default_factory=dict)
    stopped: int | str | None = None


def run_queue(
    pending: Callable[[], Iterable[Job]],
    *,
    workers: int = 1,
    seconds: float | None = None,
    say: Callable[[str], None] = lambda line: None,
) -> Ended:
    """Run what is pending until nothing is, the time is over, or a signal asks to stop.

    A job that fails is named and does not keep the others from running; none is started twice. At the time
    limit, at Ctrl-C and at SIGTERM no job is started any more, those that run get a SIGTERM, and their end is
    waited for; a second signal ends them at once. They have sessions of their own: the Ctrl-C of a terminal
    reaches them through this process alone. Their standard input is a pipe that ends with this process, even
    a killed one: `nadaraya.study.worker` ends then too.

    What runs, or has run, may be among what is pending. The jobs share out the threads that PyTorch would use
    here (OMP_NUM_THREADS), which are those of the cores that the process may use. `say` takes one line for
    each start and end.
    """
    if workers < 1:
        raise must_be("workers", "a positive integer", workers)
    environment = {**os.environ, "OMP_NUM_THREADS": str(max(1, torch.get_num_threads() // workers))}
    ended, running, started = Ended(), dict[str, tuple[Job, subprocess.Popen[bytes]]](), set[str]()
    deadline = time.monotonic() + (float("inf") if seconds is None else seconds)
    with StopRequest().listening(twice=KeyboardInterrupt) as stop:
        try:
            ask = True
            while True:
                if ended.stopped is None and (stop.signal or time.monotonic() >= deadline):
                    ended.stopped = stop.signal or "limit"
                    _signal(running, signal.SIGTERM)
                if ended.stopped is None and ask and len(running) < workers:
                    waiting = [job for job in pending() if job.name not in started]
                    waiting.sort(key=lambda job: job.cost)
                    for job in waiting[: workers - len(running)]:
                        say(f"{job.name}: started")
                        running[job.name] = job, _start(job, environment)
                        started.add(job.name)
                if not running:
                    return ended
                gone = [name for name, (_, process) in running.items() if process.poll() is not None]
                for name in gone:
                    _note(*running.pop(name), ended, say)
                ask = bool(gone)
                if not gone:
                    time.sleep(_LOOK_EVERY)
        finally:
            _signal(running, signal.SIGKILL)
            for _, process in running.values():
                process.wait()


def run_trainings(
    folder: Path, pending: Callable[[], Sequence[Job]], results: Callable[[], str], **options: Any
) -> Ended:
    """Run what is pending, with options of `run_queue`; results.json is written whenever a run has ended."""

    def waiting() -> Sequence[Job]:
        write_file(folder / RESULTS_FILE, results())
        return pending()

    ended = run_queue(waiting, **options)
    write_file(folder / RESULTS_FILE, results())
    return ended


def training_job(name: str, recipe: Recipe, folder: Path, cost: float, probes: Sequence[str] = ()) -> Job:
    """The job that trains a recipe into a folder, whose recipe, log and metrics lie beside it."""
    path, text = folder.with_name(f"{folder.name}.yaml"), recipe.to_yaml()
    if not path.is_file() or path.read_text(encoding="utf-8") != text:
        write_file(path, text)
    command = [sys.executable, "-m", "nadaraya.study.worker", str(path), str(folder), *probes]
    return Job(name, command, folder.with_name(f"{folder.name}.log"), cost)


def _start(job: Job, environment: dict[str, str]) -> "subprocess.Popen[bytes]":
    job.log.parent.mkdir(parents=True, exist_ok=True)
    with job.log.open("ab") as log:
        return subprocess.Popen(
            job.command, stdin=subprocess.PIPE, stdout=log, stderr=log, env=environment,
            start_new_session=True,
        )  # fmt: skip


def _note(job: Job, process: "subprocess.Popen[bytes]", ended: Ended, say: Callable[[str], None]) -> None:
    """Note how a job has ended."""
    assert process.stdin is not None
    process.stdin.close()
    if process.returncode == 0:
        ended.finished.append(job.name)
        say(f"{job.name}: finished")
    elif ended.stopped is not None:
        say(f"{job.name}: stopped")
    else:
        ended.failed[job.name] = f"status {process.returncode}: see {job.log}"
        say(f"{job.name}: failed with {ended.failed[job.name]}")


def _signal(running: "dict[str, tuple[Job, subprocess.Popen[bytes]]]", number: signal.Signals) -> None:
    for _, process in running.values():
        if process.poll() is None:
            os.killpg(process.pid, number)
