"""A study from its plan to its summary: one call, which is made again until nothing is left."""

import copy
import math
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from typing import Any, NamedTuple

from nadaraya.errors import InputError
from nadaraya.plain_yaml import put
from nadaraya.study.file import Study
from nadaraya.study.plan import Cell, Measurements, plan_cells
from nadaraya.study.probes import lacks
from nadaraya.study.queue import Ended, Job, run_trainings, training_job
from nadaraya.study.results import (
    MEASURED_FILE,
    RESULTS_FILE,
    RUNS_FOLDER,
    FinishedRuns,
    PlannedCell,
    Results,
    Row,
    check_recipe,
    check_study_folder,
    read_results,
    results_text,
    versions,
)
from nadaraya.study.summary import Summary
from nadaraya.training import ImageRecipe, Recipe
from nadaraya.training.folder import RECIPE_FILE, FolderLock
from nadaraya.training.recipe import read_mapping


@dataclass(frozen=True)
class Session:
    """The outcome of one call of `run_study`.

    Attributes:
        ended: how the queue ended.
        left: runs that the study still needs.
        hours: that they take at the speed of those that are finished; None while there are none.
        warnings: one line each, such as a best learning rate at an end of the list.
        summary: of all that is finished.
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
    (150, 4)
    """
    measurements = Measurements(folder / MEASURED_FILE if vocabulary is None else None, vocabulary)
    runs = StudyRuns(study, plan_cells(study, changes, measurements, only, timed), folder, seeds)
    return [(state.cell, len(state.missing)) for state in runs.states()]


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

    Raises:
        InputError: recipes that cannot be used, or a folder that has other runs or is in use.

    >>> from pathlib import Path
    >>> from nadaraya.study import Study, run_study
    >>> study = Study(recipe="demo", baseline="rope", variants={"rope": {}}, learning_rates=[1e-3])
    >>> changes = ["model.hidden_size=8", "data.limit=9000"]
    >>> run_study(study, Path("studies/demo"), changes=changes, seconds=0).left
    3
    """
    from nadaraya.study.draw import write_summary

    with FolderLock(folder) as lock:
        check_study_folder(folder)
        lock.take()
        study, measurements = study.with_seeds(seeds), Measurements(folder / MEASURED_FILE)
        runs = StudyRuns(study, plan_cells(study, changes, measurements, only), folder, seeds)
        everything = StudyRuns(study, plan_cells(study, changes, measurements), folder)
        ended = run_trainings(
            folder,
            lambda: runs.pending(train),
            lambda: results_text(everything.results()),
            workers=workers,
            **options,
        )
        left = [state.cell.flops for state in runs.states() for _ in state.missing]
        speeds = [
            row["flops"] / (row["steps"] * row["step_seconds"]) for row in everything.rows() if "flops" in row
        ]
        hours = sum(left) / median(speeds) / workers / 3600 if speeds else None
        return Session(ended, len(left), hours, runs.warnings(), write_summary(study, folder))


class State(NamedTuple):
    """Progress of a cell."""

    cell: Cell
    rates: list[float]  # of the search, ascending, further ones included
    best: float | None  # of them; None while one is to be tried, infinite where training diverged at all
    missing: list[tuple[float | None, int]]  # rates and seeds; no rate while it is searched for
    rows: list[Row]  # of the finished runs at these rates


class StudyRuns:
    """The runs of a study: `FOLDER/runs/SIZE/VARIANT/lrRATE-seedN`, and a .json of metrics beside each.

    Runs that are gone, made on another machine perhaps, count by their metrics in results.json. With `seeds`,
    which the study need not have, these alone are trained; learning rates are searched with its first one in
    any case.
    """

    def __init__(self, study: Study, cells: Sequence[Cell], folder: Path, seeds: Sequence[int] = ()) -> None:
        self._study, self._folder, self._seeds = study.with_seeds(seeds), folder, seeds
        self._cells = {(cell.size, cell.variant): cell for cell in cells}
        self._finished = FinishedRuns("study")
        self._before: Results = {"recipe": {}, "cells": [], "runs": []}
        if (folder / RESULTS_FILE).is_file():
            self._before = read_results(folder)
        self._rows = {
            (row["size"], row["variant"], row["learning_rate"], row["seed"]): row
            for row in self._before["runs"]
        }
        self._ran = {place[:2] for place in self._rows}  # sizes and variants of results.json
        self._check_before()

    def states(self) -> list[State]:
        """The state of every cell, by the runs that are finished now."""
        states = []
        for cell in self._cells.values():
            seeds, (rates, best) = self._study.seeds_of(cell.size), self._search(cell)
            wanted: list[tuple[float | None, int]] = [(rate, seeds[0]) for rate in rates if len(rates) > 1]
            if best != math.inf:
                chosen = [seed for seed in seeds if not self._seeds or seed in self._seeds]
                # The run that the search makes at the best rate is one of those of the first seed.
                wanted += [(best, seed) for seed in chosen if best or not rates or seed != seeds[0]]
            runs = dict.fromkeys(wanted)
            missing = [(rate, seed) for rate, seed in runs if not rate or not self._row(cell, rate, seed)]
            rows = [self._row(cell, rate, seed) for rate in rates for seed in seeds]
            states.append(State(cell, rates, best, missing, [row for row in rows if row]))
        return states

    def pending(self, train: bool = True) -> list[Job]:
        """The runs that can be started now: of the search of a cell, then of its other seeds.

        After them the finished ones that lack a probe and whose folders are here, for which that is made up;
        these alone unless `train`.
        """
        untrained, unprobed = [], []
        for cell, _, _, missing, rows in self.states():
            untrained += [(cell, rate, seed) for rate, seed in missing if train and rate]
            lacking = [row for row in rows if lacks(row, *self._study.probes_of(cell.size))]
            unprobed += [(cell, row["learning_rate"], row["seed"]) for row in lacking]
        here = [run for run in unprobed if (self._run_folder(*run) / RECIPE_FILE).is_file()]
        return [self._job(*run) for run in untrained + here]

    def warnings(self) -> list[str]:
        """One line for each cell whose rates all diverged, or whose best rate is an end of those tried.

        One for each whose best rate diverged with other seeds, for runs of several kinds of processors, and
        for each probe that runs at the chosen rates lack.
        """
        lines, diverging, chosen = [], [], list[Row]()
        for cell, rates, best, _, rows in self.states():
            named = f"{cell.variant} at size {cell.size}"
            if best == math.inf and self._study.searches(cell.size, cell.variant):
                lines.append(f"{named}: training diverged at every learning rate")
            elif len(rates) > 1 and best in (rates[0], rates[-1]):
                end = "lowest" if best == rates[0] else "highest"
                lines.append(
                    f"{named}: the best learning rate is the {end} that was tried, {best:g}: the optimum may "
                    "lie beyond (learning_rates, extend_rates)"
                )
            at_best = [row for row in rows if row["learning_rate"] == best]
            if diverged := sum("diverged" in row for row in at_best):
                diverging.append(
                    f"{named}: training diverged with {diverged} of {len(self._study.seeds_of(cell.size))} "
                    f"seeds at the learning rate {best:g}, and the figures are those of the others"
                )
            chosen += at_best
        lines += diverging
        devices = sorted({row["device"] for row in chosen if "device" in row})
        if len(devices) > 1:
            shown = ", ".join(devices)
            lines.append(f"runs of one seed can differ between processors, and these are of {shown}")
        for name in self._study.probes:
            probed = [row for row in chosen if name in self._study.probes_of(row["size"])]
            if without := sum(lacks(row, name) for row in probed):
                lines.append(f"{without} of the runs lack the probe {name}: --probe tries again")
        return lines

    def results(self) -> dict[str, Any]:
        """Everything that was found, as plain values: the plan and the rows of all runs.

        The recipe is that of the first cell; every cell has the keys in which its own differs from it.
        """
        keys = ("size", "variant", "parameters", "flops_per_token", "steps", "flops", "seconds")
        first = next(iter(self._cells.values())).recipe
        cells: list[dict[str, Any]] = [
            {
                **{key: getattr(state.cell, key) for key in keys},
                "learning_rate": None if state.best == math.inf else state.best,
                "differs": _differences(first, state.cell.recipe),
            }
            for state in self.states()
        ]
        # Those that an earlier plan had, and whose runs are kept in case that another has them again.
        cells += [
            {**cell, "differs": _differences(first, self._earlier(cell))}
            for cell in self._before["cells"]
            if (cell["size"], cell["variant"]) in self._ran - {*self._cells}
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
        """The metrics of every run, of those that are here and those that only results.json has."""
        self.states()
        return [self._rows[place] for place in sorted(self._rows)]

    def _row(self, cell: Cell, rate: float, seed: int) -> Row | None:
        """The metrics of a run, None while there are none."""
        place = cell.size, cell.variant, rate, seed
        folder = self._run_folder(cell, rate, seed)
        if found := self._finished.metrics(folder, lambda: self._recipe(cell, rate, seed)):
            row: Any = {"size": cell.size, "variant": cell.variant, "learning_rate": rate, "seed": seed}
            row |= {key: value for key, value in found.items() if key != "recipe"}
            self._rows[place] = row
        return self._rows.get(place)

    def _check_before(self) -> None:
        """Refuse metrics of results.json that were found for another plan."""
        path = self._folder / RESULTS_FILE
        before = {(cell["size"], cell["variant"]): cell for cell in self._before["cells"]}
        for key in self._ran & {*self._cells}:
            if key not in before:
                raise InputError(f"{path} has runs of {key[1]} at size {key[0]}, and no such cell")
            wanted = self._cells[key].recipe
            same = {name: wanted.flat()[name] for name in ("name", "seed", "training.learning_rate")}
            check_recipe(path, self._earlier(before[key], same), wanted, "study")

    def _earlier(self, cell: PlannedCell, changed: dict[str, Any] | None = None) -> Recipe | ImageRecipe:
        """The recipe of a cell of results.json."""
        mapping = copy.deepcopy(self._before["recipe"])
        for key, value in {**cell.get("differs", {}), **(changed or {})}.items():
            put(mapping, key, value)
        return read_mapping(mapping)

    def _search(self, cell: Cell) -> tuple[list[float], float | None]:
        """The rates of a cell and the best of them, as `State` has them."""
        size, variant = cell.size, cell.variant
        if not self._study.searches(size, variant):  # the nearest size before that does, else after
            sizes = self._study.sizes_of(variant)
            nearest = [*reversed(sizes[: sizes.index(size)]), *sizes]
            there = next(size for size in nearest if self._study.searches(size, variant))
            rate = self._search(self._cells[there, variant])[1]
            return ([rate] if rate else []), rate
        rates, seed = self._study.rates_of(size), self._study.seeds_of(size)[0]
        for further in range(self._study.extend_rates, -1, -1):
            rows = {rate: row for rate in rates if (row := self._row(cell, rate, seed))}
            if len(rows) < len(rates):
                return rates, rates[0] if len(rates) == 1 else None  # one alone needs no search
            losses = {rate: row.get("loss", math.inf) for rate, row in rows.items()}
            best = min(losses, key=losses.__getitem__)
            if losses[best] == math.inf or len(rates) == 1:
                return rates, best if losses[best] < math.inf else math.inf
            beyond = {rates[0]: rates[0] ** 2 / rates[1], rates[-1]: rates[-1] ** 2 / rates[-2]}.get(best)
            if beyond is None or not further:
                break
            rates = sorted([*rates, float(f"{beyond:.4g}")])
        return rates, best

    def _job(self, cell: Cell, rate: float, seed: int) -> Job:
        folder, recipe = self._run_folder(cell, rate, seed), self._recipe(cell, rate, seed)
        name, cost = "/".join(folder.parts[-3:]), cell.seconds or cell.flops
        return training_job(name, recipe, folder, cost, self._study.probes_of(cell.size))

    def _run_folder(self, cell: Cell, rate: float, seed: int) -> Path:
        return self._folder / RUNS_FOLDER / cell.size / cell.variant / f"lr{rate:g}-seed{seed}"

    def _recipe(self, cell: Cell, rate: float, seed: int) -> Recipe:
        mapping = cell.recipe.to_mapping()
        mapping["training"]["learning_rate"] = rate
        name = f"{cell.size}-{cell.variant}-lr{rate:g}-seed{seed}"
        return Recipe.from_mapping({**mapping, "seed": seed, "name": name})


def _differences(first: Recipe, other: Recipe | ImageRecipe) -> dict[str, Any]:
    """The keys in which a recipe differs from the first one of the plan, with its values."""
    before = first.flat()
    return {key: value for key, value in other.flat().items() if key != "name" and value != before[key]}
