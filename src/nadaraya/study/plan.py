"""The plan of a study: what each variant trains at each size, matched with the baseline."""

from bisect import bisect_left
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

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


def plan_cells(
    study: Study,
    changes: Sequence[str],
    measurements: Measurements,
    only: Iterable[str] = (),
    timed: bool = False,
) -> list[Cell]:
    """Every variant at every size that has it, in the order of the file.

    Args:
        study: the study.
        changes: of its recipe, as KEY=VALUE.
        measurements: what is known of its recipes.
        only: variants to plan; default all.
        timed: measure the time of an update even where it does not decide anything; default False.

    Raises:
        InputError: an unknown variant, or recipes that cannot be used or matched.
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
