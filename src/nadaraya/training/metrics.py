"""The records of a run: metrics.jsonl, one JSON object per line; trackers; the losses between two records."""

import hashlib
import json
import math
import time
from collections.abc import Callable
from importlib.util import find_spec
from itertools import pairwise
from pathlib import Path
from statistics import median
from typing import Annotated, Any, Literal
from uuid import uuid4

import torch
from accelerate.tracking import LOGGER_TYPE_TO_CLASS, GeneralTracker
from pydantic import Field
from torch import Tensor

from nadaraya.errors import InputError
from nadaraya.files import first_line, write_file, writing
from nadaraya.stored import Stored, read_lines
from nadaraya.training.folder import METRICS_FILE
from nadaraya.training.progress import TrainingProgress


class _Record(Stored, extra="allow"):
    """A record of metrics.jsonl: its figures are numbers, whatever they are called."""

    __pydantic_extra__: dict[str, float]
    step: Annotated[int, Field(ge=0)]
    loss: float


class _Train(_Record):
    kind: Literal["train"]
    seconds: float


class _Validation(_Record):
    kind: Literal["validation"]


class _Final(_Record):
    kind: Literal["final"]
    step_seconds: float
    parameters: int
    kernel_parameters: int
    corpus_sha256: str = ""
    tokens_sha256: str = ""
    images_sha256: str = ""
    pruned_heads: dict[str, Any] = Field(default_factory=dict)
    intermediate_sizes: dict[str, Any] = Field(default_factory=dict)
    sha256: dict[str, str]


_Line: Any = Annotated[_Train | _Validation | _Final, Field(discriminator="kind")]


class TrainingDiverged(InputError):
    """The loss or its gradient is infinite or not a number, or a kernel degenerated; training stopped.

    >>> from nadaraya.training import TrainingDiverged
    >>> raise TrainingDiverged("the loss became nan at step 7")
    Traceback (most recent call last):
    nadaraya.training.metrics.TrainingDiverged: the loss became nan at step 7
    """


def read_metrics(path: Path) -> list[dict[str, Any]]:
    """Every complete record, oldest first; a last line that was cut off while being written is left out."""
    records = [json.loads(line) for line, _ in read_lines(path, _Line, "the records of a training")]
    for number, (earlier, later) in enumerate(pairwise(records), start=2):
        if later["step"] < earlier["step"]:
            raise InputError(f"{path}, line {number}, is of an earlier step than the line before it")
    return records


def digest_of(records: list[dict[str, Any]]) -> str:
    """SHA-256 of records as the file has them, 64 hexadecimal digits."""
    return hashlib.sha256(_lines(records).encode()).hexdigest()


def _lines(records: list[dict[str, Any]]) -> str:
    return "".join(json.dumps(record) + "\n" for record in records)


def append_record(path: Path, record: dict[str, Any]) -> None:
    """Append a record to a file of JSON lines, handed to the operating system at once."""
    with writing(path), path.open("a", encoding="utf-8") as stream:
        stream.write(_lines([record]))


class Records:
    """The records of a run: to metrics.jsonl, to the person who watches, and to a tracker.

    Records of updates after `done` are dropped, and the final one, which a run that goes on makes anew. An
    InputError where those before do not have the `digest`. The `name` is that of the run in the tracker.
    """

    def __init__(
        self,
        folder: Path,
        done: int,
        digest: str | None,
        shown: TrainingProgress,
        tracker: str | None = None,
        name: str = "",
    ) -> None:
        self._path, self._shown = folder / METRICS_FILE, shown
        found = read_metrics(self._path)
        kept = [record for record in found if record["step"] <= done and record["kind"] != "final"]
        if digest is not None and digest_of(kept) != digest:
            raise InputError(
                f"{self._path} is damaged: its records up to step {done} are not those of this run; restore "
                f"it, or remove {folder} to start the run over"
            )
        write_file(self._path, _lines(kept))
        # A tracker has the dropped ones already.
        self._tracked = max((record["step"] for record in found), default=0)
        self._tracker = None if tracker is None else _start_tracker(tracker, folder, name)

    def add(self, kind: str, step: int, metrics: dict[str, Any]) -> None:
        """Hand out a record: its kind ("train", "validation", "final"), the updates made, metrics by name."""
        append_record(self._path, {"kind": kind, "step": step, **metrics})
        self._shown.add(kind, step, metrics)
        if self._tracker and kind != "final" and step > self._tracked:
            self._tracker.log({f"{kind}/{name}": value for name, value in metrics.items()}, step=step)

    def close(self) -> None:
        """Stop the display, and let the tracker send what it has."""
        self._shown.close()
        if self._tracker:
            self._tracker.finish()


def check_tracker(tracker: str | None) -> None:
    """Refuse a tracker whose package is not installed."""
    if tracker is not None and find_spec(tracker) is None:
        raise InputError(f"training.tracker {tracker} needs its package: pip install {tracker}")


def _start_tracker(tracker: str, folder: Path, name: str) -> GeneralTracker:
    """One of accelerate's: TensorBoard, whose files go into the folder, Weights & Biases or trackio."""
    make: Any = LOGGER_TYPE_TO_CLASS[tracker]
    try:
        if make.requires_logging_directory:
            started = make(tracker, folder)
        else:  # a run that is resumed goes on under the name that it began with
            path = folder / "tracker_id.txt"
            if not path.is_file():
                write_file(path, uuid4().hex[:8])
            mark = path.read_text(encoding="utf-8")
            known = {"id": mark, "dir": str(folder)} if tracker == "wandb" else {}
            started = make("nadaraya", name=f"{name}-{mark}", resume="allow", **known)
        started.start()
    except Exception as error:  # each service has errors of its own
        raise InputError(f"training.tracker {tracker} cannot be started: {first_line(error)}") from error
    return started


def step_seconds(records: list[dict[str, Any]]) -> float:
    """Median over the training records of the time of an update, in seconds."""
    marks = [(0, 0.0), *((r["step"], r["seconds"]) for r in records if r["kind"] == "train")]
    return median((t1 - t0) / (s1 - s0) for (s0, t0), (s1, t1) in pairwise(marks))


class Meter:
    """Losses since the last record and training time; values stay on the device until they are asked for."""

    def __init__(self, losses: list[float], seconds: float) -> None:
        """Start from what a checkpoint kept: losses not yet recorded, and seconds of training so far."""
        self.losses, self.seconds = list(losses), seconds
        self.gradient_norm = math.nan
        self._waiting: list[Tensor] = []
        self.start()

    def start(self) -> None:
        """Start the clock; `collect` stops it, so that evaluation and saving are not counted."""
        self._mark = time.perf_counter()

    def add(self, loss: Tensor, gradient_norm: Tensor) -> None:
        """Note one update."""
        self._waiting.append(torch.stack([loss.float(), gradient_norm.float()]))

    def collect(self, step: int, average: Callable[[Tensor], Tensor] = lambda values: values) -> None:
        """After update `step`, fetch the values that wait on the device and stop the clock.

        `average` takes the mean over the processes. Raises TrainingDiverged, which names the first step whose
        loss or gradient norm is not finite.
        """
        values = average(torch.stack(self._waiting)).tolist() if self._waiting else []
        self._waiting.clear()
        self.seconds += time.perf_counter() - self._mark
        self.start()
        for number, (loss, norm) in enumerate(values, start=step - len(values) + 1):
            if not math.isfinite(loss) or not math.isfinite(norm):
                what, value = ("gradient norm", norm) if math.isfinite(loss) else ("loss", loss)
                raise TrainingDiverged(f"the {what} became {value} at step {number}")
            self.losses.append(loss)
            self.gradient_norm = norm

    def take(self) -> float:
        """The mean loss since the last record, which starts a new one."""
        mean = math.fsum(self.losses) / len(self.losses)
        self.losses.clear()
        return mean
