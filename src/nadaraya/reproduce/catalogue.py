"""The figures that can be reproduced, and the studies that they rest on: YAML files beside this one."""

from dataclasses import dataclass
from importlib.resources import files
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import Field

from nadaraya.errors import unknown_name
from nadaraya.plain_yaml import read_yaml
from nadaraya.reproduce.claims import Claim, LossClaim
from nadaraya.study import Study
from nadaraya.training.schema import Section

SCALES = ("smoke", "cpu", "gpu", "paper")


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
    """A study at a scale.

    Attributes:
        study: the study.
        vocabulary: number of tokens that a plan assumes, so that it needs no text.
    """

    study: Study
    vocabulary: int


def figure_names() -> list[str]:
    """Names of the figures.

    >>> from nadaraya.reproduce import figure_names
    >>> figure_names()[:2]
    ['bump-control', 'bump-null']
    """
    return sorted(path.stem for path in _folder("figures").glob("*.yaml"))


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
    return Figure(name=name, **_read("figure", name))


def load_experiment(study: str, scale: str) -> Experiment:
    """The study that some figures rest on, at a scale.

    Args:
        study: its name, as `Figure.study` has it.
        scale: "smoke", whether it works; "cpu", a quarter of the papers' width; "gpu", their model for fewer
            updates; "paper", their model and their 200,000 updates.

    Raises:
        InputError: no such study or scale.

    >>> from nadaraya.reproduce import load_experiment
    >>> experiment = load_experiment("papers", "cpu")
    >>> experiment.study.seeds_of("u10000"), experiment.vocabulary
    ([0], 93)
    """
    read = _read("study", study)
    if scale not in read["scales"]:
        raise unknown_name("--scale", scale, read["scales"])
    keys = {**read["study"], **read["scales"][scale]}
    vocabulary = keys.pop("vocabulary")
    return Experiment(Study(**keys, source=str(_folder("studies") / f"{study}.yaml")), vocabulary)


def _folder(name: str) -> Path:
    return Path(str(files("nadaraya.reproduce"))) / name


def _read(kind: Literal["figure", "study"], name: str) -> dict[str, Any]:
    """The content of the file of a figure or a study."""
    folder = _folder({"figure": "figures", "study": "studies"}[kind])
    names = [path.stem for path in folder.glob("*.yaml")]
    if name not in names:
        raise unknown_name(kind, name, names)
    return read_yaml(folder / f"{name}.yaml", "a figure or its study")
