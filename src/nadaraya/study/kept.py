"""The files that a study keeps, as `read_stored` checks them: figures of runs, results, measurements."""

from typing import Annotated, Any, NotRequired

from pydantic import ConfigDict, Field, with_config
from typing_extensions import TypedDict

from nadaraya.training.schema import NonNegativeInt, PositiveInt

_CHECKED = ConfigDict(strict=True, extra="allow", allow_inf_nan=False)
Positive = Annotated[float, Field(gt=0)]
Count = Annotated[int, Field(gt=0, le=10**30)]


class Figures(TypedDict):
    """What a run found: a loss, or how it diverged; the other keys come with a loss."""

    loss: NotRequired[float]
    diverged: NotRequired[str]
    device: NotRequired[str]
    parameters: NotRequired[Count]
    kernel_parameters: NotRequired[NonNegativeInt]
    steps: NotRequired[PositiveInt]
    step_seconds: NotRequired[Positive]
    validation: NotRequired[list[tuple[PositiveInt, float]]]
    tokens: NotRequired[Count]
    flops: NotRequired[Count]
    bits_per_byte: NotRequired[Positive]
    probes: NotRequired[dict[str, dict[str, Any]]]


class Row(Figures):
    """A run of results.json."""

    size: str
    variant: str
    learning_rate: Positive
    seed: NonNegativeInt


class _Training(TypedDict):
    learning_rate: Positive


class _Recipe(TypedDict):
    seed: NonNegativeInt
    training: _Training


@with_config(_CHECKED)
class RunFile(Figures):
    """The file of figures beside the folder of a run."""

    recipe: _Recipe


class PlannedCell(TypedDict):
    """A variant at a size, as results.json has it; `differs` are keys of its recipe."""

    size: str
    variant: str
    learning_rate: Positive | None
    seconds: NotRequired[Positive | None]
    differs: NotRequired[dict[str, Any]]


@with_config(_CHECKED)
class Results(TypedDict):
    """The content of results.json; `recipe` is that of the first cell."""

    recipe: dict[str, Any]
    cells: list[PlannedCell]
    runs: list[Row]
    warnings: NotRequired[list[str]]


@with_config(_CHECKED)
class Measured(TypedDict):
    """The content of measured.json, by what was measured."""

    tokens: dict[str, PositiveInt]
    step_seconds: dict[str, Positive]
