"""The interface between the training loop and the things that it trains, text and images."""

from collections.abc import Callable, Iterable
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

import torch
from torch import Tensor, nn

if TYPE_CHECKING:
    from timm.utils import ModelEmaV3


class Task(Protocol):
    """A model, its data and its schedule, opened from a recipe in one of the run's processes."""

    model: Any  # with freshly initialised weights, on the CPU; the loop moves it
    steps: int  # updates of the whole run
    evaluate_every: int  # updates between two validations
    unit: str  # what an update takes, in plural ("tokens", "images")
    units_per_step: int  # how many of them, all processes together
    fingerprint: dict[str, Any]  # tells the data from others, such as a digest; checkpoints keep it
    fingerprint_error: str  # what to say when it differs; it goes on "that FOLDER was started on"

    def schedule(self, optimizer: torch.optim.Optimizer, done: int) -> Callable[[int], object]:
        """Set the learning rates of update `done` + 1; call the result with the updates made after each."""

    def average(self) -> "ModelEmaV3 | None":
        """The moving average of weights that training keeps, on the model's device; None without."""
        return None

    def record(self, folder: Path, done: int) -> None:
        """Note in the run folder what each update after `done` is made of, if the recipe asks for it."""
        return

    def batches(self, done: int) -> Iterable[tuple[Tensor, Tensor]]:
        """This process's inputs and targets of the updates after `done`, each a function of its number."""

    def loss(self, network: nn.Module, inputs: Tensor, targets: Tensor) -> Tensor:
        """The mean loss of a batch, a scalar to differentiate."""

    def validate(self, network: nn.Module, averaged: nn.Module | None) -> dict[str, float]:
        """Metrics on the validation data, the same in all processes; has "loss"."""

    def score(self, validation: dict[str, float]) -> float:
        """A figure of merit, lower is better, by which the best weights are kept. Default: the loss."""
        return validation["loss"]

    def shown_metrics(self, validation: dict[str, float]) -> str:
        """The validation metrics that the progress display shows, as one short text."""
        return f"validation {validation['loss']:.3f}"

    def begin(self, folder: Path) -> None:
        """Write what a run folder has before the first update."""

    def finish(
        self, folder: Path, averaged: nn.Module | None, validation: dict[str, float], step_seconds: float
    ) -> dict[str, Any]:
        """Write the trained model and its average, if there is one; the main process does this alone.

        The final metrics are made from the last validation and the median time of an update in seconds.
        """
