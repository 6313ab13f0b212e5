"""The progress display of a run, and the signals that stop it."""

import signal
import threading
import time
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from types import FrameType
from typing import Any, Self

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

from nadaraya.training.task import Task


class _ErrorConsole(Console):
    """Standard error; when nobody reads it any more, training goes on in silence."""

    def on_broken_pipe(self) -> None:
        self.quiet = True


class TrainingProgress:
    """A live line on a terminal, plain lines elsewhere, nothing when not `shown`: all on standard error."""

    def __init__(self, shown: bool) -> None:
        self._console = _ErrorConsole(stderr=True, quiet=not shown, emoji=False)
        self._live: Progress | None = None

    def waiting(self, message: str) -> AbstractContextManager[object]:
        """While the context lasts, show on a terminal what takes its time."""
        return self._console.status(message) if not self._console.quiet else nullcontext()

    def begin(self, name: str, task: Task, done: int) -> None:
        """Show the line of a run, by its name, from the updates that were made before."""
        self._task, self._done, self._started = task, done, time.perf_counter()
        self._validation = ""
        if self._console.is_terminal and not self._console.quiet:
            columns = [TextColumn("{task.description}"), BarColumn(bar_width=24), MofNCompleteColumn()]
            self._live = Progress(
                *columns, TextColumn("{task.fields[status]}"), TimeRemainingColumn(), console=self._console
            )
            self._line = self._live.add_task(name, total=task.steps, completed=done, status="")
            self._live.start()

    def close(self) -> None:
        """Stop the live line."""
        if self._live:
            self._live.stop()

    def advance(self, step: int) -> None:
        """Move the bar; costs nothing on the device."""
        if self._live:
            self._live.update(self._line, completed=step)

    def add(self, kind: str, step: int, figures: dict[str, Any]) -> None:
        """Show a training or validation record."""
        steps = self._task.steps
        if kind == "validation":
            self._validation = f"  {self._task.shown_metrics(figures)}"
            if not self._live:
                self.say(f"step {step}/{steps}{self._validation}")
        elif kind == "train":
            speed = self._task.units_per_step * step / max(figures["seconds"], 1e-9)
            status = f"loss {figures['loss']:.3f}{self._validation}  {speed:,.0f} {self._task.unit}/s"
            if self._live:
                self._live.update(self._line, status=status)
            else:
                passed = (time.perf_counter() - self._started) / max(step - self._done, 1)
                self.say(f"step {step}/{steps}  {status}  {_clock((steps - step) * passed)} left")

    def say(self, message: str) -> None:
        """Print one line, above the live one."""
        self._console.print(message, highlight=False, markup=False, soft_wrap=True)


class StopRequest:
    """A signal asks the loop to stop after its step, when all is consistent; a second one stops immediately.

    The signals are Ctrl-C, and those of schedulers (SIGTERM) and of terminals that close (SIGHUP); one that
    is ignored, as under nohup, stays ignored. `signal` is the number of the one that came.
    """

    signal: int | None = None

    @contextmanager
    def listening(self, twice: type[BaseException] | None = None) -> Iterator[Self]:
        """Take the signals over, in the main thread; Python allows handlers nowhere else.

        A second signal raises `twice`; default None: it does what it did before.
        """
        self._twice = twice
        if threading.current_thread() is not threading.main_thread():
            yield self
            return
        names = [name for name in ("SIGINT", "SIGTERM", "SIGHUP") if hasattr(signal, name)]
        before = {number: signal.getsignal(number) for number in (getattr(signal, name) for name in names)}
        self._before = {number: handler for number, handler in before.items() if handler != signal.SIG_IGN}
        for number in self._before:
            signal.signal(number, self._ask)
        try:
            yield self
        finally:
            self._give_back()

    def _give_back(self) -> None:
        for number, handler in self._before.items():
            signal.signal(number, handler)

    def _ask(self, number: int, frame: FrameType | None) -> None:
        if self._twice is None:
            self._give_back()
        elif self.signal is not None:
            raise self._twice(number)
        self.signal = number


def _clock(seconds: float) -> str:
    minutes, rest = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02d}:{rest:02d}" if hours else f"{minutes}:{rest:02d}"
