"""Runs in a folder: the runner of studies and searches, and those of a study, done and left."""

import copy
import platform
import sys
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import torch

from nadaraya.errors import InputError
from nadaraya.files import write_file
from nadaraya.plain_yaml import put
from nadaraya.study.file import Study
from nadaraya.study.kept import (
    RESULTS_FILE,
    RUNS_FOLDER,
    Figures,
    Place,
    PlannedCell,
    Results,
    Row,
    RunFile,
    merged_rows,
    place_of,
    read_results,
    read_run_file,
    result_file,
)
from nadaraya.study.plan import Cell
from nadaraya.study.probes import lacks
from nadaraya.study.queue import Ended, Job, run_queue
from nadaraya.training import ImageRecipe, Recipe
from nadaraya.training.folder import RECIPE_FILE
from nadaraya.training.recipe import read_mapping


def run_all(
    folder: Path, pending: Callable[[], Sequence[Job]], results: Callable[[], str], **options: Any
) -> Ended:
    """Run what is pending, with options of `run_queue`; results.json is written whenever a run has ended."""

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
    """The figures of the run of a folder, None while there are none; refused if the `what` wants another."""
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


class StudyRuns:
    """The runs of a study: `FOLDER/runs/SIZE/VARIANT/lrRATE-seedN`, and a .json of figures beside each.

    Runs that are gone, made on another machine perhaps, count by their figures in results.json. With `seeds`,
    which the study need not have, these alone are trained; learning rates are searched with its first one in
    any case.
    """

    def __init__(self, study: Study, cells: Sequence[Cell], folder: Path, seeds: Sequence[int] = ()) -> None:
        self._study, self._cells, self._folder, self._seeds = study.with_seeds(seeds), cells, folder, seeds
        self._rows: dict[Place, Figures] = {}  # of finished runs, which do not change
        self._before: Results = {"recipe": {}, "cells": [], "runs": []}
        if (folder / RESULTS_FILE).is_file():
            self._before = read_results(folder, with_runs=False)
        self._kept = {place_of(row): row for row in self._before["runs"]}

    def pending(self) -> list[Job]:
        """The runs that can be started now: those of the search of a cell, then those of its other seeds."""
        return [self._job(cell, *missing) for cell in self._cells for missing in self._missing(cell)]

    def left(self, cell: Cell) -> int:
        """Number of runs that a cell still needs, without those with which a search may go on."""
        rates, best = self._search(cell)
        untried, seeds = len(self._missing(cell)), self._wanted_seeds(cell)
        if best is not None:
            return untried
        if not rates:  # the rate comes from another size
            return len(seeds)
        return untried + sum(seed != self._first(cell) for seed in seeds) if untried else 0

    def unprobed(self) -> list[Job]:
        """The finished runs that lack a probe and whose folders are here: jobs that make up for it."""
        return [
            self._job(cell, rate, seed)
            for cell, rate, seed, row in self._finished()
            if lacks(row, *self._study.probes_of(cell.size))
            and (self._run_folder(cell, rate, seed) / RECIPE_FILE).is_file()
        ]

    def warnings(self) -> list[str]:
        """One line for each cell whose rates all diverged, or whose best rate is an end of those tried.

        One for each whose best rate diverged with other seeds, for runs of several kinds of processors, and
        for each probe that runs at the chosen rates lack.
        """
        lines, diverging = [], []
        rows = [(cell, row) for cell, rate, _, row in self._finished() if rate == self._search(cell)[1]]
        for cell in self._cells:
            (rates, best), named = self._search(cell), f"{cell.variant} at size {cell.size}"
            if rates and best is None and not self._missing(cell):
                lines.append(f"{named}: training diverged at every learning rate")
            elif len(rates) > 1 and best in (rates[0], rates[-1]):  # what is inherited is alone
                end = "lowest" if best == rates[0] else "highest"
                lines.append(
                    f"{named}: the best learning rate is the {end} that was tried, {best:g}: the optimum may "
                    "lie beyond (learning_rates, extend_rates)"
                )
            diverged = sum("diverged" in row for of, row in rows if of is cell)
            if diverged:
                diverging.append(
                    f"{named}: training diverged with {diverged} of {len(self._study.seeds_of(cell.size))} "
                    f"seeds at the learning rate {best:g}, and the figures are those of the others"
                )
        lines += diverging
        devices = sorted({row["device"] for _, row in rows if "device" in row})
        if len(devices) > 1:
            shown = ", ".join(devices)
            lines.append(f"runs of one seed can differ between processors, and these are of {shown}")
        for name in self._study.probes:
            without = sum(name in self._study.probes_of(cell.size) and lacks(row, name) for cell, row in rows)
            if without:
                lines.append(f"{without} of the runs lack the probe {name}: --probe tries again")
        return lines

    def results(self) -> dict[str, Any]:
        """Everything that was found, as plain values: the plan and the rows of all runs.

        The recipe is that of the first cell; every cell has the keys in which its own differs from it.
        """
        keys = ("size", "variant", "parameters", "flops_per_token", "steps", "flops", "seconds")
        first = self._cells[0].recipe
        cells = [
            {
                **{key: getattr(cell, key) for key in keys},
                "learning_rate": self._search(cell)[1],
                "differs": _differences(first, cell.recipe),
            }
            for cell in self._cells
        ]
        # Those that an earlier plan had, and whose runs are kept in case that another has them again.
        ran = {place[:2] for place in self._kept} - {(cell.size, cell.variant) for cell in self._cells}
        cells += [
            {**cell, "differs": _differences(first, read_mapping(self._earlier(cell)))}
            for cell in self._before["cells"]
            if (cell["size"], cell["variant"]) in ran
        ]
        return {
            "study": self._study.model_dump(mode="json", exclude={"source"}),
            "recipe": first.to_mapping(),
            "cells": cells,
            "runs": self.rows(),
            "warnings": self.warnings(),
            "versions": versions(),
        }

    def rows(self) -> list[Row]:
        """The figures of every run, of those that are here and those that only results.json has."""
        return merged_rows(self._kept.values(), self._folder)

    def _earlier(self, cell: PlannedCell) -> dict[str, Any]:
        """The recipe of a cell of results.json."""
        mapping = copy.deepcopy(self._before["recipe"])
        for key, value in cell.get("differs", {}).items():
            put(mapping, key, value)
        return mapping

    def _first(self, cell: Cell) -> int:
        """The seed that searches the learning rate."""
        return self._study.seeds_of(cell.size)[0]

    def _missing(self, cell: Cell) -> list[tuple[float, int]]:
        """Rates and seeds that a cell needs next."""
        rates, best = self._search(cell)
        wanted = [(rate, self._first(cell)) for rate in rates if len(rates) > 1]
        if best is not None:
            wanted += [(best, seed) for seed in self._wanted_seeds(cell)]
        return [place for place in dict.fromkeys(wanted) if self._row(cell, *place) is None]

    def _wanted_seeds(self, cell: Cell) -> list[int]:
        return [seed for seed in self._study.seeds_of(cell.size) if not self._seeds or seed in self._seeds]

    def _search(self, cell: Cell) -> tuple[list[float], float | None]:
        """The rates of a cell, ascending, further ones included, and the best of them once all were tried."""
        if not self._study.searches(cell.size, cell.variant):
            rate = self._inherited(cell)
            return ([], None) if rate is None else ([rate], rate)
        rates = self._study.rates_of(cell.size)
        if len(rates) == 1:  # one alone is the best, unless it diverged
            return rates, None if self._loss(cell, rates[0]) == float("inf") else rates[0]
        for further in range(self._study.extend_rates, -1, -1):
            losses = {rate: self._loss(cell, rate) for rate in rates}
            known = {rate: loss for rate, loss in losses.items() if loss is not None}
            if len(known) < len(rates):
                return rates, None
            best = min(known, key=lambda rate: known[rate])
            if known[best] == float("inf"):
                return rates, None
            beyond = {rates[0]: rates[0] ** 2 / rates[1], rates[-1]: rates[-1] ** 2 / rates[-2]}.get(best)
            if beyond is None or not further:
                break
            rates = sorted([*rates, float(f"{beyond:.4g}")])
        return rates, best

    def _inherited(self, cell: Cell) -> float | None:
        """The rate of the same variant at the nearest size before this one that has a search, else after."""
        sizes = self._study.sizes_of(cell.variant)
        place = sizes.index(cell.size)
        nearest = [*reversed(sizes[:place]), *sizes[place:]]
        size = next(size for size in nearest if self._study.searches(size, cell.variant))
        there = next(other for other in self._cells if (other.size, other.variant) == (size, cell.variant))
        return self._search(there)[1]

    def _loss(self, cell: Cell, rate: float) -> float | None:
        """The final loss of the first seed at a rate, infinite where it diverged; None while not done."""
        row = self._row(cell, rate, self._first(cell))
        return None if row is None else float(row.get("loss", "inf"))

    def _finished(self) -> Iterator[tuple[Cell, float, int, Row]]:
        """Cell, rate, seed and figures, as they are now, of every run of the plan that is done."""
        rows = {place_of(row): row for row in self.rows()}  # which probes may have been added to
        for cell in self._cells:
            for rate in self._search(cell)[0]:
                for seed in self._study.seeds_of(cell.size):
                    if self._row(cell, rate, seed) is not None:
                        yield cell, rate, seed, rows[cell.size, cell.variant, rate, seed]

    def _row(self, cell: Cell, rate: float, seed: int) -> Figures | None:
        """The figures of a run, checked to be one of this plan; None while there are none."""
        place = cell.size, cell.variant, rate, seed
        if place not in self._rows:
            recipe = self._recipe(cell, rate, seed)
            row = finished_row(self._run_folder(cell, rate, seed), recipe, "study") or self._kept.get(place)
            if row is None:
                return None
            if row is self._kept.get(place):
                self._check_kept(cell, recipe)
            self._rows[place] = row
        return self._rows[place]

    def _check_kept(self, cell: Cell, wanted: Recipe) -> None:
        """Refuse figures of results.json that were found for another plan."""
        path, place = self._folder / RESULTS_FILE, (cell.size, cell.variant)
        planned = next(
            (each for each in self._before["cells"] if (each["size"], each["variant"]) == place), None
        )
        if planned is None:
            raise InputError(f"{path} has runs of {cell.variant} at size {cell.size}, and no such cell")
        mapping = self._earlier(planned)
        for key in ("name", "seed", "training.learning_rate"):
            put(mapping, key, wanted.flat()[key])
        check_recipe(path, read_mapping(mapping), wanted, "study")

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


def _differences(first: Recipe, other: Recipe | ImageRecipe) -> dict[str, Any]:
    """The keys in which a recipe differs from the first one of the plan, with its values."""
    before = first.flat()
    return {key: value for key, value in other.flat().items() if key != "name" and value != before[key]}
