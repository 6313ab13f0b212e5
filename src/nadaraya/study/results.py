"""Results of studies: the schemas of their files, and the finished runs as summaries and claims use them.

The metrics of a run are in a file beside its folder; results.json has those of all runs, also of runs that
are gone.
"""

import json
import platform
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Annotated, Any, NotRequired, Self

import torch
from pydantic import ConfigDict, Field, with_config
from typing_extensions import TypedDict

from nadaraya.errors import InputError
from nadaraya.files import file_in, is_folder
from nadaraya.stored import read_stored
from nadaraya.study.file import Study
from nadaraya.study.probes import lacks
from nadaraya.study.statistics import Deviation, Gaps, Pairs, gaps_between, losses_apart
from nadaraya.training import ImageRecipe, Recipe
from nadaraya.training.recipe import read_mapping
from nadaraya.training.schema import NonNegativeInt, PositiveInt

RESULTS_FILE, MEASURED_FILE = "results.json", "measured.json"
SUMMARY_FILE = "summary.md"
RUNS_FOLDER = "runs"
CHECKED = ConfigDict(strict=True, extra="allow", allow_inf_nan=False)
Positive = Annotated[float, Field(gt=0)]
Count = Annotated[int, Field(gt=0, le=10**30)]


class Metrics(TypedDict):
    """The metrics of a run: a loss, or how it diverged; the other keys come with a loss."""

    loss: NotRequired[float]
    diverged: NotRequired[str]
    device: NotRequired[str]
    parameters: NotRequired[Count]
    kernel_parameters: NotRequired[NonNegativeInt]
    steps: NotRequired[PositiveInt]
    step_seconds: NotRequired[Positive]
    validation: NotRequired[list[tuple[PositiveInt, float]]]
    tokens: NotRequired[Count]
    flops: NotRequired[Count]
    bits_per_byte: NotRequired[Positive]
    probes: NotRequired[dict[str, dict[str, Any]]]


class Row(Metrics):
    """A run of results.json."""

    size: str
    variant: str
    learning_rate: Positive
    seed: NonNegativeInt


@with_config(CHECKED)
class RunFile(Metrics):
    """The file of metrics beside the folder of a run."""

    recipe: dict[str, Any]


class PlannedCell(TypedDict):
    """A variant at a size, as results.json has it; `differs` are keys of its recipe."""

    size: str
    variant: str
    learning_rate: Positive | None
    seconds: NotRequired[Positive | None]
    differs: NotRequired[dict[str, Any]]


@with_config(CHECKED)
class Results(TypedDict):
    """The content of results.json; `recipe` is that of the first cell."""

    study: NotRequired[dict[str, Any]]
    recipe: dict[str, Any]
    cells: list[PlannedCell]
    runs: list[Row]
    warnings: NotRequired[list[str]]


def check_study_folder(folder: Path) -> None:
    """Refuse a folder with files that no study or search has written: it would replace some of them."""
    names = {each.name for each in folder.iterdir()} if is_folder(folder) else set()
    if any(not name.startswith(".") for name in names) and not names & {RESULTS_FILE, MEASURED_FILE}:
        raise InputError(f"{folder} has files in it and is not the folder of a study: choose another one")


def run_file(folder: Path) -> Path:
    """The file of metrics of the run of a folder."""
    return folder.with_name(f"{folder.name}.json")


def read_run_file(path: Path) -> RunFile:
    """The metrics of a run, from the file beside its folder."""
    return read_stored(path, RunFile, "the figures of a run")


class FinishedRuns:
    """The metrics of finished runs of a `what`, a study or a search.

    A file is read, and its recipe checked, once in each of its versions: probes may be added to it.
    """

    def __init__(self, what: str) -> None:
        self._what, self._read = what, dict[Path, tuple[tuple[int, int], RunFile]]()

    def metrics(self, folder: Path, wanted: Callable[[], Recipe]) -> RunFile | None:
        """Those of the run of a folder; None while there are none.

        Raises:
            InputError: they are those of another recipe than is wanted now, or cannot be read.
        """
        path = run_file(folder)
        if not path.is_file():
            return None
        version = path.stat().st_mtime_ns, path.stat().st_size
        if path not in self._read or self._read[path][0] != version:
            found = read_run_file(path)
            check_recipe(path, read_mapping(found["recipe"]), wanted(), self._what)
            self._read[path] = version, found
        return self._read[path][1]


def read_results(folder: Path) -> Results:
    """The content of results.json of the folder of a study."""
    path = file_in(folder, RESULTS_FILE, "has no results of a study")
    return read_stored(path, Results, "the results of a study")


def check_recipe(path: Path, done: Recipe | ImageRecipe, wanted: Recipe, what: str) -> None:
    """Refuse metrics of a run of another recipe than the `what`, a study or a search, now wants."""
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


def results_text(results: Mapping[str, Any]) -> str:
    """The content of results.json: every run is one line of it."""
    runs = ",\n".join(f"  {json.dumps(row)}" for row in results["runs"])
    rest = json.dumps({key: value for key, value in results.items() if key != "runs"}, indent=1)
    return rest.removesuffix("\n}") + f',\n "runs": [\n{runs}\n ]\n}}\n'


@dataclass(frozen=True)
class Findings:
    """The finished runs of a study at the learning rates that were chosen.

    Args:
        study: the study.
        results: content of its results.json.

    >>> from nadaraya.reproduce.catalogue import load_experiment
    >>> from nadaraya.study import Findings
    >>> Findings(load_experiment("papers", "smoke").study, {"cells": [], "runs": []}).sizes("rope")
    {}
    """

    study: Study
    results: Results

    @classmethod
    def read(cls, folder: Path) -> Self:
        """The findings of the folder of a study, which its results.json names."""
        results = read_results(folder)
        return cls(Study(**results["study"]), results)

    @cached_property
    def rows(self) -> dict[tuple[str, str], list[Row]]:
        """The runs of every variant at every size, by seed."""
        rates = {(cell["variant"], cell["size"]): cell["learning_rate"] for cell in self.results["cells"]}
        found: dict[tuple[str, str], list[Row]] = {cell: [] for cell in rates}
        for row in self.results["runs"]:
            cell = row["variant"], row["size"]
            chosen = rates.get(cell) == row["learning_rate"] and row["seed"] in self.study.seeds_of(cell[1])
            if "loss" in row and chosen:
                found[cell].append(row)
        return found

    def sizes(self, variant: str, *probes: str) -> dict[str, list[Row]]:
        """The runs of a variant by size, fewest updates first; those alone that have the probes named."""
        found = {
            size: [row for row in self.rows.get((variant, size), []) if not lacks(row, *probes)]
            for size in self.study.sizes
        }
        there = {size: rows for size, rows in found.items() if rows}
        return dict(sorted(there.items(), key=lambda item: item[1][0]["steps"]))

    def longest(self, variant: str, *probes: str) -> list[Row]:
        """The runs at the most updates that several seeds have, or at the most; none where there are none."""
        rows = self.sizes(variant, *probes).values()
        return max(rows, key=lambda rows: (len(rows) > 1, rows[0]["steps"]), default=[])

    def gaps(self, variant: str, than: str = "") -> Gaps | None:
        """A variant against another one, default the baseline, by size; None where no seed has both."""
        than = than or self.study.baseline
        pairs = {size: rows for size in self.study.sizes if (rows := self._pairs(variant, than, size))}
        deviations = {
            size: Deviation.of([
                [*losses_apart(self._pairs(name, than, size)).values()]
                for name in self.study.variants if name != than
            ])
            for size in pairs
        }  # fmt: skip
        return gaps_between(pairs, deviations) if pairs else None

    def _pairs(self, variant: str, than: str, size: str) -> Pairs:
        """The runs of both, other first, of every seed that both have."""
        theirs, ours = (
            {row["seed"]: row for row in self.rows.get((name, size), [])} for name in (than, variant)
        )
        return [(theirs[seed], ours[seed]) for seed in sorted({*theirs} & {*ours})]
