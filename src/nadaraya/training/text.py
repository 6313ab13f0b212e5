"""The text task: a language model, windows of the tokens of a corpus, cross-entropy in nats/token."""

import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import torch
from accelerate.utils import set_seed
from torch import Tensor, nn
from torch.nn import functional as F

from nadaraya.data.windows import IGNORED
from nadaraya.evaluation.generation import sample_text
from nadaraya.evaluation.language import total_nats
from nadaraya.files import write_file, write_into
from nadaraya.models.quiet import without_bars
from nadaraya.stored import Stored, read_lines
from nadaraya.training.folder import MODEL_FILE, SAMPLE_FILE, TEXT_FILE, WINDOWS_FILE
from nadaraya.training.metrics import append_record
from nadaraya.training.optimizer import make_schedule
from nadaraya.training.processes import Processes
from nadaraya.training.task import Task
from nadaraya.training.text_data import TextData, open_text
from nadaraya.training.text_recipe import Recipe


class TextTask(Task):
    """A `Task` on text; `text` is that of the recipe where it is open already."""

    unit = "tokens"

    def __init__(self, recipe: Recipe, processes: Processes, text: TextData | None = None) -> None:
        self._recipe, self._processes = recipe, processes
        self._text = open_text(recipe, verify=processes.is_main_process) if text is None else text
        self._record: Path | None = None
        set_seed(recipe.seed)
        self.model = recipe.build_model(self._text.vocabulary)
        options = recipe.training
        self.steps, self.evaluate_every = options.steps, options.evaluate_every
        self.units_per_step = options.batch_size * recipe.data.context
        self.fingerprint, self.fingerprint_error = self._text.fingerprint, self._text.fingerprint_error
        self._piece = options.batch_size // (options.pieces(processes.count) * processes.count)

    def schedule(self, optimizer: torch.optim.Optimizer, done: int) -> Callable[[int], object]:
        scheduler = make_schedule(optimizer, self._recipe.training, done)
        return lambda updates: scheduler.step()

    def record(self, folder: Path, done: int) -> None:
        if self._recipe.data.record:
            self._record = folder / WINDOWS_FILE
            keep_windows(self._record, done)

    def batches(self, done: int) -> Iterator[tuple[Tensor, Tensor]]:
        rank, count = self._processes.rank, self._processes.count
        for step in range(done + 1, self.steps + 1):
            if self._record:  # those of all processes, before the update is made
                append_record(self._record, {"update": step, "windows": self._text.windows(step)})
            inputs, targets = self._text.batch(step)
            inputs, targets = inputs.chunk(count)[rank], targets.chunk(count)[rank]
            if self._processes.device.type == "cuda":  # only page-locked memory is copied without waiting
                inputs, targets = inputs.pin_memory(), targets.pin_memory()
            yield inputs, targets

    def loss(self, network: nn.Module, inputs: Tensor, targets: Tensor) -> Tensor:
        """Nats/token.

        The sum is divided by all places: that of a window which has fewer targets is the same part of the
        update, however many processes and pieces share it.
        """
        positions = self._text.positions(inputs)
        packed = {} if positions is None else {"position_ids": positions}
        logits: Any = network(input_ids=inputs, use_cache=False, **packed).logits
        nats = F.cross_entropy(logits.flatten(0, 1).float(), targets.flatten(), reduction="sum")
        return nats / targets.numel()

    def validate(self, network: nn.Module, averaged: nn.Module | None) -> dict[str, float]:
        """Nats/token on the fixed validation sample, whose windows the processes share out."""
        count = self._recipe.training.validation_batches * self._recipe.training.batch_size
        inputs, targets = self._text.validation_sample(count)
        share = slice(self._processes.rank, None, self._processes.count)
        pairs = zip(inputs[share].split(self._piece), targets[share].split(self._piece), strict=True)
        nats = sum(total_nats(network, x, y, self._text.positions(x)) for x, y in pairs if len(x))
        return {"loss": self._processes.total(nats) / int((targets != IGNORED).sum())}

    def begin(self, folder: Path) -> None:
        self._text.tokenizer.save_pretrained(folder)
        write_file(folder / TEXT_FILE, json.dumps(self._text.described, indent=1))

    def finish(
        self, folder: Path, averaged: nn.Module | None, validation: dict[str, float], step_seconds: float
    ) -> dict[str, Any]:
        """The model and a sample; metrics of the whole validation text."""
        length = self._recipe.training.sample_characters
        result = self._text.evaluate(self.model, self._piece)
        if length:
            sample = sample_text(self.model, self._text.tokenizer, length, self._recipe.seed)
            write_file(folder / SAMPLE_FILE, sample)
        with write_into(folder, MODEL_FILE) as scratch, without_bars():
            self.model.save_pretrained(scratch)
        return {"loss": result.cross_entropy, "bits_per_byte": result.bits_per_byte}


class _Update(Stored):
    update: int


def keep_windows(path: Path, done: int) -> None:
    """Drop from a windows.jsonl the lines of updates after `done`, which are made again."""
    lines = read_lines(path, _Update, "the windows of a run")
    write_file(path, "".join(f"{line}\n" for line, made in lines if made.update <= done))
