"""The text task: a language model, windows of the tokens of a corpus, cross-entropy in nats/token."""

import hashlib
import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import torch
from accelerate.utils import set_seed
from torch import Tensor, nn
from torch.nn import functional as F

from nadaraya.data import (
    byte_tokenizer,
    encode_text,
    load_corpus,
    train_byte_pair_tokenizer,
    train_character_tokenizer,
)
from nadaraya.evaluation.generation import sample_text
from nadaraya.evaluation.language import evaluate_string, total_nats
from nadaraya.files import write_file, write_into
from nadaraya.training.batches import check_length, training_batch, validation_sample
from nadaraya.training.folder import MODEL_FILE, SAMPLE_FILE, TEXT_FILE
from nadaraya.training.optimizer import make_schedule
from nadaraya.training.processes import Processes
from nadaraya.training.recipe import Recipe
from nadaraya.training.run import without_bars


class TextTask:
    """A `Task` on text."""

    unit = "tokens"
    fingerprint_error: str = "the corpus is not the text"

    def __init__(self, recipe: Recipe, processes: Processes) -> None:
        self._recipe, self._processes = recipe, processes
        corpus = load_corpus(recipe.data.corpus, limit=recipe.data.limit)
        self._name = corpus.name
        train_text, self._validation_text = corpus.split(recipe.data.validation_fraction)
        if recipe.data.tokenizer == "characters":
            self._tokenizer = train_character_tokenizer(corpus.text)
        elif recipe.data.tokenizer == "bytes":
            self._tokenizer = byte_tokenizer()
        else:
            self._tokenizer = train_byte_pair_tokenizer(train_text, **recipe.data.byte_pair_options())
        self._train = encode_text(self._tokenizer, train_text)
        self._validation = encode_text(self._tokenizer, self._validation_text)
        for part, tokens in (("training", self._train), ("validation", self._validation)):
            check_length(tokens, recipe.data.context, part)
        set_seed(recipe.seed)
        self.model = recipe.build_model(self._tokenizer.vocab_size)
        options = recipe.training
        self.steps, self.evaluate_every = options.steps, options.evaluate_every
        self.units_per_step = options.batch_size * recipe.data.context
        self.fingerprint: dict[str, Any] = {"corpus_sha256": corpus.sha256}
        if recipe.data.tokenizer == "bpe":  # found again here, perhaps by another version of the library
            self.fingerprint["tokens_sha256"] = hashlib.sha256(self._train.numpy().tobytes()).hexdigest()
            self.fingerprint_error = "the corpus or its byte pairs are not those"
        self._piece = options.batch_size // (options.pieces(processes.count) * processes.count)

    def schedule(self, optimizer: torch.optim.Optimizer, done: int) -> Callable[[int], None]:
        """Linear warm-up and cosine decay."""
        scheduler = make_schedule(optimizer, self._recipe.training, done)
        return lambda updates: scheduler.step()

    def average(self) -> None:
        """Language models keep no average of their weights."""

    def batches(self, done: int) -> Iterator[tuple[Tensor, Tensor]]:
        """Windows of the training text: this process's share of each batch, (B / processes, context) each."""
        options, context = self._recipe.training, self._recipe.data.context
        rank, count = self._processes.rank, self._processes.count
        for step in range(done + 1, options.steps + 1):
            inputs, targets = training_batch(
                self._train, context, options.batch_size, self._recipe.seed, step
            )
            inputs, targets = inputs.chunk(count)[rank], targets.chunk(count)[rank]
            if self._processes.device.type == "cuda":  # only page-locked memory is copied without waiting
                inputs, targets = inputs.pin_memory(), targets.pin_memory()
            yield inputs, targets

    def loss(self, network: nn.Module, inputs: Tensor, targets: Tensor) -> Tensor:
        """Nats/token."""
        logits: Any = network(input_ids=inputs, use_cache=False).logits
        return F.cross_entropy(logits.flatten(0, 1).float(), targets.flatten())

    def validate(self, network: nn.Module, averaged: nn.Module | None) -> dict[str, float]:
        """Nats/token on the fixed validation sample, whose windows the processes share out."""
        count = self._recipe.training.validation_batches * self._recipe.training.batch_size
        inputs, targets = validation_sample(self._validation, self._recipe.data.context, count)
        share = slice(self._processes.rank, None, self._processes.count)
        pairs = zip(inputs[share].split(self._piece), targets[share].split(self._piece), strict=True)
        nats = sum(total_nats(network, x, y) for x, y in pairs if len(x))
        return {"loss": self._processes.total(nats) / targets.numel()}

    def score(self, validation: dict[str, float]) -> float:
        """The loss."""
        return validation["loss"]

    def shown_metrics(self, validation: dict[str, float]) -> str:
        """The loss."""
        return f"validation {validation['loss']:.3f}"

    def begin(self, folder: Path) -> None:
        """The tokenizer, and what the text is."""
        self._tokenizer.save_pretrained(folder)
        described = {
            "name": self._name,
            "sha256": self.fingerprint["corpus_sha256"],
            "training_tokens": len(self._train),
            "validation_tokens": len(self._validation),
        }
        write_file(folder / TEXT_FILE, json.dumps(described, indent=1))

    def finish(
        self, folder: Path, averaged: nn.Module | None, validation: dict[str, float], step_seconds: float
    ) -> dict[str, Any]:
        """The model and a sample; figures of the whole validation text."""
        context, length = self._recipe.data.context, self._recipe.training.sample_characters
        result = evaluate_string(
            self.model, self._tokenizer, self._validation_text, context=context, batch_size=self._piece
        )
        if length:
            sample = sample_text(self.model, self._tokenizer, length, self._recipe.seed)
            write_file(folder / SAMPLE_FILE, sample)
        with write_into(folder, MODEL_FILE) as scratch, without_bars():
            self.model.save_pretrained(scratch)
        return {"loss": result.cross_entropy, "bits_per_byte": result.bits_per_byte}
