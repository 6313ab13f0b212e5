"""The records of a run: to metrics.jsonl, to TensorBoard and to the person who watches."""

from itertools import pairwise
from pathlib import Path
from statistics import median
from typing import Any

from nadaraya.errors import InputError
from nadaraya.training.metrics import MetricsFile
from nadaraya.training.progress import TrainingProgress
from nadaraya.training.run import METRICS_FILE


class Records:
    """Where the loop's figures go.

    Args:
        folder: of the run.
        done: updates made so far; records after that are dropped.
        progress: what a person sees.
        tensorboard: also write TensorBoard's form.
    """

    def __init__(self, folder: Path, done: int, progress: TrainingProgress, tensorboard: bool) -> None:
        self._metrics = MetricsFile(folder / METRICS_FILE, done)
        self._progress = progress
        self._board = TensorBoard(folder, done) if tensorboard else None

    def train(self, step: int, figures: dict[str, float]) -> None:
        """A training record: the mean loss since the last one, learning rate, seconds."""
        self._metrics.append(kind="train", step=step, **figures)
        self._progress.record(step, figures["loss"], figures["seconds"] / step)
        self._add(step, "train", figures)

    def validation(self, step: int, figures: dict[str, float], headline: str) -> None:
        """A validation record."""
        self._metrics.append(kind="validation", step=step, **figures)
        self._progress.validation(step, headline)
        self._add(step, "validation", figures)

    def final(self, step: int, figures: dict[str, Any]) -> None:
        """The record that makes the run a finished one."""
        self._metrics.append(kind="final", step=step, **figures)
        self._metrics.flush()

    def flush(self) -> None:
        """Wait until all records are on the disk."""
        self._metrics.flush()

    @property
    def last_validation(self) -> dict[str, float]:
        """The figures of the newest validation."""
        record = self._metrics.last("validation") or {}
        return {name: value for name, value in record.items() if name not in ("kind", "step")}

    @property
    def step_seconds(self) -> float:
        """Median over the training records of the time of an update, in seconds."""
        trained = [record for record in self._metrics.records if record["kind"] == "train"]
        marks = [(0, 0.0), *((record["step"], record["seconds"]) for record in trained)]
        return median((t1 - t0) / (s1 - s0) for (s0, t0), (s1, t1) in pairwise(marks))

    def _add(self, step: int, kind: str, figures: dict[str, float]) -> None:
        if self._board:
            self._board.add(step, {f"{kind}/{name}": value for name, value in figures.items()})


class TensorBoard:
    """The same records as metrics.jsonl, for TensorBoard."""

    def __init__(self, folder: Path, done: int) -> None:
        """Open the writer in the run folder; what it had after step `done` is dropped."""
        try:
            from torch.utils.tensorboard import SummaryWriter
        except ModuleNotFoundError as error:
            raise InputError(
                'training.tensorboard needs tensorboard: pip install "nadaraya[tensorboard]"'
            ) from error
        self._writer = SummaryWriter(str(folder / "tensorboard"), purge_step=done + 1)

    def add(self, step: int, values: dict[str, float]) -> None:
        """Write the values of one step."""
        for name, value in values.items():
            self._writer.add_scalar(name, value, step)
        self._writer.flush()
