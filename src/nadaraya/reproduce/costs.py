"""What a study would cost: FLOPs, memory and hours on devices, before anything is trained or read."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from nadaraya.reproduce.catalogue import Experiment
from nadaraya.study import Cell
from nadaraya.study.measure import Measurements
from nadaraya.study.plan import Planner
from nadaraya.study.runs import StudyRuns
from nadaraya.training import Recipe
from nadaraya.training.text_recipe import text_training_bytes

# FLOP/s that training is assumed to achieve, not measured: on GPUs a fifth of the dense bfloat16 peak that
# the vendor states (RTX 4090: 165, A100: 312, H100: 989 TFLOP/s): matrices of width 512 are small for them.
DEVICES: dict[str, float] = {"2 CPU cores": 8e10, "RTX 4090": 3.3e13, "A100": 6.2e13, "H100": 2.0e14}


@dataclass(frozen=True)
class Cost:
    """What the runs that are left of a cell, a variant at a size, would take.

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
    experiment: Experiment,
    folder: Path,
    *,
    changes: Sequence[str] = (),
    only: Sequence[str] = (),
    seeds: Sequence[int] = (),
    speeds: Mapping[str, float] | None = None,
) -> list[Cost]:
    """What is left of a study, cell by cell.

    Args:
        experiment: the study and the vocabulary that is assumed; its text need not be here.
        folder: of its runs; those that are done there cost nothing more.
        changes, only, seeds: as in `nadaraya.study.run_study`.
        speeds: FLOP/s by the name of a device; default `DEVICES`.

    Raises:
        InputError: recipes that cannot be used, or a folder that has other runs.

    >>> from pathlib import Path
    >>> from nadaraya.reproduce import costs, load_experiment
    >>> found = costs(load_experiment("papers", "paper"), Path("absent"), only=["gpa-rope-paper"])
    >>> [(cost.cell.size, cost.runs) for cost in found]  # three rates are tried with one seed
    [('u10000', 3), ('u200000', 3)]
    """
    cells = Planner(experiment.study, changes, _Assumed(experiment.vocabulary)).cells(only)
    runs = StudyRuns(experiment.study, cells, folder, seeds)
    return [
        Cost(
            cell,
            left := runs.left(cell),
            text_training_bytes(cell.recipe, cell.parameters, experiment.vocabulary),
            {name: left * cell.flops / speed / 3600 for name, speed in (speeds or DEVICES).items()},
        )
        for cell in cells
    ]


class _Assumed(Measurements):
    """Numbers of tokens are what they are said to be."""

    def __init__(self, vocabulary: int) -> None:
        super().__init__(None)
        self._vocabulary = vocabulary

    def tokens(self, recipe: Recipe) -> int:
        return self._vocabulary
