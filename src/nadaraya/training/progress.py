"""What a person sees while a run trains, and the Ctrl-C that they can press."""

import signal
import threading
import time
from types import FrameType, TracebackType
from typing import Any, Self

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn


class TrainingProgress:
    """A live line on a terminal, plain lines elsewhere, nothing when not wanted; always on standard error."""

    def __init__(self, name: str, steps: int, done: int, units_per_step: int, unit: str, shown: bool) -> None:
        """Prepare the display of one run.

        Args:
            name: of the run.
            steps: updates of the whole run.
            done: updates made before this process started.
            units_per_step: how much an update takes.
            unit: of what, in plural.
            shown: False for silence.
        """
        self._console = Console(stderr=True, quiet=not shown)
        self._steps, self._first = steps, done
        self._units, self._unit = units_per_step, unit
        self._started = time.perf_counter()
        self._validation = ""
        self._live: Progress | None = None
        if shown and self._console.is_terminal:
            columns = [TextColumn("{task.description}"), BarColumn(bar_width=24), MofNCompleteColumn()]
            self._live = Progress(
                *columns, TextColumn("{task.fields[status]}"), TimeRemainingColumn(), console=self._console
            )
            self._task = self._live.add_task(name, total=steps, completed=done, status="")

    def __enter__(self) -> Self:
        if self._live:
            self._live.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._live:
            self._live.stop()

    def advance(self, step: int) -> None:
        """Move the bar; costs nothing on the device."""
        if self._live:
            self._live.update(self._task, completed=step)

    def record(self, step: int, loss: float, seconds_per_step: float) -> None:
        """Show a training record: the loss in nats."""
        speed = self._units / max(seconds_per_step, 1e-9)
        status = f"loss {loss:.3f}{self._validation}  {speed:,.0f} {self._unit}/s"
        if self._live:
            self._live.update(self._task, status=status)
        else:
            left = (self._steps - step) * (time.perf_counter() - self._started) / max(step - self._first, 1)
            self.say(f"step {step}/{self._steps}  {status}  {_clock(left)} left")

    def validation(self, step: int, headline: str) -> None:
        """Show a validation record, as one short text."""
        self._validation = f"  {headline}"
        if not self._live:
            self.say(f"step {step}/{self._steps}{self._validation}")

    def say(self, message: str) -> None:
        """Print one line, above the live one."""
        self._console.print(message, highlight=False, markup=False, soft_wrap=True)


class StopRequest:
    """Ctrl-C asks the loop to stop after its step, when all is consistent; a second one stops at once."""

    def __init__(self) -> None:
        self.requested = False

    def __enter__(self) -> Self:
        self._main = threading.current_thread() is threading.main_thread()
        if self._main:  # Python allows handlers in the main thread only
            self._before: Any = signal.signal(signal.SIGINT, self._ask)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._main:
            signal.signal(signal.SIGINT, self._before)

    def _ask(self, number: int, frame: FrameType | None) -> None:
        self.requested = True
        signal.signal(signal.SIGINT, signal.default_int_handler)


def _clock(seconds: float) -> str:
    minutes, rest = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02d}:{rest:02d}" if hours else f"{minutes}:{rest:02d}"
