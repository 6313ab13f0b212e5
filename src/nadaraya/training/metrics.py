"""metrics.jsonl, one JSON object per line, appended as training goes; and the losses between two records."""

import hashlib
import json
import math
import time
from collections.abc import Callable
from itertools import pairwise
from pathlib import Path
from statistics import median
from typing import Annotated, Any, Literal

import torch
from pydantic import Field
from torch import Tensor

from nadaraya.errors import InputError
from nadaraya.files import write_file, writing
from nadaraya.stored import Stored, read_lines


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


class MetricsFile:
    """Appends records to metrics.jsonl; those of updates after `resume_step` are dropped when it is opened.

    So is the final record, which a run that goes on makes anew. `recorded` is the newest update that the file
    had a record of, dropped ones included.
    """

    def __init__(self, path: Path, resume_step: int, digest: str | None = None) -> None:
        """`digest` is that of the records up to `resume_step`, InputError if they have another; None: any."""
        self.path = path
        found = read_metrics(path)
        self.recorded = max((record["step"] for record in found), default=0)
        kept = [record for record in found if record["step"] <= resume_step and record["kind"] != "final"]
        if digest is not None and digest_of(kept) != digest:
            raise InputError(
                f"{path} is damaged: its records up to step {resume_step} are not those of this run; restore "
                f"it, or remove {path.parent} to start the run over"
            )
        write_file(path, _lines(kept))

    def add(self, kind: str, step: int, figures: dict[str, Any]) -> None:
        """Append one record."""
        append_record(self.path, {"kind": kind, "step": step, **figures})

    def close(self) -> None:
        """Nothing is open between two records."""


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
