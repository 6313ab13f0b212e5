"""The plan of a study: the recipe of each variant at each size, matched with the baseline."""

import copy
import json
from bisect import bisect_left
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from operator import truediv
from pathlib import Path
from statistics import median
from typing import Any

import torch
from pydantic import with_config
from typing_extensions import TypedDict

from nadaraya.errors import unknown_name
from nadaraya.files import write_file
from nadaraya.stored import read_stored
from nadaraya.study.file import Study
from nadaraya.study.results import CHECKED, Positive
from nadaraya.training import Recipe
from nadaraya.training.loop import Learner, open_task
from nadaraya.training.processes import Processes
from nadaraya.training.schema import PositiveInt
from nadaraya.training.task import Task

_ROUNDS = 32  # the first, in which memory is found and code is compiled, is left out


@dataclass(frozen=True)
class Cell:
    """A variant at a size.

    Attributes:
        size: name of the size.
        variant: name of the variant.
        recipe: what is trained, with the first seed and learning rate.
        parameters: of the model.
        flops_per_token: of training, by `nadaraya.evaluation.efficiency.training_flops`.
        step_seconds: time of an update, measured in turns with the other variants; None where not measured.

    >>> from nadaraya.study.plan import Cell
    >>> from nadaraya.training import Recipe
    >>> recipe = Recipe(training={"steps": 100, "batch_size": 2}, data={"context": 50})
    >>> Cell("small", "rope", recipe, parameters=10, flops_per_token=60).flops
    600000
    """

    size: str
    variant: str
    recipe: Recipe
    parameters: int
    flops_per_token: int
    step_seconds: float | None = None

    @property
    def steps(self) -> int:
        """Updates of a run."""
        return self.recipe.training.steps

    @property
    def flops_per_step(self) -> int:
        """Training FLOPs of an update."""
        return self.recipe.training.batch_size * self.recipe.data.context * self.flops_per_token

    @property
    def flops(self) -> int:
        """Training FLOPs of a run."""
        return self.steps * self.flops_per_step

    @property
    def seconds(self) -> float | None:
        """Time of the updates of a run, where it was measured."""
        return None if self.step_seconds is None else self.steps * self.step_seconds


@with_config(CHECKED)
class Measured(TypedDict):
    """The content of measured.json, by what was measured."""

    tokens: dict[str, PositiveInt]
    step_seconds: dict[str, Positive]


class Measurements:
    """Measured once and kept in a file, if one is named, so that the plan of a study stays the same.

    With a `vocabulary`, which every recipe is then assumed to have, no text is read.
    """

    def __init__(self, path: Path | None, vocabulary: int | None = None) -> None:
        self._path, self._vocabulary = path, vocabulary
        self._known: Measured = {"tokens": {}, "step_seconds": {}}
        if path is not None and path.is_file():
            self._known = read_stored(path, Measured, "measurements of a study")
        self._tasks: dict[str, Task] = {}
        self._counted: dict[str, tuple[int, int]] = {}  # of models, which several sizes may share

    def counts(self, recipe: Recipe) -> tuple[int, int]:
        """Parameters, and training FLOPs per token, of the model of a recipe, which is given no memory."""
        from nadaraya.evaluation.efficiency import training_flops

        key = _key([recipe.model.model_dump(), recipe.data.model_dump(), recipe.training.batch_size])
        if key not in self._counted:
            with torch.device("meta"):
                model = recipe.build_model(self.tokens(recipe))
            self._counted[key] = model.num_parameters(), training_flops(model, recipe.data.context)
        return self._counted[key]

    def tokens(self, recipe: Recipe) -> int:
        """Number of tokens of the tokenizer of a recipe."""
        if self._vocabulary is not None:
            return self._vocabulary
        known, key = self._known["tokens"], _key(recipe.data.model_dump())
        if key not in known:
            model: Any = self._task(recipe).model
            known[key] = model.config.vocab_size
            self._save()
        return known[key]

    def step_seconds(self, recipes: Mapping[str, Recipe], reference: str) -> dict[str, float]:
        """Time of an update of every recipe in seconds, by its name: they take turns.

        It is the median over the turns of its relation to the reference in the same turn, in the reference's
        median seconds: what slows a machine down for some turns changes nothing. Those measured later are
        related to the time that the `reference` had, so that a machine that is busier then changes nothing.
        """
        known = self._known["step_seconds"]
        keys = {name: _timed_key(recipe) for name, recipe in recipes.items()}
        missing = {name: recipes[name] for name, key in keys.items() if key not in known}
        if missing:
            turns = self._take_turns({reference: recipes[reference], **missing})
            usual = median(turns[reference])
            measured = {
                name: usual * median(map(truediv, times, turns[reference])) for name, times in turns.items()
            }
            busier = known.get(keys[reference], measured[reference]) / measured[reference]
            known |= {keys[name]: busier * measured[name] for name in missing}
            self._save()
        return {name: known[key] for name, key in keys.items()}

    def _take_turns(self, recipes: Mapping[str, Recipe]) -> dict[str, list[float]]:
        """Seconds of an update of every recipe in each turn."""
        processes, seconds = Processes(), {name: list[float]() for name in recipes}
        learners = {}
        for name, recipe in recipes.items():
            task = copy.copy(self._task(recipe))
            torch.manual_seed(recipe.seed)
            task.model = recipe.build_model(self.tokens(recipe))
            learner = Learner(task, recipe, processes)
            learner.resume(None)
            learners[name] = learner, next(iter(task.batches(0)))
        for turn in range(1, _ROUNDS + 1):
            for name, (learner, batch) in learners.items():
                seconds[name].append(learner.timed_update(turn, *batch))
        return {name: times[1:] for name, times in seconds.items()}

    def _task(self, recipe: Recipe) -> Task:
        """Data and batches like those of a recipe, read once for all that have the same."""
        key = _key([recipe.data.model_dump(), recipe.training.batch_size])
        if key not in self._tasks:
            self._tasks[key] = open_task(recipe, Processes())
        return self._tasks[key]

    def _save(self) -> None:
        if self._path is not None:
            write_file(self._path, json.dumps(self._known, indent=1) + "\n")


def _key(value: Any) -> str:
    return json.dumps(value, sort_keys=True)


def _timed_key(recipe: Recipe) -> str:
    """All but the keys on which the time of an update does not depend."""
    mapping = recipe.to_mapping()
    for name in ("name", "seed"):
        del mapping[name]
    for name in ("steps", "learning_rate"):
        del mapping["training"][name]
    return _key(mapping)


def plan_cells(
    study: Study,
    changes: Sequence[str],
    measurements: Measurements,
    only: Iterable[str] = (),
    timed: bool = False,
) -> list[Cell]:
    """Every variant, or `only` some, at every size that has it, in the order of the file.

    `timed` measures the time of an update even where it does not decide anything.
    """
    chosen = set(only)
    for name in chosen.difference(study.variants):
        raise unknown_name("--only", name, study.variants)

    def cell(size: str, variant: str, more: Mapping[str, Any] | None = None) -> Cell:
        recipe = study.recipe_of(size, variant, changes, more)
        return Cell(size, variant, recipe, *measurements.counts(recipe))

    def with_steps(of: Cell, steps: float) -> Cell:
        more = {"training.steps": max(1, round(steps))}
        return replace(of, recipe=study.recipe_of(of.size, of.variant, changes, more))

    def with_parameters(of: Cell, wanted: int) -> Cell:
        """The width, a multiple of twice the heads as rotations need, whose parameters are nearest."""
        unit = 2 * of.recipe.model.num_attention_heads

        def of_width(multiple: int) -> Cell:
            return cell(of.size, of.variant, {"model.hidden_size": multiple * unit})

        high = max(2, of.recipe.model.hidden_size // unit)
        while of_width(high).parameters < wanted:
            high *= 2
        above = 1 + bisect_left(range(1, high), wanted, key=lambda width: of_width(width).parameters)
        near = [of_width(width) for width in (max(1, above - 1), above)]
        return min(near, key=lambda found: abs(found.parameters - wanted))

    cells = []
    for size in study.sizes:
        baseline = cell(size, study.baseline)
        names = [name for name in study.variants_of(size) if not chosen or name in chosen]
        row = [baseline if name == study.baseline else cell(size, name) for name in names]
        if study.match == "flops":
            row = [with_steps(each, baseline.flops / each.flops_per_step) for each in row]
        elif study.match == "parameters":
            row = [each if each is baseline else with_parameters(each, baseline.parameters) for each in row]
        if timed or study.match == "seconds":
            recipes = {each.variant: each.recipe for each in (baseline, *row)}
            times = measurements.step_seconds(recipes, baseline.variant)
            if study.match == "seconds":
                whole = baseline.steps * times[baseline.variant]
                row = [with_steps(each, whole / times[each.variant]) for each in row]
            row = [replace(each, step_seconds=times[each.variant]) for each in row]
        cells += row
    return cells
