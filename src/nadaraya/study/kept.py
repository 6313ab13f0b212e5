"""The files that a study keeps, how they are read and written: figures of runs, results, measurements."""

import json
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Annotated, Any, NotRequired, cast

from pydantic import ConfigDict, Field, with_config
from typing_extensions import TypedDict

from nadaraya.errors import InputError
from nadaraya.stored import read_stored
from nadaraya.training.recipe import read_mapping
from nadaraya.training.schema import NonNegativeInt, PositiveInt

RESULTS_FILE = "results.json"
MEASURED_FILE = "measured.json"
SUMMARY_FILE = "summary.md"
RUNS_FOLDER = "runs"
Place = tuple[str, str, float, int]  # size, variant, learning rate and seed of a run
_CHECKED = ConfigDict(strict=True, extra="allow", allow_inf_nan=False)
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


@with_config(_CHECKED)
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


@with_config(_CHECKED)
class Results(TypedDict):
    """The content of results.json; `recipe` is that of the first cell."""

    recipe: dict[str, Any]
    cells: list[PlannedCell]
    runs: list[Row]
    warnings: NotRequired[list[str]]


@with_config(_CHECKED)
class Measured(TypedDict):
    """The content of measured.json, by what was measured."""

    tokens: dict[str, PositiveInt]
    step_seconds: dict[str, Positive]


def place_of(row: Row) -> Place:
    """The place of a run."""
    return row["size"], row["variant"], row["learning_rate"], row["seed"]


def result_file(folder: Path) -> Path:
    """The file of figures of the run of a folder."""
    return folder.with_name(f"{folder.name}.json")


def read_run_file(path: Path) -> RunFile:
    """The figures of a run, from the file beside its folder."""
    return read_stored(path, RunFile, "the figures of a run")


def rows_below(folder: Path) -> list[Row]:
    """The figures of every run in the folder of a study, its recipe but for size, variant, rate and seed."""
    rows = []
    for path in sorted((folder / RUNS_FOLDER).glob("*/*/*.json")):
        figures: dict[str, Any] = {**read_run_file(path)}
        recipe = read_mapping(figures.pop("recipe"))
        where = {"size": path.parts[-3], "variant": path.parts[-2]}
        tried = {"learning_rate": recipe.training.learning_rate, "seed": recipe.seed}
        rows.append(cast(Row, {**where, **tried, **figures}))
    return rows


def read_results(folder: Path, with_runs: bool = True) -> Results:
    """The results of the folder of a study: results.json, `with_runs` that have finished since."""
    path = folder / RESULTS_FILE
    if not path.is_file():
        raise InputError(f"{folder} has no results of a study: it has no {RESULTS_FILE}")
    results = read_stored(path, Results, "the results of a study")
    if with_runs:
        results["runs"] = merged_rows(results["runs"], folder)
    return results


def merged_rows(kept: Iterable[Row], folder: Path) -> list[Row]:
    """Figures of runs, those in the folder of a study over those that were kept of it."""
    rows = {place_of(row): row for row in (*kept, *rows_below(folder))}
    return [rows[place] for place in sorted(rows)]


def results_text(results: Mapping[str, Any]) -> str:
    """The content of results.json: every run is one line of it."""
    runs = ",\n".join(f"  {json.dumps(row)}" for row in results["runs"])
    rest = json.dumps({key: value for key, value in results.items() if key != "runs"}, indent=1)
    return rest.removesuffix("\n}") + f',\n "runs": [\n{runs}\n ]\n}}\n'
