"""Run folders, read: the recipe, the metrics, the trained model and what it started from."""

from collections.abc import Iterator
from contextlib import contextmanager
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file

from nadaraya.errors import InputError
from nadaraya.training.image_recipe import ImageRecipe
from nadaraya.training.metrics import read_metrics
from nadaraya.training.recipe import Recipe, read_mapping
from nadaraya.training.sections import parse_yaml

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerFast

    from nadaraya.data import Corpus
    from nadaraya.models import KernelGPTForCausalLM

RECIPE_FILE = "config.yaml"
METRICS_FILE = "metrics.jsonl"
MODEL_FILE = "model.safetensors"
INITIAL_KERNELS_FILE = "initial_kernels.safetensors"
SAMPLE_FILE = "sample.txt"
STATE_FOLDER = "training_state"


class Run:
    """A run folder that `train` made.

    Args:
        path: the folder.

    Attributes:
        path: the folder.
        recipe: the resolved recipe that it was trained from.

    Raises:
        InputError: it is not one.
    """

    def __init__(self, path: str | Path) -> None:
        self.path = Path(path)
        self.recipe = read_recipe(self.path)

    def __repr__(self) -> str:
        return f"Run({str(self.path)!r})"

    @property
    def name(self) -> str:
        """The name in its recipe."""
        return self.recipe.name

    @cached_property
    def metrics(self) -> list[dict[str, Any]]:
        """Every record of metrics.jsonl, oldest first."""
        return read_metrics(self.path / METRICS_FILE)

    def series(self, kind: str) -> list[dict[str, Any]]:
        """The records of one kind: "train", "validation" or "final"."""
        return [record for record in self.metrics if record["kind"] == kind]

    @property
    def final(self) -> dict[str, Any] | None:
        """The last record of a finished run (loss, bits_per_byte, parameters, …); None before that."""
        return next(iter(self.series("final")), None)

    @property
    def sample(self) -> str | None:
        """The text generated at the end of training, prompt included; None when there is none."""
        path = self.path / SAMPLE_FILE
        return path.read_text(encoding="utf-8") if path.is_file() else None

    def tokenizer(self) -> "PreTrainedTokenizerFast":
        """The tokenizer of the run."""
        from nadaraya.data import tokenizer_from_file

        return tokenizer_from_file(self.path)

    def corpus(self) -> "Corpus":
        """The text of the run, training and validation parts together, loaded again from its source."""
        from nadaraya.data import load_corpus

        return load_corpus(self.recipe.data.corpus, limit=self.recipe.data.limit)

    def load_model(self, initial: bool = False) -> "KernelGPTForCausalLM":
        """The trained model, in eval mode, on the CPU.

        Args:
            initial: put the kernel parameters back to what they were before training; all else stays trained.

        Returns:
            The model.

        Raises:
            InputError: the run is not finished, or a file is damaged or does not belong to it.
        """
        from nadaraya.models import KernelGPTForCausalLM

        path = self.path / MODEL_FILE
        if self.final is None or not path.is_file():
            done = max((record["step"] for record in self.metrics), default=0)
            raise InputError(
                f"{self.path} has no trained model yet (step {done} of {self.recipe.training.steps}): run "
                "the same `nadaraya train` command again to finish it"
            )
        try:
            with without_bars():
                loaded: Any = KernelGPTForCausalLM.from_pretrained(
                    self.path, local_files_only=True, use_safetensors=True, output_loading_info=True
                )
        except (OSError, SafetensorError, RuntimeError, ValueError, KeyError) as error:
            raise InputError(
                f"{path} cannot be read: {(str(error).splitlines() or ['damaged'])[0]}"
            ) from error
        model, report = loaded
        if report["missing_keys"]:
            raise InputError(f"{path} is damaged: it lacks {sorted(report['missing_keys'])[0]}")
        if initial:
            self._restore_initial_kernels(model)
        model.eval()
        return model

    @torch.no_grad()
    def _restore_initial_kernels(self, model: "KernelGPTForCausalLM") -> None:
        path = self.path / INITIAL_KERNELS_FILE
        try:
            values = load_file(path)
            for name, parameter in model.kernel_parameters():
                parameter.copy_(values[name])
        except (OSError, SafetensorError, KeyError, RuntimeError) as error:
            raise InputError(
                f"{path} cannot be read as the initial kernels of this model: {error}"
            ) from error


@contextmanager
def without_bars() -> Iterator[None]:
    """Keep transformers from drawing a progress bar for a file that takes a blink."""
    from transformers.utils import logging

    shown = logging.is_progress_bar_enabled()
    logging.disable_progress_bar()
    try:
        yield
    finally:
        if shown:
            logging.enable_progress_bar()


def read_recipe(folder: Path) -> Recipe | ImageRecipe:
    """The recipe of a run folder.

    Raises:
        InputError: the folder has none, or it cannot be read.
    """
    path = folder / RECIPE_FILE
    if not path.is_file():
        raise InputError(f"{folder} is not a run folder: it has no {RECIPE_FILE}")
    try:
        mapping = parse_yaml(path.read_text(encoding="utf-8"), str(path))
    except (OSError, UnicodeDecodeError) as error:
        raise InputError(f"{path} cannot be read: {error}") from error
    if not isinstance(mapping, dict):
        raise InputError(f"{path} is not a recipe")
    return read_mapping(mapping)
