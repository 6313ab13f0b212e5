"""What a plan needs to know of its recipes: numbers of tokens, and times of updates taken in turns."""

import copy
import json
import time
from collections.abc import Mapping
from pathlib import Path
from statistics import median
from typing import Any

import torch

from nadaraya.files import write_file
from nadaraya.stored import read_stored
from nadaraya.study.kept import Measured
from nadaraya.training import Recipe
from nadaraya.training.loop import Learner, open_task
from nadaraya.training.processes import Processes
from nadaraya.training.task import Task

_ROUNDS = 6  # the first, in which memory is found and code is compiled, is left out


class Measurements:
    """Measured once and kept in a file, so that the plan of a study stays the same.

    Args:
        path: of the file, which need not be there; None keeps nothing.
    """

    def __init__(self, path: Path | None) -> None:
        self._path = path
        self._known: Measured = {"tokens": {}, "step_seconds": {}}
        if path is not None and path.is_file():
            self._known = read_stored(path, Measured, "measurements of a study")
        self._tasks: dict[str, Task] = {}

    def tokens(self, recipe: Recipe) -> int:
        """How many tokens the tokenizer of a recipe has."""
        known, key = self._known["tokens"], _key(recipe.data.model_dump())
        if key not in known:
            model: Any = self._task(recipe).model
            known[key] = model.config.vocab_size
            self._save()
        return known[key]

    def step_seconds(self, recipes: Mapping[str, Recipe], reference: str) -> dict[str, float]:
        """Median time of an update of every recipe in seconds, by its name: they take turns.

        Those measured later are related to the time that the `reference` had, so that a machine that is
        busier then changes nothing.
        """
        known = self._known["step_seconds"]
        keys = {name: _timed_key(recipe) for name, recipe in recipes.items()}
        missing = {name: recipes[name] for name, key in keys.items() if key not in known}
        if missing:
            measured = self._take_turns({reference: recipes[reference], **missing})
            busier = known.get(keys[reference], measured[reference]) / measured[reference]
            known |= {keys[name]: busier * measured[name] for name in missing}
            self._save()
        return {name: known[key] for name, key in keys.items()}

    def _take_turns(self, recipes: Mapping[str, Recipe]) -> dict[str, float]:
        processes = Processes()
        learners, batches = {}, {}
        for name, recipe in recipes.items():
            task = copy.copy(self._task(recipe))
            torch.manual_seed(recipe.seed)
            task.model = recipe.build_model(self.tokens(recipe))
            learners[name] = Learner(task, recipe, processes)
            learners[name].resume(None)
            batches[name] = next(iter(task.batches(0)))
        seconds: dict[str, list[float]] = {name: [] for name in recipes}
        for turn in range(1, _ROUNDS + 1):
            for name, learner in learners.items():
                begun = time.perf_counter()
                learner.update(turn, *batches[name])
                if processes.device.type == "cuda":
                    torch.cuda.synchronize()
                seconds[name].append(time.perf_counter() - begun)
        return {name: median(times[1:]) for name, times in seconds.items()}

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
    """What the time of an update depends on, and a few keys more."""
    mapping = recipe.to_mapping()
    for name in ("name", "seed"):
        del mapping[name]
    for name in ("steps", "learning_rate"):
        del mapping["training"][name]
    return _key(mapping)
