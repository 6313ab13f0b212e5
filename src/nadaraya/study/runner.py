"""The runner of studies, reproductions and searches: one job per run, figures beside its folder, a queue."""

import platform
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import torch

from nadaraya.errors import InputError
from nadaraya.files import write_file
from nadaraya.study.kept import RESULTS_FILE, RunFile, read_run_file, result_file
from nadaraya.study.queue import Ended, Job, run_queue
from nadaraya.training import ImageRecipe, Recipe
from nadaraya.training.recipe import read_mapping


def run_all(
    folder: Path, pending: Callable[[], Sequence[Job]], results: Callable[[], str], **options: Any
) -> Ended:
    """Run what is pending until nothing is, results.json written at the start and at every end.

    Args:
        folder: of results.json.
        pending: gives the jobs that are left.
        results: gives the content of results.json.
        options: workers, seconds and say of `run_queue`.
    """

    def waiting() -> Sequence[Job]:
        write_file(folder / RESULTS_FILE, results())
        return pending()

    ended = run_queue(waiting, **options)
    write_file(folder / RESULTS_FILE, results())
    return ended


def worker_job(name: str, recipe: Recipe, folder: Path, cost: float, probes: Sequence[str] = ()) -> Job:
    """The job that trains a recipe into a folder, whose recipe, log and figures lie beside it."""
    path, text = folder.with_name(f"{folder.name}.yaml"), recipe.to_yaml()
    if not path.is_file() or path.read_text(encoding="utf-8") != text:
        write_file(path, text)
    command = [sys.executable, "-m", "nadaraya.study.worker", str(path), str(folder), *probes]
    return Job(name, command, folder.with_name(f"{folder.name}.log"), cost)


def finished_row(folder: Path, wanted: Recipe, what: str) -> RunFile | None:
    """The figures of the run of a folder; None while there are none.

    Raises:
        InputError: they are damaged, or of a run of another recipe than the `what` now wants.
    """
    path = result_file(folder)
    if not path.is_file():
        return None
    row = read_run_file(path)
    check_recipe(path, read_mapping(row["recipe"]), wanted, what)
    return row


def check_recipe(path: Path, done: Recipe | ImageRecipe, wanted: Recipe, what: str) -> None:
    """Refuse figures of a run of another recipe than the `what`, a study or a search, now wants."""
    difference = done.first_conflict(wanted)
    if difference or done.length != wanted.length:
        key, theirs, ours = difference or ("training.steps", done.length, wanted.length)
        raise InputError(
            f"{path} has a run with {key} = {theirs!r}, the {what} now says {ours!r}: choose another "
            f"--out, or the {what} as it was"
        )


def versions() -> dict[str, str]:
    """Versions that results depend on."""
    return {"python": platform.python_version(), "torch": torch.__version__}
