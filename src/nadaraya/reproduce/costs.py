"""Costs of a study: FLOPs, memory and hours on devices, before anything is trained or read."""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from nadaraya.reproduce.catalogue import Experiment
from nadaraya.study import Cell, plan_study
from nadaraya.training.text_recipe import text_training_bytes

# FLOP/s that training is assumed to achieve, not measured: on GPUs a fifth of the dense bfloat16 peak that
# the vendor states (RTX 4090: 165, A100: 312, H100: 989 TFLOP/s): matrices of width 512 are small for them.
DEVICES: dict[str, float] = {"2 CPU cores": 8e10, "RTX 4090": 3.3e13, "A100": 6.2e13, "H100": 2.0e14}


@dataclass(frozen=True)
class Cost:
    """Costs of the runs that are left of a cell, a variant at a size.

    Attributes:
        cell: the cell.
        runs: that are left, those of the search of its learning rate included.
        memory: bytes that training of one run takes at the least.
        hours: of all these runs, one after the other, by the name of the device.

    >>> from nadaraya.reproduce import Cost
    >>> from nadaraya.study import Cell
    >>> from nadaraya.training import Recipe
    >>> recipe = Recipe(training={"steps": 100, "batch_size": 2}, data={"context": 50})
    >>> Cost(Cell("u100", "rope", recipe, 10, 60), 3, 1000, {}).flops
    1800000
    """

    cell: Cell
    runs: int
    memory: int
    hours: dict[str, float]

    @property
    def flops(self) -> int:
        """Training FLOPs of all these runs."""
        return self.runs * self.cell.flops


def costs(
    experiment: Experiment, folder: Path, *, speeds: Mapping[str, float] | None = None, **options: Any
) -> list[Cost]:
    """Costs of the runs that are left of a study, cell by cell.

    Args:
        experiment: the study and the vocabulary that is assumed; its text need not be here.
        folder: of its runs; those that are done there cost nothing more.
        speeds: FLOP/s by the name of a device; default `DEVICES`.
        options: changes, only and seeds of `nadaraya.study.plan_study`.

    Raises:
        InputError: recipes that cannot be used, or a folder that has other runs.

    >>> from pathlib import Path
    >>> from nadaraya.reproduce import costs, load_experiment
    >>> found = costs(load_experiment("papers", "paper"), Path("absent"), only=["gpa-rope-paper"])
    >>> [(cost.cell.size, cost.runs) for cost in found]  # three rates are tried with one seed
    [('u10000', 3), ('u200000', 3)]
    """
    return [
        Cost(
            cell,
            left,
            text_training_bytes(cell.recipe, cell.parameters, experiment.vocabulary),
            {name: left * cell.flops / speed / 3600 for name, speed in (speeds or DEVICES).items()},
        )
        for cell, left in plan_study(experiment.study, folder, vocabulary=experiment.vocabulary, **options)
    ]
