"""The text of a recipe: a corpus in memory, or token shards on the disk."""

import hashlib
from typing import Any, Protocol

import numpy as np
from torch import Tensor, nn

from nadaraya.data import (
    TokenShards,
    byte_tokenizer,
    document_positions,
    encode_text,
    is_shards,
    load_corpus,
    num_windows,
    read_windows,
    train_byte_pair_tokenizer,
    train_character_tokenizer,
    window_numbers,
)
from nadaraya.data.batches import check_length, spaced_numbers, training_batch, validation_sample
from nadaraya.data.tokenizer import check_token_bytes
from nadaraya.errors import must_be
from nadaraya.evaluation.language import TextEvaluation, evaluate_string
from nadaraya.evaluation.shards import evaluate_shards
from nadaraya.names import CORPORA, means_path
from nadaraya.training.text_recipe import DataRecipe, Recipe


class TextData(Protocol):
    """Tokens to train and to validate on.

    Attributes:
        tokenizer: what made them.
        vocabulary: number of tokens.
        described: plain values for text.json.
        fingerprint, fingerprint_error: as of a `Task`.
    """

    tokenizer: Any
    vocabulary: int
    described: dict[str, Any]
    fingerprint: dict[str, Any]
    fingerprint_error: str

    def batch(self, update: int) -> tuple[Tensor, Tensor]:
        """Inputs and targets of one update, (B, context) each: a function of the seed and its number."""
        ...

    def windows(self, update: int) -> list[int]:
        """Numbers of the windows of one update, where they have some."""
        return []

    def validation_sample(self, count: int) -> tuple[Tensor, Tensor]:
        """The same windows of the validation part every time, `count` of them or fewer."""
        ...

    def positions(self, inputs: Tensor) -> Tensor | None:
        """`position_ids` that keep documents apart; None where there are none, or they are joined."""
        return None

    def evaluate(self, model: nn.Module, batch_size: int) -> TextEvaluation:
        """Metrics of the whole validation part."""
        ...


def open_text(recipe: Recipe, verify: bool) -> TextData:
    """The text of a recipe; `verify` reads all of the token shards and compares them with their digests."""
    corpus = recipe.data.corpus
    sharded = means_path(corpus, CORPORA.__contains__) and is_shards(corpus)
    return _ShardedText(recipe, verify) if sharded else _TextInMemory(recipe)


class _TextInMemory(TextData):
    """A corpus, and windows of it at random places."""

    fingerprint_error = "the corpus is not the text"

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
        check_length(self._train, data.context, "training")
        check_length(self._validation, data.context, "validation")
        self.fingerprint = {"corpus_sha256": corpus.sha256}
        if data.tokenizer == "bpe":  # found again here, perhaps by another version of the library
            self.fingerprint["tokens_sha256"] = hashlib.sha256(self._train.numpy().tobytes()).hexdigest()
            self.fingerprint_error = "the corpus or its byte pairs are not those"
        self.described = {
            "name": corpus.name,
            "sha256": corpus.sha256,
            "training_tokens": len(self._train),
            "validation_tokens": len(self._validation),
        }

    def batch(self, update: int) -> tuple[Tensor, Tensor]:
        context, size = self._recipe.data.context, self._recipe.training.batch_size
        return training_batch(self._train, context, size, self._recipe.seed, update)

    def validation_sample(self, count: int) -> tuple[Tensor, Tensor]:
        return validation_sample(self._validation, self._recipe.data.context, count)

    def evaluate(self, model: nn.Module, batch_size: int) -> TextEvaluation:
        sizes = {"context": self._recipe.data.context, "batch_size": batch_size}
        return evaluate_string(model, self.tokenizer, self._validation_text, **sizes)


class _ShardedText(TextData):
    """Token shards: every epoch takes each of their windows once."""

    fingerprint_error = "the token shards are not those"

    def __init__(self, recipe: Recipe, verify: bool) -> None:
        data, self._recipe = recipe.data, recipe
        if data.tokenizer == "bpe":  # the others are what recipes on text say
            raise must_be(
                "recipe key data.tokenizer", "left out: data.corpus has token shards, with one", "bpe"
            )
        for key in ("vocabulary", "validation_fraction", "limit", "wrap", "shuffle"):
            if (given := getattr(data, key)) != (default := getattr(DataRecipe(), key)):
                accepted = f"{default!r}, as it is where left out: data.corpus has token shards"
                raise must_be(f"recipe key data.{key}", accepted, given)
        if data.documents == "packed" and recipe.training.compile:
            accepted = "false where documents are packed (data.documents=joined compiles)"
            raise must_be("recipe key training.compile", accepted, recipe.training.compile)
        self._train = TokenShards(data.corpus, verify=verify)
        self._validation = TokenShards(data.corpus, "validation", verify=verify)
        check_length(self._train, data.context, "training")
        check_length(self._validation, data.context, "validation")
        self.tokenizer = self._train.tokenizer
        check_token_bytes(self.tokenizer)
        self.vocabulary = len(self.tokenizer)
        self.fingerprint = {"corpus_sha256": self._train.sha256}
        self.described = {
            "name": self._train.name,
            "sha256": self._train.sha256,
            "shards": True,
            "training_tokens": len(self._train),
            "validation_tokens": len(self._validation),
            "training_documents": self._train.num_documents,
            "validation_documents": self._validation.num_documents,
        }

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
