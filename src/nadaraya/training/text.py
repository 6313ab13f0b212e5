"""The text task: a language model, windows of the tokens of a corpus, cross-entropy in nats/token."""

import hashlib
import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import torch
from accelerate.utils import set_seed
from torch import Tensor, nn
from torch.nn import functional as F

from nadaraya.data import (
    Corpus,
    TokenShards,
    byte_tokenizer,
    load_corpus,
    train_byte_pair_tokenizer,
    train_character_tokenizer,
)
from nadaraya.data.shards import is_shards
from nadaraya.data.tokenizer import check_token_bytes, encode_text
from nadaraya.data.windows import (
    IGNORED,
    check_length,
    document_positions,
    num_windows,
    read_windows,
    spaced_numbers,
    spread_windows,
    training_batch,
    window_numbers,
)
from nadaraya.errors import must_be
from nadaraya.evaluation.generation import sample_text
from nadaraya.evaluation.language import TextEvaluation, evaluate_shards, evaluate_string, total_nats
from nadaraya.files import write_file, write_into
from nadaraya.models.quiet import without_bars
from nadaraya.names import CORPORA, means_path
from nadaraya.stored import Stored, read_lines
from nadaraya.training.folder import MODEL_FILE, SAMPLE_FILE, TEXT_FILE, WINDOWS_FILE
from nadaraya.training.metrics import append_record
from nadaraya.training.optimizer import make_schedule
from nadaraya.training.processes import Processes
from nadaraya.training.task import Task
from nadaraya.training.text_recipe import DataRecipe, Recipe


class TextData:
    """A corpus in memory, and windows of it at random places."""

    tokenizer: Any  # what made the tokens
    vocabulary: int  # number of tokens
    described: dict[str, Any]  # plain values for text.json
    fingerprint: dict[str, Any]  # as of a `Task`
    fingerprint_error = "the corpus is not the text"
    _train: Any
    _validation: Any

    def __init__(self, recipe: Recipe) -> None:
        data, self._recipe = recipe.data, recipe
        if data.record:
            raise must_be("recipe key data.record", "false where data.corpus has no token shards", True)
        corpus = load_corpus(data.corpus, **data.corpus_options())
        train_text, self._validation_text = corpus.split(data.validation_fraction)
        if data.tokenizer == "characters":
            self.tokenizer = train_character_tokenizer(corpus.text)
        elif data.tokenizer == "bytes":
            self.tokenizer = byte_tokenizer()
        else:
            chosen: dict[str, Any] = {} if data.vocabulary is None else {"vocabulary": data.vocabulary}
            self.tokenizer = train_byte_pair_tokenizer(train_text, **chosen)
        self.vocabulary = self.tokenizer.vocab_size
        self._train = encode_text(self.tokenizer, train_text)
        self._validation = encode_text(self.tokenizer, self._validation_text)
        self._describe(corpus)
        if data.tokenizer == "bpe":  # found again here, perhaps by another version of the library
            self.fingerprint["tokens_sha256"] = hashlib.sha256(self._train.numpy().tobytes()).hexdigest()
            self.fingerprint_error = "the corpus or its byte pairs are not those"

    def _describe(self, source: Corpus | TokenShards, **more: Any) -> None:
        """Keep what tells the text from others; refuse parts that are shorter than a window."""
        check_length(self._train, self._recipe.data.context, "training")
        check_length(self._validation, self._recipe.data.context, "validation")
        self.fingerprint = {"corpus_sha256": source.sha256}
        tokens = {"training_tokens": len(self._train), "validation_tokens": len(self._validation)}
        self.described = {"name": source.name, "sha256": source.sha256, **tokens, **more}

    def batch(self, update: int) -> tuple[Tensor, Tensor]:
        """Inputs and targets of one update, (B, context) each: a function of the seed and its number."""
        context, size = self._recipe.data.context, self._recipe.training.batch_size
        return training_batch(self._train, context, size, self._recipe.seed, update)

    def windows(self, update: int) -> list[int]:
        """Numbers of the windows of one update, where they have some."""
        return []

    def validation_sample(self, count: int) -> tuple[Tensor, Tensor]:
        """The same windows of the validation part every time, `count` of them or fewer."""
        rows = spread_windows(self._validation, self._recipe.data.context + 1, count)
        return rows[:, :-1], rows[:, 1:]

    def positions(self, inputs: Tensor) -> Tensor | None:
        """`position_ids` that keep documents apart; None where there are none, or they are joined."""
        return None

    def evaluate(self, model: nn.Module, batch_size: int) -> TextEvaluation:
        """Metrics of the whole validation part."""
        sizes = {"context": self._recipe.data.context, "batch_size": batch_size}
        return evaluate_string(model, self.tokenizer, self._validation_text, **sizes)


class ShardedText(TextData):
    """Token shards: every epoch takes each of their windows once."""

    fingerprint_error = "the token shards are not those"

    def __init__(self, recipe: Recipe, verify: bool) -> None:
        data, self._recipe = recipe.data, recipe
        if data.tokenizer == "bpe":  # the others are what recipes on text say
            accepted = "left out: data.corpus has token shards, with one"
            raise must_be("recipe key data.tokenizer", accepted, "bpe")
        for key in ("vocabulary", "validation_fraction", "limit", "wrap", "shuffle"):
            if (given := getattr(data, key)) != (default := getattr(DataRecipe(), key)):
                accepted = f"{default!r}, as it is where left out: data.corpus has token shards"
                raise must_be(f"recipe key data.{key}", accepted, given)
        if data.documents == "packed" and recipe.training.compile:
            accepted = "false where documents are packed (data.documents=joined compiles)"
            raise must_be("recipe key training.compile", accepted, recipe.training.compile)
        self._train = TokenShards(data.corpus, verify=verify)
        self._validation = TokenShards(data.corpus, "validation", verify=verify)
        self.tokenizer = self._train.tokenizer
        check_token_bytes(self.tokenizer)
        self.vocabulary = len(self.tokenizer)
        self._describe(
            self._train,
            shards=True,
            training_documents=self._train.num_documents,
            validation_documents=self._validation.num_documents,
        )

    def batch(self, update: int) -> tuple[Tensor, Tensor]:
        return read_windows(self._train, np.array(self.windows(update)), self._recipe.data.context)

    def windows(self, update: int) -> list[int]:
        count = num_windows(len(self._train), self._recipe.data.context)
        size, seed = self._recipe.training.batch_size, self._recipe.seed
        numbers: list[int] = window_numbers(count, size, seed, update).tolist()
        return numbers

    def validation_sample(self, count: int) -> tuple[Tensor, Tensor]:
        context = self._recipe.data.context
        numbers = spaced_numbers(num_windows(len(self._validation), context), count)
        return read_windows(self._validation, numbers, context)

    def positions(self, inputs: Tensor) -> Tensor | None:
        packed = self._recipe.data.documents == "packed"
        return document_positions(inputs, self._train.document_token) if packed else None

    def evaluate(self, model: nn.Module, batch_size: int) -> TextEvaluation:
        sizes = {"context": self._recipe.data.context, "batch_size": batch_size}
        return evaluate_shards(model, self._validation, documents=self._recipe.data.documents, **sizes)


def open_text(recipe: Recipe, verify: bool) -> TextData:
    """The text of a recipe; `verify` reads all of the token shards and compares them with their digests."""
    corpus = recipe.data.corpus
    sharded = means_path(corpus, CORPORA.__contains__) and is_shards(corpus)
    return ShardedText(recipe, verify) if sharded else TextData(recipe)


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
