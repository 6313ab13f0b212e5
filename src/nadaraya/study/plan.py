"""The plan of a study: what each variant trains at each size, matched with the baseline."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch

from nadaraya.errors import unknown_name
from nadaraya.study.file import Study
from nadaraya.study.measure import Measurements
from nadaraya.training import Recipe


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

    >>> from nadaraya.study import Cell
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


class Planner:
    """Makes the cells of a study.

    Args:
        study: the study.
        changes: of its recipe, as KEY=VALUE.
        measurements: what is known of its recipes; default nothing yet, and nothing is kept.
    """

    def __init__(
        self, study: Study, changes: Sequence[str] = (), measurements: Measurements | None = None
    ) -> None:
        self._study, self._changes = study, changes
        self._measurements = measurements or Measurements(None)
        self._counted: dict[str, tuple[int, int]] = {}  # of models, which several sizes may share

    def cells(self, only: Iterable[str] = (), timed: bool = False) -> list[Cell]:
        """Every variant at every size that has it, in the order of the file.

        Args:
            only: variants to plan; default all.
            timed: measure the time of an update even where it does not decide anything; default False.

        Raises:
            InputError: an unknown variant, or recipes that cannot be used or matched.
        """
        chosen = set(only)
        for name in chosen.difference(self._study.variants):
            raise unknown_name("--only", name, self._study.variants)
        names = [name for name in self._study.variants if not chosen or name in chosen]
        cells = []
        for size in self._study.sizes:
            baseline = self._cell(size, self._study.baseline)
            row = [
                baseline if name == self._study.baseline else self._cell(size, name, baseline)
                for name in names
                if name in self._study.variants_of(size)
            ]
            if timed or self._study.match == "seconds":
                recipes = {cell.variant: cell.recipe for cell in (baseline, *row)}
                times = self._measurements.step_seconds(recipes, baseline.variant)
                if self._study.match == "seconds":
                    whole = baseline.steps * times[baseline.variant]
                    row = [self._with_steps(cell, whole / times[cell.variant]) for cell in row]
                row = [replace(cell, step_seconds=times[cell.variant]) for cell in row]
            cells += row
        return cells

    def _cell(self, size: str, variant: str, baseline: Cell | None = None) -> Cell:
        """A variant at a size, matched with the baseline unless that needs measured times."""
        recipe = self._study.recipe_of(size, variant, self._changes)
        cell = Cell(size, variant, recipe, *self._counts(recipe))
        if baseline is None:
            return cell
        if self._study.match == "flops":
            return self._with_steps(cell, baseline.flops / cell.flops_per_step)
        if self._study.match == "parameters":
            return self._with_parameters(cell, baseline.parameters)
        return cell

    def _with_steps(self, cell: Cell, steps: float) -> Cell:
        return replace(cell, recipe=self._recipe(cell, {"training.steps": max(1, round(steps))}))

    def _with_parameters(self, cell: Cell, wanted: int) -> Cell:
        """The width, a multiple of twice the heads as rotations need, whose parameters are nearest."""
        unit = 2 * cell.recipe.model.num_attention_heads

        def of_width(multiple: int) -> Cell:
            recipe = self._recipe(cell, {"model.hidden_size": multiple * unit})
            return Cell(cell.size, cell.variant, recipe, *self._counts(recipe))

        low, high = 1, max(2, cell.recipe.model.hidden_size // unit)
        while of_width(high).parameters < wanted:
            low, high = high, 2 * high
        while high - low > 1:
            middle = (low + high) // 2
            low, high = (middle, high) if of_width(middle).parameters < wanted else (low, middle)
        return min(of_width(low), of_width(high), key=lambda found: abs(found.parameters - wanted))

    def _recipe(self, cell: Cell, more: Mapping[str, Any]) -> Recipe:
        return self._study.recipe_of(cell.size, cell.variant, self._changes, more)

    def _counts(self, recipe: Recipe) -> tuple[int, int]:
        key = f"{recipe.model!r} {recipe.data!r} {recipe.training.batch_size}"
        if key not in self._counted:
            self._counted[key] = counts(recipe, self._measurements.tokens(recipe))
        return self._counted[key]


def counts(recipe: Recipe, vocabulary: int) -> tuple[int, int]:
    """Parameters, and training FLOPs per token, of the model of a recipe, which is not given any memory."""
    from nadaraya.evaluation.efficiency import training_flops

    with torch.device("meta"):
        model = recipe.build_model(vocabulary)
    parameters = sum(parameter.numel() for parameter in model.parameters())
    return parameters, training_flops(model, recipe.data.context)
