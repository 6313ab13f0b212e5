"""Results of a study: the schema of its files, and the finished runs as summaries, claims and figures use them.

The figures of a run are in FOLDER/runs/SIZE/VARIANT/NAME.json; results.json has those of all runs, also of
runs whose files are gone.
"""

import json
import platform
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache, cached_property
from pathlib import Path
from typing import Annotated, Any, NotRequired, Self, cast

import torch
from pydantic import ConfigDict, Field, with_config
from typing_extensions import TypedDict

from nadaraya.errors import InputError
from nadaraya.stored import read_stored
from nadaraya.study.file import Study
from nadaraya.study.probes import lacks
from nadaraya.study.statistics import Gaps, gaps_between
from nadaraya.training import ImageRecipe, Recipe
from nadaraya.training.recipe import read_mapping
from nadaraya.training.schema import NonNegativeInt, PositiveInt

RESULTS_FILE = "results.json"
SUMMARY_FILE = "summary.md"
RUNS_FOLDER = "runs"
Place = tuple[str, str, float, int]  # size, variant, learning rate and seed of a run
CHECKED = ConfigDict(strict=True, extra="allow", allow_inf_nan=False)
Positive = Annotated[float, Field(gt=0)]
Count = Annotated[int, Field(gt=0, le=10**30)]


class Figures(TypedDict):
    """The figures of a run: a loss, or how it diverged; the other keys come with a loss."""

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


class Row(Figures):
    """A run of results.json."""

    size: str
    variant: str
    learning_rate: Positive
    seed: NonNegativeInt


@with_config(CHECKED)
class RunFile(Figures):
    """The file of figures beside the folder of a run."""

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


def run_file(folder: Path) -> Path:
    """The file of figures of the run of a folder."""
    return folder.with_name(f"{folder.name}.json")


def read_run_file(path: Path) -> RunFile:
    """The figures of a run, from the file beside its folder."""
    return read_stored(path, RunFile, "the figures of a run")


def place_of(row: Row) -> Place:
    """Size, variant, learning rate and seed of a run."""
    return row["size"], row["variant"], row["learning_rate"], row["seed"]


def read_rows(folder: Path) -> dict[Path, tuple[Row, Recipe | ImageRecipe]]:
    """The figures and the recipe of every run in the folder of a study, by their file."""
    paths = sorted((folder / RUNS_FOLDER).glob("*/*/*.json"))
    return {path: _read_row(path, path.lstat().st_mtime_ns, path.lstat().st_size) for path in paths}


@cache
def _read_row(path: Path, *version: int) -> tuple[Row, Recipe | ImageRecipe]:
    """A file is read again only where another version of it has replaced it."""
    figures: dict[str, Any] = {**read_run_file(path)}
    recipe = read_mapping(figures.pop("recipe"))
    row = {"size": path.parts[-3], "variant": path.parts[-2]}
    row |= {"learning_rate": recipe.training.learning_rate, "seed": recipe.seed}
    return cast(Row, {**row, **figures}), recipe


def merged_rows(kept: list[Row], folder: Path) -> list[Row]:
    """Figures of runs, those in the folder of a study over those that were kept of it."""
    rows = {place_of(row): row for row in (*kept, *(row for row, _ in read_rows(folder).values()))}
    return [rows[place] for place in sorted(rows)]


def read_results(folder: Path, with_runs: bool = True) -> Results:
    """The results of the folder of a study: results.json, `with_runs` that have finished since."""
    path = folder / RESULTS_FILE
    if not path.is_file():
        raise InputError(f"{folder} has no results of a study: it has no {RESULTS_FILE}")
    results = read_stored(path, Results, "the results of a study")
    if with_runs:
        results["runs"] = merged_rows(results["runs"], folder)
    return results


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

    >>> from nadaraya.reproduce import load_experiment
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
        pairs = {}
        for size in self.study.sizes:
            theirs, ours = (
                {row["seed"]: row for row in self.rows.get((name, size), [])}
                for name in (than or self.study.baseline, variant)
            )
            pairs[size] = [(theirs[seed], ours[seed]) for seed in sorted({*theirs} & {*ours})]
        pairs = {size: rows for size, rows in pairs.items() if rows}
        return gaps_between(pairs) if pairs else None
