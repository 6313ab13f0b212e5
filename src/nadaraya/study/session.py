"""A study from its file to its summary: one call, which is made again until nothing is left."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from typing import Any

from nadaraya.study.file import Study
from nadaraya.study.kept import MEASURED_FILE, results_text
from nadaraya.study.plan import Cell, Measurements, plan_cells
from nadaraya.study.queue import Ended
from nadaraya.study.runs import StudyRuns, run_all
from nadaraya.study.summary import Summary, write_summary
from nadaraya.training.folder import FolderLock


@dataclass(frozen=True)
class Session:
    """The outcome of one call of `run_study`.

    Attributes:
        ended: how the queue ended.
        left: runs that the study still needs.
        hours: that they take at the speed of those that are finished; None while there are none.
        warnings: one line each, such as a best learning rate at an end of the list.
        summary: of all that is finished.

    >>> from nadaraya.study import Ended, Session, Summary
    >>> Session(Ended(), 0, None, [], Summary("rope", "training FLOPs", {}, {}, {})).left
    0
    """

    ended: Ended
    left: int
    hours: float | None
    warnings: list[str]
    summary: Summary


def plan_study(
    study: Study,
    folder: Path,
    *,
    changes: Sequence[str] = (),
    only: Sequence[str] = (),
    seeds: Sequence[int] = (),
    timed: bool = False,
    vocabulary: int | None = None,
) -> list[tuple[Cell, int]]:
    """Every cell of a study and how many runs it still needs; the folder keeps what was measured, no more.

    Args:
        study: the study.
        folder: where its runs are, or will be.
        changes, only, seeds: as in `run_study`.
        timed: measure the time of an update of every cell; default False.
        vocabulary: number of tokens that is assumed, so that no text is read and nothing is kept; default
            None: that of the texts.

    Raises:
        InputError: recipes that cannot be used, or a folder that has other runs.

    >>> from pathlib import Path
    >>> from nadaraya.study import Study, plan_study
    >>> study = Study(recipe="demo", baseline="rope", variants={"rope": {}}, learning_rates=[1e-3, 2e-3])
    >>> changes = ["model.hidden_size=8", "data.limit=9000"]
    >>> [(cell, left)] = plan_study(study, Path("studies/demo"), changes=changes)
    >>> cell.steps, left  # two rates with the first seed, the best of them with two more
    (200, 4)
    """
    measurements = Measurements(folder / MEASURED_FILE if vocabulary is None else None, vocabulary)
    cells = plan_cells(study, changes, measurements, only, timed)
    runs = StudyRuns(study, cells, folder, seeds)
    return [(cell, runs.left(cell)) for cell in cells]


def run_study(
    study: Study,
    folder: Path,
    *,
    changes: Sequence[str] = (),
    only: Sequence[str] = (),
    seeds: Sequence[int] = (),
    workers: int = 1,
    train: bool = True,
    **options: Any,
) -> Session:
    """Train what is left of a study, make up for probes, then summarise all that is finished.

    Args:
        study: the study.
        folder: of its runs, results and summary; made when absent. Finished runs are skipped, stopped ones
            go on.
        changes: of its recipe, as KEY=VALUE.
        only: variants to train; default all.
        seeds: to train; default those of the study. With its first one learning rates are searched, and all
            count in the summary, in any case.
        workers: runs at a time, default 1, among which the cores are shared out.
        train: default True; False only makes up for the probes that finished runs lack, where their folders
            are here.
        options: seconds and say of `run_queue`: the time limit, and what takes a line for each start and end.

    Returns:
        What was done and what is left.

    Raises:
        InputError: recipes that cannot be used, or a folder that has other runs or is in use.

    >>> from pathlib import Path
    >>> from nadaraya.study import Study, run_study
    >>> study = Study(recipe="demo", baseline="rope", variants={"rope": {}}, learning_rates=[1e-3])
    >>> changes = ["model.hidden_size=8", "data.limit=9000"]
    >>> run_study(study, Path("studies/demo"), changes=changes, seconds=0).left
    3
    """
    with FolderLock(folder) as lock:
        lock.take()
        study, measurements = study.with_seeds(seeds), Measurements(folder / MEASURED_FILE)
        cells = plan_cells(study, changes, measurements, only)
        runs = StudyRuns(study, cells, folder, seeds)
        everything = StudyRuns(study, plan_cells(study, changes, measurements), folder)
        ended = run_all(
            folder,
            lambda: [*(runs.pending() if train else ()), *runs.unprobed()],
            lambda: results_text(everything.results()),
            workers=workers,
            **options,
        )
        summary = write_summary(study, folder)
        left = [(cell, runs.left(cell)) for cell in cells]
        speeds = [
            row["flops"] / (row["steps"] * row["step_seconds"]) for row in everything.rows() if "flops" in row
        ]
        flops = sum(count * cell.flops for cell, count in left)
        hours = flops / median(speeds) / workers / 3600 if speeds else None
        return Session(ended, sum(count for _, count in left), hours, runs.warnings(), summary)
