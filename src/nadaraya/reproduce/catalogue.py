"""The figures that can be reproduced, the studies that they rest on, and their costs; YAML files say what."""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import Field

from nadaraya.errors import check_name, unknown_name
from nadaraya.plain_yaml import read_yaml
from nadaraya.reproduce.claims import Claim, LossClaim
from nadaraya.study import Study, plan_study
from nadaraya.study.plan import Cell
from nadaraya.training.schema import Section
from nadaraya.training.text_recipe import text_training_bytes

SCALES = ("smoke", "cpu", "gpu", "paper")
# FLOP/s that training is assumed to achieve, not measured: on GPUs a fifth of the dense bfloat16 peak that
# the vendor states (RTX 4090: 165, A100: 312, H100: 989 TFLOP/s): matrices of width 512 are small for them.
DEVICES: dict[str, float] = {"2 CPU cores": 8e10, "RTX 4090": 3.3e13, "A100": 6.2e13, "H100": 2.0e14}


class Figure(Section):
    """A figure of a paper: what it shows, the runs that it takes, and what the paper says of it.

    >>> from nadaraya.reproduce import load_figure
    >>> figure = load_figure("gpa-losses")
    >>> figure.document, figure.figure, figure.variants[0]
    ('Gaussian Process Attention (anonymous)', 'figure 2', 'rope')
    """

    name: str
    """That `nadaraya reproduce` takes."""
    document: str
    """The paper, as the references have it."""
    figure: str
    """Its number there."""
    shows: str
    """Its content."""
    study: str
    """Name of the study that its runs belong to."""
    drawing: Literal["losses", "banks", "newlines"]
    """The kind of drawing."""
    variants: Annotated[list[str], Field(min_length=1)]
    """Those of the study that it takes."""
    order: str = ""
    """The paper's order of losses, best first."""
    claims: list[Claim]
    """Statements of the paper on it."""

    @property
    def on_losses(self) -> list[LossClaim]:
        """The claims on the losses of two variants."""
        return [claim for claim in self.claims if isinstance(claim, LossClaim)]

    @property
    def trained(self) -> list[str]:
        """The variants that drawing and claims take."""
        claimed = [claim.variant for claim in self.claims]
        others = [claim.other for claim in self.on_losses]
        return list(dict.fromkeys([*self.variants, *claimed, *others]))


@dataclass(frozen=True)
class Experiment:
    """A study at a scale, with the number of tokens that a plan assumes, so that it needs no text."""

    study: Study
    vocabulary: int


def figure_names() -> list[str]:
    """Names of the figures.

    >>> from nadaraya.reproduce import figure_names
    >>> figure_names()[:2]
    ['bump-control', 'bump-null']
    """
    return list(_files("figures"))


def load_figure(name: str) -> Figure:
    """A figure by its name.

    Args:
        name: one of `figure_names()`.

    Raises:
        InputError: there is no such figure.

    >>> from nadaraya.reproduce import load_figure
    >>> load_figure("gpa-banks").study
    'papers'
    """
    return Figure(name=name, **_read("figures", name, "figure"))


def load_experiment(study: str, scale: str) -> Experiment:
    """The study that some figures rest on, by its name in `Figure.study`, at a scale.

    "smoke": whether it works; "cpu": a quarter of the papers' width; "gpu": their model for fewer updates;
    "paper": their model and their 200,000 updates.
    """
    read = _read("studies", study, "study")
    check_name("--scale", scale, read["scales"])
    keys = {**read["study"], **read["scales"][scale]}
    vocabulary = keys.pop("vocabulary")
    return Experiment(Study(**keys, source=str(_files("studies")[study])), vocabulary)


@dataclass(frozen=True)
class Cost:
    """Costs of the runs that are left of a cell, a variant at a size.

    Attributes:
        cell: the cell.
        runs: that are left, those of the search of its learning rate included.
        memory: bytes that training of one run takes at the least.
        hours: of all these runs, one after the other, by the name of the device.

    >>> from nadaraya.reproduce.catalogue import Cost
    >>> from nadaraya.study.plan import Cell
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
    >>> from nadaraya.reproduce import costs
    >>> from nadaraya.reproduce.catalogue import load_experiment
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


def _files(kind: str) -> dict[str, Path]:
    """The YAML files of the "figures" or the "studies" by their names."""
    return {path.stem: path for path in sorted((Path(__file__).parent / kind).glob("*.yaml"))}


def _read(kind: str, name: str, what: str) -> dict[str, Any]:
    """The content of one of them."""
    found = _files(kind)
    if name not in found:
        raise unknown_name(what, name, found)
    return read_yaml(found[name], "a figure or its study")
