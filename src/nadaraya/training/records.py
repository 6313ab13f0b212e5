"""The records of a run: to metrics.jsonl, to the person who watches, and to a tracker."""

from importlib.util import find_spec
from pathlib import Path
from typing import Any
from uuid import uuid4

from accelerate.tracking import LOGGER_TYPE_TO_CLASS, GeneralTracker

from nadaraya.errors import InputError
from nadaraya.files import first_line, write_file
from nadaraya.training.checkpoint import Checkpoint
from nadaraya.training.folder import METRICS_FILE
from nadaraya.training.image_recipe import ImageRecipe
from nadaraya.training.metrics import MetricsFile
from nadaraya.training.progress import TrainingProgress
from nadaraya.training.text_recipe import Recipe


class Records:
    """Hands each record to every sink: those of the main process; the other processes have none."""

    def __init__(self, *sinks: "MetricsFile | TrainingProgress | Tracker") -> None:
        self._sinks = sinks

    def add(self, kind: str, step: int, metrics: dict[str, Any]) -> None:
        """Hand out a record: its kind ("train", "validation", "final"), the updates made, metrics by name."""
        for sink in self._sinks:
            sink.add(kind, step, metrics)

    def close(self) -> None:
        """Close every sink."""
        for sink in self._sinks:
            sink.close()


def open_records(
    folder: Path, recipe: Recipe | ImageRecipe, checkpoint: Checkpoint | None, shown: TrainingProgress
) -> Records:
    """The records of the main process, without those of updates after the checkpoint."""
    done, digest = (checkpoint.step, checkpoint.state["metrics_sha256"]) if checkpoint else (0, None)
    metrics, tracker = MetricsFile(folder / METRICS_FILE, done, digest), recipe.training.tracker
    if tracker is None:
        return Records(metrics, shown)
    return Records(metrics, shown, Tracker(tracker, folder, recipe.name, metrics.recorded))


class Tracker:
    """One of accelerate's trackers: TensorBoard, Weights & Biases or trackio.

    It has the records up to update `recorded` already, from before the run was stopped. TensorBoard's files
    go into the folder `tensorboard` of the run.
    """

    def __init__(self, tracker: str, folder: Path, name: str, recorded: int) -> None:
        self._recorded = recorded
        try:
            self._tracker = _make_tracker(tracker, folder, name)
            self._tracker.start()
        except Exception as error:  # each service has errors of its own
            raise InputError(f"training.tracker {tracker} cannot be started: {first_line(error)}") from error

    def add(self, kind: str, step: int, metrics: dict[str, Any]) -> None:
        """Log a record that is not there yet; the final one is in metrics.jsonl alone."""
        if kind != "final" and step > self._recorded:
            self._tracker.log({f"{kind}/{name}": value for name, value in metrics.items()}, step=step)

    def close(self) -> None:
        """Let it send what it has."""
        self._tracker.finish()


def check_tracker(tracker: str | None) -> None:
    """Refuse a tracker whose package is not installed."""
    if tracker is not None and find_spec(tracker) is None:
        raise InputError(f"training.tracker {tracker} needs its package: pip install {tracker}")


def _make_tracker(tracker: str, folder: Path, name: str) -> GeneralTracker:
    make = LOGGER_TYPE_TO_CLASS[tracker]
    if make.requires_logging_directory:
        return make(tracker, folder)
    # A run that is resumed goes on under the name that it began with.
    path = folder / "tracker_id.txt"
    if not path.is_file():
        write_file(path, uuid4().hex[:8])
    mark = path.read_text(encoding="utf-8")
    known = {"id": mark, "dir": str(folder)} if tracker == "wandb" else {}
    return make("nadaraya", name=f"{name}-{mark}", resume="allow", **known)
