"""The runs of a study in its folder: which are done, which are left, what they reached."""

import copy
import json
import platform
import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, cast

import torch

from nadaraya.errors import InputError
from nadaraya.files import write_file
from nadaraya.plain_yaml import put
from nadaraya.stored import read_stored
from nadaraya.study.file import Study
from nadaraya.study.kept import Figures, PlannedCell, Results, Row, RunFile
from nadaraya.study.plan import Cell
from nadaraya.study.probes import lacks
from nadaraya.study.queue import Job
from nadaraya.training import ImageRecipe, Recipe
from nadaraya.training.folder import RECIPE_FILE
from nadaraya.training.recipe import read_mapping

RESULTS_FILE = "results.json"
RUNS_FOLDER = "runs"
_RESULTS = "the results of a study"


class StudyRuns:
    """The runs of a study: `FOLDER/runs/SIZE/VARIANT/lrRATE-seedN`, and a .json of figures beside each.

    Runs that are gone, made on another machine perhaps, count by their figures in results.json.

    Args:
        study: the study.
        cells: its plan, or a part of it.
        folder: of the study.
        seeds: the only ones to train, which the study need not have; default all of its own. Learning rates
            are searched with its first one in any case.
    """

    def __init__(self, study: Study, cells: Sequence[Cell], folder: Path, seeds: Sequence[int] = ()) -> None:
        self._study, self._cells, self._folder, self._seeds = study.with_seeds(seeds), cells, folder, seeds
        self._rows: dict[Path, Figures] = {}  # of finished runs, which do not change
        self._before: Results = {"recipe": {}, "cells": [], "runs": []}
        if (folder / RESULTS_FILE).is_file():
            self._before = read_results_file(folder)
        self._kept = {_place(row): row for row in self._before["runs"]}

    def pending(self) -> list[Job]:
        """The runs that can be started now: those of the search of a cell, then those of its other seeds."""
        return [self._job(cell, *missing) for cell in self._cells for missing in self._missing(cell)]

    def left(self, cell: Cell) -> int:
        """How many runs a cell still needs, those not counted with which a search may go on."""
        rates, best = self._search(cell)
        untried = len(self._missing(cell))
        if best is not None:
            return untried
        seeds = self._wanted_seeds(cell)
        if not rates:  # the rate comes from another size
            return len(seeds)
        first = self._study.seeds_of(cell.size)[0]
        return untried + sum(seed != first for seed in seeds) if untried else 0

    def unprobed(self) -> list[Job]:
        """The finished runs that lack a probe and whose folders are here: jobs that make up for it."""
        return [
            self._job(cell, rate, seed)
            for cell, rate, seed, row in self._finished()
            if any(lacks(row, name) for name in self._study.probes_of(cell.size))
            and (self._run_folder(cell, rate, seed) / RECIPE_FILE).is_file()
        ]

    def warnings(self) -> list[str]:
        """One line for each cell whose rates all diverged, or whose best rate is an end of those tried.

        One for each whose best rate diverged with other seeds, for runs of several kinds of processors, and
        for each probe that runs at the chosen rates lack.
        """
        lines = []
        for cell in self._cells:
            rates, best = self._search(cell)
            if rates and best is None and not self._missing(cell):
                lines.append(f"{cell.variant} at size {cell.size}: training diverged at every learning rate")
            elif self._study.searches(cell.size, cell.variant) and best is not None and len(rates) > 1:
                end = {min(rates): "lowest", max(rates): "highest"}.get(best)
                if end:
                    lines.append(
                        f"{cell.variant} at size {cell.size}: the best learning rate is the {end} that was "
                        f"tried, {best:g}: the optimum may lie beyond (learning_rates, extend_rates)"
                    )
        rows = [(cell, row) for cell, rate, _, row in self._finished() if rate == self._search(cell)[1]]
        for cell in self._cells:
            diverged = [row for of, row in rows if of is cell and "diverged" in row]
            if diverged:
                lines.append(
                    f"{cell.variant} at size {cell.size}: training diverged with {len(diverged)} of "
                    f"{len(self._study.seeds_of(cell.size))} seeds at the learning rate "
                    f"{diverged[0]['learning_rate']:g}, and the figures are those of the others"
                )
        devices = sorted({row["device"] for _, row in rows if "device" in row})
        if len(devices) > 1:
            lines.append(
                f"runs of one seed can differ between processors, and these are of {', '.join(devices)}"
            )
        for name in self._study.probes:
            without = [
                row for cell, row in rows if name in self._study.probes_of(cell.size) and lacks(row, name)
            ]
            if without:
                lines.append(f"{len(without)} of the runs lack the probe {name}: --probe tries again")
        return lines

    def results(self) -> dict[str, Any]:
        """Everything that was found, as plain values: the plan and the rows of all runs.

        The recipe is that of the first cell; every cell has the keys in which its own differs from it.
        """
        keys = ("size", "variant", "parameters", "flops_per_token", "steps", "flops", "seconds")
        first = self._cells[0].recipe
        return {
            "study": self._study.model_dump(mode="json", exclude={"source"}),
            "recipe": first.to_mapping(),
            "cells": [
                {
                    **{key: getattr(cell, key) for key in keys},
                    "learning_rate": self._search(cell)[1],
                    "differs": _differences(first, cell.recipe),
                }
                for cell in self._cells
            ]
            + self._left_out(first),
            "runs": self.rows(),
            "warnings": self.warnings(),
            "versions": {"python": platform.python_version(), "torch": torch.__version__},
        }

    def rows(self) -> list[Row]:
        """The figures of every run, of those that are here and those that only results.json has."""
        return merged_rows(self._kept.values(), self._folder)

    def _left_out(self, first: Recipe) -> list[PlannedCell]:
        """The cells that an earlier plan had, and whose runs are kept in case that another has them again."""
        ran = {(row["size"], row["variant"]) for row in self._kept.values()}
        ran -= {(cell.size, cell.variant) for cell in self._cells}
        return [
            {**cell, "differs": _differences(first, read_mapping(self._earlier(cell)))}
            for cell in self._before["cells"]
            if (cell["size"], cell["variant"]) in ran
        ]

    def _earlier(self, cell: PlannedCell) -> dict[str, Any]:
        """The recipe of a cell of results.json."""
        mapping = copy.deepcopy(self._before["recipe"])
        for key, value in cell.get("differs", {}).items():
            put(mapping, key, value)
        return mapping

    def _missing(self, cell: Cell) -> list[tuple[float, int]]:
        """Rates and seeds that a cell needs next."""
        rates, best = self._search(cell)
        first = self._study.seeds_of(cell.size)[0]
        wanted = [(rate, first) for rate in rates if len(rates) > 1]
        if best is not None:
            wanted += [(best, seed) for seed in self._wanted_seeds(cell)]
        return [place for place in dict.fromkeys(wanted) if self._row(cell, *place) is None]

    def _wanted_seeds(self, cell: Cell) -> list[int]:
        return [seed for seed in self._study.seeds_of(cell.size) if not self._seeds or seed in self._seeds]

    def _search(self, cell: Cell) -> tuple[list[float], float | None]:
        """The rates of a cell, further ones included, and the best of them once all were tried."""
        if not self._study.searches(cell.size, cell.variant):
            rate = self._inherited(cell)
            return ([], None) if rate is None else ([rate], rate)
        rates, extended = self._study.rates_of(cell.size), 0
        while True:
            losses = {rate: self._loss(cell, rate) for rate in rates}
            if any(loss is None for loss in losses.values()):
                return rates, rates[0] if len(rates) == 1 else None  # one alone is the best
            best = min(losses, key=lambda rate: losses[rate] or 0.0)
            if losses[best] == float("inf"):
                return rates, None
            beyond = None
            if len(rates) > 1 and extended < self._study.extend_rates:
                beyond = {rates[0]: rates[0] ** 2 / rates[1], rates[-1]: rates[-1] ** 2 / rates[-2]}.get(best)
            if beyond is None:
                return rates, best
            rates, extended = sorted([*rates, float(f"{beyond:.4g}")]), extended + 1

    def _inherited(self, cell: Cell) -> float | None:
        """The rate of the same variant at the nearest size before this one that has a search, else after."""
        sizes = self._study.sizes_of(cell.variant)
        place = sizes.index(cell.size)
        searched = [size for size in sizes if self._study.searches(size, cell.variant)]
        before = [size for size in searched if sizes.index(size) < place]
        size = before[-1] if before else searched[0]
        there = next(other for other in self._cells if (other.size, other.variant) == (size, cell.variant))
        return self._search(there)[1]

    def _loss(self, cell: Cell, rate: float) -> float | None:
        """The final loss of the first seed at a rate, infinite where it diverged; None while not done."""
        row = self._row(cell, rate, self._study.seeds_of(cell.size)[0])
        return None if row is None else float(row.get("loss", "inf"))

    def _finished(self) -> Iterator[tuple[Cell, float, int, Row]]:
        """Cell, rate, seed and figures, as they are now, of every run of the plan that is done."""
        rows = {_place(row): row for row in self.rows()}  # which probes may have been added to
        for cell in self._cells:
            for rate in self._search(cell)[0]:
                for seed in self._study.seeds_of(cell.size):
                    if self._row(cell, rate, seed) is not None:
                        yield cell, rate, seed, rows[cell.size, cell.variant, rate, seed]

    def _row(self, cell: Cell, rate: float, seed: int) -> Figures | None:
        """The figures of a run, checked to be one of this plan; None while there are none."""
        path = result_file(self._run_folder(cell, rate, seed))
        if path in self._rows:
            return self._rows[path]
        if not path.is_file():
            row = self._kept.get((cell.size, cell.variant, rate, seed))
            if row is not None:
                self._check_kept(cell, row)
                self._rows[path] = row
            return row
        self._rows[path] = finished_row(path, self._recipe(cell, rate, seed), "study")
        return self._rows[path]

    def _check_kept(self, cell: Cell, row: Row) -> None:
        """Refuse figures of results.json that were found for another plan."""
        path = self._folder / RESULTS_FILE
        wanted, place = self._recipe(cell, row["learning_rate"], row["seed"]), (cell.size, cell.variant)
        planned = [each for each in self._before["cells"] if (each["size"], each["variant"]) == place]
        if not planned:
            raise InputError(f"{path} has runs of {cell.variant} at size {cell.size}, and no such cell")
        mapping = self._earlier(planned[0])
        for key in ("name", "seed", "training.learning_rate"):
            put(mapping, key, wanted.flat()[key])
        _check_recipe(path, read_mapping(mapping), wanted, "study")

    def _job(self, cell: Cell, rate: float, seed: int) -> Job:
        folder = self._run_folder(cell, rate, seed)
        name = folder.relative_to(self._folder / RUNS_FOLDER).as_posix()
        recipe, cost = self._recipe(cell, rate, seed), cell.seconds or cell.flops
        return worker_job(name, recipe, folder, cost, self._study.probes_of(cell.size))

    def _recipe(self, cell: Cell, rate: float, seed: int) -> Recipe:
        mapping = cell.recipe.to_mapping()
        mapping["training"]["learning_rate"] = rate
        name = f"{cell.size}-{cell.variant}-lr{rate:g}-seed{seed}"
        return Recipe.from_mapping({**mapping, "seed": seed, "name": name})

    def _run_folder(self, cell: Cell, rate: float, seed: int) -> Path:
        return self._folder / RUNS_FOLDER / cell.size / cell.variant / f"lr{rate:g}-seed{seed}"


def worker_job(name: str, recipe: Recipe, folder: Path, cost: float, probes: Sequence[str] = ()) -> Job:
    """The job that trains a recipe into a folder, whose recipe, log and figures lie beside it."""
    path, text = folder.with_name(f"{folder.name}.yaml"), recipe.to_yaml()
    if not path.is_file() or path.read_text(encoding="utf-8") != text:
        write_file(path, text)
    command = [sys.executable, "-m", "nadaraya.study.worker", str(path), str(folder), *probes]
    return Job(name, command, folder.with_name(f"{folder.name}.log"), cost)


def finished_row(path: Path, wanted: Recipe, what: str) -> RunFile:
    """The figures of a run that is done, from its file.

    Raises:
        InputError: they are damaged, or of a run of another recipe than the `what` now wants.
    """
    row = read_run_file(path)
    _check_recipe(path, read_mapping(row["recipe"]), wanted, what)
    return row


def _check_recipe(path: Path, done: Recipe | ImageRecipe, wanted: Recipe, what: str) -> None:
    difference = done.first_conflict(wanted)
    if difference or done.length != wanted.length:
        key, theirs, ours = difference or ("training.steps", done.length, wanted.length)
        raise InputError(
            f"{path} has a run with {key} = {theirs!r}, the {what} now says {ours!r}: choose another "
            f"--out, or the {what} as it was"
        )


def _differences(first: Recipe, other: Recipe | ImageRecipe) -> dict[str, Any]:
    """The keys in which a recipe differs from the first one of the plan, with its values."""
    before = first.flat()
    return {key: value for key, value in other.flat().items() if key != "name" and value != before[key]}


def results_text(results: Mapping[str, Any]) -> str:
    """The content of results.json: every run is one line of it."""
    runs = ",\n".join(f"  {json.dumps(row)}" for row in results["runs"])
    rest = json.dumps({key: value for key, value in results.items() if key != "runs"}, indent=1)
    return rest.removesuffix("\n}") + f',\n "runs": [\n{runs}\n ]\n}}\n'


def chosen_rows(study: Study, results: Results) -> dict[tuple[str, str], list[Row]]:
    """The finished runs of every cell, a variant and a size, at the rate that its search chose, by seed."""
    found: dict[tuple[str, str], list[Row]] = {(c["variant"], c["size"]): [] for c in results["cells"]}
    rates = {(cell["variant"], cell["size"]): cell["learning_rate"] for cell in results["cells"]}
    for row in results["runs"]:
        cell = row["variant"], row["size"]
        if (
            "loss" in row
            and rates.get(cell) == row["learning_rate"]
            and row["seed"] in study.seeds_of(cell[1])
        ):
            found[cell].append(row)
    return found


def read_results_file(folder: Path) -> Results:
    """The results of the folder of a study, as they were written."""
    return read_stored(folder / RESULTS_FILE, Results, _RESULTS)


def read_run_file(path: Path) -> RunFile:
    """The figures of a run, from the file beside its folder."""
    return read_stored(path, RunFile, "the figures of a run")


def merged_rows(kept: Iterable[Row], folder: Path) -> list[Row]:
    """Figures of runs, those in the folder of a study over those that were kept of it."""
    rows = {_place(row): row for row in (*kept, *rows_below(folder))}
    return [row for _, row in sorted(rows.items())]


def _place(row: Row) -> tuple[str, str, float, int]:
    return row["size"], row["variant"], row["learning_rate"], row["seed"]


def rows_below(folder: Path) -> list[Row]:
    """The figures of every run in the folder of a study, its recipe but for size, variant, rate and seed."""
    rows = []
    for path in sorted((folder / RUNS_FOLDER).glob("*/*/*.json")):
        figures: dict[str, Any] = {**read_run_file(path)}
        recipe = figures.pop("recipe")
        rate, seed = recipe["training"]["learning_rate"], recipe["seed"]
        where = {"size": path.parts[-3], "variant": path.parts[-2], "learning_rate": rate, "seed": seed}
        rows.append(cast(Row, {**where, **figures}))
    return rows


def result_file(folder: Path) -> Path:
    """Where the figures of the run of a folder are."""
    return folder.with_name(f"{folder.name}.json")
